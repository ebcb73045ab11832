"""Numbers go in one by one; the median of the last of them comes out at any time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from cleanfeed.training.baselines import median_of


class RunningMedian:
    """Median of the last ``window`` values; an ordered list beside the queue keeps adding at O(log n)."""

    __slots__ = ("_ordered", "_values", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._values: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    @property
    def value(self) -> float:
        """The median of at least one value."""
        return median_of(self._ordered)

    def add(self, value: float) -> None:
        """Take in a finite value; the oldest leaves where the window is full."""
        if len(self._values) == self._window:
            del self._ordered[bisect_left(self._ordered, self._values.popleft())]
        self._values.append(value)
        insort(self._ordered, value)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._ordered.clear()

    def values(self) -> list[float]:
        """Return the values, the oldest first."""
        return list(self._values)
