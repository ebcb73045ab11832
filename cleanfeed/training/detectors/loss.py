"""The loss of each step goes in; a trip comes out where it is many times its average, or declines no more."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from cleanfeed.training.baselines import GAUSSIAN
from cleanfeed.training.metrics import Metrics, Trip
from cleanfeed.training.options import Ratio, Stall
from cleanfeed.training.running import deviation_of, median_of

BLOCKS = 20
"""Blocks a stall is judged by: the trend goes through their medians."""


class RatioToAverage:
    """loss ≥ ``factor`` · mean of the last ``window`` accepted losses (5 and 100).

    Off by default: a model at chance scores ln V, about 11 nats, so five times a healthy 2.2 asks for guessing.
    Losses that fire do not enter the mean; it speaks once it holds half a window.

    Source: the popular rule; Lightning's `SpikeDetection` is the same with 3 and 10.
    """

    rule = "ratio"

    def __init__(self, options: Ratio) -> None:
        self.options = options
        self.values: deque[float] = deque(maxlen=options.window)

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip where the loss is far above its average."""
        if not math.isfinite(metrics.loss):
            return None
        if len(self.values) >= max(2, self.options.window // 2):
            mean = math.fsum(self.values) / len(self.values)
            limit = self.options.factor * mean
            if metrics.loss >= limit > 0.0:
                detail = {"mean": mean, "n": len(self.values), "context": metrics.context}
                return Trip(self.rule, "loss", metrics.step, metrics.step, metrics.loss, limit, detail=detail)
        self.values.append(metrics.loss)
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {"values": list(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.values = deque(state["values"], maxlen=self.options.window)


class StallOrDivergence:
    """No decline of the loss over ``steps`` (1,000) steps of one context, with strong swings or a rise.

    The steps are cut into 20 blocks. The trend is the Theil–Sen slope, the median of the slopes between all pairs
    of block medians, so that single spikes do not count. Fires where the trend is not negative, and

    - *swings*: the median of the blocks' 1.4826 · MAD is at least ``swing`` (3) times what it was over the ``steps``
      steps before, both in shares of the loss; or
    - *rise*: slope · ``steps`` is at least ``rise`` (10 %) of the median loss.

    A plateau alone never fires. Judged at each block's end, for each context by itself; starts anew after a trip.

    Source: the practice "no decline in 1,000 steps with strong swings"; Theil (1950), Sen (1968).
    """

    rule = "stall"

    def __init__(self, options: Stall) -> None:
        self.options = options
        self.size = max(1, options.steps // BLOCKS)
        self.trends: dict[str, _Trend] = {}

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip at the end of a block where the loss has stalled with swings, or risen."""
        if not math.isfinite(metrics.loss):
            return None
        trend = self.trends.get(metrics.context)
        if trend is None:
            trend = self.trends[metrics.context] = _Trend(self.size, metrics.step)
        if not trend.add(metrics.step, metrics.loss) or len(trend.centers) < BLOCKS:
            return None
        found = self._judge(trend)
        if found is None:
            return None
        kind, value, limit = found
        onset = trend.starts[-BLOCKS]
        del self.trends[metrics.context]
        detail = {"kind": kind, "steps": self.size * BLOCKS, "context": metrics.context}
        return Trip(self.rule, "loss", metrics.step, onset, value, limit, detail=detail)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {context: trend.state_dict() for context, trend in self.trends.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.trends = {}
        for context, values in state.items():
            self.trends[context] = _Trend(self.size, 0)
            self.trends[context].load_state_dict(values)

    def _judge(self, trend: _Trend) -> tuple[str, float, float] | None:
        centers, swings = trend.centers[-BLOCKS:], trend.swings
        slope = theil_sen(centers)
        if slope < 0.0:
            return None
        rise = slope * BLOCKS / max(abs(median_of(sorted(centers))), 1e-12)
        if rise >= self.options.rise:
            return "rise", rise, self.options.rise
        if len(swings) < 2 * BLOCKS:
            return None
        before, now = median_of(sorted(swings[:BLOCKS])), median_of(sorted(swings[BLOCKS:]))
        if before > 0.0 and now >= self.options.swing * before:
            return "swings", now / before, self.options.swing
        return None


class _Trend:
    """Medians and swings of the last blocks of one context."""

    __slots__ = ("begun", "block", "centers", "size", "starts", "swings")

    def __init__(self, size: int, step: int) -> None:
        self.size = size
        self.begun = step
        self.block: list[float] = []
        self.starts: list[int] = []
        self.centers: list[float] = []
        self.swings: list[float] = []

    def add(self, step: int, loss: float) -> bool:
        """Take in a loss and return whether it closed a block."""
        if not self.block:
            self.begun = step
        self.block.append(loss)
        if len(self.block) < self.size:
            return False
        ordered = sorted(self.block)
        center = median_of(ordered)
        spread = GAUSSIAN * deviation_of(ordered, center)
        self.starts.append(self.begun)
        self.centers.append(center)
        self.swings.append(spread / max(abs(center), 1e-12))
        del self.starts[: -2 * BLOCKS], self.centers[: -2 * BLOCKS], self.swings[: -2 * BLOCKS]
        self.block = []
        return True

    def state_dict(self) -> dict[str, Any]:
        return {
            "begun": self.begun,
            "block": list(self.block),
            "starts": list(self.starts),
            "centers": list(self.centers),
            "swings": list(self.swings),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begun = state["begun"]
        self.block, self.starts = list(state["block"]), list(state["starts"])
        self.centers, self.swings = list(state["centers"]), list(state["swings"])


def theil_sen(values: Sequence[float]) -> float:
    """Return the median of the slopes between all pairs of equally spaced values, per space."""
    return median_of(sorted((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(values), 2)))
