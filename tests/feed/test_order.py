"""Inside a stage each row comes once an epoch, dealt over lanes, and every epoch mixes anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.feed.order import ORDER_VERSION, StageOrder

from . import reference

ORDERS = st.builds(
    StageOrder,
    number=st.integers(0, 20),
    samples=st.integers(1, 200),
    group_rows=st.integers(1, 40),
    lanes=st.integers(1, 12),
    seed=st.integers(0, 2**64 - 1),
)
EPOCHS = st.integers(0, 5)


def all_rows(order: StageOrder, epoch: int) -> list[int]:
    return order.rows(epoch, np.arange(order.samples, dtype=np.int64)).tolist()


def test_the_version_of_the_order_these_vectors_are_of() -> None:
    assert ORDER_VERSION == 1


def test_golden_vector_of_windows_and_rest() -> None:
    # 7 full row groups of 3 and a short one of 2, on 2 lanes: 3 windows, then groups 6 and 7 as written.
    order = StageOrder(number=1, samples=23, group_rows=3, lanes=2, seed=9)
    windows = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11, 12, 15, 13, 16, 14, 17]
    assert all_rows(order, 0) == [*windows, 18, 19, 20, 21, 22]
    assert all_rows(order, 1) == [
        13,
        1,
        12,
        2,
        14,
        0,
        18,
        16,
        20,
        17,
        19,
        15,
        10,
        7,
        11,
        8,
        9,
        6,
        5,
        4,
        3,
        21,
        22,
    ]
    assert all_rows(order, 2) == [
        1,
        18,
        2,
        19,
        0,
        20,
        13,
        17,
        14,
        16,
        12,
        15,
        11,
        7,
        9,
        8,
        10,
        6,
        5,
        4,
        3,
        21,
        22,
    ]


@given(ORDERS, EPOCHS)
def test_each_row_comes_once_an_epoch(order: StageOrder, epoch: int) -> None:
    assert sorted(all_rows(order, epoch)) == list(range(order.samples))


@given(ORDERS, EPOCHS)
def test_a_row_is_found_again(order: StageOrder, epoch: int) -> None:
    rows = np.arange(order.samples, dtype=np.int64)
    assert order.rows(epoch, order.positions(epoch, rows)).tolist() == rows.tolist()


@given(ORDERS, EPOCHS, st.data())
def test_it_is_what_the_specification_says(order: StageOrder, epoch: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, order.samples - 1))
    expected = reference.stage_row(
        i, order.number, order.samples, order.group_rows, order.lanes, order.seed, epoch
    )
    assert order.rows(epoch, np.array([i], dtype=np.int64)).tolist() == [expected]


@given(ORDERS)
def test_epoch_0_with_one_lane_is_as_written(order: StageOrder) -> None:
    one_lane = StageOrder(order.number, order.samples, order.group_rows, 1, order.seed)
    assert all_rows(one_lane, 0) == list(range(order.samples))


@given(ORDERS, EPOCHS)
def test_a_lane_reads_a_row_group_whole_before_the_next(order: StageOrder, epoch: int) -> None:
    rows = np.array(all_rows(order, epoch))
    dealt = order.windows * order.lanes * order.group_rows
    for lane in range(order.lanes):
        groups = rows[:dealt][lane :: order.lanes] // order.group_rows
        assert (groups.reshape(-1, order.group_rows) == groups[:: order.group_rows, None]).all()
    rest = rows[dealt:] // order.group_rows
    assert len(set(rest.tolist())) == int((np.diff(rest) != 0).sum()) + (len(rest) > 0)


@given(ORDERS)
def test_the_short_row_group_stays_last(order: StageOrder) -> None:
    short = order.samples % order.group_rows
    if short:
        assert set(all_rows(order, 3)[-short:]) == set(range(order.samples - short, order.samples))


def test_a_stage_of_one_short_row_group_is_shuffled_too() -> None:
    order = StageOrder(number=0, samples=32, group_rows=1646, lanes=64, seed=0)
    orders = [tuple(all_rows(order, epoch)) for epoch in range(5)]
    assert orders[0] == tuple(range(32))
    assert len(set(orders)) == 5


@pytest.mark.parametrize("lanes", [1, 8, 64])
def test_seeds_epochs_and_stages_have_orders_of_their_own(lanes: int) -> None:
    orders = {
        tuple(all_rows(StageOrder(number, 1000, 7, lanes, seed), epoch))
        for number in range(3)
        for seed in (0, 1, 2**63)
        for epoch in (1, 2, 3)
    }
    assert len(orders) == 27


def test_a_later_epoch_is_as_far_from_the_first_as_a_random_order() -> None:
    # Places of the written order, in the order of epoch 1: their displacement and their ascents.
    order = StageOrder(number=0, samples=64 * 100 * 5 + 77, group_rows=100, lanes=64, seed=3)
    n = order.samples
    generator = np.random.default_rng(0)
    true = generator.permutation(n)
    for epoch in (1, 2):
        ours = np.array(all_rows(order, epoch))
        place = np.arange(n)
        assert abs(np.abs(ours - place).mean() / np.abs(true - place).mean() - 1) < 0.1
        assert abs(np.corrcoef(ours, place)[0, 1]) < 0.1
        assert abs((np.diff(ours) > 0).mean() - 0.5) < 0.02


def test_a_batch_of_a_later_epoch_draws_from_the_whole_stage_as_a_random_one_does() -> None:
    batch, lanes = 64, 64
    order = StageOrder(number=0, samples=lanes * 50 * 8, group_rows=50, lanes=lanes, seed=5)
    batches = np.array(all_rows(order, 1)).reshape(-1, batch)
    true = np.random.default_rng(1).permutation(order.samples).reshape(-1, batch)
    for statistic in (np.mean, np.std):
        ours, random = (statistic(one / order.samples, axis=1) for one in (batches, true))
        # One row of each of 64 row groups: not a sample of all subsets, but spread like one.
        assert abs(ours.mean() - random.mean()) < 0.03
        assert ours.std() < 2 * random.std()


def test_rows_that_were_together_are_not_together_again_more_often_than_by_chance() -> None:
    batch = lanes = 64
    order = StageOrder(number=0, samples=lanes * 40 * 5, group_rows=40, lanes=lanes, seed=5)
    where = [order.positions(epoch, np.arange(order.samples, dtype=np.int64)) // batch for epoch in (0, 1)]
    both, counts = np.unique(where[0] * order.samples + where[1], return_counts=True)
    again = int((counts * (counts - 1) // 2).sum())
    pairs = order.samples * (batch - 1) / 2
    by_chance = pairs * (batch - 1) / (order.samples - 1)
    assert len(both) > 0
    assert again < 1.3 * by_chance
