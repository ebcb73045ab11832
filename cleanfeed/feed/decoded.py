"""Numbers of row groups go in; their decoded values come out, made once and, if it is known what follows, ahead."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Something decoded that knows its size in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes it keeps in memory."""


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Sized)


class Decoded(Generic[Key, Value]):
    """Values by key, kept within a bound of bytes, the least recently used dropped first; safe to use from threads.

    Told what will be asked for next (:meth:`expect`), a thread makes these values ahead, as long as those nobody has
    asked for yet take up less than half of the bound. What is given out never depends on it.

    Args:
        limit: Bytes to keep at most; the value made last stays even if it alone is larger.
        make: Makes a value; called in the thread of who asks.
        make_ahead: The same, called in the other thread; None: nothing is made ahead.
    """

    def __init__(
        self, limit: int, make: Callable[[Key], Value], make_ahead: Callable[[Key], Value] | None = None
    ) -> None:
        self.limit = limit
        self.nbytes = 0
        self.made = 0
        """Values made so far, in either thread."""
        self._make, self._make_ahead = make, make_ahead
        self._lock = threading.Lock()
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._making: dict[Key, Future[Value]] = {}
        self._expected: deque[Key] = deque()
        self._untouched: dict[Key, int] = {}
        """Bytes of values that were made ahead and that nobody has asked for yet."""
        self._untouched_bytes = 0
        self._thread: ThreadPoolExecutor | None = None
        self._busy = False

    def get(self, keys: Iterable[Key]) -> dict[Key, Value]:
        """Return the values of some keys, those made that are not there."""
        found: dict[Key, Value] = {}
        missing: list[Key] = []
        with self._lock:
            for key in keys:
                if key in self._values:
                    found[key] = self._touched(key)
                else:
                    missing.append(key)
        for key in missing:
            if key not in found:
                found[key] = self._get(key)
        if self._expected and not self._busy:
            self._start()
        return found

    def expect(self, keys: Sequence[Key]) -> None:
        """Note what will be asked for next, in this order; it takes the place of what was noted before."""
        if self._make_ahead is not None:
            with self._lock:
                self._expected = deque(dict.fromkeys(keys))

    def _get(self, key: Key) -> Value:
        mine: Future[Value]
        with self._lock:
            if key in self._values:
                return self._touched(key)
            being_made = self._making.get(key)
            if being_made is None:
                mine = self._making[key] = Future()
        if being_made is not None:
            # If it failed there, it is made again here, where its error belongs.
            return being_made.result() if being_made.exception() is None else self._get(key)
        try:
            value = self._make(key)
        except BaseException as error:
            self._give_up(key, mine, error)
            raise
        self._keep(key, value, mine, ahead=False)
        return value

    def _touched(self, key: Key) -> Value:
        self._values.move_to_end(key)
        if key in self._untouched:
            self._untouched_bytes -= self._untouched.pop(key)
        return self._values[key]

    def _keep(self, key: Key, value: Value, waiting: Future[Value], *, ahead: bool) -> None:
        with self._lock:
            self.made += 1
            del self._making[key]
            self._values[key] = value
            self.nbytes += value.nbytes
            if ahead:
                self._untouched[key] = value.nbytes
                self._untouched_bytes += value.nbytes
            while self.nbytes > self.limit and len(self._values) > 1:
                oldest, dropped = self._values.popitem(last=False)
                self.nbytes -= dropped.nbytes
                self._untouched_bytes -= self._untouched.pop(oldest, 0)
        waiting.set_result(value)

    def _give_up(self, key: Key, waiting: Future[Value], error: BaseException) -> None:
        with self._lock:
            del self._making[key]
        waiting.set_exception(error)

    def _start(self) -> None:
        with self._lock:
            if self._busy or self._untouched_bytes * 2 >= self.limit:
                return
            self._busy = True
            self._thread = self._thread or ThreadPoolExecutor(1, "cleanfeed-decode-ahead")
        self._thread.submit(self._run)

    def _run(self) -> None:
        """Make what is expected, until there is enough of it."""
        mine: Future[Value]
        while True:
            with self._lock:
                if not self._expected or self._untouched_bytes * 2 >= self.limit:
                    self._busy = False
                    return
                key = self._expected.popleft()
                if key in self._values or key in self._making:
                    continue
                mine = self._making[key] = Future()
            assert self._make_ahead is not None
            try:
                value = self._make_ahead(key)
            except Exception as error:  # noqa: BLE001 - it is told to whoever asks for this value, and only then
                self._give_up(key, mine, error)
            else:
                self._keep(key, value, mine, ahead=True)
