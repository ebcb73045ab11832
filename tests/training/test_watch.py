"""The watch: what opens an incident and what does not, which steps are taken, and that it repeats itself exactly."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from cleanfeed.training.metrics import SAMPLE_HIGH, SAMPLE_LOW, Metrics, Verdict
from cleanfeed.training.options import Repeat
from cleanfeed.training.policy import Policy
from cleanfeed.training.watch import Watch
from tests.training.traces import BLOOM_176B, EXPERIMENT_11, EXPERIMENT_12, Trace, healthy

NAN = math.nan
EARLY = Policy(grace=64, window=64)


def run(watch: Watch, steps: Sequence[Metrics]) -> list[Verdict]:
    return [watch.update(metrics) for metrics in steps]


def changed(steps: list[Metrics], at: int, **values: float) -> list[Metrics]:
    """Return the steps with other numbers at one step."""
    return [structs.replace(metrics, **values) if metrics.step == at else metrics for metrics in steps]


def opened(verdicts: Sequence[Verdict]) -> list[tuple[int, str, int | None]]:
    return [(v.step, v.lead.rule, v.onset_step) for v in verdicts if v.opened and v.lead is not None]


def skipped(verdicts: Sequence[Verdict]) -> list[int]:
    return [verdict.step for verdict in verdicts if not verdict.accept]


# ---- what opens an incident ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trace", "trip", "onset"),
    [(BLOOM_176B, 31216, 31215), (EXPERIMENT_11, 11448, 11447), (EXPERIMENT_12, 8741, 8740)],
    ids=["176B", "exp11", "exp12"],
)
def test_a_public_spike_is_one_incident_with_its_onset_at_the_leading_signal(
    trace: Trace, trip: int, onset: int
) -> None:
    watch = Watch()
    assert not any(verdict.trips for verdict in run(watch, trace.before(1024)))
    assert opened(run(watch, trace.printed())) == [(trip, "conjunction", onset)]


def test_a_lone_outlier_is_an_observation_and_its_step_is_taken() -> None:
    verdicts = run(Watch(EARLY), changed(healthy(400), 300, loss=2.0 + 0.02 * 7.5))
    assert opened(verdicts) == []
    assert skipped(verdicts) == []
    assert [v.step for v in verdicts if v.state == "observing"] == list(range(300, 311))
    assert [trip.level for v in verdicts for trip in v.trips] == ["observe"]


@pytest.mark.parametrize(
    ("loss", "norm", "rules"),
    [(5.5, 9.0, ["conjunction"]), (9.0, 5.5, ["conjunction"]), (5.5, 6.5, []), (3.0, 9.5, [])],
)
def test_an_outlier_beside_a_signal_that_never_lay_so_far_out_counts_as_two_where_they_are_as_seldom(
    loss: float, norm: float, rules: list[str]
) -> None:
    sick = {"loss": 2.0 + 0.02 * loss, "grad_norm": 0.5 * math.exp(0.2 * norm)}
    found = opened(run(Watch(EARLY), changed(healthy(400), 300, **sick)))
    assert found == [(300, rule, 300) for rule in rules]


def test_a_sick_micro_batch_does_not_confirm_a_loss_whose_norm_is_no_outlier() -> None:
    steps = [structs.replace(m, worst_micro_loss=m.loss + 0.3) for m in healthy(400)]
    steps = changed(steps, 300, worst_micro_loss=4.0)
    steps = changed(steps, 301, loss=2.0 + 0.02 * 6.3, grad_norm=0.5 * math.exp(0.2 * 5.0))
    assert opened(run(Watch(EARLY), steps)) == []


def test_an_extreme_loss_alone_is_an_incident_and_its_step_is_not_taken() -> None:
    verdicts = run(Watch(EARLY), changed(healthy(400), 300, loss=9.0))
    assert opened(verdicts) == [(300, "robust_z", 300)]
    assert skipped(verdicts) == [300]
    assert [v.step for v in verdicts if v.closed] == [311]
    assert not verdicts[299].harmed


@pytest.mark.parametrize(("gap", "incidents"), [(5, 1), (6, 0)])
def test_loss_and_norm_at_most_five_steps_apart_are_a_conjunction(gap: int, incidents: int) -> None:
    steps = changed(healthy(400), 300, grad_norm=0.5 * math.exp(0.2 * 8))
    steps = changed(steps, 300 + gap, loss=2.0 + 0.02 * 8)
    verdicts = run(Watch(EARLY), steps)
    assert opened(verdicts) == [(300 + gap, "conjunction", 300)] * incidents
    assert all(v.harmed for v in verdicts if v.opened)


@pytest.mark.parametrize(("gap", "incidents"), [(-5, 1), (0, 1), (5, 1), (-6, 0), (6, 0)])
def test_a_sick_micro_batch_that_the_mean_hides_confirms_a_norm_and_says_nothing_alone(
    gap: int, incidents: int
) -> None:
    steps = [structs.replace(m, worst_micro_loss=m.loss + 0.3) for m in healthy(400)]
    steps = changed(steps, 300 + gap, worst_micro_loss=4.0)
    assert {v.state for v in run(Watch(EARLY), steps)} == {"healthy"}
    steps = changed(steps, 300, grad_norm=0.5 * math.exp(0.2 * 8))
    expected = (max(300, 300 + gap), "conjunction", min(300, 300 + gap))
    assert opened(run(Watch(EARLY), steps)) == [expected] * incidents


def with_samples(steps: list[Metrics], rows: int = 8) -> list[Metrics]:
    """Return the steps with the ends of a batch whose samples lose 2 ± 0.2 nats."""
    dice = random.Random(8)
    made = []
    for metrics in steps:
        losses = sorted(dice.gauss(2.0, 0.2) for _ in range(rows))
        ends = dict(zip((*SAMPLE_HIGH, *SAMPLE_LOW), (*losses[:-4:-1], *losses[:2]), strict=True))
        made.append(structs.replace(metrics, extra=ends))
    return made


def with_ends(steps: list[Metrics], at: int, **ends: float) -> list[Metrics]:
    return [structs.replace(m, extra={**m.extra, **ends}) if m.step == at else m for m in steps]


@pytest.mark.parametrize(
    ("ends", "incidents"),
    [
        ({}, 0),
        ({"sample_high_1": 5.0}, 1),
        ({"sample_high_1": 3.0}, 0),
        ({"sample_high_1": 3.3, "sample_high_2": 3.2}, 1),
        ({"sample_high_1": 2.9, "sample_high_2": 2.9, "sample_high_3": 2.9}, 1),
        ({"sample_low_1": 0.0001}, 0),
        ({"sample_low_1": 0.01, "sample_low_2": 0.02}, 1),
        ({"sample_low_1": 0.5, "sample_low_2": 0.6}, 0),
        ({"sample_high_1": 0.05, "sample_low_1": 0.01, "sample_low_2": 0.02}, 0),
    ],
)
def test_samples_that_lie_far_out_are_an_incident_though_the_batch_hides_them(
    ends: dict[str, float], incidents: int
) -> None:
    """One very far, or two or three together that no healthy batch has; documents known by heart are none,
    nor is a batch whose hardest sample is easy."""
    verdicts = run(Watch(EARLY), with_ends(with_samples(healthy(400)), 300, **ends))
    assert opened(verdicts) == [(300, "samples", 300)] * incidents
    assert skipped(verdicts) == [300] * incidents


def test_a_sample_that_is_far_out_confirms_a_norm_that_is() -> None:
    steps = with_ends(with_samples(healthy(400)), 300, sample_high_1=3.2)
    steps = changed(steps, 301, grad_norm=0.5 * math.exp(0.2 * 8))
    assert opened(run(Watch(EARLY), steps)) == [(301, "conjunction", 300)]


def test_steps_of_a_new_context_that_nobody_judged_are_counted() -> None:
    watch = Watch(EARLY)
    run(watch, healthy(200, context="0/0") + healthy(100, 201, loss=(3.1, 0.03), context="1/0"))
    assert watch.unjudged == 3


def test_five_outlying_losses_in_a_row_are_an_incident() -> None:
    steps = [structs.replace(m, loss=2.0 + 0.02 * 8) if m.step >= 300 else m for m in healthy(310)]
    verdicts = run(Watch(EARLY), steps)
    assert opened(verdicts) == [(304, "persistence", 300)]
    assert verdicts[303].harmed


def test_the_third_spike_in_a_hundred_steps_is_an_incident() -> None:
    steps = healthy(500)
    for at in (300, 340, 380):
        steps = changed(steps, at, loss=2.0 + 0.02 * 8)
    assert opened(run(Watch(EARLY), steps)) == [(380, "repeat", 300)]
    assert opened(run(Watch(replace(EARLY, repeat=Repeat(within=80))), steps)) == []


def test_a_loss_that_stays_above_its_band_is_an_incident_though_no_step_is_an_outlier() -> None:
    steps = [structs.replace(m, loss=m.loss + (0.07 if m.step > 300 else 0.0)) for m in healthy(600)]
    steps = changed(steps, 300, loss=2.0 + 0.02 * 8)
    verdicts = run(Watch(EARLY), steps)
    assert opened(verdicts) == [(500, "no_return", 300)]
    assert opened(run(Watch(EARLY), changed(healthy(600), 300, loss=2.0 + 0.02 * 8))) == []


def test_a_spike_of_three_percent_that_settles_under_one_percent_higher_is_found() -> None:
    # As Marin-32B's, whose loss went from 1.96 to 2.02 and settled at 1.975, with noise as small as at its scale.
    steps = [
        structs.replace(m, loss=m.loss + (0.018 if m.step > 2000 else 0.0))
        for m in healthy(2300, loss=(1.96, 0.004))
    ]
    steps = changed(steps, 2000, loss=2.03)
    assert opened(run(Watch(), steps)) == [(2200, "no_return", 2000)]


def test_the_onset_is_walked_back_over_steps_that_were_unusual_already() -> None:
    steps = changed(healthy(400), 300, loss=9.0)
    for at, z in ((297, 3.6), (298, 4.0), (299, 5.0)):
        steps = changed(steps, at, grad_norm=0.5 * math.exp(0.2 * z))
    verdicts = run(Watch(EARLY), steps)
    assert opened(verdicts) == [(300, "robust_z", 297)]
    assert verdicts[299].harmed


def test_statistics_are_silent_in_the_grace_and_nan_is_not() -> None:
    steps = changed(changed(healthy(300), 250, loss=9.0), 20, loss=NAN)
    verdicts = run(Watch(replace(EARLY, grace=280)), steps)
    assert opened(verdicts) == [(20, "nonfinite", 20)]
    assert skipped(verdicts) == [20]


# ---- what does not -------------------------------------------------------------------------------------------------


def test_a_nan_followed_by_two_hundred_healthy_steps_skips_none_of_them() -> None:
    verdicts = run(Watch(), changed(healthy(1201), 1000, loss=NAN, grad_norm=NAN))
    assert skipped(verdicts) == [1000]
    assert opened(verdicts) == [(1000, "nonfinite", 1000)]


def test_an_overflow_of_the_loss_scale_is_no_incident_and_is_not_taken() -> None:
    steps = [structs.replace(m, extra={"loss_scale": 65536.0}) for m in healthy(400)]
    verdicts = run(Watch(EARLY), changed(steps, 300, grad_norm=math.inf))
    assert opened(verdicts) == []
    assert skipped(verdicts) == [300]


def test_an_incidents_own_outliers_open_no_second_one() -> None:
    steps = healthy(500)
    for at in (300, 303, 312, 322):
        steps = changed(steps, at, loss=9.0)
    verdicts = run(Watch(EARLY), steps)
    assert opened(verdicts) == [(300, "robust_z", 300)]
    assert [v.step for v in verdicts if v.closed] == [333]


def test_a_new_stage_at_another_level_is_no_incident() -> None:
    steps = healthy(400, context="0/0") + healthy(400, 401, loss=(3.1, 0.03), norm=(1.5, 0.2), context="1/0")
    steps = changed(steps, 460, loss=9.0)
    assert opened(run(Watch(EARLY), steps)) == [(460, "robust_z", 460)]


def test_a_level_that_stays_becomes_the_baseline_and_the_incident_ends() -> None:
    steps = healthy(300) + healthy(300, 301, loss=(3.0, 0.02))
    verdicts = run(Watch(EARLY), steps)
    shift = [v for v in verdicts if v.level_shift]
    assert opened(verdicts) == [(301, "robust_z", 301)]
    assert [(v.step, v.level_shift, v.closed) for v in shift] == [(332, ("loss",), True)]
    assert {v.state for v in verdicts[340:]} == {"healthy"}
    assert skipped(verdicts) == [301, 302, 303, 304, 305]


def test_a_level_below_the_old_one_ends_no_incident_and_is_none() -> None:
    steps = [structs.replace(m, loss=m.loss - 1.0) if m.step > 300 else m for m in healthy(400)]
    assert {v.level_shift for v in run(Watch(EARLY), steps)} == {()}
    for at in range(301, 341, 8):
        steps = changed(steps, at, grad_norm=50.0)
    verdicts = run(Watch(EARLY), steps)
    assert opened(verdicts) == [(301, "robust_z", 301)]
    assert [v.step for v in verdicts if v.closed] == [344]
    assert {v.level_shift for v in verdicts} == {()}


def test_an_incident_ends_at_the_step_at_which_the_next_one_opens() -> None:
    steps = changed(changed(healthy(400), 300, loss=9.0), 311, loss=9.0)
    verdicts = run(Watch(EARLY), steps)
    assert [(v.step, v.opened, v.closed) for v in verdicts if v.opened or v.closed] == [
        (300, True, False),
        (311, True, True),
        (322, False, True),
    ]


def test_low_outliers_are_harmless() -> None:
    verdicts = run(Watch(EARLY), changed(healthy(400), 300, loss=0.1, grad_norm=1e-6))
    assert {v.state for v in verdicts} == {"healthy"}


# ---- which steps are taken -----------------------------------------------------------------------------------------


def test_it_escalates_where_skipping_does_not_end_it() -> None:
    steps = [structs.replace(m, loss=m.loss + (5.0 if m.step >= 300 else 0.0)) for m in healthy(310)]
    verdicts = run(Watch(EARLY), steps)
    assert skipped(verdicts) == [300, 301, 302, 303, 304]
    assert [v.step for v in verdicts if v.escalated] == [304, 309]
    assert not verdicts[303].harmed
    assert verdicts[305].harmed


def test_a_nan_that_stays_is_never_taken() -> None:
    steps = [structs.replace(m, loss=NAN) if m.step >= 300 else m for m in healthy(330)]
    verdicts = run(Watch(EARLY), steps)
    assert skipped(verdicts) == list(range(300, 331))
    assert [v.step for v in verdicts if v.escalated] == [304, 309, 314, 319, 324, 329]


def test_without_skip_step_every_step_is_taken() -> None:
    steps = changed(changed(healthy(400), 300, loss=9.0), 350, loss=NAN)
    verdicts = run(Watch(replace(EARLY, actions=("record",))), steps)
    assert [step for step, _, _ in opened(verdicts)] == [300, 350]
    assert skipped(verdicts) == []


def test_a_harmless_outlier_raises_the_limit_for_a_lone_one_and_a_conjunction_still_fires() -> None:
    steps = changed(healthy(900), 300, loss=2.0 + 0.02 * 9)
    lone = changed(steps, 700, loss=2.0 + 0.02 * 20)
    assert opened(run(Watch(EARLY), lone)) == []
    both = changed(lone, 700, loss=2.0 + 0.02 * 20, grad_norm=0.5 * math.exp(0.2 * 8))
    assert opened(run(Watch(EARLY), both)) == [(700, "conjunction", 700)]


# ---- state ---------------------------------------------------------------------------------------------------------


MICRO = st.sampled_from([2.5, 4.0])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_it_continues_the_same_from_its_state_wherever_it_is_cut(data: st.DataObject) -> None:
    steps = with_samples([structs.replace(m, worst_micro_loss=m.loss + 0.3) for m in healthy(500)])
    for _ in range(6):
        at = data.draw(st.integers(100, 499))
        value = data.draw(st.sampled_from([NAN, 2.16, 2.3, 9.0, 0.5]))
        norm = data.draw(st.sampled_from([NAN, 0.5, 3.0, 90.0]))
        steps = changed(steps, at, loss=value, grad_norm=norm, worst_micro_loss=data.draw(MICRO))
        steps = with_ends(steps, at, sample_high_1=data.draw(MICRO), sample_low_2=data.draw(MICRO) - 2.45)
    cut = data.draw(st.integers(1, 499))
    whole, first, second = Watch(EARLY), Watch(EARLY), Watch(EARLY)
    expected = run(whole, steps)
    got = run(first, steps[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert got + run(second, steps[cut:]) == expected
    assert second.state_dict() == whole.state_dict()


def test_the_state_stays_small() -> None:
    watch = Watch()
    run(watch, with_samples(healthy(3000)))
    assert len(json.dumps(watch.state_dict())) < 60_000


# ---- false alarms --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "false_alarms.py"
    spec = importlib.util.spec_from_file_location("false_alarms", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("kind", "steps"), [("gaussian", 10_000), ("student-t4", 15_000), ("student-t3", 25_000)]
)
def test_fifty_thousand_healthy_steps_open_no_incident(benchmark: ModuleType, kind: str, steps: int) -> None:
    _, incidents, rules, _ = benchmark.measure(kind, steps, 0)
    assert (incidents, rules) == (0, {})
