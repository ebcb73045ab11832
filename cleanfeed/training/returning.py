"""Outliers and ordinary steps go in; a trip comes out where the loss is not back in its band some time after one."""

from __future__ import annotations

from collections import deque
from typing import Any

from cleanfeed.training.baselines import Reading
from cleanfeed.training.metrics import Metrics, Trip
from cleanfeed.training.observation import Promise
from cleanfeed.training.policy import Policy
from cleanfeed.training.running import median_of
from cleanfeed.training.tails import Tail

SETTLED = 32
"""Losses whose median says whether the run is back in its band."""
TRIED = 20
"""Controls after which their largest drift counts."""
UNTRIED = 2.0
"""Before that the band is so many times as wide."""


class Returns:
    """Remembers by when the loss must be back, and asks then.

    How far a healthy loss drifts meanwhile is measured on controls: the same question, asked of ordinary steps. What
    they say counts once no incident can come of their steps any more.

    Args:
        policy: ``recover_within``, ``return_z`` and ``tail_conjunction``.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._promises: deque[Promise] = deque()
        self._controls: deque[Promise] = deque()
        self._drift = Tail(policy.recover_within + policy.merge_gap)
        self._settled: deque[float] = deque(maxlen=min(SETTLED, policy.recover_within))
        self._context: str | None = None

    @property
    def onsets(self) -> list[int]:
        """Onsets of the outliers after which the loss may still turn out not to be back."""
        return [promise.onset for promise in self._promises]

    def saw(self, metrics: Metrics) -> None:
        """Take in the loss of a step."""
        if metrics.context != self._context:
            self._context = metrics.context
            self._settled.clear()
        self._settled.append(metrics.loss)

    def expect(self, metrics: Metrics, reading: Reading | None, onset: int, *, control: bool = False) -> None:
        """Ask ``recover_within`` steps from now whether the loss is back at the level of a reading, if there is one."""
        if reading is not None:
            due = metrics.step + self._policy.recover_within
            promise = Promise(onset, due, reading.median, reading.scale, metrics.context)
            (self._controls if control else self._promises).append(promise)

    def due(self, metrics: Metrics, *, incident: bool) -> list[Trip]:
        """Return a trip where a promise is due and the loss is further from its band than a healthy run drifts.

        Args:
            metrics: Of the step.
            incident: Whether an incident is open, of which the outlier may be a part.
        """
        step, trips = metrics.step, []
        while self._controls and self._controls[0].due <= step:
            z = self._away(self._controls.popleft(), metrics)
            if z is not None:
                self._drift.add(step, z)
        while self._promises and self._promises[0].due <= step:
            promise = self._promises.popleft()
            z = self._away(promise, metrics)
            drift = self._policy.tail_conjunction * self._drift.at(step)
            limit = max(self._policy.return_z * (1.0 if self._drift.count >= TRIED else UNTRIED), drift)
            if z is None or z <= limit or incident:
                continue
            trips.append(promise.broken(step, z, limit, len(self._settled)))
            self._promises.clear()
        return trips

    def forget_controls(self) -> None:
        """Forget the controls that are open or have just ended: their steps were not healthy."""
        self._controls.clear()
        self._drift.forget()

    def forget(self) -> None:
        """Forget all questions: the level is another one."""
        self._promises.clear()
        self.forget_controls()

    def _away(self, promise: Promise, metrics: Metrics) -> float | None:
        """Return how far above its old median the loss now lies, in scales; None in another context."""
        if promise.context != metrics.context or len(self._settled) < (self._settled.maxlen or 0):
            return None
        return (median_of(sorted(self._settled)) - promise.median) / promise.scale

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {
            "promises": [promise.to_list() for promise in self._promises],
            "controls": [promise.to_list() for promise in self._controls],
            "drift": self._drift.state_dict(),
            "settled": list(self._settled),
            "context": self._context,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self._promises = deque(Promise(*values) for values in state["promises"])
        self._controls = deque(Promise(*values) for values in state["controls"])
        self._drift.load_state_dict(state["drift"])
        self._settled.clear()
        self._settled.extend(state["settled"])
        self._context = state["context"]
