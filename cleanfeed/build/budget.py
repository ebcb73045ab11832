"""A document at work and its budget go in; whether it may go on, and how a call that was lost came to it, come out.

Time is CPU time of the process, so a busy machine makes no document costly. What a budget ends, it ends with the
process: native code cannot be stopped in any other way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from msgspec import Struct

TOO_COSTLY, TOKENIZER_FAILED = "too_costly", "tokenizer_failed"
"""Rules that are in no pipeline: why a document could not be measured, or not tokenised."""

KERNEL_BYTES = 54, 256 * 2**20
"""Scratch of the kernels: bytes a byte of text, and where it ends, since long texts are measured in windows."""

COPIES = 6
"""Bytes a byte of text for the record, its text and what is written of it. Measured: 4 to 5 at the peak."""

TOKEN_BYTES = 16
"""The same for the text as the tokenizer takes it and for its ids. Measured: 11 with emoji, 6 with words, besides
what the tokenizer takes for a batch of pieces, which is no more than the scratch of the kernels was."""


class Place(Struct, frozen=True):
    """Documents of a task that are at work together.

    ``first`` and ``last`` are row numbers in the piece. Without ``last``, the records of the piece after ``first``
    ones are being read.
    """

    piece: int
    first: int
    last: int | None

    @property
    def is_one(self) -> bool:
        """Whether it is a single document."""
        return self.first == self.last


class Reason(Struct, frozen=True):
    """Why a document is rejected without having been measured; ``value`` is what is known to have been reached."""

    rule: str
    signal: str
    value: float
    limit: float


class Finding(Struct, frozen=True):
    """What a lost call has shown of its task: what is to be done otherwise the next time."""

    task: int
    place: Place
    reason: Reason | None
    """Why the document is refused. Without one, documents are to be at work one at a time, or, where they are only
    being read, nothing after them is read."""


class OverrunError(Exception):
    """Documents took more than the budget of CPU time; for the engine, which says so to whoever made the call."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.place = place


class Lost(Struct, frozen=True):
    """What comes of a call that has no result, since its process died or was ended."""

    place: Place | None
    """Where it was, if that is known."""
    overrun: bool
    """Whether the budget of time ended it."""
    how: str
    """How it ended, for people."""


def needed_bytes(text_bytes: int, *, tokens: bool) -> int:
    """Return an estimate of the memory a document takes while it is built, from its bytes of UTF-8 alone.

    Args:
        text_bytes: Bytes of the text.
        tokens: Whether it is tokenised.
    """
    scratch = min(KERNEL_BYTES[0] * text_bytes, KERNEL_BYTES[1])
    return scratch + (COPIES + TOKEN_BYTES * tokens) * text_bytes


def most_text_bytes(memory: int, *, tokens: bool) -> int:
    """Return the bytes of the longest text that a budget of memory allows."""
    low, high = 0, memory
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed_bytes(middle, tokens=tokens) <= memory else (low, middle - 1)
    return low


class Reporter:
    """What a call tells the process that made it: how far it is, and which documents are at work.

    Args:
        report: Called with an amount of work done.
        clock: CPU time in seconds.
    """

    def __init__(self, report: Callable[[int], None], clock: Callable[[], float] = time.thread_time) -> None:
        self._report, self._clock = report, clock
        self.place: Place | None = None
        self._end: float | None = None
        self._place_lock = threading.Lock()

    def __call__(self, amount: int) -> None:
        """Say that some more is done."""
        self._report(amount)

    def begin(self, place: Place, seconds: float | None = None) -> None:
        """Say what is at work from now on, and how long it may take.

        The time of the same document goes on; that of others starts anew, after that of those before was checked.

        Raises:
            OverrunError: What was at work before took too long.
        """
        self._check()
        if place == self.place:
            return
        self._begun(place)
        with self._place_lock:
            self.place = place
            self._end = None if seconds is None else self._clock() + seconds

    def end(self, place: Place | None = None) -> None:
        """Say that nothing is at work any more, or only reading at ``place``.

        Raises:
            OverrunError: It took too long.
        """
        self._check()
        if place is not None:
            self._begun(place)
        with self._place_lock:
            self.place, self._end = place, None

    def forget(self) -> None:
        """Begin a new call, whatever the last one was at."""
        with self._place_lock:
            self.place = self._end = None

    def overrun(self) -> Place | None:
        """Return what has been at work for longer than it may; once, to whoever asks first."""
        with self._place_lock:
            if self._end is None or self._clock() <= self._end:
                return None
            self._end = None
            return self.place

    def _check(self) -> None:
        if (place := self.overrun()) is not None:
            raise OverrunError(place)

    def _begun(self, place: Place) -> None:
        """Note what is at work where it can be seen after the process died."""


class Watch:
    """A thread that looks at the clock of a reporter and ends what takes too long.

    Args:
        reporter: Whose documents to watch; its clock is that of the whole process.
        ended: Called with what took too long; does not come back.
        interval: Seconds between two looks.
    """

    def __init__(self, reporter: Reporter, ended: Callable[[Place], None], interval: float = 0.05) -> None:
        self._reporter, self._ended, self._interval = reporter, ended, interval
        self._closed = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._closed.wait(self._interval):
            if (place := self._reporter.overrun()) is not None:
                self._ended(place)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
