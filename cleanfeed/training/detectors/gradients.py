"""Gradient norms go in; a trip comes out where they stay high, or where one layer outgrows the others."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from cleanfeed.training.metrics import Metrics, Trip
from cleanfeed.training.options import Sustained
from cleanfeed.training.policy import Policy
from cleanfeed.training.running import median_of


class SustainedGradNorm:
    """Gradient norm above ``factor`` (10) · running median for ``steps`` (5) steps in a row.

    The median is that of the last ``window`` (128) norms that were not above the limit, in the same context; it
    speaks once it holds half of them. Fires once per run of high norms.

    Source: the practice "gradient norm > 10 × median for 5 steps"; on BLOOM-176B it fires one step after the peak.
    """

    rule = "sustained"

    def __init__(self, options: Sustained, policy: Policy) -> None:
        self.options = options
        self.window, self.min_history = policy.window, policy.min_history
        self.norms: dict[str, _Norms] = {}
        self.in_row = 0

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip at the last of ``steps`` high norms in a row."""
        norm = metrics.grad_norm
        if norm is None or not math.isfinite(norm):
            return None
        norms = self.norms.get(metrics.context)
        if norms is None:
            norms = self.norms[metrics.context] = _Norms(self.window)
        if len(norms.values) >= self.min_history:
            # No median lies below the lowest, so it is seldom worked out.
            if norm > self.options.factor * norms.lowest:
                median = norms.median()
                if norm > self.options.factor * median:
                    return self._high(metrics, norm, norms, median)
            self.in_row = 0
        norms.add(norm)
        return None

    def _high(self, metrics: Metrics, norm: float, norms: _Norms, median: float) -> Trip | None:
        """Return a trip where it is the last of so many norms in a row above the limit."""
        self.in_row += 1
        if self.in_row >= self.min_history + self.options.steps:
            norms.fill(())  # the level has shifted for good; without this the rule would be deaf from now on
            self.in_row = 0
        if self.in_row != self.options.steps:
            return None
        onset = metrics.step - self.options.steps + 1
        detail = {"median": median, "n": len(norms.values), "context": metrics.context}
        limit = self.options.factor * median
        return Trip(self.rule, "grad_norm", metrics.step, onset, norm, limit, detail=detail)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        medians = {context: list(norms.values) for context, norms in self.norms.items()}
        return {"medians": medians, "in_row": self.in_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.in_row = state["in_row"]
        self.norms = {}
        for context, values in state["medians"].items():
            self.norms[context] = _Norms(self.window)
            self.norms[context].fill(values)


class _Norms:
    """The last norms of one context that were not too high."""

    __slots__ = ("lowest", "values")

    def __init__(self, window: int) -> None:
        self.values: deque[float] = deque(maxlen=window)
        self.lowest = math.inf
        """None of them lies below this."""

    def add(self, norm: float) -> None:
        self.values.append(norm)
        if norm < self.lowest:
            self.lowest = norm

    def fill(self, values: Iterable[float]) -> None:
        self.values.clear()
        self.values.extend(values)
        self.lowest = min(self.values, default=math.inf)

    def median(self) -> float:
        ordered = sorted(self.values)
        self.lowest = ordered[0]
        return median_of(ordered)


class LayerRatio:
    """Largest over median of the layers' mean absolute gradients, above ``limit`` (1,000).

    Reads ``layer_ratio``, which `layer_ratio` works out; silent where the loop does not give it.

    Source: the practice "per-layer gradient ratio > 1,000 ×"; OLMo-core's GAP monitor logs the same numbers.
    """

    rule = "layer_ratio"

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.high = False

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip at the first step above the limit."""
        value = metrics.extra.get("layer_ratio")
        if value is None:
            return None
        was, self.high = self.high, not value <= self.limit
        if not self.high or was:
            return None
        shown = value if math.isfinite(value) else None
        detail = {"context": metrics.context}
        return Trip(self.rule, "layer_ratio", metrics.step, metrics.step, shown, self.limit, detail=detail)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {"high": self.high}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.high = state["high"]


def layer_ratio(gradients: Mapping[str, float]) -> tuple[float, str]:
    """Return the largest over the median of the layers' mean absolute gradients, and the layer it is in.

    Args:
        gradients: Mean absolute gradient of each layer; at least one.
    """
    worst = max(
        gradients, key=lambda name: gradients[name] if gradients[name] == gradients[name] else math.inf
    )
    median = median_of(sorted(gradients.values()))
    return (gradients[worst] / median if median > 0.0 else math.inf), worst
