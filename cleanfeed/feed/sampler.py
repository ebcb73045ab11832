"""A curriculum and the size of a global batch go in; this rank's micro-batches come out, for torch's DataLoader."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from cleanfeed.arguments import check_bool, check_list, check_whole
from cleanfeed.errors import MisuseError, ResumeError, one_line
from cleanfeed.feed.batches import Batches
from cleanfeed.feed.catalog import StageEntry
from cleanfeed.feed.exclusions import Exclusions
from cleanfeed.feed.identity import HasColumns, SampleHashes, batch_hash, hash_bytes
from cleanfeed.feed.order import ORDER_VERSION
from cleanfeed.feed.permutation import Int64
from cleanfeed.feed.schedule import NOWHERE, Reader, rank_part
from cleanfeed.feed.segments import StagePlan, stage_plan
from cleanfeed.feed.shares import make_schedule, micro_sizes, this_rank
from cleanfeed.feed.state import STATE_VERSION, check_state

log = logging.getLogger("cleanfeed")


class Place(NamedTuple):
    """Where a sample is trained."""

    epoch: int
    slot: int
    row: int
    """Row number in the curriculum, as in ``sample_ids``."""


class Quarantined(NamedTuple):
    """What a call of ``quarantine`` did."""

    added: int
    """Hashes that were not quarantined before."""
    already: int
    unknown: tuple[str, ...]
    """Hashes of no sample of this curriculum, which change nothing."""


class CurriculumSampler(Sampler[list[int]]):
    """Batch sampler over a curriculum: exact, the same on any number of ranks, resumed in no time.

    A *slot* is one global batch and one optimizer step; which rows it holds is a pure function of curriculum, seed,
    global batch, lanes and schedule (docs/order.md). Iterating yields this rank's micro-batches as lists of indices
    for ``Curriculum``: row numbers, ``~row`` for a quarantined row, ``FILLER`` for a pad row.

    There are two cursors. *Issued* runs ahead with the loader's workers. *Committed* says what was trained: call
    :meth:`commit` after each optimizer step (``TrainingGuard`` does it). State is taken from the committed cursor,
    and a new iterator starts there, so that what was only prefetched comes again.

    Args:
        curriculum: The samples; a ``cleanfeed.Curriculum``.
        global_batch: Rows of a slot over all ranks.
        micro_batch: Rows of a micro-batch on one rank; by default all rows that the rank has of a slot.
        batch_tokens: Instead of ``global_batch``: tokens (code points without a tokenizer) of a slot, if every sample
            were as long as its stage allows. Rows per slot differ by stage, and no slot crosses a stage.
        micro_tokens: With ``batch_tokens``, instead of ``micro_batch``: tokens of a micro-batch counted in the same
            way, so that micro-batches of short samples have more rows.
        seed: Decides the order of every epoch but the first, which is as written.
        epochs: How often each sample is trained; one iteration runs through all epochs.
        rank: Of this process; by default of ``torch.distributed``, else of the environment torchrun sets, else 0.
        world_size: Number of ranks, likewise.
        lanes: Row groups that are read side by side. ``world_size`` must divide them and they the global batch; part
            of the order. Default: the largest power of two up to 64 that divides the global batch.
        drop_last: Leave out what does not fill the last slot, and say how many; else fill it up with pad rows.
        schedule: ``"sequential"``; ``"blend:P"``, the next stage mixes in over the last P % of each; ``"cycle:N"``,
            all stages in turn, N times an epoch.

    Raises:
        MisuseError: Sizes do not fit each other; the message says which would.
    """

    def __init__(
        self,
        curriculum: HasColumns,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        *,
        batch_tokens: int | None = None,
        seed: int = 0,
        epochs: int = 1,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
        drop_last: bool = True,
        micro_tokens: int | None = None,
        schedule: str | StagePlan = "sequential",
    ) -> None:
        if not hasattr(curriculum, "catalog"):
            raise MisuseError(
                one_line("not a curriculum", "curriculum", repr(curriculum), todo="Give a Curriculum(path).")
            )
        check_bool("CurriculumSampler", "drop_last", drop_last)
        for name, value in (("rank", rank), ("world_size", world_size)):
            if value is not None:
                check_whole("CurriculumSampler", name, value)
        self.curriculum = curriculum
        self.rank, self.world_size = this_rank(rank, world_size)
        sizes = {
            "global_batch": global_batch,
            "batch_tokens": batch_tokens,
            "lanes": lanes,
            "seed": seed,
            "epochs": epochs,
        }
        self.schedule = make_schedule(
            curriculum.catalog, sizes, self.world_size, drop_last=drop_last, plan=stage_plan(schedule)
        )
        self.global_batch = None if global_batch is None else int(global_batch)
        self.batch_tokens = None if batch_tokens is None else int(batch_tokens)
        self.seed, self.epochs = self.schedule.seed, self.schedule.epochs
        self.lanes, self.drop_last = self.schedule.lanes, self.schedule.drop_last
        self._micro = micro_sizes(self.schedule, self.world_size, micro_batch, micro_tokens)
        self.micro_batch = min(self._micro.values())
        self.exclusions = Exclusions(self.schedule)
        self._hashes = SampleHashes(curriculum)
        self._committed = 0
        self._issued: deque[list[int]] = deque()
        """Slots given out since the last commit, as runs [first, last]."""
        self.generation = 0
        """Changes when live iterators become stale."""
        self._reader = Reader(self.schedule)
        if self.dropped and self.rank == 0:
            log.warning(
                "%d of %d samples of the run are left out: they do not fill a slot (drop_last=True)",
                self.dropped,
                epochs * curriculum.catalog.samples,
            )

    # What a run is.

    @property
    def n_slots(self) -> int:
        """Global batches of the whole run, skipped ones included."""
        return self.schedule.n_slots

    @property
    def dropped(self) -> int:
        """Times that a sample is left out because it does not fill a slot, over all epochs."""
        return self.schedule.dropped

    def __len__(self) -> int:
        """Return this rank's micro-batches of the whole run, from its first slot on, without excluded slots."""
        return self._count(0, self.n_slots - 1) - sum(
            self._count(first, last) for first, last in self.exclusions.holes
        )

    def _count(self, first: int, last: int) -> int:
        sizes = self.schedule.sizes(first, last)
        return sum(self._batches(size) * slots for size, slots in sizes.items())

    def _batches(self, size: int) -> int:
        return size // self.world_size // self._micro[size]

    def micro_rows(self, size: int) -> int:
        """Return the rows of a micro-batch of a slot of this size."""
        return self._micro[size]

    # What a slot holds.

    def slot_rows(self, slot: int) -> Int64:
        """Return the indices of a slot in global order, shape [rows of the slot]; negative ones are pad rows."""
        block, at = self._reader.at(self._checked(slot))
        return self.exclusions.blanked(block.rows[at].copy())

    def rank_rows(self, slot: int, rank: int | None = None) -> Int64:
        """Return the indices of a slot that are a rank's (default: this one's), in slot order."""
        block, at = self._reader.at(self._checked(slot))
        rank = self.rank if rank is None else rank
        return self.exclusions.blanked(block.rows[at, rank_part(block, at, rank, self.world_size)].copy())

    def micro_batches(self, slot: int) -> int:
        """Return how many micro-batches each rank has of a slot."""
        block, _ = self._reader.at(self._checked(slot))
        return self._batches(block.rows.shape[1])

    def epoch_of(self, slot: int) -> int:
        """Return the epoch of a slot (of its first row), from 0."""
        return self.schedule.epoch(self._checked(slot))

    def stage_of(self, slot: int) -> int:
        """Return the index of the stage of a slot's first row."""
        return self._stage(slot).index

    def band_of(self, slot: int) -> str:
        """Return the name of the band of a slot's first row."""
        return self._stage(slot).band

    def _stage(self, slot: int) -> StageEntry:
        block, at = self._reader.at(self._checked(slot))
        catalog = self.curriculum.catalog
        return catalog.stages[int(catalog.stages_at(block.rows[at, :1])[0])]

    def next_slot(self, slot: int) -> int | None:
        """Return the first slot from this one on that is not excluded; None at the end of the run."""
        return self.exclusions.next_slot(slot)

    def batch_hash(self, slot: int) -> str:
        """Return the hash of a global batch, 32 hex digits: the same on every rank."""
        return batch_hash(self._hashes.of(self.slot_rows(slot)))

    def sample_hashes(self, slot: int) -> list[str]:
        """Return the sample hashes of a slot in global order, 32 hex digits each, all zeros for a pad row."""
        return [one.tobytes().hex() for one in self._hashes.of(self.slot_rows(slot))]

    def _checked(self, slot: int) -> int:
        check_whole("sampler", "slot", slot)
        if not 0 <= slot < self.n_slots:
            raise MisuseError(one_line("no such slot", "slot", str(slot), f"0 to {self.n_slots - 1}"))
        return slot

    # Where a sample is.

    def locate(self, sample_hash: str | bytes) -> Place | None:
        """Return where a sample is first trained: epoch, slot and row; None where the run leaves it out.

        Raises:
            MisuseError: The curriculum holds no such sample.
        """
        one = hash_bytes(sample_hash)
        if not self._hashes.rows_of([one])[one]:
            path = self.curriculum.catalog.path
            raise MisuseError(one_line("no such sample in the curriculum", path, one.hex()))
        return min(self.slots_of([one])[one.hex()], key=lambda place: place.slot, default=None)

    def slots_of(self, hashes: Iterable[str | bytes]) -> dict[str, list[Place]]:
        """Return every place of each sample, by hash in hex, epoch by epoch; none where there is no such sample.

        One pass over the column of hashes finds all that were not looked up before.
        """
        check_list("slots_of", "hashes", hashes, "sample hashes")
        rows_of = self._hashes.rows_of([hash_bytes(one) for one in hashes])
        rows = np.array([row for rows in rows_of.values() for row in rows], dtype=np.int64)
        owners = [one.hex() for one, found in rows_of.items() for _ in found]
        places: dict[str, list[Place]] = {one.hex(): [] for one in rows_of}
        for epoch in range(self.epochs if len(rows) else 0):
            slots, _ = self.schedule.places(rows, epoch)
            for owner, slot, row in zip(owners, slots.tolist(), rows.tolist(), strict=True):
                if slot != NOWHERE:
                    places[owner].append(Place(epoch, slot, row))
        return places

    # What is left out.

    def skip(self, first: int, last: int) -> None:
        """Leave out the slots from ``first`` to ``last``, both included, from what is issued from now on."""
        check_whole("skip", "first", first)
        check_whole("skip", "last", last)
        if not 0 <= first <= last < self.n_slots:
            raise MisuseError(
                one_line(
                    "no such slots", "skip", f"{first} to {last}", f"0 to {self.n_slots - 1}, first <= last"
                )
            )
        self.exclusions.skip(first, last)

    def unskip(self, first: int, last: int) -> None:
        """Take slots out of the skip ranges again."""
        check_whole("unskip", "first", first)
        check_whole("unskip", "last", last, first)
        self.exclusions.unskip(first, last)

    def quarantine(self, hashes: Iterable[str | bytes]) -> Quarantined:
        """Blank samples wherever they come, in what is issued from now on; a slot of only such samples is skipped.

        Raises:
            MisuseError: One is no sample hash; none is taken.
        """
        check_list("quarantine", "hashes", hashes, "sample hashes")
        wanted = dict.fromkeys(hash_bytes(one) for one in hashes)
        new = [one for one in wanted if one not in self.exclusions.hashes]
        rows = self._hashes.rows_of(new)
        known = {one: found for one, found in rows.items() if found}
        if known:
            self.exclusions.quarantine(known)
        unknown = tuple(one.hex() for one in new if one not in known)
        return Quarantined(len(known), len(wanted) - len(new), unknown)

    def release(self, hashes: Iterable[str | bytes]) -> int:
        """Take samples out of the quarantine; return how many were in it."""
        check_list("release", "hashes", hashes, "sample hashes")
        return self.exclusions.release([hash_bytes(one) for one in hashes])

    def excluded_by(self, hashes: Iterable[str | bytes], ranges: Iterable[tuple[int, int]]) -> int:
        """Return how often a sample is left out over the run by some hashes and skip ranges alone.

        Args:
            hashes: Quarantined sample hashes; those of no sample of this curriculum count for nothing.
            ranges: First and last slot of each skip range, both included; what lies beyond the run does not count.
        """
        alone = Exclusions(self.schedule)
        rows = self._hashes.rows_of([hash_bytes(one) for one in hashes])
        alone.quarantine({one: found for one, found in rows.items() if found})
        alone.add_state({"skipped": [list(one) for one in ranges], "quarantined": {}})
        return alone.samples()

    # Where training is.

    @property
    def committed(self) -> int:
        """The next slot to train: everything before it is done."""
        return self._committed

    @property
    def issued(self) -> int:
        """The next slot to give out: runs ahead of ``committed`` with what is prefetched."""
        return self._issued[-1][1] + 1 if self._issued else self._committed

    def commit(self, slot: int | None = None) -> int:
        """Say that a slot was trained, and with it all before it; return it.

        Args:
            slot: By default the oldest that was issued and not committed.

        Raises:
            MisuseError: It was committed before, or nothing is issued.
        """
        if slot is None:
            if not self._issued:
                raise MisuseError(
                    one_line("nothing to commit", "commit", "no slot issued since the last commit")
                )
            slot = self._issued[0][0]
        check_whole("commit", "slot", slot)
        if not self._committed <= slot < self.n_slots:
            expected = f"{self._committed} to {self.n_slots - 1}"
            raise MisuseError(one_line("a slot that cannot be committed now", "commit", str(slot), expected))
        self._committed = slot + 1
        while self._issued and self._issued[0][1] <= slot:
            self._issued.popleft()
        if self._issued:
            self._issued[0][0] = max(self._issued[0][0], slot + 1)
        return slot

    def __iter__(self) -> Batches:
        """Return a new iterator from the committed cursor; one that is still live becomes stale."""
        self.generation += 1
        self._issued.clear()
        return Batches(self, self.generation)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run as JSON-able values of its own, the same on every rank.

        It says what was *committed* and what is excluded. Taking it changes nothing.
        """
        return {
            "version": STATE_VERSION,
            "order_version": ORDER_VERSION,
            "curriculum": self.curriculum.catalog.digest,
            "seed": self.seed,
            "lanes": self.lanes,
            "global_batch": self.global_batch,
            "batch_tokens": self.batch_tokens,
            "schedule": str(self.schedule.plan),
            "epochs": self.epochs,
            "drop_last": self.drop_last,
            "committed": self._committed,
            **self.exclusions.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any], keep_exclusions: bool = False) -> None:
        """Go on where a state was taken, on any number of ranks; iterators made before become stale.

        Args:
            state: What :meth:`state_dict` returned, perhaps by way of JSON.
            keep_exclusions: Leave the exclusions as they are now, for a rollback: what was found out since the state
                was taken does not roll back. Else those of the state are added to the present ones.

        Raises:
            ResumeError: The state is of another curriculum, seed, lanes, batch, schedule or order version, or of a
                run whose slots differ up to the cursor. Nothing has changed then.
        """
        check_state(state, self.state_dict())
        committed = int(state["committed"])
        common = self.schedule.common_slots(state["epochs"], state["drop_last"])
        if not 0 <= committed <= common:
            raise ResumeError(
                one_line(
                    "the cursor is beyond what both runs share",
                    "load_state_dict",
                    f"slot {committed} with epochs {state['epochs']}, drop_last {state['drop_last']}",
                    f"0 to {common} with epochs {self.epochs}, drop_last {self.drop_last}",
                )
            )
        if not keep_exclusions:
            self.exclusions.add_state(state)
            self._hashes.know(self.exclusions.hashes)
        self.move(committed)

    def move(self, slot: int) -> None:
        """Set the committed cursor; what was issued comes again."""
        self._committed = slot
        self._issued.clear()
        self.generation += 1

    def note_issued(self, slot: int) -> None:
        """Note that a slot was given out; iterators of the sampler do so."""
        if self._issued and self._issued[-1][1] + 1 == slot:
            self._issued[-1][1] = slot
        else:
            self._issued.append([slot, slot])
