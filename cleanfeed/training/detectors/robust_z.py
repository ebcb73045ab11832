"""One number of each step goes in; a trip comes out where it lies far above the healthy steps of its context."""

from __future__ import annotations

import math
from typing import Any, Literal

from cleanfeed.training.baselines import Baselines, Reading
from cleanfeed.training.metrics import Metrics, Trip
from cleanfeed.training.policy import Policy


class RobustZ:
    """z = (x − median) / max(1.4826 · MAD, floor) over the last ``window`` healthy steps of the context.

    For a loss x is the loss in nats and the floor 0.5 % of the median; for the gradient norm x is its natural
    logarithm and the floor 0.15. Fires at z ≥ ``z_observe`` (6); high values only. A step whose number is not
    finite, or not above 0 for a norm, is passed over.

    Source: OLMo-core's skip-step (mean + 6σ over 128 steps) with median and MAD for mean and σ, outliers kept out;
    bake-off and false alarms: docs/detectors.md.

    Args:
        signal: ``loss``, ``worst_micro_loss`` or ``grad_norm``.
        policy: Window, limits and floors.
    """

    rule = "robust_z"

    def __init__(self, signal: Literal["loss", "worst_micro_loss", "grad_norm"], policy: Policy) -> None:
        self.signal = signal
        self.limit = policy.z_observe
        self.log = signal == "grad_norm"
        floors = {"floor": policy.grad_floor} if self.log else {"share": policy.loss_floor}
        self.baselines = Baselines(policy.window, policy.min_history, policy.z_observe, **floors)
        self.reading: Reading | None = None
        """How the last step lay; None where no baseline spoke."""

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip of level ``observe`` where the step is an outlier."""
        self.reading = None
        value = self._value(metrics)
        if value is None or not math.isfinite(value) or (self.log and value <= 0.0):
            return None
        line = self.baselines.of(metrics.context, metrics.step)
        reading = self.reading = line.update(math.log(value) if self.log else value)
        if reading is None or reading.z < self.limit:
            return None
        return self.trip(metrics, reading, self.limit)

    def trip(self, metrics: Metrics, reading: Reading, limit_z: float) -> Trip:
        """Return the trip for a reading, with the limit and the median in the unit of the signal."""
        value = self._value(metrics)
        limit = reading.median + limit_z * reading.scale
        detail = {
            "median": _power(reading.median) if self.log else reading.median,
            "scale": reading.scale,
            "n": reading.count,
            "context": metrics.context,
        }
        return Trip(
            self.rule,
            self.signal,
            metrics.step,
            metrics.step,
            value,
            _power(limit) if self.log else limit,
            reading.z,
            "observe",
            detail,
        )

    def _value(self, metrics: Metrics) -> float | None:
        if self.log:
            return metrics.grad_norm
        if self.signal == "loss":
            return metrics.loss
        # Where the step is one micro-batch its loss is the loss, and says nothing of its own.
        return None if metrics.worst_micro_loss == metrics.loss else metrics.worst_micro_loss

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return self.baselines.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.baselines.load_state_dict(state)
        self.reading = None


def _power(x: float) -> float | None:
    """Return e to the x, None where no float can hold it."""
    return math.exp(x) if x < 700.0 else None
