"""Slots of equally many rows: one line of all epochs, cut every B rows, the same however many ranks share it."""

from __future__ import annotations

import pickle

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cleanfeed.feed.samples import FILLER
from cleanfeed.feed.schedule import NOWHERE, Reader, RowSchedule, rank_part
from cleanfeed.feed.segments import Blend, Cycle, Sequential, StagePlan

from . import reference
from .builds import Size, catalog_of_sizes

WORLDS = (1, 2, 3, 4, 6, 8, 12, 24)
SIZES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=4).filter(
    lambda sizes: any(samples for samples, _ in sizes)
)
PLANS = st.one_of(
    st.just(Sequential()), st.builds(Blend, st.integers(1, 50)), st.builds(Cycle, st.integers(1, 4))
)


@st.composite
def schedules(draw: st.DrawFn) -> RowSchedule:
    lanes = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 24]))
    return RowSchedule(
        catalog_of_sizes(*draw(SIZES)),
        lanes * draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 2**64 - 1)),
        epochs=draw(st.integers(1, 3)),
        lanes=lanes,
        drop_last=draw(st.booleans()),
        plan=draw(PLANS),
    )


def everything(schedule: RowSchedule) -> npt.NDArray[np.int64]:
    return schedule.block(0, 10**6).rows.ravel()[: schedule.n_slots * schedule.global_batch]


SEQUENTIAL = [
    [0, 3, 1, 4],
    [2, 5, 6, 7],
    [8, 11, 9, 12],
    [10, 13, 14, 17],
    [15, 18, 16, 19],
    [20, 23, 21, 24],
    [22, 25, 26, 27],
    [28, 29, 30, 1],
    [3, 2, 5, 0],
    [4, 6, 7, 9],
    [12, 8, 13, 10],
    [11, 19, 20, 17],
    [21, 18, 22, 25],
    [27, 23, 28, 24],
    [26, 14, 16, 15],
    [29, 30, FILLER, FILLER],
]
LANES = [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 0]
BLENDED = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27,
    28, 29, 30, 40, 31, 32, 41, 33, 34, 42, 35, 43, 36, 44, 37, 45, 46, 38, 47, 48, 39, 49, 50, 51, 52, 53,
    54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71,
]  # fmt: skip
CYCLED = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 13, 14, 15,
    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 26, 27, 28, 29,
    30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 64, 65, 66, 67, 68, 69, 70, 71,
]  # fmt: skip


def test_golden_vector_of_a_sequential_run() -> None:
    schedule = RowSchedule(
        catalog_of_sizes((7, 3), (1, 5), (0, 4), (23, 3)), 4, seed=11, epochs=2, lanes=2, drop_last=False
    )
    assert [schedule.rows(slot).tolist() for slot in range(schedule.n_slots)] == SEQUENTIAL
    assert schedule.block(0, 10**6).lanes.tolist() == LANES


@pytest.mark.parametrize(("plan", "expected"), [(Blend(50), BLENDED), (Cycle(3), CYCLED)])
def test_golden_vectors_of_blend_and_cycle(plan: StagePlan, expected: list[int]) -> None:
    schedule = RowSchedule(catalog_of_sizes((40, 5), (36, 7)), 8, seed=1, lanes=1, plan=plan)
    assert everything(schedule).tolist() == expected


@given(SIZES, st.sampled_from([1, 2, 3, 4]), st.integers(1, 3), st.integers(0, 2**64 - 1), st.integers(1, 2))
def test_it_is_what_the_specification_says(
    sizes: list[Size], lanes: int, times: int, seed: int, epochs: int
) -> None:
    schedule = RowSchedule(catalog_of_sizes(*sizes), lanes * times, seed=seed, epochs=epochs, lanes=lanes)
    expected = reference.slots(sizes, lanes * times, lanes, seed, epochs)
    assert schedule.n_slots == len(expected)
    block = schedule.block(0, 10**6) if expected else None
    for slot, (rows, dealt) in enumerate(expected):
        assert block is not None
        assert block.rows[slot].tolist() == rows
        assert [(block.lanes[slot] + index) % lanes for index in range(len(rows))] == dealt


@given(schedules())
def test_each_sample_comes_once_an_epoch(schedule: RowSchedule) -> None:
    line = everything(schedule)
    real = line[line != FILLER]
    samples = schedule.catalog.samples
    for epoch in range(schedule.epochs):
        part = real[epoch * samples : (epoch + 1) * samples]
        whole = len(part) == samples
        assert len(set(part.tolist())) == len(part)
        assert not whole or sorted(part.tolist()) == list(range(samples))
    assert len(real) + schedule.dropped == schedule.epochs * samples
    assert len(line) - len(real) == schedule.filled
    assert 0 <= schedule.dropped < schedule.global_batch
    assert 0 <= schedule.filled < schedule.global_batch
    assert not (schedule.dropped if not schedule.drop_last else schedule.filled)


@given(schedules())
def test_any_number_of_ranks_that_divides_the_lanes_gives_the_same_slots(schedule: RowSchedule) -> None:
    for slot in range(0, schedule.n_slots, 3):
        block = schedule.block(slot, 1)
        for world in (world for world in WORLDS if schedule.lanes % world == 0):
            parts = [rank_part(block, 0, rank, world) for rank in range(world)]
            together = np.full(schedule.global_batch, -7, dtype=np.int64)
            for part in parts:
                together[part] = block.rows[0][part]
            assert {len(block.rows[0][part]) for part in parts} == {schedule.global_batch // world}
            assert together.tolist() == schedule.rows(slot).tolist()


@given(schedules())
def test_a_rank_of_a_slot_inside_a_stage_has_whole_lanes(schedule: RowSchedule) -> None:
    plan = schedule._epoch_plan
    samples = schedule.catalog.samples
    for slot in range(0, schedule.n_slots, 3):
        line = np.arange(slot * schedule.global_batch, (slot + 1) * schedule.global_batch)
        if len(set((line // samples).tolist())) > 1 or line[-1] >= schedule.line:
            continue
        if len(set(plan.segment_at(line % samples).tolist())) > 1:
            continue
        _, position = plan.resolve(line % samples)
        first = int(schedule.block(slot, 1).lanes[0])
        assert (position % schedule.lanes).tolist() == [
            (first + index) % schedule.lanes for index in range(schedule.global_batch)
        ]


@given(schedules(), st.integers(1, 300), st.data())
def test_slots_worked_out_together_are_those_worked_out_alone(
    schedule: RowSchedule, most: int, data: st.DataObject
) -> None:
    assume(schedule.n_slots)
    slot = data.draw(st.integers(0, schedule.n_slots - 1))
    block = schedule.block(slot, most)
    assert block.first == slot
    assert len(block.rows) == 1 or block.rows.size <= most
    for index, rows in enumerate(block.rows):
        assert rows.tolist() == schedule.rows(slot + index).tolist()
        assert block.lanes[index] == schedule.block(slot + index, 1).lanes[0]


@given(schedules())
def test_a_row_is_found_without_a_log(schedule: RowSchedule) -> None:
    line = everything(schedule)
    rows = np.arange(schedule.catalog.samples, dtype=np.int64)
    found = 0
    for epoch in range(schedule.epochs):
        slots, indices = schedule.places(rows, epoch)
        trained = slots != NOWHERE
        place = slots[trained] * schedule.global_batch + indices[trained]
        assert line[place].tolist() == rows[trained].tolist()
        assert (indices[~trained] == NOWHERE).all()
        found += int(trained.sum())
    assert found == int((line != FILLER).sum())


@given(schedules(), st.integers(1, 4), st.booleans())
def test_the_slots_said_to_be_common_are(schedule: RowSchedule, epochs: int, drop_last: bool) -> None:
    other = RowSchedule(
        schedule.catalog,
        schedule.global_batch,
        seed=schedule.seed,
        epochs=epochs,
        lanes=schedule.lanes,
        drop_last=drop_last,
        plan=schedule.plan,
    )
    common = schedule.common_slots(epochs, drop_last) * schedule.global_batch
    assert everything(schedule)[:common].tolist() == everything(other)[:common].tolist()


@given(schedules())
def test_epoch_and_sizes_of_a_slot_are_those_of_its_rows(schedule: RowSchedule) -> None:
    for slot in range(0, schedule.n_slots, 5):
        assert schedule.epoch(slot) == slot * schedule.global_batch // schedule.catalog.samples
        assert schedule.size(slot) == len(schedule.rows(slot))
    short = np.flatnonzero((everything(schedule).reshape(-1, schedule.global_batch) == FILLER).any(axis=1))
    assert list(schedule.short_slots) == short.tolist()


@given(schedules(), st.data())
def test_a_reader_gives_the_block_of_any_slot_and_the_one_after(
    schedule: RowSchedule, data: st.DataObject
) -> None:
    assume(schedule.n_slots)
    reader = Reader(schedule)
    for slot in data.draw(st.lists(st.integers(0, schedule.n_slots - 1), max_size=6)):
        block, at = reader.at(slot)
        assert block.rows[at].tolist() == schedule.rows(slot).tolist()
        ahead = reader.ahead()
        after = block.first + len(block.rows)
        assert (ahead.first if ahead is not None else schedule.n_slots) == after


def test_a_reader_works_slots_out_once_when_they_are_read_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = RowSchedule(catalog_of_sizes((60_000, 50)), 2, lanes=2)
    reader, made = Reader(schedule), []
    block_of = schedule.block
    monkeypatch.setattr(schedule, "block", lambda first, most: made.append(first) or block_of(first, most))
    for slot in range(schedule.n_slots):
        reader.at(slot)
        reader.ahead()
    assert made == [0, 1, 8193, 16385, 24577]


def test_a_slot_larger_than_its_stages_spans_them() -> None:
    schedule = RowSchedule(catalog_of_sizes((1, 1), (2, 9), (1, 4)), 4, lanes=4)
    assert [schedule.rows(slot).tolist() for slot in range(schedule.n_slots)] == [[0, 1, 2, 3]]
    assert schedule.block(0, 1).lanes.tolist() == [0]


def test_a_schedule_pickles_small_however_many_segments_it_has() -> None:
    schedule = RowSchedule(catalog_of_sizes((50_000, 7), (50_000, 9)), 8, lanes=8, plan=Cycle(4096))
    before = schedule.rows(77).tolist()
    data = pickle.dumps(schedule)
    assert len(data) < 2000
    assert pickle.loads(data).rows(77).tolist() == before
