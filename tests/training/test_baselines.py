"""Medians and scales no outlier can move: of a window, of a context, and across a change of context."""

from __future__ import annotations

import json
import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.training.baselines import Baseline, Baselines
from cleanfeed.training.running import Window, deviation_of, median_of
from tests.training.traces import quantiles

FLOATS = st.floats(-1e6, 1e6)


@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_the_fast_deviation_is_the_median_of_the_distances(values: list[float]) -> None:
    ordered = sorted(values)
    center = median_of(ordered)
    assert center == median(values)
    assert deviation_of(ordered, center) == pytest.approx(median(abs(v - center) for v in values), abs=1e-9)


@given(st.lists(FLOATS, max_size=60), st.integers(1, 10))
def test_a_window_holds_the_last_values_in_order(values: list[float], size: int) -> None:
    window = Window(size)
    for value in values:
        window.add(value)
    assert window.in_order() == values[-size:]
    assert window.ordered == sorted(values[-size:])


def baseline(window: int = 16, **options: float) -> Baseline:
    return Baseline(window, window // 2, 6.0, **options)


def fed(line: Baseline, values: list[float]) -> Baseline:
    for value in values:
        line.update(value)
    return line


def noise(count: int, level: float = 2.0) -> list[float]:
    return [level + 0.05 * value for value in quantiles(count, 1)]


def test_it_is_silent_until_half_a_window_of_residuals_is_there() -> None:
    line = baseline()
    assert [line.update(float(i % 3)) is None for i in range(20)] == [True] * 16 + [False] * 4


def test_an_outlier_never_enters_and_does_not_move_the_next_reading() -> None:
    line = fed(baseline(), noise(40))
    first, second = line.update(30.0), line.update(30.0)
    assert first is not None
    assert second is not None
    assert (first.median, first.scale) == (second.median, second.scale)
    assert first.z > 100


def test_a_level_shift_seeds_the_baseline_again_after_half_a_window_of_outliers() -> None:
    line = fed(baseline(), noise(40))
    readings = [line.update(value) for value in noise(9, level=9.0)]
    assert [reading is not None and reading.shifted for reading in readings] == [False] * 7 + [True, False]
    assert readings[8] is not None
    assert abs(readings[8].z) < 2


def test_a_fall_that_goes_on_neither_widens_the_scale_nor_leaves_the_center_behind() -> None:
    noise = random.Random(0)
    line = baseline(128)
    readings = [line.update(10.0 - 0.01 * step + noise.gauss(0, 0.05)) for step in range(500)]
    last = [reading for reading in readings[300:] if reading is not None]
    assert all(0.03 < reading.scale < 0.08 for reading in last)
    assert abs(sum(reading.z for reading in last) / len(last)) < 0.3


def test_equal_values_have_the_floor_as_scale() -> None:
    line = fed(baseline(share=0.005), [2.0] * 40)
    reading = line.update(2.0000001)
    assert reading is not None
    assert reading.scale == pytest.approx(0.01)
    assert reading.z < 1e-4


@given(st.integers(0, 2**32 - 1))
def test_a_state_goes_through_json_and_continues_the_same(seed: int) -> None:
    values = [random.Random(seed).gauss(0, 1) * (30 if i % 7 == 0 else 1) for i in range(60)]
    line = fed(baseline(), values[:40])
    again = baseline()
    again.load_state_dict(json.loads(json.dumps(line.state_dict())))
    assert [line.update(value) for value in values[40:]] == [again.update(value) for value in values[40:]]


def test_contexts_do_not_mix() -> None:
    lines = Baselines(16, 8, 6.0, share=0.005)
    for step in range(200):
        context, level = ("a", 2.0) if step % 2 else ("b", 3.0)
        reading = lines.of(context, step).update(level + 0.02 * (step % 5))
        assert reading is None or abs(reading.z) < 6


def test_a_new_context_is_silent_for_three_steps_then_speaks_with_the_carried_scale_widened() -> None:
    lines = Baselines(16, 8, 6.0, share=0.005)
    for step, value in enumerate(noise(100)):
        lines.of("a", step).update(value)
    carried = lines.of("a", 100).relative_scale
    readings = [lines.of("b", 100 + i).update(4.0) for i in range(9)]
    assert carried is not None
    assert readings[:3] == [None] * 3
    scales = [reading.scale for reading in readings[3:] if reading is not None]
    assert scales == pytest.approx([4 * carried * 4.0] * 5 + [2 * carried * 4.0])
    assert {reading.z for reading in readings[3:] if reading is not None} == {0.0}


def test_a_run_that_begins_with_many_short_contexts_judges_all_of_them_once_one_has_a_scale() -> None:
    """Six stages of two steps, over and over: none has half a window for a long time."""
    lines = Baselines(128, 64, 6.0, share=0.005)
    silent = []
    for step, value in enumerate(noise(600)):
        if lines.of(str(step // 2 % 6), step).update(value) is None:
            silent.append(step)
    assert silent == list(range(max(silent) + 1))
    assert max(silent) < 160


def test_a_short_context_does_not_widen_the_scale_that_the_next_one_carries_over() -> None:
    lines = Baselines(16, 8, 6.0, share=0.005)
    for step, value in enumerate(noise(100)):
        lines.of("a", step).update(value)
    carried = lines.of("a", 100).relative_scale
    for number in range(5):
        for step in range(4):
            lines.of(f"b{number}", 101 + 4 * number + step).update(4.0)
    assert lines.of("c", 130).carried == carried


def test_a_loss_that_falls_to_a_hundredth_within_a_window_is_judged_by_the_scale_it_has_now() -> None:
    line = Baseline(64, 32, 6.0, share=0.005)
    dice = random.Random(3)
    for step in range(200):
        line.update(5.0 * 0.93**step * math.exp(0.05 * dice.gauss(0, 1)))
    now = 5.0 * 0.93**200
    usual, sick = line.update(now), line.update(10 * now)
    assert usual is not None
    assert sick is not None
    assert abs(usual.z) < 3
    assert sick.z > 20


def test_a_context_away_for_ten_windows_begins_anew() -> None:
    lines = Baselines(16, 8, 6.0)
    for step in range(100):
        lines.of("a", step).update(math.sin(step))
    assert lines.of("a", 250).update(0.0) is not None
    assert lines.of("a", 500).update(0.0) is None
