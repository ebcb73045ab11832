"""Sizes of stages, tokens of a slot and a seed go in; the rows of every slot, and the slot of every row, come out.

Stages with longer samples have fewer rows in a slot, so that a step costs about the same all along. A slot belongs
to one stage. What an epoch leaves over of a stage goes into the stage's first slot of the next epoch; only the end
of the run has a rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanfeed.feed.catalog import Catalog
from cleanfeed.feed.permutation import Int64
from cleanfeed.feed.samples import FILLER
from cleanfeed.feed.schedule import NOWHERE, Block, Schedule
from cleanfeed.feed.segments import EpochPlan, segments_of


def rows_per_slot(catalog: Catalog, batch_tokens: int, lanes: int) -> tuple[int, ...]:
    """Return the rows of a slot of each stage: as many as have room at the stage's longest, in whole lanes."""
    return tuple(
        batch_tokens // stage.max_length // lanes * lanes if stage.samples else lanes
        for stage in catalog.stages
    )


class TokenSchedule(Schedule):
    """Slots of about equally many tokens; see `Schedule` for the options.

    The positions of a stage over all epochs form one line: its slot g is [g B, (g + 1) B), B the rows of its slots.
    Epoch e has those of its slots that are full when the epoch ends, and the last epoch, without ``drop_last``, the
    one that is not. The plan of stages orders the slots of an epoch.

    Args:
        catalog: Stages and their sizes.
        batch_tokens: Tokens of a slot; code points where the curriculum holds text.
        options: Those of `Schedule`.
    """

    def __init__(self, catalog: Catalog, batch_tokens: int, **options: Any) -> None:
        super().__init__(catalog, **options)
        self.batch_tokens = batch_tokens
        self._kept: tuple[int, EpochPlan] | None = None
        self.sizes_of_stages = rows_per_slot(catalog, batch_tokens, self.lanes)
        self.n_slots = self._slots_before(self.epochs)
        rests = [
            self.epochs * stage.samples - self._before(place, self.epochs) * size
            for place, (stage, size) in enumerate(zip(catalog.stages, self.sizes_of_stages, strict=True))
        ]
        self.dropped = sum(max(0, rest) for rest in rests)
        self.filled = sum(max(0, -rest) for rest in rests)
        used = [place for place in range(len(rests)) if self._before(place, self.epochs)]
        self.slot_sizes = tuple(sorted({self.sizes_of_stages[place] for place in used}))
        self.most_repeats = max(
            (self._span(self.sizes_of_stages[place], catalog.stages[place].samples) for place in used),
            default=1,
        )
        self.short_slots = tuple(sorted(self._last_slot(place) for place in used if rests[place] < 0))

    def __getstate__(self) -> dict[str, Any]:
        """Return what cannot be worked out again."""
        return {**vars(self), "_kept": None}

    def _before(self, stage: int, epoch: int) -> int:
        """Return how many slots of a stage come before an epoch."""
        rows, size = epoch * self.catalog.stages[stage].samples, self.sizes_of_stages[stage]
        whole = rows // size
        return whole if self.drop_last or epoch < self.epochs else -(-rows // size)

    def _slots_before(self, epoch: int) -> int:
        return sum(self._before(stage, epoch) for stage in range(len(self.sizes_of_stages)))

    def _plan(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch, whose places are its slots: their number differs by one or so."""
        if self._kept is None or self._kept[0] != epoch:
            stages = range(len(self.sizes_of_stages))
            sizes = [self._before(stage, epoch + 1) - self._before(stage, epoch) for stage in stages]
            self._kept = epoch, EpochPlan(segments_of(self.plan, sizes, 1), 1)
        return self._kept[1]

    def epoch(self, slot: int) -> int:
        """Return the epoch a slot is planned in; its first rows may be left over from the one before."""
        low, high = 0, self.epochs
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._slots_before(middle) <= slot else (low, middle)
        return low

    def _stage_slot(self, slot: int) -> tuple[int, int, int]:
        """Return the stage of a slot, its number on the stage's line, and how many of its kind follow at least."""
        epoch = self.epoch(slot)
        plan, place = self._plan(epoch), slot - self._slots_before(epoch)
        stage, index = (int(one[0]) for one in plan.resolve(np.array([place], dtype=np.int64)))
        return stage, self._before(stage, epoch) + index, plan.run(place)

    def _last_slot(self, stage: int) -> int:
        """Return the slot that holds the end of a stage's line."""
        count = self._before(stage, self.epochs) - self._before(stage, self.epochs - 1)
        place = self._plan(self.epochs - 1).find(stage, np.array([count - 1], dtype=np.int64))
        return self._slots_before(self.epochs - 1) + int(place[0])

    def size(self, slot: int) -> int:
        """Return the rows of a slot of this slot's stage."""
        return self.sizes_of_stages[self._stage_slot(slot)[0]]

    def sizes(self, first: int, last: int) -> Mapping[int, int]:
        """Return sizes and numbers of slots from counts of what comes before either end."""
        found: dict[int, int] = {}
        for size, high, low in zip(
            self.sizes_of_stages, self._counts(last + 1), self._counts(first), strict=True
        ):
            found[size] = found.get(size, 0) + high - low
        return {size: count for size, count in found.items() if count}

    def _counts(self, slot: int) -> list[int]:
        """Return how many of the slots before this one are of each stage."""
        epoch = self.epoch(slot)
        inside = self._plan(epoch).counts(slot - self._slots_before(epoch), len(self.sizes_of_stages))
        return [self._before(stage, epoch) + count for stage, count in enumerate(inside)]

    def common_slots(self, epochs: int, drop_last: bool) -> int:
        """Return the slots of the epochs that are the same: a last one that is filled up is like no other."""
        if epochs == self.epochs and drop_last == self.drop_last:
            return self.n_slots
        return self._slots_before(min(epochs - (not drop_last), self.epochs - (not self.drop_last)))

    def block(self, first: int, most_rows: int) -> Block:
        """Return slots of one stage that follow each other."""
        stage, number, run = self._stage_slot(first)
        size, samples = self.sizes_of_stages[stage], self.catalog.stages[stage].samples
        count = max(1, min(run, most_rows // size))
        line = np.arange(number * size, (number + count) * size, dtype=np.int64)
        rows = np.full(count * size, FILLER, dtype=np.int64)
        real = line[: max(0, self.epochs * samples - number * size)]
        epoch, position = np.divmod(real, samples)
        for one in np.unique(epoch):
            here = np.flatnonzero(epoch == one)
            rows[here] = self._stage_rows(stage, int(one), position[here])
        starts, ends = line[::size], line[size - 1 :: size]
        inside = (starts // samples == ends // samples) & (ends < self.epochs * samples)
        return Block(first, rows.reshape(count, size), np.where(inside, starts % samples, 0) % self.lanes)

    def places(self, rows: Int64, epoch: int) -> tuple[Int64, Int64]:
        """Return slot and index of rows, by way of their place on the line of their stage."""
        slots, indices = np.full_like(rows, NOWHERE), np.full_like(rows, NOWHERE)
        stages = self.catalog.stages_at(rows)
        for stage in np.unique(stages).tolist():
            here = np.flatnonzero(stages == stage)
            size, samples = self.sizes_of_stages[stage], self.catalog.stages[stage].samples
            line = epoch * samples + self._stage_positions(stage, epoch, rows[here])
            number, index = np.divmod(line, size)
            trained = number < self._before(stage, self.epochs)
            here, number, index = here[trained], number[trained], index[trained]
            # The first epoch at whose end the slot is full; the last one has what never is.
            planned = np.minimum(-(-(number + 1) * size // samples) - 1, self.epochs - 1)
            for one in np.unique(planned).tolist():
                these = planned == one
                place = self._plan(one).find(stage, number[these] - self._before(stage, one))
                slots[here[these]] = self._slots_before(one) + place
            indices[here] = index
        return slots, indices
