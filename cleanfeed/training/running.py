"""Numbers go in one by one; the median of the last of them, and how far they lie from it, come out at any time."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence


class Window:
    """The last ``size`` values; an ordered list beside the queue makes adding one O(log n) comparisons."""

    __slots__ = ("_queue", "ordered", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.ordered: list[float] = []
        """The values in ascending order."""
        self._queue: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def median(self) -> float:
        """The median of at least one value."""
        return median_of(self.ordered)

    def add(self, value: float) -> None:
        """Take in a finite value; the oldest leaves where the window is full."""
        ordered, queue = self.ordered, self._queue
        if len(queue) == self.size:
            del ordered[bisect_left(ordered, queue.popleft())]
        queue.append(value)
        insort(ordered, value)

    def fill(self, values: Iterable[float]) -> None:
        """Forget everything and hold these values instead, the last ``size`` of them."""
        self._queue = deque(values, maxlen=self.size)
        self._queue = deque(self._queue)
        self.ordered = sorted(self._queue)

    def in_order(self) -> list[float]:
        """Return the values, the oldest first."""
        return list(self._queue)


def median_of(ordered: Sequence[float]) -> float:
    """Return the median of at least one value in ascending order."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def deviation_of(ordered: Sequence[float], center: float) -> float:
    """Return the median distance of values in ascending order from ``center``, in O(log n).

    The k nearest values to ``center`` are neighbours in the order, and the next nearest lies beside them.
    """
    size = len(ordered)
    k = (size + 1) // 2
    first, high = 0, size - k
    while first < high:
        middle = (first + high) // 2
        if center - ordered[middle] > ordered[middle + k] - center:
            first = middle + 1
        else:
            high = middle
    last = first + k - 1
    furthest = max(center - ordered[first], ordered[last] - center)
    if size % 2:
        return furthest
    left = center - ordered[first - 1] if first else math.inf
    right = ordered[last + 1] - center if last + 1 < size else math.inf
    return (furthest + min(left, right)) / 2
