"""Keys of row groups go in; decoded values come out, made once and, if it is known what follows, ahead of time."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from time import perf_counter
from typing import Generic, TypeVar


class Kept:
    """Something decoded. When it was last used is written on it, where whoever uses it looks anyway."""

    __slots__ = ("fresh", "nbytes", "used")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        """Bytes it keeps in memory."""
        self.used = 0
        self.fresh = False
        """Made ahead, and nobody has asked for it yet."""


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Kept)


class Decoded(Generic[Key, Value]):
    """Values by key, kept within a bound of bytes, the least recently used dropped first; safe to use from threads.

    Told what will be asked for next (:meth:`expect`), a thread makes these values ahead, as long as those nobody has
    asked for yet take up less than half of the bound. What is given out never depends on it. Where values are made
    quickly it pays not to: two threads of Python take turns, and a turn costs what it could save.

    Args:
        limit: Bytes to keep at most; the value made last stays even if it alone is larger.
        make: Makes a value; called in the thread of who asks.
        make_ahead: The same, called in the other thread; None: nothing is made ahead.
        quick: Seconds; nothing is made ahead while values take less, averaged over the last few.
    """

    def __init__(
        self,
        limit: int,
        make: Callable[[Key], Value],
        make_ahead: Callable[[Key], Value] | None = None,
        *,
        quick: float = 0.0,
    ) -> None:
        self.limit = limit
        self.nbytes = 0
        self.made = 0
        """Values made so far, in either thread."""
        self._make, self._make_ahead = make, make_ahead
        self._quick, self._seconds = quick, 0.0
        self._lock = threading.Lock()
        self._values: dict[Key, Value] = {}
        self._now = 0
        self._oldest: list[tuple[int, int, Key]] = []
        """Heap of when each value was used as far as was looked at: never later than it was."""
        self._order = count()
        self._making: dict[Key, Future[Value]] = {}
        self._expected: deque[Key] = deque()
        self._fresh_bytes = 0
        self._thread: ThreadPoolExecutor | None = None
        self._busy = False

    def get(self, keys: Sequence[Key]) -> list[Value]:
        """Return the value of each key, in order; those that are not there are made, each once."""
        with self._lock:
            found = list(map(self._values.get, keys))
            self._now += 1
            for value in found:
                if value is not None:
                    self._use(value)
        there = [value for value in found if value is not None]
        if len(there) < len(found):
            made: dict[Key, Value] = {}
            for key, value in zip(keys, found, strict=True):
                if value is None and key not in made:
                    made[key] = self._get(key)
            there = [made[key] if value is None else value for key, value in zip(keys, found, strict=True)]
        if self._expected and not self._busy:
            self._start()
        return there

    def expect(self, keys: Sequence[Key]) -> None:
        """Note what will be asked for next, in this order; it takes the place of what was noted before."""
        if self._make_ahead is not None:
            with self._lock:
                self._expected = deque(dict.fromkeys(keys))

    def _use(self, value: Value) -> None:
        value.used = self._now
        if value.fresh:
            value.fresh = False
            self._fresh_bytes -= value.nbytes

    def _get(self, key: Key) -> Value:
        mine: Future[Value]
        with self._lock:
            value, being_made = self._values.get(key), self._making.get(key)
            if value is not None:
                self._use(value)
                return value
            if being_made is None:
                mine = self._making[key] = Future()
        if being_made is not None:
            if being_made.exception() is not None:
                return self._get(key)  # made again here, where the error belongs
            value = being_made.result()
            with self._lock:
                self._use(value)
            return value
        begin = perf_counter()
        try:
            value = self._make(key)
        except BaseException as error:
            self._give_up(key, mine, error)
            raise
        self._keep(key, value, mine, perf_counter() - begin, ahead=False)
        return value

    def _keep(self, key: Key, value: Value, waiting: Future[Value], seconds: float, *, ahead: bool) -> None:
        with self._lock:
            self.made += 1
            self._seconds += (seconds - self._seconds) / 4
            del self._making[key]
            self._values[key] = value
            value.used, value.fresh = self._now, ahead
            self.nbytes += value.nbytes
            self._fresh_bytes += value.nbytes * ahead
            self._drop(key)
            heapq.heappush(self._oldest, (value.used, next(self._order), key))
        waiting.set_result(value)

    def _drop(self, newest: Key) -> None:
        """Drop values until the others have room beside the newest, which is not in the heap yet."""
        while self.nbytes > self.limit and len(self._values) > 1:
            used, order, key = heapq.heappop(self._oldest)
            value = self._values[key]
            if value.used > used:
                heapq.heappush(self._oldest, (value.used, order, key))
                continue
            del self._values[key]
            self.nbytes -= value.nbytes
            self._fresh_bytes -= value.nbytes * value.fresh
            value.fresh = False

    def _give_up(self, key: Key, waiting: Future[Value], error: BaseException) -> None:
        with self._lock:
            del self._making[key]
        waiting.set_exception(error)

    def _start(self) -> None:
        with self._lock:
            if self._busy or self._enough():
                return
            self._busy = True
            self._thread = self._thread or ThreadPoolExecutor(1, "cleanfeed-decode-ahead")
        self._thread.submit(self._run)

    def _enough(self) -> bool:
        return self._fresh_bytes * 2 >= self.limit or self._seconds < self._quick

    def _run(self) -> None:
        """Make what is expected, until there is enough of it."""
        mine: Future[Value]
        while True:
            with self._lock:
                if not self._expected or self._enough():
                    self._busy = False
                    return
                key = self._expected.popleft()
                if key in self._values or key in self._making:
                    continue
                mine = self._making[key] = Future()
            assert self._make_ahead is not None
            begin = perf_counter()
            try:
                value = self._make_ahead(key)
            except Exception as error:  # noqa: BLE001 - it is told to whoever asks for this value, and only then
                self._give_up(key, mine, error)
            else:
                self._keep(key, value, mine, perf_counter() - begin, ahead=True)
