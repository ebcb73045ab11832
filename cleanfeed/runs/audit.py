"""The ledger of a run and its curriculum go in; proof of which samples were trained, or what is wrong, comes out.

The order of a run is a pure function of its settings, so the batch of every ledger line can be worked out again: its
rows, those that were blanked by then, and its batch hash. A line whose hash comes out the same trained these and
no other samples. What the surviving lines trained is then counted row by row, and held against the same count taken
the other way round: from every sample to the slots it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanfeed.errors import LedgerError, MisuseError, one_line
from cleanfeed.feed.catalog import Catalog, read_catalog
from cleanfeed.feed.exclusions import Exclusions
from cleanfeed.feed.identity import SampleHashes, batch_hash
from cleanfeed.feed.pages import Files
from cleanfeed.feed.samples import FILLER
from cleanfeed.feed.schedule import NOWHERE, Block, Schedule
from cleanfeed.feed.state import schedule_of
from cleanfeed.runs.gaps import Gap, newest_saved, say_steps
from cleanfeed.runs.incident_files import read_incidents
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import last_surviving, read_attempts, read_changes, read_lines
from cleanfeed.runs.records import Attempt, ExclusionChange, Incident

BLOCK_ROWS = 1 << 16
"""Rows whose order is worked out at once."""
MOST_PROBLEMS = 20
"""Problems that are named; further ones are counted."""

Int64 = npt.NDArray[np.int64]


class Line(msgspec.Struct, gc=False):
    """What the audit reads of a ledger line."""

    attempt: int
    step: int
    epoch: int
    slot: int
    stage: int
    batch_hash: str
    samples: int
    tokens: int
    time: float
    accepted: bool = True


@dataclass(slots=True)
class EpochCount:
    """What became of the samples in one epoch, as far as the run has come."""

    epoch: int
    trained: int = 0
    """Samples trained, each once."""
    blanked: int = 0
    """Quarantined samples whose place a pad row took."""
    not_accepted: int = 0
    """Samples of steps that were not accepted: seen, but the weights were not changed."""
    skipped: int = 0
    """Samples of slots that were passed over: skip ranges, and slots of quarantined samples alone."""
    unproved: int = 0
    """Samples of slots whose lines the ledger has lost."""
    left: int = 0
    """Samples that are still to come."""
    dropped: int = 0
    """Samples that do not fill the last slot of the run and are left out by ``drop_last``."""


@dataclass(slots=True)
class Audit:
    """What an audit found."""

    run: str
    curriculum: str
    digest: str
    attempts: int = 0
    lines: int = 0
    """Lines of all attempts."""
    undone: int = 0
    """Lines that a rollback or a resume undid."""
    steps: int = 0
    """Lines of the surviving lineage."""
    accepted: int = 0
    samples: int = 0
    """Samples trained, over all epochs."""
    tokens: int = 0
    next_slot: int = 0
    gaps: list[Gap] = field(default_factory=list)
    """First and last step, both included, of the surviving lineage that have no line: what they trained is unproved."""
    epochs: list[EpochCount] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is wrong, one sentence each; empty where the ledger is proved."""
    problem_count: int = 0

    def problem(self, text: str) -> None:
        """Note what is wrong."""
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(text)


class _Hashes:
    """The columns of a curriculum without torch; what `SampleHashes` needs of one."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._files = Files(catalog, "text" if catalog.tokenizer_digest is None else "input_ids")

    def columns(self, rows: Int64, names: list[str]) -> pa.Table:
        """Return columns of the rows of one row group."""
        groups, places = self.catalog.groups_at(rows)
        table = self._files.table(self.catalog.row_group(int(groups[0])), names)
        return table.take(places)


class _Replay:
    """Works the lines of one attempt out again, with what was left out when each was written."""

    def __init__(self, catalog: Catalog, start: Attempt, hashes: SampleHashes) -> None:
        self.schedule = schedule_of(catalog, start.sampler)
        self.exclusions = Exclusions(self.schedule)
        self.exclusions.add_state(start.sampler)
        self.cursor = int(start.sampler["committed"])
        self._hashes = hashes
        self._block: Block | None = None

    def change(self, change: ExclusionChange) -> None:
        """Leave out more, or less, from here on."""
        quarantined = self._hashes.rows_of(bytes.fromhex(one) for one in change.quarantined)
        self.exclusions.quarantine({one: rows for one, rows in quarantined.items() if rows})
        self.exclusions.release(bytes.fromhex(one) for one in change.released)
        for first, last in change.unskipped:
            self.exclusions.unskip(first, last)
        for first, last in change.skipped:
            self.exclusions.skip(first, last)

    def rows(self, slot: int) -> Int64:
        """Return the rows of a slot, those that are blanked negative."""
        block = self._block
        if block is None or not 0 <= slot - block.first < len(block.rows):
            block = self._block = self.schedule.block(slot, BLOCK_ROWS)
        return self.exclusions.blanked(block.rows[slot - block.first])

    def hash(self, rows: Int64) -> str:
        """Return the batch hash of rows."""
        return batch_hash(self._hashes.of(rows))


def audit(run: RunDir, curriculum: str | None = None) -> Audit:
    """Prove from ledger and curriculum which samples the surviving steps of a run trained.

    Args:
        run: The run directory.
        curriculum: Folder or address of the curriculum; by default the one the newest attempt was given.

    Raises:
        MisuseError: There is no ledger, or the curriculum is another one.
        LedgerError: The ledger cannot be read.
        CurriculumError: The curriculum cannot be read.
    """
    starts = read_attempts(run)
    # Looked at before the lines are: while a run goes on, each checkpoint has its lines first.
    saved = newest_saved(run, starts)
    if not starts:
        if saved is not None:
            raise LedgerError(
                one_line(
                    "the ledger is gone",
                    str(run.ledger),
                    f"checkpoint {saved.step:,} and no attempt",
                    f"the lines of {say_steps([(1, saved.step)])}",
                    "Put its files back: without them nobody can prove what was trained.",
                )
            )
        raise MisuseError(one_line("no ledger", str(run.root), expected="the directory of a training run"))
    catalog = read_catalog(curriculum or starts[-1].curriculum)
    if starts[-1].digest != catalog.digest:
        raise MisuseError(
            one_line(
                "not the curriculum of this run",
                catalog.path,
                catalog.digest,
                starts[-1].digest,
                "Give the right one.",
            )
        )
    result = Audit(str(run.root), catalog.path, catalog.digest, attempts=len(starts))
    hashes = SampleHashes(_Hashes(catalog))
    excluded = _Excluded(read_incidents(run, result.problem), hashes)
    tally = _Tally(catalog, schedule_of(catalog, starts[-1].sampler), excluded)
    limits = last_surviving(starts)
    for start in starts:
        if start.digest != catalog.digest:
            result.problem(f"attempt {start.attempt} was on another curriculum, {start.digest}")
            continue
        _audit_attempt(run, start, limits[start.attempt], _Replay(catalog, start, hashes), tally, result)
    if saved is not None and saved.step > tally.step:
        _note_gap(result, tally.step + 1, saved.step, f"checkpoint {saved.step:,} holds them")
    tally.close(result)
    return result


def _note_gap(result: Audit, first: int, last: int, how: str) -> None:
    result.gaps.append((first, last))
    result.problem(
        f"the ledger has no line of {say_steps([(first, last)])}: {how}, what they trained is unproved"
    )


def _audit_attempt(
    run: RunDir, start: Attempt, limit: float, replay: _Replay, tally: _Tally, result: Audit
) -> None:
    path = run.attempt_lines(start.attempt)
    lines = read_lines(path, Line) if path.exists() else []
    changes = read_changes(run, start.attempt)
    result.lines += len(lines)
    if limit > start.after_step > tally.step:
        how = f"attempt {start.attempt} goes on after step {start.after_step:,} at slot {replay.cursor:,}"
        _note_gap(result, tally.step + 1, start.after_step, how)
        tally.lose(start.after_step, replay.cursor)
    elif limit > start.after_step and (tally.step, tally.next_slot) != (start.after_step, replay.cursor):
        result.problem(
            f"attempt {start.attempt} goes on after step {start.after_step} at slot {replay.cursor}, but what survives "
            f"before it ends with step {tally.step} and goes on at slot {tally.next_slot}"
        )
    step = start.after_step
    for line in lines:
        while changes and changes[0].after_step < line.step:
            change = changes.pop(0)
            replay.change(change)
            tally.excluded.change(change)
        step += 1
        if line.step != step or line.attempt != start.attempt:
            raise LedgerError(
                one_line(
                    "steps do not follow each other",
                    f"{path}:{step - start.after_step}",
                    f"step {line.step} of attempt {line.attempt}",
                    f"step {step} of attempt {start.attempt}",
                    "The file was changed: restore it.",
                )
            )
        rows = _audit_line(line, replay, result)
        if line.step <= limit:
            tally.add(line, rows, result)
        else:
            result.undone += 1


def _audit_line(line: Line, replay: _Replay, result: Audit) -> Int64:
    where = f"attempt {line.attempt}, step {line.step}"
    due = replay.exclusions.next_slot(replay.cursor)
    if line.slot != due:
        result.problem(f"{where}: slot {line.slot} was trained where slot {due} was due")
    replay.cursor = line.slot + 1
    if not 0 <= line.slot < replay.schedule.n_slots:
        result.problem(f"{where}: there is no slot {line.slot}")
        return np.zeros(0, dtype=np.int64)
    rows = replay.rows(line.slot)
    if (found := replay.hash(rows)) != line.batch_hash:
        result.problem(f"{where}: slot {line.slot} has batch hash {found}, the ledger says {line.batch_hash}")
    samples = int((rows >= 0).sum())
    if samples != line.samples or replay.schedule.epoch(line.slot) != line.epoch:
        result.problem(
            f"{where}: slot {line.slot} holds {samples} samples of epoch {replay.schedule.epoch(line.slot)}, "
            f"the ledger says {line.samples} of epoch {line.epoch}"
        )
    return rows


class _Excluded:
    """What the incidents of a run say must not be trained any more."""

    def __init__(self, incidents: Sequence[Incident], hashes: SampleHashes) -> None:
        self._ranges = [
            (incident.opened_at, skip.first_slot, skip.last_slot, incident.incident_id)
            for incident in incidents
            for skip in incident.skip_ranges
        ]
        since = {
            bytes.fromhex(sample.sample_hash): (sample.decided_at, incident.incident_id)
            for incident in incidents
            for sample in incident.samples
        }
        states = {
            bytes.fromhex(sample.sample_hash): sample.state
            for incident in incidents
            for sample in incident.samples
        }
        wanted = [one for one, state in states.items() if state == "quarantined"]
        found = hashes.rows_of(wanted) if wanted else {}
        self._since = {row: since[one] for one, rows in found.items() for row in rows}
        self._rows = np.array(sorted(self._since), dtype=np.int64)
        self._places = found
        self._released: set[int] = set()

    def change(self, change: ExclusionChange) -> None:
        """Note what was taken back, by the guard or by hand, and what was left out again."""
        for one in change.released:
            self._released.update(self._places.get(bytes.fromhex(one), ()))
        for one in change.quarantined:
            self._released.difference_update(self._places.get(bytes.fromhex(one), ()))

    def check(self, line: Line, rows: Int64, result: Audit) -> None:
        """Note what a line trained although it was excluded before."""
        for opened, first, last, number in self._ranges:
            if opened < line.time and first <= line.slot <= last:
                result.problem(
                    f"step {line.step}: slot {line.slot} was trained though incident {number} skips it"
                )
        if not len(self._rows):
            return
        for row in rows[np.isin(rows, self._rows)].tolist():
            decided, number = self._since[row]
            if decided < line.time and row not in self._released:
                result.problem(
                    f"step {line.step}: row {row} was trained though incident {number} excludes it"
                )


class _Tally:
    """Counts what the surviving lines trained, row by row, and checks the count from the other side."""

    def __init__(self, catalog: Catalog, schedule: Schedule, excluded: _Excluded) -> None:
        self.step = self.next_slot = 0
        self._schedule, self.excluded = schedule, excluded
        self._times = np.zeros(catalog.samples, dtype=np.int32)
        self._fate = np.zeros(schedule.n_slots, dtype=np.int8)
        """0: not taken, 1: trained, 2: not accepted, 3: taken by a step that has no line."""
        self._blanked: dict[int, Int64] = {}

    def add(self, line: Line, rows: Int64, result: Audit) -> None:
        """Count one line."""
        self.step, self.next_slot = line.step, line.slot + 1
        result.steps += 1
        result.next_slot = line.slot + 1
        if not len(rows) or line.slot >= len(self._fate):
            return
        if self._fate[line.slot]:
            result.problem(
                f"step {line.step}: slot {line.slot} was taken by an earlier surviving step as well"
            )
        self._fate[line.slot] = 1 if line.accepted else 2
        blanked = rows[(rows < 0) & (rows != FILLER)]
        if len(blanked):
            self._blanked[line.slot] = ~blanked
        if not line.accepted:
            return
        result.accepted += 1
        result.tokens += line.tokens
        np.add.at(self._times, rows[rows >= 0], 1)
        self.excluded.check(line, rows, result)

    def lose(self, step: int, next_slot: int) -> None:
        """Pass over steps that have no line, and the slots they may have taken."""
        self._fate[self.next_slot : next_slot] = 3
        self.step, self.next_slot = step, next_slot

    def close(self, result: Audit) -> None:
        """Count the same from every sample to its slots, epoch by epoch, and compare."""
        rows = np.arange(len(self._times), dtype=np.int64)
        expected = np.zeros(len(rows), dtype=np.int32)
        reached = result.next_slot = max(result.next_slot, self.next_slot)
        for epoch in range(self._schedule.epochs):
            slots, _ = self._schedule.places(rows, epoch)
            here = np.where(slots == NOWHERE, 0, self._fate[slots])
            blank = np.zeros(len(rows), dtype=np.bool_)
            for slot, blanked in self._blanked.items():
                blank[blanked[slots[blanked] == slot]] = True
            trained = (here == 1) & ~blank
            expected += trained
            result.epochs.append(
                EpochCount(
                    epoch,
                    trained=int(trained.sum()),
                    blanked=int((blank & (here > 0)).sum()),
                    not_accepted=int(((here == 2) & ~blank).sum()),
                    skipped=int(((here == 0) & (slots != NOWHERE) & (slots < reached)).sum()),
                    unproved=int((here == 3).sum()),
                    left=int((slots >= reached).sum()),
                    dropped=int((slots == NOWHERE).sum()),
                )
            )
        for row in np.flatnonzero(expected != self._times)[:MOST_PROBLEMS].tolist():
            result.problem(f"row {row} was trained {self._times[row]} times, expected {expected[row]}")
        result.samples = int(self._times.sum())
