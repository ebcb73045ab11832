"""Slots by tokens: longer samples, fewer rows; a slot has one stage; only the end of the run has a rest."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cleanfeed.feed.samples import FILLER
from cleanfeed.feed.schedule import NOWHERE
from cleanfeed.feed.segments import Blend, Cycle, Sequential
from cleanfeed.feed.token_schedule import TokenSchedule

from . import reference
from .builds import LONGEST, catalog_of_sizes

SIZES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=4).filter(
    lambda sizes: any(samples for samples, _ in sizes)
)
PLANS = st.one_of(
    st.just(Sequential()), st.builds(Blend, st.integers(1, 50)), st.builds(Cycle, st.integers(1, 4))
)


@st.composite
def schedules(draw: st.DrawFn) -> TokenSchedule:
    lanes = draw(st.integers(1, 4))
    schedule = TokenSchedule(
        catalog_of_sizes(*draw(SIZES)),
        lanes * LONGEST[-1] * draw(st.integers(1, 2)) + draw(st.integers(0, 20)),
        seed=draw(st.integers(0, 2**64 - 1)),
        epochs=draw(st.integers(1, 3)),
        lanes=lanes,
        drop_last=draw(st.booleans()),
        plan=draw(PLANS),
    )
    assume(schedule.n_slots)
    return schedule


def all_slots(schedule: TokenSchedule) -> list[list[int]]:
    return [schedule.rows(slot).tolist() for slot in range(schedule.n_slots)]


def test_golden_vector() -> None:
    # Bands of 8, 16 and 32 tokens: slots of 4, 2 and 1 rows. Epoch 1 begins with what epoch 0 left over.
    schedule = TokenSchedule(catalog_of_sizes((6, 4), (3, 9), (2, 1)), 32, seed=5, epochs=2)
    assert all_slots(schedule) == [
        [0, 1, 2, 3],
        [6, 7],
        [9],
        [10],
        [4, 5, 3, 1],
        [2, 0, 5, 4],
        [8, 6],
        [8, 7],
        [9],
        [10],
    ]
    assert (schedule.dropped, schedule.filled) == (0, 0)
    assert [schedule.epoch(slot) for slot in range(schedule.n_slots)] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]


@given(
    SIZES,
    st.integers(1, 4),
    st.integers(0, 200),
    st.integers(0, 2**64 - 1),
    st.integers(1, 3),
    st.integers(0, 50),
)
def test_it_is_what_the_specification_says(
    sizes: list[tuple[int, int]], lanes: int, more: int, seed: int, epochs: int, percent: int
) -> None:
    catalog, tokens = catalog_of_sizes(*sizes), lanes * LONGEST[-1] + more
    plan = Blend(percent) if percent else Sequential()
    schedule = TokenSchedule(catalog, tokens, seed=seed, epochs=epochs, lanes=lanes, plan=plan)
    longest = [stage.max_length for stage in catalog.stages]
    assert all_slots(schedule) == reference.token_slots(sizes, longest, tokens, lanes, seed, epochs, percent)


@given(schedules())
def test_each_sample_comes_once_an_epoch_but_for_the_rest_of_the_run(schedule: TokenSchedule) -> None:
    seen = Counter(row for rows in all_slots(schedule) for row in rows)
    assert seen.pop(FILLER, 0) == schedule.filled
    assert max(seen.values()) <= schedule.epochs
    assert sum(seen.values()) + schedule.dropped == schedule.epochs * schedule.catalog.samples
    for stage, size in zip(schedule.catalog.stages, schedule.sizes_of_stages, strict=True):
        rows = range(stage.first_row, stage.first_row + stage.samples)
        missing = schedule.epochs * stage.samples - sum(seen[row] for row in rows)
        assert missing == (schedule.epochs * stage.samples % size if schedule.drop_last else 0)


@given(schedules())
def test_a_slot_has_one_stage_and_about_as_many_tokens_as_any_other(schedule: TokenSchedule) -> None:
    for slot, rows in enumerate(all_slots(schedule)):
        real = np.array([row for row in rows if row != FILLER])
        (stage,) = set(schedule.catalog.stages_at(real).tolist())
        longest = schedule.catalog.stages[stage].max_length
        assert len(rows) == schedule.size(slot)
        assert len(rows) % schedule.lanes == 0
        assert schedule.batch_tokens - schedule.lanes * longest < len(rows) * longest <= schedule.batch_tokens


@given(schedules())
def test_a_row_is_found_without_a_log(schedule: TokenSchedule) -> None:
    slots_rows = all_slots(schedule)
    rows = np.arange(schedule.catalog.samples, dtype=np.int64)
    found = 0
    for epoch in range(schedule.epochs):
        for row, slot, index in zip(
            rows.tolist(), *(one.tolist() for one in schedule.places(rows, epoch)), strict=True
        ):
            assert (slot == NOWHERE) == (index == NOWHERE)
            if slot != NOWHERE:
                assert slots_rows[slot][index] == row
                found += 1
    assert found + schedule.filled == sum(map(len, slots_rows))


@given(schedules(), st.data())
def test_sizes_short_slots_and_blocks_are_those_of_the_slots(
    schedule: TokenSchedule, data: st.DataObject
) -> None:
    slots_rows = all_slots(schedule)
    first = data.draw(st.integers(0, schedule.n_slots - 1))
    last = data.draw(st.integers(first, schedule.n_slots - 1))
    assert Counter(schedule.sizes(first, last)) == Counter(map(len, slots_rows[first : last + 1]))
    assert schedule.slot_sizes == tuple(sorted(set(map(len, slots_rows))))
    assert schedule.short_slots == tuple(slot for slot, rows in enumerate(slots_rows) if FILLER in rows)
    block = schedule.block(first, 50)
    assert block.rows.tolist() == slots_rows[first : first + len(block.rows)]
    assert block.lanes.tolist() == [
        int(schedule.block(first + index, 1).lanes[0]) for index in range(len(block.rows))
    ]


@given(schedules(), st.integers(1, 4), st.booleans())
def test_the_slots_said_to_be_common_are(schedule: TokenSchedule, epochs: int, drop_last: bool) -> None:
    other = TokenSchedule(
        schedule.catalog,
        schedule.batch_tokens,
        seed=schedule.seed,
        epochs=epochs,
        lanes=schedule.lanes,
        drop_last=drop_last,
        plan=schedule.plan,
    )
    common = schedule.common_slots(epochs, drop_last)
    assert all_slots(schedule)[:common] == all_slots(other)[:common]


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_stage_smaller_than_its_slot_is_left_out_or_filled_up(drop_last: bool) -> None:
    schedule = TokenSchedule(catalog_of_sizes((3, 4), (4, 4), longest=(8, 8)), 32, drop_last=drop_last)
    kept = [[3, 4, 5, 6]]
    assert all_slots(schedule) == (kept if drop_last else [[0, 1, 2, FILLER], *kept])
    assert (schedule.dropped, schedule.filled) == ((3, 0) if drop_last else (0, 1))
