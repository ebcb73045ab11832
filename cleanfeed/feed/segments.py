"""Sizes of stages and a plan go in; an explicit list of segments, which says which stage is trained where, comes out.

All sizes and places are positions of one epoch: rows where the global batch has one size, slots where it is given
in tokens. Nothing is drawn by chance, and nothing depends on how training goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import numpy as np

from cleanfeed.errors import MisuseError, one_line
from cleanfeed.feed.permutation import Int64

EIGHTHS = 8
RAMP = (1, 3, 5, 7)
"""Eighths of a mixed segment that come from the next stage, one segment after the other."""
BLEND_BLOCKS = sum(RAMP)
"""Blocks that each of two neighbours gives to the smallest ramp between them."""

MOST_PERCENT, MOST_CYCLES = 50, 4096
"""Beyond half of a stage its two neighbours would meet in it."""


@dataclass(frozen=True, slots=True)
class Sequential:
    """One stage after the other."""

    def __str__(self) -> str:
        return "sequential"


@dataclass(frozen=True, slots=True)
class Blend:
    """The next stage mixes in over the last ``percent`` of each stage, 1 to 50: an eighth, then 3, 5 and 7."""

    percent: int = 10

    def __str__(self) -> str:
        return f"blend:{self.percent}"


@dataclass(frozen=True, slots=True)
class Cycle:
    """All stages in order, ``cycles`` times an epoch, each time an equal part of every stage."""

    cycles: int = 8

    def __str__(self) -> str:
        return f"cycle:{self.cycles}"


StagePlan: TypeAlias = Sequential | Blend | Cycle


def stage_plan(given: str | StagePlan) -> StagePlan:
    """Return the plan that a name means: ``sequential``, ``blend``, ``blend:PERCENT``, ``cycle`` or ``cycle:N``.

    Raises:
        MisuseError: There is no such plan, or its number is out of range.
    """
    name, colon, number = str(given).partition(":")
    kinds: dict[str, type[Blend] | type[Cycle]] = {"blend": Blend, "cycle": Cycle}
    kind = kinds.get(name)
    most = MOST_PERCENT if kind is Blend else MOST_CYCLES
    if str(given) == "sequential":
        return Sequential()
    if kind is not None and not colon:
        return kind()
    if kind is not None and number.isascii() and number.isdigit() and 1 <= int(number) <= most:
        return kind(int(number))
    expected = f"sequential, blend, blend:1 to blend:{MOST_PERCENT}, cycle, or cycle:1 to cycle:{MOST_CYCLES}"
    raise MisuseError(one_line("no such plan of stages", "schedule", str(given), expected))


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of an epoch that takes its positions from one stage, or from two mixed block by block."""

    stage: int
    """Place of the stage among those of the curriculum."""
    first: int
    """First position of the stage that lies here."""
    length: int
    """Positions of the segment."""
    next_stage: int = 0
    next_first: int = 0
    eighths: int = 0
    """Of every eight blocks, those of ``next_stage``; 0 where there is one stage."""


def segments_of(plan: StagePlan, sizes: Sequence[int], block: int) -> tuple[Segment, ...]:
    """Return the segments of one epoch.

    Args:
        plan: How stages follow each other.
        sizes: Positions of each stage.
        block: Positions that are never torn apart by mixing: Λ rows, or one slot.
    """
    filled = [place for place, size in enumerate(sizes) if size]
    if isinstance(plan, Cycle):
        return tuple(_cycles(plan.cycles, sizes, block, filled))
    percent = plan.percent if isinstance(plan, Blend) else 0
    return tuple(_blended(percent, sizes, block, filled))


def _cycles(cycles: int, sizes: Sequence[int], block: int, filled: Sequence[int]) -> Iterator[Segment]:
    for cycle in range(cycles):
        for stage in filled:
            blocks = sizes[stage] // block
            first, end = (blocks * at // cycles * block for at in (cycle, cycle + 1))
            if cycle + 1 == cycles:
                end = sizes[stage]
            if end > first:
                yield Segment(stage, first, end - first)


def _blended(percent: int, sizes: Sequence[int], block: int, filled: Sequence[int]) -> Iterator[Segment]:
    first = 0
    for here, after in zip_longest(filled, filled[1:]):
        size = sizes[here]
        whole = size // block * block
        most = min(size * percent // 100, sizes[after] // 2) // block if after is not None else 0
        # A ramp of 4 segments of 8 n blocks each takes 16 n blocks of either stage.
        n = most // BLEND_BLOCKS
        begin = whole - n * BLEND_BLOCKS * block if n else size
        if begin > first:
            yield Segment(here, first, begin - first)
        first = 0
        for eighths in RAMP if n and after is not None else ():
            yield Segment(here, begin, EIGHTHS * n * block, after or 0, first, eighths)
            begin, first = begin + (EIGHTHS - eighths) * n * block, first + eighths * n * block
        if size > begin:
            yield Segment(here, begin, size - begin)


class EpochPlan:
    """Finds stage and position of every place of an epoch, and the way back.

    Args:
        segments: What `segments_of` returned.
        block: The same block.
    """

    def __init__(self, segments: Sequence[Segment], block: int) -> None:
        self.segments, self.block = tuple(segments), block
        fields = [(s.stage, s.first, s.length, s.next_stage, s.next_first, s.eighths) for s in segments]
        table = np.array(fields, dtype=np.int64).reshape(-1, 6)
        self._stage, self._first, length, self._next_stage, self._next_first, self._eighths = table.T
        ends = np.cumsum(length)
        self.starts: Int64 = ends - length
        self.length = int(ends[-1]) if len(ends) else 0

    def segment_at(self, places: Int64) -> Int64:
        """Return the number of the segment of each place, shape [n]."""
        found: Int64 = np.searchsorted(self.starts, places, side="right").astype(np.int64) - 1
        return found

    def position_at_start(self, segments: Int64) -> Int64:
        """Return, for segments by number, what to add to a place to get a position of the stage it begins with."""
        offset: Int64 = self._first[segments] - self.starts[segments]
        return offset

    def resolve(self, places: Int64) -> tuple[Int64, Int64]:
        """Return stage and position in it of each place, both of shape [n]."""
        at = self.segment_at(places)
        block, rest = np.divmod(places - self.starts[at], self.block)
        # Of the first b blocks, floor(b v / 8) are of the next stage: evenly spread, the ends left to this one.
        before = block * self._eighths[at] // EIGHTHS
        taken = (block + 1) * self._eighths[at] // EIGHTHS > before
        stage = np.where(taken, self._next_stage[at], self._stage[at])
        first = np.where(taken, self._next_first[at], self._first[at])
        return stage, first + np.where(taken, before, block - before) * self.block + rest

    def run(self, place: int) -> int:
        """Return how many places from this one on, it included, are successive positions of one stage at least."""
        at = int(self.segment_at(np.array([place], dtype=np.int64))[0])
        if self._eighths[at]:
            return 1
        return int(self.starts[at]) + self.segments[at].length - place

    def counts(self, place: int, stages: int) -> list[int]:
        """Return how many of the places before this one are of each stage; blocks are whole where two stages mix."""
        found = [0] * stages
        for start, segment in zip(self.starts.tolist(), self.segments, strict=True):
            length = max(0, min(place - start, segment.length))
            taken = length // self.block * segment.eighths // EIGHTHS * self.block
            found[segment.stage] += length - taken
            found[segment.next_stage] += taken
        return found

    def find(self, stage: int, positions: Int64) -> Int64:
        """Return the place of each position of a stage, shape [n]: the inverse of `resolve`."""
        own = np.flatnonzero(self._stage == stage)
        taken = np.flatnonzero((self._next_stage == stage) & (self._eighths > 0))
        segment = np.concatenate([own, taken])
        first = np.concatenate([self._first[own], self._next_first[taken]])
        order = np.argsort(first, kind="stable")
        part = order[np.searchsorted(first[order], positions, side="right") - 1]
        block, rest = np.divmod(positions - first[part], self.block)
        at = segment[part]
        share = self._eighths[at]
        next_block = -(-(block + 1) * EIGHTHS // np.maximum(share, 1)) - 1
        own_block = block * EIGHTHS // (EIGHTHS - share)
        found: Int64 = self.starts[at] + np.where(part >= len(own), next_block, own_block) * self.block + rest
        return found
