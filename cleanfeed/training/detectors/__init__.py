"""The detectors: each takes the metrics of one step and answers with a trip or nothing, and can save its state."""

from __future__ import annotations

from typing import Any, Protocol

from cleanfeed.training.detectors.extras import (
    ActivationStatistics,
    LossScaleDrops,
    UpdateNormZ,
    ValidationVariance,
)
from cleanfeed.training.detectors.gradients import LayerRatio, SustainedGradNorm, layer_ratio
from cleanfeed.training.detectors.loss import RatioToAverage, StallOrDivergence
from cleanfeed.training.detectors.nonfinite import NonFinite
from cleanfeed.training.detectors.robust_z import RobustZ
from cleanfeed.training.metrics import Metrics, Trip
from cleanfeed.training.policy import Policy

__all__ = [
    "ActivationStatistics",
    "Detector",
    "LayerRatio",
    "LossScaleDrops",
    "NonFinite",
    "RatioToAverage",
    "RobustZ",
    "StallOrDivergence",
    "SustainedGradNorm",
    "UpdateNormZ",
    "ValidationVariance",
    "further_detectors",
    "layer_ratio",
]


class Detector(Protocol):
    """A rule over the metrics of one step after another."""

    rule: str

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip where the rule fires at this step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        ...


def further_detectors(policy: Policy) -> list[Detector]:
    """Return the detectors a policy turns on besides NaN/Inf and robust z, which every watch has."""
    found: list[Detector] = []
    if policy.sustained is not None:
        found.append(SustainedGradNorm(policy.sustained, policy))
    if policy.ratio is not None:
        found.append(RatioToAverage(policy.ratio))
    if policy.stall is not None:
        found.append(StallOrDivergence(policy.stall))
    if policy.layer_ratio is not None:
        found.append(LayerRatio(policy.layer_ratio))
    if policy.val_variance is not None:
        found.append(ValidationVariance(policy.val_variance))
    if policy.update_norm is not None:
        found.append(UpdateNormZ(policy.update_norm, policy))
    if policy.activation is not None:
        found.append(ActivationStatistics(policy.activation, policy))
    if policy.scale_drops is not None:
        found.append(LossScaleDrops(policy.scale_drops))
    return found
