"""The z of harmless outliers go in; how far a healthy step of this run has strayed so far comes out.

A limit in scales means little where the noise has heavy tails: with Student-t(3) noise a lone z ≥ 6 comes every 300
steps. So a run is compared with itself. A healthy step beats everything before it once in n steps, whatever the
distribution; two independent signals do so within 5 steps with probability 11/n², whose sum from step 500 on is 2 %.
"""

from __future__ import annotations

from collections import deque
from typing import Any

HARMLESS = 4.0
"""A z from here on, on either side, says something about the tail; Gaussian noise gets there once in 16,000 steps."""
LIGHT = 5.0
"""Up to here a largest z is no sign of a heavy tail."""
LOW_SIDE = 8.0
"""A low outlier counts for so much at most: it shows a heavy tail, but repetitive text may lie as low as it likes."""
BLOCK = 50_000
"""Steps after which the older half of the memory is forgotten: a run remembers 50,000 to 100,000 steps."""


class Tail:
    """Largest harmless outlier of one signal over the last 50,000 to 100,000 steps, in z.

    Args:
        delay: Steps an outlier waits before it counts, so that spikes which belong together do not hide each other.
    """

    __slots__ = ("_begun", "_delay", "_now", "_past", "_waiting", "count")

    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._waiting: deque[tuple[int, float]] = deque()
        self._now = self._past = 0.0
        self._begun = 0
        self.count = 0
        """Values that count."""

    def add(self, step: int, z: float) -> None:
        """Take in the z of an outlier that turned out to be harmless."""
        self.at(step)  # what has waited long enough counts now, so that the queue stays short
        self._waiting.append((step, z))

    def at(self, step: int) -> float:
        """Return the largest harmless z at a step; 0 where there was none."""
        while self._waiting and self._waiting[0][0] <= step - self._delay:
            self._now = max(self._now, self._waiting.popleft()[1])
            self.count += 1
        if step - self._begun >= BLOCK:
            self._past, self._now, self._begun = self._now, 0.0, step
        return self._now if self._now > self._past else self._past

    def forget(self) -> None:
        """Drop the values that still wait: what they are from was not harmless."""
        self._waiting.clear()

    def raised(self, step: int, limit: float, times: float) -> float:
        """Return a limit in z, raised where the run has shown a heavy tail.

        It grows with the cube of the largest harmless z over 5, up to ``times`` that z: with light tails it stays.
        """
        largest = self.at(step)
        if largest <= LIGHT:
            return limit
        return max(limit, min(limit * (largest / LIGHT) ** 3, times * largest))

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        waiting = [list(entry) for entry in self._waiting]
        return {
            "waiting": waiting,
            "now": self._now,
            "past": self._past,
            "begun": self._begun,
            "count": self.count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self._waiting = deque((int(step), float(z)) for step, z in state["waiting"])
        self._now, self._past = state["now"], state["past"]
        self._begun, self.count = state["begun"], state["count"]
