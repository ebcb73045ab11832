"""Skip ranges and quarantined samples go in; which slots are passed over and which rows are blanked comes out.

Everything that is not excluded keeps its place: a slot is skipped as a whole, a quarantined row becomes a pad row
where it stands, and nothing moves up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cleanfeed.feed.permutation import Int64
from cleanfeed.feed.samples import FILLER
from cleanfeed.feed.schedule import NOWHERE, Schedule

Range = tuple[int, int]
"""First and last slot, both included."""


class Exclusions:
    """What a run leaves out.

    Args:
        schedule: The order it is left out of.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.version = 0
        """Changes with every change."""
        self.ranges: tuple[Range, ...] = ()
        """Skip ranges, sorted, apart from each other by at least one slot."""
        self.hashes: dict[bytes, tuple[int, ...]] = {}
        """Quarantined sample hashes, and the rows each stands for."""
        self.rows: Int64 = np.zeros(0, dtype=np.int64)
        """Quarantined rows, sorted."""
        self.holes: tuple[Range, ...] = ()
        """Slots that are not trained: skip ranges, and slots of which every sample is quarantined."""
        self._starts: list[int] = []
        self._named: list[tuple[str, tuple[int, ...]]] = []

    def skip(self, first: int, last: int) -> None:
        """Pass over the slots from ``first`` to ``last``, both included."""
        self._become(merged([*self.ranges, (first, last)]), self.hashes)

    def unskip(self, first: int, last: int) -> None:
        """Take slots out of the skip ranges again."""
        before = [(low, min(high, first - 1)) for low, high in self.ranges]
        after = [(max(low, last + 1), high) for low, high in self.ranges]
        self._become(merged((low, high) for low, high in before + after if low <= high), self.hashes)

    def quarantine(self, rows: Mapping[bytes, tuple[int, ...]]) -> None:
        """Blank the rows of some hashes wherever they come."""
        self._become(self.ranges, {**self.hashes, **rows})

    def release(self, hashes: Iterable[bytes]) -> int:
        """Take hashes out of the quarantine and return how many were in it."""
        gone = set(hashes) & self.hashes.keys()
        self._become(self.ranges, {one: rows for one, rows in self.hashes.items() if one not in gone})
        return len(gone)

    def blanked(self, rows: Int64) -> Int64:
        """Return rows of the same shape, ``~row`` for each that is quarantined."""
        if not len(self.rows):
            return rows
        at = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        return np.where(self.rows[at] == rows, ~rows, rows)

    def next_slot(self, slot: int) -> int | None:
        """Return the first slot from this one on that is trained; None where there is none."""
        at = bisect_right(self._starts, slot) - 1
        if at >= 0 and self.holes[at][1] >= slot:
            slot = self.holes[at][1] + 1
        return slot if slot < self.schedule.n_slots else None

    def samples(self) -> int:
        """Return how often a sample is left out over the run: those of skipped slots, and quarantined ones."""
        schedule, count = self.schedule, 0
        for first, last in self.holes:
            count += sum(size * slots for size, slots in schedule.sizes(first, last).items())
            short = [slot for slot in schedule.short_slots if first <= slot <= last]
            count -= sum(int((schedule.rows(slot) == FILLER).sum()) for slot in short)
        starts = np.array(self._starts, dtype=np.int64)
        ends = np.array([last for _, last in self.holes], dtype=np.int64)
        for epoch in range(schedule.epochs if len(self.rows) else 0):
            slots, _ = schedule.places(self.rows, epoch)
            slots = slots[slots != NOWHERE]
            at = np.searchsorted(starts, slots, side="right") - 1
            inside = (at >= 0) & (ends[at] >= slots) if len(ends) else np.zeros(len(slots), dtype=np.bool_)
            count += int((~inside).sum())
        return count

    def state(self) -> dict[str, Any]:
        """Return the exclusions as JSON-able values."""
        return {
            "skipped": [list(one) for one in self.ranges],
            "quarantined": {name: list(rows) for name, rows in self._named},
        }

    def add_state(self, state: Mapping[str, Any]) -> None:
        """Add the exclusions of a state of the same curriculum."""
        last = self.schedule.n_slots - 1
        ranges = [(first, min(end, last)) for first, end in state["skipped"] if first <= last]
        hashes = {bytes.fromhex(one): tuple(rows) for one, rows in state["quarantined"].items()}
        self._become(merged([*self.ranges, *ranges]), self.hashes | hashes)

    def _become(self, ranges: tuple[Range, ...], hashes: dict[bytes, tuple[int, ...]]) -> None:
        """Leave out these; what changes nothing leaves the version, since a loader begins anew with each."""
        if (ranges, hashes) == (self.ranges, self.hashes):
            return
        self.ranges, self.hashes = ranges, hashes
        self.version += 1
        rows = {row for rows in self.hashes.values() for row in rows}
        self.rows = np.array(sorted(rows), dtype=np.int64)
        self._named = sorted((one.hex(), found) for one, found in self.hashes.items())
        self.holes = merged([*self.ranges, *((slot, slot) for slot in self._dead_slots())])
        self._starts = [first for first, _ in self.holes]

    def _dead_slots(self) -> set[int]:
        """Return the slots of which every sample is quarantined."""
        schedule = self.schedule
        dead = {slot for slot in schedule.short_slots if self._is_dead(slot)}
        # A full one needs more quarantined rows than there usually are, even if it spans an edge of epochs.
        if len(self.rows) * schedule.most_repeats >= schedule.slot_sizes[0]:
            everywhere = [schedule.places(self.rows, epoch)[0] for epoch in range(schedule.epochs)]
            slots, counts = np.unique(np.concatenate(everywhere), return_counts=True)
            for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
                if slot != NOWHERE and count == schedule.size(slot):
                    dead.add(slot)
        return dead

    def _is_dead(self, slot: int) -> bool:
        rows = self.schedule.rows(slot)
        return bool(np.isin(rows[rows != FILLER], self.rows).all())


def merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return ranges sorted, those that overlap or touch made one."""
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return tuple(result)
