"""One number of each step goes in; a trip comes out where it lies far from the healthy steps of its context."""

from __future__ import annotations

import math
from typing import Any

from cleanfeed.training.baselines import Baselines, Reading
from cleanfeed.training.metrics import SAMPLE_HIGH, SAMPLE_LOW, Metrics, Trip
from cleanfeed.training.policy import Policy

SAMPLE_FLOOR = 0.05
"""Least scale of a high sample loss in nats: what a model knows by heart strays by less, and that says nothing."""
SAMPLE_WINDOW = 64
"""Least window of a sample's signal: what the ends of a batch do cannot be told from a few steps."""
TOGETHER = {2: 3.2, 3: 2.3}
"""Two or three samples together act at so many times the largest harmless z of theirs. Under Student-t(3) noise 8^(1/2)
and 8^(1/3) times are exceeded by chance about as often as ``tail_act`` (8) times that of a single one; what is above
them is room for scales that are measured on few steps."""
LOW_FLOOR = 0.3
"""Least scale of the logarithm of a low sample loss: z = 10 is a twentieth of the usual."""
BY_HEART = 0.05
"""A lower loss of a sample counts as this one, in nats."""


class RobustZ:
    """z = (x − median) / max(1.4826 · MAD, floor) over the last ``window`` healthy steps of the context.

    ======================  ======================  ====================  ==========================================
    signal                  x                       floor                 acts by itself at z ≥
    ======================  ======================  ====================  ==========================================
    ``loss``                loss in nats            0.5 % of the median   ``z_act`` (10)
    ``grad_norm``           natural logarithm       0.15                  ``z_act`` (10)
    ``worst_micro_loss``    loss in nats            0.5 % of the median   never: it confirms a gradient norm
    ``sample_high_k``       loss in nats            0.05 nats             10, 7, 6.4 for k = 1, 2, 3
    ``sample_low_k``        −natural logarithm      0.3                   never, ``z_act`` (10) for k = 1, 2
    ======================  ======================  ====================  ==========================================

    ``sample_high_k`` is the k-th highest loss of a sample of the global batch, ``sample_low_k`` the k-th lowest. High
    ones act at ``z_observe + (z_act − z_observe) / k²``, since k independent samples stray together the more seldom
    the more they are. A single low one may be a document that is known by heart, and hardly moves the weights. Fires
    at z ≥ ``z_observe`` (6). A step whose number is not finite, or not above 0 for a norm, is passed over.

    Source: OLMo-core's skip-step (mean + 6σ over 128 steps) with median and MAD for mean and σ, outliers kept out;
    bake-off and false alarms: docs/detectors.md.

    Args:
        signal: One of the table.
        policy: Window, limits and floors.
    """

    rule = "robust_z"

    def __init__(self, signal: str, policy: Policy) -> None:
        self.signal = signal
        self.limit = policy.z_observe
        self.place = _place(signal)
        """k of the k-th highest or lowest sample; 0 for the other signals."""
        self.leads = signal in ("loss", "grad_norm")
        """Whether an outlier of it opens an observation by itself."""
        k = max(1, self.place)
        self.acts_at = policy.z_observe + (policy.z_act - policy.z_observe) / k**2
        if signal in ("worst_micro_loss", SAMPLE_LOW[0]):
            self.acts_at = math.inf
        elif signal in SAMPLE_LOW:
            self.acts_at = policy.z_act
        self.acts_times = TOGETHER.get(k, policy.tail_act)
        """Largest harmless z times this is the most that a heavy tail raises the limit to."""
        self._log = signal == "grad_norm"
        self._low = signal in SAMPLE_LOW
        floors = {"share": policy.loss_floor}
        if self.place and not self._low:
            floors["floor"] = SAMPLE_FLOOR
        elif self._log or self._low:
            floors = {"floor": policy.grad_floor if self._log else LOW_FLOOR}
        window, history = policy.window, policy.min_history
        if self.place:
            window, history = max(window, SAMPLE_WINDOW), max(history, SAMPLE_WINDOW // 2)
        self.baselines = Baselines(window, history, policy.z_observe, **floors)
        self.reading: Reading | None = None
        """How the last step lay; None where no baseline spoke."""

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip of level ``observe`` where the step is an outlier."""
        self.reading = None
        value = self._value(metrics)
        if value is None or not math.isfinite(value):
            return None
        if self._log:
            if value <= 0.0:
                return None
            value = math.log(value)
        elif self._low:
            value = -math.log(max(value, BY_HEART))
        reading = self.baselines.of(metrics.context, metrics.step).update(value)
        self.reading = reading
        return None if reading is None or reading.z < self.limit else self.trip(metrics, reading, self.limit)

    def trip(self, metrics: Metrics, reading: Reading, limit_z: float) -> Trip:
        """Return the trip for a reading, with the limit and the median in the unit of the signal."""
        detail = {
            "median": self._unit(reading.median),
            "scale": reading.scale,
            "n": reading.count,
            "context": metrics.context,
        }
        return Trip(
            "samples" if self.place else self.rule,
            self.signal,
            metrics.step,
            metrics.step,
            self._value(metrics),
            self._unit(reading.median + limit_z * reading.scale),
            reading.z,
            "observe",
            detail,
        )

    def _value(self, metrics: Metrics) -> float | None:
        if self._log:
            return metrics.grad_norm
        if self.signal == "loss":
            return metrics.loss
        if self.place:
            return metrics.extra.get(self.signal)
        # Where the step is one micro-batch its loss is the loss, and says nothing of its own.
        return None if metrics.worst_micro_loss == metrics.loss else metrics.worst_micro_loss

    def _unit(self, x: float) -> float | None:
        """Return the value an x stands for; None where no float can hold it."""
        if not (self._log or self._low):
            return x
        x = -x if self._low else x
        return math.exp(x) if x < 700.0 else None

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return self.baselines.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.baselines.load_state_dict(state)
        self.reading = None


def _place(signal: str) -> int:
    """Return k of the k-th highest or lowest sample; 0 for a signal that is of no sample."""
    return next((names.index(signal) + 1 for names in (SAMPLE_HIGH, SAMPLE_LOW) if signal in names), 0)
