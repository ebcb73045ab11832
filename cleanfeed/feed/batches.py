"""A sampler's cursor goes in; this rank's micro-batches from there on come out, one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from cleanfeed.errors import ResumeError, one_line
from cleanfeed.feed.permutation import Int64
from cleanfeed.feed.schedule import Block, Reader, rank_part

if TYPE_CHECKING:
    from cleanfeed.feed.sampler import CurriculumSampler


class Batches(Iterator[list[int]]):
    """This rank's micro-batches from the committed cursor on; made by ``iter(sampler)``.

    It has a state of its own, the place of the next micro-batch to be issued, for loaders that keep it with each
    batch they deliver, as torchdata's ``StatefulDataLoader`` does.
    """

    def __init__(self, sampler: CurriculumSampler, generation: int) -> None:
        self._sampler, self._generation = sampler, generation
        self._slot = sampler.committed
        self._waiting: deque[list[int]] = deque()
        self._given = 0
        """Micro-batches given out of the slot before ``_slot``, while some of it are waiting."""
        self._reader = Reader(sampler.schedule)
        self._rows: Int64 = np.zeros((0, 0), dtype=np.int64)
        """Rows of the reader's block, those that are quarantined blanked."""
        self._made_of: tuple[int, int] | None = None
        """Of which block and which exclusions ``_rows`` are."""

    def __next__(self) -> list[int]:
        """Return the next micro-batch.

        Raises:
            ResumeError: A state was loaded, or another iterator made, since this one was.
        """
        if self._generation != self._sampler.generation:
            raise ResumeError(
                one_line(
                    "a stale iterator of the sampler",
                    "CurriculumSampler",
                    "a state was loaded or another iterator made since",
                    todo="Make a new iterator of the loader.",
                )
            )
        if not self._waiting:
            # Whoever commits a slot that was not given out yet has trained it by other means.
            slot = self._sampler.next_slot(max(self._slot, self._sampler.committed))
            if slot is None:
                raise StopIteration
            self._waiting.extend(self._cut(slot))
            self._sampler.note_issued(slot)
            self._slot, self._given = slot + 1, 0
        self._given += 1
        return self._waiting.popleft()

    def state_dict(self) -> dict[str, int]:
        """Return the slot of the next micro-batch and its number in it."""
        if self._waiting:
            return {"slot": self._slot - 1, "micro_batch": self._given}
        return {"slot": self._slot, "micro_batch": 0}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a state; the sampler's committed cursor moves to its slot."""
        slot = state["slot"]
        self._sampler.move(slot)
        self._generation = self._sampler.generation
        self._slot, self._given = slot, 0
        self._waiting.clear()
        if self._sampler.next_slot(slot) == slot:
            for _ in range(state["micro_batch"]):
                next(self)

    def _cut(self, slot: int) -> list[list[int]]:
        """Return the micro-batches of a slot, worked out together with those that follow."""
        sampler = self._sampler
        block, at = self._reader.at(slot)
        made_of = block.first, sampler.exclusions.version
        if self._made_of is None or self._made_of[0] != block.first:
            self._announce(block)
        if self._made_of != made_of:
            self._rows, self._made_of = sampler.exclusions.blanked(block.rows), made_of
        rows = self._rows[at, rank_part(block, at, sampler.rank, sampler.world_size)].tolist()
        micro = sampler.micro_rows(block.rows.shape[1])
        return [rows[first : first + micro] for first in range(0, len(rows), micro)]

    def _announce(self, block: Block) -> None:
        """Tell the curriculum which rows follow, in this block and the next, so that it can decode them ahead."""
        sampler = self._sampler
        expect = getattr(sampler.curriculum, "expect", None)
        if expect is None:
            return
        ahead = self._reader.ahead()
        parts = [
            one.rows[at, rank_part(one, at, sampler.rank, sampler.world_size)]
            for one in ([block] if ahead is None else [block, ahead])
            for at in range(len(one.rows))
        ]
        expect(np.concatenate(parts))
