"""Metrics that only some loops give go in; a trip comes out where one leaves what was usual for it."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from typing import Any

from cleanfeed.training.baselines import GAUSSIAN, Baselines
from cleanfeed.training.metrics import Metrics, Trip
from cleanfeed.training.options import Activation, ScaleDrops, UpdateNorm, ValVariance
from cleanfeed.training.policy import Policy
from cleanfeed.training.running import deviation_of, median_of

Z_OUT = 6.0
LOG_FLOOR = 0.05
"""Least scale of a logarithm: 5 % of the value."""


class LogZ:
    """Robust z of the logarithm of one metric's magnitude, against its own baseline in each context."""

    def __init__(self, key: str, rule: str, limit: float, policy: Policy) -> None:
        self.key, self.rule, self.limit = key, rule, limit
        self.baselines = Baselines(policy.window, policy.min_history, min(Z_OUT, limit), floor=LOG_FLOOR)

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip where the metric lies ``limit`` scales above its median."""
        value = metrics.extra.get(self.key)
        if value is None or not math.isfinite(value) or value == 0.0:
            return None
        reading = self.baselines.of(metrics.context, metrics.step).update(math.log(abs(value)))
        if reading is None or reading.z < self.limit:
            return None
        edge = reading.median + self.limit * reading.scale
        detail = {"median": math.exp(reading.median), "scale": reading.scale, "n": reading.count}
        limit = math.exp(edge) if edge < 700.0 else None
        return Trip(self.rule, self.key, metrics.step, metrics.step, value, limit, reading.z, detail=detail)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return self.baselines.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.baselines.load_state_dict(state)


class UpdateNormZ(LogZ):
    """Robust z of log ``update_norm`` at or above ``z`` (10); off by default.

    ``update_norm`` is the norm of the optimizer's last update, so it speaks of the step before; on Marin-32B it
    doubled before gradient and loss moved.

    Source: stanford-crfm/marin#1368; Levanter's `clip_update_norm` (mean + 3σ over 128 steps).
    """

    def __init__(self, options: UpdateNorm, policy: Policy) -> None:
        super().__init__("update_norm", "update_norm", options.z, policy)


class ActivationStatistics(LogZ):
    """Robust z of log |``activation_mean``| at or above ``z`` (10), or ``activation_kurtosis`` above 1,000; off.

    ``activation_mean`` is a mean of activations or of their magnitudes, in the model's unit; kurtosis is the fourth
    standardised moment (3 for Gaussian), the largest over the layers the loop watches.

    Source: mosaicml/composer's `ActivationMonitor` and OLMo-core's GAP monitor, which log them.
    """

    def __init__(self, options: Activation, policy: Policy) -> None:
        super().__init__("activation_mean", "activation", options.z, policy)
        self.kurtosis = options.kurtosis

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip where the mean or the kurtosis of the activations is far from usual."""
        trip = super().update(metrics)
        value = metrics.extra.get("activation_kurtosis")
        if trip is not None or value is None or value <= self.kurtosis:
            return trip
        shown = value if math.isfinite(value) else None
        return Trip(
            self.rule, "activation_kurtosis", metrics.step, metrics.step, shown, self.kurtosis, detail={}
        )


class ValidationVariance:
    """Spread of the last ``points`` (5) validation losses above ``factor`` (5) times the spread before; off.

    Spread is 1.4826 · MAD of the losses' differences from one evaluation to the next, in nats, so that a steady
    decline is no spread; the one before is taken over the earlier evaluations, at least twice ``points``, with a
    floor of 0.5 % of their median. A step without ``val_loss`` is passed over.

    Source: the practice of watching the variance of the validation loss; no peer does.
    """

    rule = "val_variance"
    floor = 0.005
    kept = 100
    """Evaluations that are remembered."""

    def __init__(self, options: ValVariance) -> None:
        self.options = options
        self.values: deque[float] = deque(maxlen=self.kept)
        self.first_step: deque[int] = deque(maxlen=options.points)

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip where validation losses have begun to swing."""
        value = metrics.extra.get("val_loss")
        if value is None or not math.isfinite(value):
            return None
        self.values.append(value)
        self.first_step.append(metrics.step)
        points = self.options.points
        if len(self.values) < 3 * points:
            return None
        losses = list(self.values)
        steps = [b - a for a, b in pairwise(losses)]
        center = median_of(sorted(losses[:-points]))
        before = max(_spread(steps[:-points]), self.floor * abs(center))
        now = _spread(steps[-points:])
        if now <= self.options.factor * before:
            return None
        self.values.clear()
        detail = {"before": before, "points": points}
        return Trip(
            self.rule,
            "val_loss",
            metrics.step,
            self.first_step[0],
            now,
            self.options.factor * before,
            detail=detail,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {"values": list(self.values), "first_step": list(self.first_step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.values = deque(state["values"], maxlen=self.kept)
        self.first_step = deque(state["first_step"], maxlen=self.options.points)


class LossScaleDrops:
    """``times`` (5) drops of ``loss_scale`` within ``within`` (100) steps.

    A drop is a step whose loss scale is below that of the step before. While the scaler settles at the start of a
    run drops are normal: the grace of the policy covers them.

    Source: EleutherAI/gpt-neox's overflow monitor (50 in a row); DeepSpeed raises at its least scale.
    """

    rule = "scale_drops"

    def __init__(self, options: ScaleDrops) -> None:
        self.options = options
        self.scale: float | None = None
        self.drops: deque[int] = deque()

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip where the loss scale has dropped too often."""
        scale = metrics.extra.get("loss_scale")
        if scale is None:
            return None
        before, self.scale = self.scale, scale
        if before is None or scale >= before:
            return None
        self.drops.append(metrics.step)
        while self.drops[0] <= metrics.step - self.options.within:
            self.drops.popleft()
        if len(self.drops) < self.options.times:
            return None
        onset, count = self.drops[0], len(self.drops)
        self.drops.clear()
        limit = float(self.options.times)
        detail = {"scale": scale, "within": self.options.within}
        return Trip(self.rule, "loss_scale", metrics.step, onset, float(count), limit, detail=detail)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {"scale": self.scale, "drops": list(self.drops)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.scale, self.drops = state["scale"], deque(state["drops"])


def _spread(values: list[float]) -> float:
    ordered = sorted(values)
    return GAUSSIAN * deviation_of(ordered, median_of(ordered))
