"""The numbers of healthy steps go in; a median and a scale no outlier can move come out, for each context.

The scale is 1.4826 · MAD (median absolute deviation; the factor makes it the standard deviation of Gaussian noise),
never below a floor. Values beyond ``z_out`` scales never enter, on either side; when half a window of them comes in
a row the level has shifted, and the baseline is seeded with them (BLOOM's, OLMo's and MaxText's rules keep outliers
in, or out for good: training.md calls both pitfalls).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GAUSSIAN = 1.4826
"""MAD times this is the standard deviation of Gaussian noise."""
PROVISIONAL = 8
"""Steps after which the baseline of a new context speaks with the scale carried over from the last one."""
PROVISIONAL_WIDTH = 2.0
"""A carried scale is widened by this factor: a new stage may be noisier."""
STALE = 10
"""A context not seen for so many windows starts anew: the model has changed since."""
_TINY = 1e-12


def median_of(ordered: Sequence[float]) -> float:
    """Return the median of at least one value in ascending order."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def deviation_of(ordered: Sequence[float], center: float) -> float:
    """Return the median distance of values in ascending order from ``center``, in O(log n).

    The k nearest values to ``center`` are neighbours in the order, so the k-th smallest distance is the least, over
    all runs of k neighbours, of the larger distance of their two ends.
    """
    size = len(ordered)
    if size % 2:
        return _nearest(ordered, center, size // 2 + 1)
    return (_nearest(ordered, center, size // 2) + _nearest(ordered, center, size // 2 + 1)) / 2


def _nearest(ordered: Sequence[float], center: float, k: int) -> float:
    low, high, reach = 0, len(ordered) - k, k - 1
    while low < high:
        middle = (low + high) // 2
        if center - ordered[middle] <= ordered[middle + reach] - center:
            high = middle
        else:
            low = middle + 1
    best = max(center - ordered[low], ordered[low + reach] - center)
    return best if low == 0 else min(best, max(center - ordered[low - 1], ordered[low - 1 + reach] - center))


@dataclass(frozen=True, slots=True)
class Reading:
    """How one value lies to the baseline before it."""

    z: float
    median: float
    scale: float
    count: int
    """Healthy values behind it."""
    shifted: bool = False
    """The baseline was seeded again with this value and the outliers before it."""


class Baseline:
    """Running median and scale of the healthy values of one signal in one context.

    Args:
        window: Healthy values it remembers.
        min_history: Values after which it speaks.
        z_out: Values at least so many scales away never enter.
        share: Floor of the scale as a share of the median.
        floor: Floor of the scale in the unit of the values.
        carried: Scale of the context before, in the same unit (times the median where ``share`` is used), with which
            it speaks after `PROVISIONAL` values already.
    """

    __slots__ = ("_center", "_ordered", "_scale", "_values", "carried", "outside", "settings")

    def __init__(
        self,
        window: int,
        min_history: int,
        z_out: float,
        *,
        share: float = 0.0,
        floor: float = 0.0,
        carried: float | None = None,
    ) -> None:
        self.settings = (window, min_history, z_out, share, floor)
        self.carried = carried
        self.outside: list[float] = []
        self._values: deque[float] = deque()
        self._ordered: list[float] = []
        self._center = self._scale = 0.0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def relative_scale(self) -> float | None:
        """The scale a following context may carry over; None before the baseline speaks."""
        if not self._speaks():
            return None
        share = self.settings[3]
        return self._scale / max(abs(self._center), _TINY) if share else self._scale

    @property
    def level(self) -> tuple[float, float] | None:
        """Median and scale; None before the baseline speaks."""
        return (self._center, self._scale) if self._speaks() else None

    def update(self, value: float) -> Reading | None:
        """Compare a finite value with the baseline, then let it in where it is no outlier.

        Returns:
            How the value lies to those before it; None while the baseline does not speak.
        """
        if not self._speaks():
            self._enter(value)
            return None
        z = (value - self._center) / self._scale
        reading = Reading(z, self._center, self._scale, len(self._values))
        z_out = self.settings[2]
        young = len(self._values) < self.settings[1]
        if z >= z_out or (z <= -z_out and not young):
            self.outside.append(value)
            if len(self.outside) >= self.settings[1]:
                self._seed(self.outside)
                return Reading(z, reading.median, reading.scale, reading.count, shifted=True)
            return reading
        self.outside.clear()
        self._enter(value)
        return reading

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {"values": list(self._values), "outside": list(self.outside), "carried": self.carried}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.carried = state["carried"]
        self._values.clear()
        self._values.extend(state["values"])
        self._ordered = sorted(self._values)
        self.outside = list(state["outside"])
        self._measure()

    def _speaks(self) -> bool:
        size = len(self._values)
        return size >= self.settings[1] or (self.carried is not None and size >= PROVISIONAL)

    def _seed(self, values: list[float]) -> None:
        self._values.clear()
        self._values.extend(values[-self.settings[0] :])
        self._ordered = sorted(self._values)
        self.outside = []
        self._measure()

    def _enter(self, value: float) -> None:
        if len(self._values) == self.settings[0]:
            oldest = self._values.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        self._values.append(value)
        insort(self._ordered, value)
        self._measure()

    def _measure(self) -> None:
        """Work out median and scale, but only where somebody can read them."""
        if not self._speaks():
            return
        _, min_history, _, share, floor = self.settings
        self._center = median_of(self._ordered)
        scale = max(
            GAUSSIAN * deviation_of(self._ordered, self._center), floor, share * abs(self._center), _TINY
        )
        if self.carried is not None and len(self._values) < min_history:
            wide = PROVISIONAL_WIDTH * self.carried * (abs(self._center) if share else 1.0)
            scale = max(scale, wide)
        self._scale = scale


class Baselines:
    """One `Baseline` of a signal for each context; a new context takes over the scale of the last one.

    Levels of different contexts differ, their relative noise hardly does: the first 8 steps of a new context are
    silent, and until its own history is long enough it is judged with twice the carried scale. A context that was
    away for ten windows starts anew the same way.
    """

    __slots__ = ("_contexts", "_last", "_seen", "_settings")

    def __init__(
        self, window: int, min_history: int, z_out: float, *, share: float = 0.0, floor: float = 0.0
    ) -> None:
        self._settings = (window, min_history, z_out, share, floor)
        self._contexts: dict[str, Baseline] = {}
        self._seen: dict[str, int] = {}
        self._last: str | None = None

    def of(self, context: str, step: int) -> Baseline:
        """Return the baseline of a context at a step, new where it is unknown or stale."""
        found = self._contexts.get(context)
        if found is None or step - self._seen[context] > STALE * self._settings[0]:
            before = self._contexts.get(self._last) if self._last is not None else None
            found = self._contexts[context] = self._new(before.relative_scale if before else None)
        self._seen[context] = step
        self._last = context
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {
            "contexts": {key: line.state_dict() for key, line in self._contexts.items()},
            "seen": dict(self._seen),
            "last": self._last,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self._contexts = {}
        for key, values in state["contexts"].items():
            self._contexts[key] = self._new(None)
            self._contexts[key].load_state_dict(values)
        self._seen = dict(state["seen"])
        self._last = state["last"]

    def _new(self, carried: float | None) -> Baseline:
        window, min_history, z_out, share, floor = self._settings
        return Baseline(window, min_history, z_out, share=share, floor=floor, carried=carried)
