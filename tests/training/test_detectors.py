"""Each detector fires at the step it must, not before, not twice, and goes on the same from its saved state."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import pytest

from cleanfeed.training.detectors import (
    ActivationStatistics,
    Detector,
    LayerRatio,
    LossScaleDrops,
    NonFinite,
    RatioToAverage,
    RobustZ,
    StallOrDivergence,
    SustainedGradNorm,
    UpdateNormZ,
    ValidationVariance,
    further_detectors,
    layer_ratio,
)
from cleanfeed.training.metrics import Metrics, Trip
from cleanfeed.training.options import (
    Activation,
    Ratio,
    Repeat,
    ScaleDrops,
    Stall,
    Sustained,
    UpdateNorm,
    ValVariance,
)
from cleanfeed.training.policy import Policy
from tests.training.traces import BLOOM_176B, EXPERIMENT_11, EXPERIMENT_12, Trace, quantiles

NAN = math.nan
SMALL = Policy(window=32)


def fires(detector: Detector, steps: Sequence[Metrics]) -> list[int]:
    return [trip.step for metrics in steps if (trip := detector.update(metrics)) is not None]


def losses(values: Sequence[float], context: str = "") -> list[Metrics]:
    return [Metrics(step, value, context=context) for step, value in enumerate(values)]


def norms(values: Sequence[float]) -> list[Metrics]:
    return [Metrics(step, 2.0, value) for step, value in enumerate(values)]


def extras(key: str, values: Sequence[float]) -> list[Metrics]:
    return [Metrics(step, 2.0, extra={key: value}) for step, value in enumerate(values)]


# ---- the public traces ---------------------------------------------------------------------------------------------

RULES: dict[str, Callable[[], Detector]] = {
    "ratio 5 x mean of 100": lambda: RatioToAverage(Ratio()),
    "ratio 3 x mean of 10": lambda: RatioToAverage(Ratio(3.0, 10)),
    "robust z, loss": lambda: RobustZ("loss", Policy()),
    "robust z, log grad norm": lambda: RobustZ("grad_norm", Policy()),
    "grad norm > 10 x median, 5 steps": lambda: SustainedGradNorm(Sustained(), Policy()),
}
FIRST: dict[str, tuple[int | None, int | None, int | None]] = {
    "ratio 5 x mean of 100": (None, None, None),
    "ratio 3 x mean of 10": (None, None, None),
    "robust z, loss": (31216, 11448, 8740),
    "robust z, log grad norm": (31215, 11447, 8741),
    "grad norm > 10 x median, 5 steps": (31220, None, None),
}
"""First step at which each rule fires: the bake-off on the public traces."""


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("column", "trace"),
    [(0, BLOOM_176B), (1, EXPERIMENT_11), (2, EXPERIMENT_12)],
    ids=["176B", "exp11", "exp12"],
)
def test_a_public_spike_fires_at_the_stated_step(rule: str, column: int, trace: Trace) -> None:
    detector = RULES[rule]()
    assert fires(detector, trace.before(640)) == []
    found = fires(detector, trace.printed())
    assert (found[0] if found else None) == FIRST[rule][column]


# ---- NaN and Inf ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "signal"),
    [
        (Metrics(7, NAN, 0.5), "loss"),
        (Metrics(7, math.inf, 0.5), "loss"),
        (Metrics(7, 2.0, NAN), "grad_norm"),
        (Metrics(7, 2.0, math.inf), "grad_norm"),
        (Metrics(7, 2.0, 0.5, finite=False), "loss"),
    ],
)
def test_nan_and_inf_trip_in_loss_norm_and_on_another_rank(metrics: Metrics, signal: str) -> None:
    trip = NonFinite().update(metrics)
    assert trip is not None
    assert (trip.rule, trip.signal, trip.step, trip.value, trip.limit) == ("nonfinite", signal, 7, None, None)
    json.dumps(trip.to_dict(), allow_nan=False)


def test_a_falling_loss_scale_explains_twenty_overflows_but_no_nan_loss() -> None:
    overflow = [Metrics(step, 2.0, math.inf, extra={"loss_scale": 2.0 ** (16 - step)}) for step in range(22)]
    assert fires(NonFinite(), overflow) == [20, 21]
    assert fires(NonFinite(), [Metrics(0, NAN, math.inf, extra={"loss_scale": 1.0})]) == [0]


# ---- robust z ------------------------------------------------------------------------------------------------------


def test_values_at_a_nan_are_no_part_of_the_baseline_and_a_later_spike_fires() -> None:
    values = [2.0, 2.1, 1.9] * 20 + [NAN] + [2.0] * 5 + [50.0]
    assert fires(RobustZ("loss", SMALL), losses(values)) == [66]


def test_spikes_before_do_not_hide_the_next_one() -> None:
    values = [2.0 + 0.01 * (i % 7) for i in range(60)] + [30.0, 2.0] * 4 + [12.0]
    assert fires(RobustZ("loss", SMALL), losses(values)) == [60, 62, 64, 66, 68]


def test_a_flat_window_fires_on_a_jump_and_not_on_the_last_digit() -> None:
    assert fires(RobustZ("loss", Policy()), losses([2.0] * 128 + [2.0000001, 9.0])) == [129]


def test_a_new_stage_is_no_spike_and_a_spike_in_it_is() -> None:
    values = [2.0 + 0.02 * (i % 5) for i in range(200)] + [3.1 + 0.02 * (i % 5) for i in range(200)]
    values[260] = 9.0
    steps = [Metrics(i, value, context=str(i // 200)) for i, value in enumerate(values)]
    assert fires(RobustZ("loss", SMALL), steps) == [260]


def test_a_norm_of_zero_or_none_is_passed_over() -> None:
    detector = RobustZ("grad_norm", SMALL)
    assert fires(detector, [Metrics(0, 2.0, None), Metrics(1, 2.0, 0.0)]) == []
    assert detector.reading is None


def test_a_trip_states_value_limit_and_median_in_the_unit_of_the_norm() -> None:
    detector = RobustZ("grad_norm", SMALL)
    fires(detector, norms([1.0] * 60))
    trip = detector.update(Metrics(60, 2.0, math.e))
    assert trip is not None
    assert trip.value == math.e
    assert trip.z == pytest.approx(1 / 0.15)
    assert trip.limit == pytest.approx(math.exp(6 * 0.15))
    assert trip.detail["median"] == pytest.approx(1.0)


# ---- the others ----------------------------------------------------------------------------------------------------


def test_ratio_fires_at_five_times_the_mean_and_keeps_the_spike_out_of_it() -> None:
    values = [2.0] * 60 + [10.0, 9.9, 10.0]
    assert fires(RatioToAverage(Ratio()), losses(values)) == [60]
    assert fires(RatioToAverage(Ratio()), losses([2.0] * 60 + [10.0, 10.0])) == [60, 61]


def test_sustained_fires_once_at_the_fifth_high_norm_in_a_row() -> None:
    high = [1.0] * 40 + [11.0] * 4 + [1.0] + [11.0] * 9
    assert fires(SustainedGradNorm(Sustained(), SMALL), norms(high)) == [49]


def test_sustained_takes_a_level_that_stays_for_the_new_median() -> None:
    detector = SustainedGradNorm(Sustained(), SMALL)
    assert fires(detector, norms([1.0] * 40 + [11.0] * 60)) == [44]
    assert fires(detector, norms([200.0] * 5)) == [4]


def test_stall_needs_swings_a_plateau_alone_never_fires() -> None:
    options = Stall(steps=200)
    plateau = [2.0 + 0.01 * value for value in quantiles(2000, 3)]
    assert fires(StallOrDivergence(options), losses(plateau)) == []
    swings = plateau[:400] + [2.0 + 0.1 * value for value in quantiles(400, 4)]
    found = fires(StallOrDivergence(options), losses(swings))
    assert len(found) == 1
    assert 400 < found[0] < 800


def test_divergence_is_a_slow_rise_no_single_step_shows() -> None:
    rising = [2.0 + 0.0002 * i for i in range(2000)]
    detector = StallOrDivergence(Stall(rise=0.08))
    trips = [trip for metrics in losses(rising) if (trip := detector.update(metrics))]
    assert [(trip.detail["kind"], trip.onset_step, trip.step) for trip in trips[:1]] == [("rise", 0, 999)]


def test_a_falling_loss_with_swings_does_not_fire() -> None:
    falling = [4.0 - 0.001 * i + (0.01 if i < 1000 else 0.2) * q for i, q in enumerate(quantiles(2000, 5))]
    assert fires(StallOrDivergence(Stall()), losses(falling)) == []


def test_layer_ratio_fires_once_per_time_above_and_names_the_layer() -> None:
    assert fires(LayerRatio(1000.0), extras("layer_ratio", [5.0, 1001.0, 2000.0, 5.0, math.inf])) == [1, 4]
    assert layer_ratio({"a": 1e-4, "b": 1.0, "c": 2e-4}) == (5000.0, "b")
    assert layer_ratio({"a": 0.0, "b": 1.0, "c": 0.0}) == (math.inf, "b")


def test_validation_variance_fires_when_evaluations_begin_to_swing() -> None:
    calm = [3.0 - 0.01 * i for i in range(20)]
    wild = [*calm, 2.8, 3.4, 2.7, 3.5, 2.6, 3.6]
    assert fires(ValidationVariance(ValVariance()), extras("val_loss", calm)) == []
    found = fires(ValidationVariance(ValVariance()), extras("val_loss", wild))
    assert len(found) == 1
    assert found[0] >= 22


def test_update_norm_and_activations_fire_at_ten_scales() -> None:
    values = [1.0] * 60 + [1.5, 1.7]
    assert fires(UpdateNormZ(UpdateNorm(), SMALL), extras("update_norm", values)) == [61]
    assert fires(ActivationStatistics(Activation(), SMALL), extras("activation_mean", values)) == [61]
    kurtosis = extras("activation_kurtosis", [3.0, 999.0, 1001.0])
    assert fires(ActivationStatistics(Activation(), SMALL), kurtosis) == [2]


def test_five_drops_of_the_loss_scale_in_a_hundred_steps_fire() -> None:
    scales = [2.0**16 / 2 ** (step // 24) for step in range(240)]
    assert fires(LossScaleDrops(ScaleDrops()), extras("loss_scale", scales)) == [120]
    rare = [2.0**16 / 2 ** (step // 30) for step in range(240)]
    assert fires(LossScaleDrops(ScaleDrops()), extras("loss_scale", rare)) == []


def test_a_policy_turns_detectors_on_and_off() -> None:
    off = Policy(sustained=None, stall=None, layer_ratio=None, scale_drops=None)
    assert further_detectors(off) == []
    every = Policy(
        ratio=Ratio(),
        val_variance=ValVariance(),
        update_norm=UpdateNorm(),
        activation=Activation(),
        repeat=Repeat(),
    )
    assert {detector.rule for detector in further_detectors(every)} == {
        "sustained",
        "ratio",
        "stall",
        "layer_ratio",
        "val_variance",
        "update_norm",
        "activation",
        "scale_drops",
    }


def everything() -> list[Metrics]:
    noise = quantiles(600, 9)
    steps = [
        Metrics(
            i,
            2.0 + 0.02 * q + (3.0 if i in (200, 410) else 0.0),
            math.exp(0.2 * q) * (40.0 if 300 <= i < 308 or 450 <= i < 456 else 1.0),
            str(i // 350),
            extra={
                "val_loss": 2.0 + (0.5 if i > 400 else 0.01) * q,
                "layer_ratio": 2000.0 if i == 420 else 5.0,
                "update_norm": 9.0 if i == 430 else 1.0,
                "activation_mean": 9.0 if i == 440 else 1.0,
                "loss_scale": 2.0 ** (16 - i // 15),
            },
        )
        for i, q in enumerate(noise)
    ]
    steps[500] = Metrics(500, NAN, 1.0)
    return steps


@pytest.mark.parametrize("index", range(11))
def test_a_detector_continues_the_same_from_its_state(index: int) -> None:
    policy = Policy(
        window=32,
        ratio=Ratio(2.0, 20),
        stall=Stall(steps=100, rise=0.0),
        val_variance=ValVariance(),
        update_norm=UpdateNorm(),
        activation=Activation(),
    )

    def make() -> Detector:
        first: list[Detector] = [NonFinite(), RobustZ("loss", policy), RobustZ("grad_norm", policy)]
        return (first + further_detectors(policy))[index]

    steps = everything()
    whole, half, again = make(), make(), make()
    expected: list[Trip | None] = [whole.update(metrics) for metrics in steps]
    got = [half.update(metrics) for metrics in steps[:405]]
    again.load_state_dict(json.loads(json.dumps(half.state_dict(), allow_nan=False)))
    assert got + [again.update(metrics) for metrics in steps[405:]] == expected
    assert any(expected)
