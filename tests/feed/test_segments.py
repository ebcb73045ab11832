"""A plan of stages becomes segments that hold every position once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.errors import MisuseError
from cleanfeed.feed.segments import (
    Blend,
    Cycle,
    EpochPlan,
    Segment,
    Sequential,
    StagePlan,
    segments_of,
    stage_plan,
)

from . import reference

PLANS = st.one_of(
    st.just(Sequential()), st.builds(Blend, st.integers(1, 50)), st.builds(Cycle, st.integers(1, 12))
)
SIZES = st.lists(st.integers(0, 400), min_size=1, max_size=5).filter(any)
BLOCKS = st.integers(1, 9)


def stages(segments: tuple[Segment, ...], block: int) -> list[tuple[int, int]]:
    plan = EpochPlan(segments, block)
    stage, position = plan.resolve(np.arange(plan.length, dtype=np.int64))
    return list(zip(stage.tolist(), position.tolist(), strict=True))


def test_one_stage_after_the_other_without_empty_ones() -> None:
    assert segments_of(Sequential(), [3, 0, 2], 4) == (Segment(0, 0, 3), Segment(2, 0, 2))


def test_a_blend_is_a_ramp_of_four_and_leaves_the_rest_to_its_stage() -> None:
    # Half of 67 rows are 16 blocks of 2 and a bit; the last row does not fill a block.
    assert segments_of(Blend(50), [67, 100], 2) == (
        Segment(0, 0, 34),
        Segment(0, 34, 16, next_stage=1, next_first=0, eighths=1),
        Segment(0, 48, 16, next_stage=1, next_first=2, eighths=3),
        Segment(0, 58, 16, next_stage=1, next_first=8, eighths=5),
        Segment(0, 64, 16, next_stage=1, next_first=18, eighths=7),
        Segment(0, 66, 1),
        Segment(1, 32, 68),
    )


def test_a_ramp_mixes_block_by_block_evenly() -> None:
    mixed = stages((Segment(0, 0, 16, next_stage=1, next_first=4, eighths=3),), 2)
    assert mixed == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (0, 4), (0, 5),
        (0, 6), (0, 7), (1, 6), (1, 7), (0, 8), (0, 9), (1, 8), (1, 9),
    ]  # fmt: skip


def test_a_stage_too_small_for_a_ramp_is_not_mixed() -> None:
    assert segments_of(Blend(50), [31, 1000], 1) == (Segment(0, 0, 31), Segment(1, 0, 1000))


def test_a_cycle_takes_equal_parts_of_whole_blocks_and_the_rest_at_the_end() -> None:
    assert segments_of(Cycle(2), [10, 3], 4) == (
        Segment(0, 0, 4),
        Segment(0, 4, 6),
        Segment(1, 0, 3),
    )


@given(PLANS, SIZES, BLOCKS)
def test_every_position_of_every_stage_comes_once_and_in_order(
    plan: StagePlan, sizes: list[int], block: int
) -> None:
    places = stages(segments_of(plan, sizes, block), block)
    for stage, size in enumerate(sizes):
        assert [position for one, position in places if one == stage] == list(range(size))


@given(SIZES, BLOCKS, st.integers(1, 50), st.integers(1, 12))
def test_blend_and_cycle_are_what_the_specification_says(
    sizes: list[int], block: int, percent: int, cycles: int
) -> None:
    assert stages(segments_of(Blend(percent), sizes, block), block) == reference.blended(
        sizes, block, percent
    )
    assert stages(segments_of(Cycle(cycles), sizes, block), block) == reference.cycled(sizes, block, cycles)


@given(PLANS, SIZES, BLOCKS)
def test_a_position_is_found_again(plan: StagePlan, sizes: list[int], block: int) -> None:
    whole = EpochPlan(segments_of(plan, sizes, block), block)
    stage, position = whole.resolve(np.arange(whole.length, dtype=np.int64))
    for one in range(len(sizes)):
        here = np.flatnonzero(stage == one)
        assert whole.find(one, position[here]).tolist() == here.tolist()


@given(PLANS, SIZES, BLOCKS)
def test_where_two_stages_mix_lanes_stay_in_step(plan: StagePlan, sizes: list[int], block: int) -> None:
    for segment in segments_of(plan, sizes, block):
        if segment.eighths:
            assert segment.first % block == segment.next_first % block == segment.length % (8 * block) == 0


@given(PLANS, SIZES, st.data())
def test_counts_and_runs_are_those_of_the_places(
    plan: StagePlan, sizes: list[int], data: st.DataObject
) -> None:
    whole = EpochPlan(segments_of(plan, sizes, 1), 1)
    place = data.draw(st.integers(0, whole.length - 1))
    stage, position = whole.resolve(np.arange(whole.length, dtype=np.int64))
    assert whole.counts(place, len(sizes)) == np.bincount(stage[:place], minlength=len(sizes)).tolist()
    run = whole.run(place)
    assert run >= 1
    assert (stage[place : place + run] == stage[place]).all()
    assert position[place : place + run].tolist() == list(range(position[place], position[place] + run))


@pytest.mark.parametrize(
    ("given_plan", "expected"),
    [
        ("sequential", Sequential()),
        ("blend", Blend(10)),
        ("blend:50", Blend(50)),
        ("cycle", Cycle(8)),
        ("cycle:3", Cycle(3)),
        (Blend(7), Blend(7)),
        (Cycle(4096), Cycle(4096)),
    ],
)
def test_names_of_plans(given_plan: str | StagePlan, expected: StagePlan) -> None:
    assert stage_plan(given_plan) == expected
    assert stage_plan(str(expected)) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "random",
        "blend:",
        "blend:0",
        "blend:51",
        "blend:1.5",
        "cycle:0",
        "cycle:4097",
        "sequential:1",
        "cycle:²",
    ],
)
def test_another_name_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(MisuseError) as caught:
        stage_plan(name)
    assert str(caught.value) == (
        f"no such plan of stages: schedule: {'got ' + name + ', ' if name else ''}"
        "expected sequential, blend, blend:1 to blend:50, cycle, or cycle:1 to cycle:4096."
    )
