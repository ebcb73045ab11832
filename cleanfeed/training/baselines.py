"""The numbers of healthy steps go in; a center and a scale no outlier can move come out, for each context.

The residual of a step is its value less the median of the window before it. Center is that median plus the median
residual, scale is 1.4826 · MAD of the residuals (MAD: median absolute deviation; the factor makes it the standard
deviation of Gaussian noise), never below a floor. A loss that falls steadily thus neither widens the scale nor lies
below its center, as it would with the MAD of the values themselves. Values beyond ``z_out`` scales never enter, on
either side; when half a window of them comes in a row the level has shifted, and the baseline is seeded with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cleanfeed.training.running import Window, deviation_of

GAUSSIAN = 1.4826
"""MAD times this is the standard deviation of Gaussian noise."""
PROVISIONAL = 8
"""Steps after which the baseline of a new context speaks with the scale carried over from the last one."""
PROVISIONAL_WIDTH = 2.0
"""A carried scale is widened by this factor: a new stage may be noisier."""
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
        carried: Scale of the context before, in the same unit (times the median where ``share`` is used), with which
            it speaks after `PROVISIONAL` values already.
    """

    __slots__ = ("_center", "_residuals", "_scale", "_values", "carried", "outside", "settings")

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
        self._values = Window(window)
        self._residuals = Window(window)
        self._center = self._scale = 0.0

    def __len__(self) -> int:
        return len(self._residuals)

    @property
    def relative_scale(self) -> float | None:
        """The scale a following context may carry over; None before the baseline speaks."""
        if not self._speaks():
            return None
        share = self.settings[3]
        return self._scale / max(abs(self._center), _TINY) if share else self._scale

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
            "residuals": self._residuals.in_order(),
            "outside": list(self.outside),
            "carried": self.carried,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.carried = state["carried"]
        self._values.fill(state["values"])
        self._residuals.fill(state["residuals"])
        self.outside = list(state["outside"])
        self._measure()

    def _speaks(self) -> bool:
        if self.carried is not None:
            return len(self._values) >= PROVISIONAL
        return len(self._residuals) >= self.settings[1]

    def _seed(self, values: list[float]) -> None:
        """Begin anew with values at another level; their residuals are those to their own median."""
        self._values.fill(values[-self.settings[0] :])
        median = self._values.median
        self._residuals.fill([value - median for value in self._values.in_order()])
        self.outside = []
        self._measure()

    def _enter(self, value: float) -> None:
        if len(self._values) >= min(PROVISIONAL, self.settings[1]):
            self._residuals.add(value - self._values.median)
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
        self._center = self._values.median + lean
        self._scale = max(scale, floor, share * abs(self._center), _TINY)
        if self.carried is not None and len(residuals) < min_history:
            wide = PROVISIONAL_WIDTH * self.carried * (abs(self._center) if share else 1.0)
            self._scale = max(self._scale, wide)


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
