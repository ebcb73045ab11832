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

from dataclasses import dataclass
from typing import Any

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
        carried: Scale of another context, in the same unit (times the median where ``share`` is used), with which
            it speaks after `EARLY` values already.
    """

    __slots__ = ("_center", "_own", "_residuals", "_scale", "_values", "carried", "outside", "settings")

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
        self._values = Window(min(window, max(PROVISIONAL, window // LEVEL)))
        self._residuals = Window(window)
        self._center = self._own = self._scale = 0.0

    def __len__(self) -> int:
        return len(self._residuals)

    @property
    def relative_scale(self) -> float | None:
        """The scale another context may carry over, never one that was widened; None before there is any."""
        if len(self._residuals) < self._measured:
            return self.carried
        return self._own / self._unit(self._values.median)

    @property
    def _measured(self) -> int:
        return min(MEASURED, self.settings[1])

    def carry(self, scale: float | None) -> None:
        """Take over the scale of another context."""
        self.carried = scale
        self._measure()

    def update(self, value: float) -> Reading | None:
        """Compare a finite value with the baseline, then let it in where it is no outlier.

        Returns:
            How the value lies to those before it; None while the baseline does not speak.
        """
        if not self._speaks():
            self._enter(value)
            return None
        z = (value - self._center) / self._scale
        size = len(self._residuals)
        _, min_history, z_out, _, _ = self.settings
        if z >= z_out or (z <= -z_out and size >= min_history):
            self.outside.append(value)
            shifted = len(self.outside) >= min_history
            reading = Reading(z, self._center, self._scale, size, shifted)
            if shifted:
                self._seed(self.outside)
            return reading
        reading = Reading(z, self._center, self._scale, size)
        self.outside.clear()
        self._enter(value)
        return reading

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
        if "strays" in state:
            self._residuals.fill(state["strays"])
        else:  # of an older version, which kept them in the unit of the values
            unit = self._unit(self._values.median) if len(self._values) else 1.0
            self._residuals.fill([residual / unit for residual in state["residuals"]])
        self.outside = list(state["outside"])
        self._measure()

    def _speaks(self) -> bool:
        if self.carried is not None:
            return len(self._values) >= EARLY
        return len(self._residuals) >= self._measured

    def _seed(self, values: list[float]) -> None:
        """Begin anew with values at another level; their residuals are those to their own median."""
        median = median_of(sorted(values))
        self._residuals.fill([(value - median) / self._unit(median) for value in values])
        self._values.fill(values)
        self.outside = []
        self._measure()

    def _enter(self, value: float) -> None:
        if len(self._values) >= min(PROVISIONAL, self.settings[1]):
            level = self._values.median
            self._residuals.add((value - level) / self._unit(level))
        self._values.add(value)
        self._measure()

    def _measure(self) -> None:
        """Work out center and scale, but only where somebody can read them."""
        if not self._speaks():
            return
        _, min_history, _, share, floor = self.settings
        residuals, lean, scale = self._residuals, 0.0, 0.0
        if len(residuals) >= min(PROVISIONAL, min_history):
            lean = residuals.median
            scale = GAUSSIAN * deviation_of(residuals.ordered, lean)
        level = self._values.median
        unit = self._unit(level)
        self._center = level + lean * unit
        self._own = self._scale = max(scale * unit, floor, share * abs(self._center), _TINY)
        if len(residuals) < min_history:
            width = PROVISIONAL_WIDTH if len(self._values) >= PROVISIONAL else EARLY_WIDTH
            basis = self._own if self.carried is None else self.carried * unit
            self._scale = max(self._scale, width * basis)

    def _unit(self, level: float) -> float:
        """Return what residuals are counted in."""
        return max(abs(level), _TINY) if self.settings[3] else 1.0


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
        self._last, self._latest = state["last"], state.get("latest")

    def _new(self, carried: float | None) -> Baseline:
        window, min_history, z_out, share, floor = self._settings
        return Baseline(window, min_history, z_out, share=share, floor=floor, carried=carried)
