"""Sizes of stages, a global batch and a seed go in; the rows of every slot, and the slot of every row, come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cleanfeed.feed.catalog import Catalog
from cleanfeed.feed.order import StageOrder
from cleanfeed.feed.permutation import Int64
from cleanfeed.feed.samples import FILLER
from cleanfeed.feed.segments import EpochPlan, Sequential, StagePlan, segments_of

BLOCK_ROWS = 1 << 14
"""Rows whose order is worked out at once: the cost of a call to numpy is shared by many slots."""
NOWHERE = -1
"""Slot of a row that the run leaves out."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some slots in a row that have equally many rows."""

    first: int
    rows: Int64
    """Row numbers, shape [slots, rows of a slot]; ``FILLER`` where a slot is not full."""
    lanes: Int64
    """Lane of the first row of each slot, shape [slots]; the following rows are of the following lanes, round and
    round."""


def rank_part(block: Block, index: int, rank: int, world_size: int) -> slice:
    """Return which rows of a slot of a block are a rank's: those whose lane, modulo the ranks, is the rank."""
    return slice((rank - int(block.lanes[index])) % world_size, None, world_size)


class Schedule(ABC):
    """The order of a run: slot → rows, a pure function. See docs/order.md.

    Args:
        catalog: Stages and their sizes.
        seed: Decides the order of every epoch but the first.
        epochs: How often each sample is trained.
        lanes: Λ; every slot holds equally many rows of each lane.
        drop_last: Whether slots that cannot be filled are left out; else they are filled up with ``FILLER``.
        plan: How stages follow each other.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        seed: int = 0,
        epochs: int = 1,
        lanes: int = 1,
        drop_last: bool = True,
        plan: StagePlan | None = None,
    ) -> None:
        self.catalog, self.seed, self.epochs, self.lanes = catalog, seed, epochs, lanes
        self.drop_last, self.plan = drop_last, plan or Sequential()
        self.orders = tuple(
            StageOrder(stage.index, stage.samples, stage.group_rows, lanes, seed) for stage in catalog.stages
        )

    n_slots: int
    """Global batches of the run."""
    dropped: int
    """Times that a sample is left out at the end, over all epochs."""
    filled: int
    """Pad rows that fill slots up."""
    short_slots: tuple[int, ...]
    """Slots that hold such pad rows."""
    slot_sizes: tuple[int, ...]
    """How many rows slots have, ascending."""
    most_repeats: int
    """How often a slot can hold the same row: as many epochs as it can span."""

    @abstractmethod
    def size(self, slot: int) -> int:
        """Return the rows of a slot, pad rows included."""

    @abstractmethod
    def sizes(self, first: int, last: int) -> Mapping[int, int]:
        """Return how many of the slots from ``first`` to ``last``, both included, have how many rows."""

    @abstractmethod
    def block(self, first: int, most_rows: int) -> Block:
        """Return a slot and some that follow, together no more than ``most_rows`` rows unless it is one slot."""

    @abstractmethod
    def epoch(self, slot: int) -> int:
        """Return the epoch of a slot."""

    @abstractmethod
    def places(self, rows: Int64, epoch: int) -> tuple[Int64, Int64]:
        """Return where an epoch trains some rows: slot, or `NOWHERE`, and index in it, both of shape [n]."""

    @abstractmethod
    def common_slots(self, epochs: int, drop_last: bool) -> int:
        """Return how many slots are the same at the start of a run with other ``epochs`` and ``drop_last``."""

    def _span(self, size: int, samples: int) -> int:
        """Return how many epochs of so many samples a slot of this size can span."""
        return min(self.epochs, (size + samples - 2) // samples + 1)

    def rows(self, slot: int) -> Int64:
        """Return the rows of a slot in their global order, shape [rows of the slot]."""
        rows: Int64 = self.block(slot, 1).rows[0]
        return rows

    def _stage_rows(self, stage: int, epoch: int, positions: Int64) -> Int64:
        return self.orders[stage].rows(epoch, positions) + self.catalog.stages[stage].first_row

    def _stage_positions(self, stage: int, epoch: int, rows: Int64) -> Int64:
        return self.orders[stage].positions(epoch, rows - self.catalog.stages[stage].first_row)


class Reader:
    """Reads a schedule mostly from front to back, many slots worked out at once and each of them once.

    Args:
        schedule: The order.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._block: Block | None = None
        self._next: Block | None = None

    def at(self, slot: int) -> tuple[Block, int]:
        """Return a block that holds a slot, and the slot's place in it."""
        for block in (self._block, self._next):
            if block is not None and 0 <= slot - block.first < len(block.rows):
                break
        else:
            # The first slot asked for is waited for, and one out of turn is perhaps the only one.
            in_turn = self._block is not None and slot == self._block.first + len(self._block.rows)
            block = self.schedule.block(slot, BLOCK_ROWS if in_turn else 1)
        if block is not self._block:
            self._block, self._next = block, None
        return block, slot - block.first

    def ahead(self) -> Block | None:
        """Return the block after the one read last; None at the end of the run."""
        if self._block is not None and self._next is None:
            first = self._block.first + len(self._block.rows)
            if first < self.schedule.n_slots:
                self._next = self.schedule.block(first, BLOCK_ROWS)
        return self._next

    def __getstate__(self) -> dict[str, Any]:
        """Return what cannot be worked out again."""
        return {"schedule": self.schedule, "_block": None, "_next": None}


class RowSchedule(Schedule):
    """Slots of B rows each: the positions of all stages and epochs form one line, slot k is [k B, (k + 1) B)."""

    def __init__(self, catalog: Catalog, global_batch: int, **options: Any) -> None:
        super().__init__(catalog, **options)
        self.global_batch = global_batch
        self.line = self.epochs * catalog.samples
        self.n_slots = self.line // global_batch if self.drop_last else -(-self.line // global_batch)
        rest = self.line - self.n_slots * global_batch
        self.dropped, self.filled = max(0, rest), max(0, -rest)
        self.short_slots = (self.n_slots - 1,) if self.filled else ()
        self.slot_sizes = (global_batch,)
        self.most_repeats = self._span(global_batch, catalog.samples)

    def __getstate__(self) -> dict[str, Any]:
        """Return what cannot be worked out again: an epoch in many segments would make it large."""
        return {name: value for name, value in vars(self).items() if name != "_epoch_plan"}

    @cached_property
    def _epoch_plan(self) -> EpochPlan:
        sizes = [stage.samples for stage in self.catalog.stages]
        return EpochPlan(segments_of(self.plan, sizes, self.lanes), self.lanes)

    def size(self, slot: int) -> int:
        """Return B."""
        return self.global_batch

    def sizes(self, first: int, last: int) -> Mapping[int, int]:
        """Return B and the number of slots."""
        return {self.global_batch: last - first + 1}

    def epoch(self, slot: int) -> int:
        """Return the epoch of the slot's first row."""
        return slot * self.global_batch // self.catalog.samples

    def common_slots(self, epochs: int, drop_last: bool) -> int:
        """Return the slots that either run fills, or all where the two are the same."""
        shorter = min(self.epochs, epochs) * self.catalog.samples
        if epochs == self.epochs and drop_last == self.drop_last:
            return self.n_slots
        return shorter // self.global_batch

    def block(self, first: int, most_rows: int) -> Block:
        """Return as many slots as fit."""
        size = self.global_batch
        count = max(1, min(self.n_slots - first, most_rows // size))
        line = np.arange(first * size, (first + count) * size, dtype=np.int64)
        rows = np.full(count * size, FILLER, dtype=np.int64)
        real = line[: max(0, self.line - first * size)]
        epoch, place = np.divmod(real, self.catalog.samples)
        stage, position = self._epoch_plan.resolve(place)
        for one in np.unique(epoch):
            for other in np.unique(stage[epoch == one]):
                here = (epoch == one) & (stage == other)
                rows[: len(real)][here] = self._stage_rows(int(other), int(one), position[here])
        return Block(first, rows.reshape(count, size), self._lanes(line[::size]))

    def _lanes(self, starts: Int64) -> Int64:
        """Return the lane of the first row of the slots that start here."""
        ends = starts + self.global_batch - 1
        plan, samples = self._epoch_plan, self.catalog.samples
        segment = plan.segment_at(starts % samples)
        inside = (starts // samples == ends // samples) & (segment == plan.segment_at(ends % samples))
        inside &= ends < self.line
        # A slot over an edge is dealt by the index in the slot.
        return np.where(inside, plan.position_at_start(segment) + starts % samples, 0) % self.lanes

    def places(self, rows: Int64, epoch: int) -> tuple[Int64, Int64]:
        """Return slot and index of rows, by way of their place on the line."""
        line = np.empty_like(rows)
        stages = self.catalog.stages_at(rows)
        for stage in np.unique(stages):
            here = stages == stage
            position = self._stage_positions(int(stage), epoch, rows[here])
            line[here] = self._epoch_plan.find(int(stage), position)
        slot, index = np.divmod(line + epoch * self.catalog.samples, self.global_batch)
        out = slot >= self.n_slots
        return np.where(out, NOWHERE, slot), np.where(out, NOWHERE, index)
