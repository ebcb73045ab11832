"""The numbers of healthy steps go in; a center and a scale no outlier can move come out, for each context.

The level of a step is the median of the last half window before it, its residual is value less level; where the
floor is a share, residuals are shares of the level. Center is the present level and the median residual, scale is
1.4826 · MAD of the residuals of a window (MAD: median absolute deviation; the factor makes it the standard deviation of
Gaussian noise), never below a floor. A loss that falls thus neither widens the scale nor lies below its center, as it
would with the MAD of the values themselves, and one that falls to a hundredth within a window has the scale it has now.
Values beyond ``z_out`` scales never enter, on either side; when half a window of them comes in a row the level has
shifted, and the baseline is seeded with them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cleanfeed.training.running import Window, deviation_of, median_of

GAUSSIAN = 1.4826
"""MAD times this is the standard deviation of Gaussian noise."""
LEVEL = 2
"""The level is the median of this part of a window."""
EARLY = 3
"""Steps after which the baseline of a new context speaks with the scale carried over from another one."""
EARLY_WIDTH = 4.0
"""A carried scale is widened by this factor at first: the median of three values is itself uncertain."""
PROVISIONAL = 8
"""Steps after which it is widened less, and residuals are taken."""
PROVISIONAL_WIDTH = 2.0
"""A carried scale is widened by this factor until the context has its own: a new stage may be noisier."""
MEASURED = 16
"""Residuals after which a context has a scale that others may carry over, and that it speaks with if it has none."""
STALE = 10
"""A context not seen for so many windows starts anew: the model has changed since."""
_TINY = 1e-12


class Reading(msgspec.Struct, frozen=True, gc=False):
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
        carried: Scale of another context, in the same unit (times the median where ``share`` is used), with which
            it speaks after `EARLY` values already.
    """

    __slots__ = (
        "_center",
        "_floor",
        "_level",
        "_measured",
        "_min_history",
        "_own",
        "_provisional",
        "_residuals",
        "_scale",
        "_share",
        "_unit",
        "_values",
        "_z_out",
        "carried",
        "outside",
    )

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
        self._min_history, self._z_out, self._share, self._floor = min_history, z_out, share, floor
        self._measured, self._provisional = min(MEASURED, min_history), min(PROVISIONAL, min_history)
        self.carried = carried
        self.outside: list[float] = []
        self._values = Window(min(window, max(PROVISIONAL, window // LEVEL)))
        self._residuals = Window(window)
        self._level, self._unit = 0.0, 1.0
        """Median of the values, and what residuals are counted in."""
        self._center = self._own = self._scale = 0.0
        """The scale is 0 while the baseline does not speak."""

    def __len__(self) -> int:
        return len(self._residuals)

    @property
    def relative_scale(self) -> float | None:
        """The scale another context may carry over, never one that was widened; None before there is any."""
        return self.carried if len(self._residuals) < self._measured else self._own / self._unit

    def carry(self, scale: float | None) -> None:
        """Take over the scale of another context."""
        self.carried = scale
        self._measure()

    def update(self, value: float) -> Reading | None:
        """Compare a finite value with the baseline, then let it in where it is no outlier.

        Returns:
            How the value lies to those before it; None while the baseline does not speak.
        """
        center, scale = self._center, self._scale
        if not scale:
            self._enter(value)
            return None
        z, size = (value - center) / scale, len(self._residuals.ordered)
        if z >= self._z_out or (z <= -self._z_out and size >= self._min_history):
            self.outside.append(value)
            shifted = len(self.outside) >= self._min_history
            if shifted:
                self._seed(self.outside)
            return Reading(z, center, scale, size, shifted)
        self.outside.clear()
        self._enter(value)
        return Reading(z, center, scale, size)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {
            "values": self._values.in_order(),
            "strays": self._residuals.in_order(),
            "outside": list(self.outside),
            "carried": self.carried,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.carried = state["carried"]
        self._values.fill(state["values"])
        self._residuals.fill(state["strays"])
        self.outside = list(state["outside"])
        self._scale = 0.0
        self._measure()

    def _seed(self, values: list[float]) -> None:
        """Begin anew with values at another level; their residuals are those to their own median."""
        median = median_of(sorted(values))
        unit = max(abs(median), _TINY) if self._share else 1.0
        self._residuals.fill([(value - median) / unit for value in values])
        self._values.fill(values)
        self.outside = []
        self._measure()

    def _enter(self, value: float) -> None:
        if len(self._values.ordered) >= self._provisional:
            self._residuals.add((value - self._level) / self._unit)
        self._values.add(value)
        self._measure()

    def _measure(self) -> None:
        """Work out the level, and center and scale where somebody can read them."""
        values, residuals = self._values.ordered, self._residuals.ordered
        if not values:
            return
        level = self._level = median_of(values)
        unit = self._unit = max(abs(level), _TINY) if self._share else 1.0
        if len(residuals) < self._measured if self.carried is None else len(values) < EARLY:
            return
        lean = scale = 0.0
        if len(residuals) >= self._provisional:
            lean = median_of(residuals)
            scale = GAUSSIAN * deviation_of(residuals, lean)
        center = self._center = level + lean * unit
        self._own = self._scale = max(scale * unit, self._floor, self._share * abs(center), _TINY)
        if len(residuals) < self._min_history:
            width = PROVISIONAL_WIDTH if len(values) >= PROVISIONAL else EARLY_WIDTH
            basis = self._own if self.carried is None else self.carried * unit
            self._scale = max(self._scale, width * basis)


class Baselines:
    """One `Baseline` of a signal for each context; a new context takes over the scale of another one.

    Levels of different contexts differ, their relative noise hardly does: the first 3 steps of a new context are
    silent, up to the eighth it is judged with four times the carried scale, and until its own history is long enough
    with twice that scale. A context that was away for ten windows starts anew the same way.
    """

    __slots__ = ("_contexts", "_last", "_latest", "_seen", "_settings")

    def __init__(
        self, window: int, min_history: int, z_out: float, *, share: float = 0.0, floor: float = 0.0
    ) -> None:
        self._settings = (window, min_history, z_out, share, floor)
        self._contexts: dict[str, Baseline] = {}
        self._seen: dict[str, int] = {}
        self._last: str | None = None
        self._latest: float | None = None
        """Relative scale of the context before, where it has one."""

    def of(self, context: str, step: int) -> Baseline:
        """Return the baseline of a context at a step, new where it is unknown or stale."""
        found = self._contexts.get(context)
        if context != self._last and self._last is not None:
            scale = self._contexts[self._last].relative_scale
            self._latest = scale if scale is not None else self._latest
        if found is None or step - self._seen[context] > STALE * self._settings[0]:
            found = self._contexts[context] = self._new(self._latest)
        elif found.carried is None and self._latest is not None:
            # A run may begin with many short contexts, none of which has a scale yet.
            found.carry(self._latest)
        self._seen[context] = step
        self._last = context
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {
            "contexts": {key: line.state_dict() for key, line in self._contexts.items()},
            "seen": dict(self._seen),
            "last": self._last,
            "latest": self._latest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self._contexts = {}
        for key, values in state["contexts"].items():
            self._contexts[key] = self._new(None)
            self._contexts[key].load_state_dict(values)
        self._seen = dict(state["seen"])
        self._last, self._latest = state["last"], state["latest"]

    def _new(self, carried: float | None) -> Baseline:
        window, min_history, z_out, share, floor = self._settings
        return Baseline(window, min_history, z_out, share=share, floor=floor, carried=carried)
