"""What is left out is left out wherever it lies, and nothing else moves."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanfeed.feed.exclusions import Exclusions, merged
from cleanfeed.feed.samples import FILLER
from cleanfeed.feed.schedule import RowSchedule, Schedule
from cleanfeed.feed.token_schedule import TokenSchedule

from .builds import catalog_of_sizes

RANGES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(tuple), max_size=6)
SCHEDULES: list[Schedule] = [
    RowSchedule(catalog_of_sizes((7, 3), (30, 4), (5, 2)), 2, epochs=2, lanes=2, drop_last=False),
    RowSchedule(catalog_of_sizes((1, 3), (1, 4), (1, 2)), 5, epochs=2, lanes=1, drop_last=False),
    TokenSchedule(catalog_of_sizes((6, 4), (3, 9), (5, 1)), 64, seed=5, epochs=2, lanes=2, drop_last=False),
]


def hash_of(row: int) -> bytes:
    return row.to_bytes(16, "big")


def quarantined(exclusions: Exclusions, rows: set[int]) -> None:
    exclusions.quarantine({hash_of(row): (row,) for row in rows})


@given(RANGES)
def test_ranges_become_the_fewest_that_hold_the_same_slots(ranges: list[tuple[int, int]]) -> None:
    result = merged(ranges)
    assert {slot for low, high in result for slot in range(low, high + 1)} == {
        slot for low, high in ranges for slot in range(low, high + 1)
    }
    assert all(before[1] + 1 < after[0] for before, after in pairwise(result))


@given(RANGES, RANGES)
def test_what_is_taken_out_of_the_skip_ranges_is_trained_again(
    skipped: list[tuple[int, int]], again: list[tuple[int, int]]
) -> None:
    exclusions = Exclusions(SCHEDULES[0])
    for low, high in skipped:
        exclusions.skip(low, high)
    for low, high in again:
        exclusions.unskip(low, high)
    expected = {slot for low, high in skipped for slot in range(low, high + 1)}
    expected -= {slot for low, high in again for slot in range(low, high + 1)}
    assert {slot for low, high in exclusions.ranges for slot in range(low, high + 1)} == expected


@settings(max_examples=60)
@given(st.sampled_from(SCHEDULES), RANGES, st.sets(st.integers(0, 41)))
def test_slots_rows_and_counts_against_a_plain_account(
    schedule: Schedule, ranges: list[tuple[int, int]], rows: set[int]
) -> None:
    exclusions = Exclusions(schedule)
    rows = {row for row in rows if row < schedule.catalog.samples}
    quarantined(exclusions, rows)
    last = schedule.n_slots - 1
    for low, high in ranges:
        if low <= last:
            exclusions.skip(low, min(high, last))
    skipped = {slot for low, high in ranges for slot in range(low, high + 1)}
    trained, left_out = [], 0
    for slot in range(schedule.n_slots):
        real = [row for row in schedule.rows(slot).tolist() if row != FILLER]
        whole = slot in skipped or set(real) <= rows
        left_out += len(real) if whole else sum(row in rows for row in real)
        if not whole:
            trained.append(slot)
        expected = [~row if row in rows else row for row in schedule.rows(slot).tolist()]
        assert exclusions.blanked(schedule.rows(slot)).tolist() == expected
    walked, slot = [], exclusions.next_slot(0)
    while slot is not None:
        walked.append(slot)
        slot = exclusions.next_slot(slot + 1)
    assert walked == trained
    assert exclusions.samples() == left_out


def test_a_quarantined_row_keeps_its_place_and_a_filler_stays_one() -> None:
    exclusions = Exclusions(SCHEDULES[0])
    quarantined(exclusions, {0, 3})
    assert exclusions.blanked(np.array([3, 2, FILLER, 0])).tolist() == [~3, 2, FILLER, ~0]


def test_the_rows_of_twins_are_blanked_together_and_released_together() -> None:
    exclusions = Exclusions(SCHEDULES[0])
    exclusions.quarantine({hash_of(1): (1, 9), hash_of(2): (2,)})
    assert exclusions.rows.tolist() == [1, 2, 9]
    assert exclusions.release([hash_of(1), hash_of(77)]) == 1
    assert exclusions.rows.tolist() == [2]


def test_the_state_leads_back_and_is_added_to_what_is_there() -> None:
    one, other = Exclusions(SCHEDULES[0]), Exclusions(SCHEDULES[0])
    one.skip(3, 5)
    one.quarantine({hash_of(1): (1, 9)})
    other.skip(6, 6)
    other.quarantine({hash_of(2): (2,)})
    other.add_state(one.state())
    assert other.state() == {
        "skipped": [[3, 6]],
        "quarantined": {hash_of(1).hex(): [1, 9], hash_of(2).hex(): [2]},
    }


def test_skip_ranges_of_a_longer_run_end_with_this_one() -> None:
    exclusions = Exclusions(SCHEDULES[1])
    exclusions.add_state({"skipped": [[1, 900], [901, 902]], "quarantined": {}})
    assert exclusions.ranges == ((1, SCHEDULES[1].n_slots - 1),)


def test_every_change_changes_the_version() -> None:
    exclusions = Exclusions(SCHEDULES[0])
    versions = [exclusions.version]
    for change in (
        lambda: exclusions.skip(1, 2),
        lambda: exclusions.unskip(1, 1),
        lambda: quarantined(exclusions, {1}),
        lambda: exclusions.release([hash_of(1)]),
    ):
        change()
        versions.append(exclusions.version)
    assert len(set(versions)) == 5


def test_a_change_that_changes_nothing_is_none() -> None:
    exclusions = Exclusions(SCHEDULES[0])
    versions = []
    for _ in range(2):
        exclusions.skip(1, 3)
        versions.append(exclusions.version)
        quarantined(exclusions, {4, 9})
        versions.append(exclusions.version)
        exclusions.add_state(exclusions.state())
        exclusions.release([hash_of(8)])
        exclusions.unskip(7, 9)
        versions.append(exclusions.version)
    assert versions == [1, 2, 2, 2, 2, 2]
    assert (exclusions.release([hash_of(4)]), exclusions.version) == (1, 3)
    exclusions.unskip(2, 2)
    assert (exclusions.ranges, exclusions.version) == (((1, 1), (3, 3)), 4)
