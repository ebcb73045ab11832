"""Ctrl-C and SIGTERM go in; one :class:`Stopped` in the main thread comes out, however often they are sent.

For the command alone: a program that imports cleanfeed decides about its signals itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Stopped(BaseException):
    """The user or the system wants the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(WORDS[signal.Signals(number)])
        self.exit_code = 128 + number


@contextmanager
def stopped_once() -> Iterator[None]:
    """Raise :class:`Stopped` at the first signal and pass over all further ones, so that cleaning up is not disturbed.

    After a signal they stay ignored until the process has ended: what Python itself does at its end is no place to be
    interrupted either. A signal that was ignored before, as by ``nohup``, stays so.

    Raises:
        Stopped: A signal came, also where the code in the block turned it into another error.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if not seen:
            seen.append(number)
            raise Stopped(number)

    before = {number: signal.getsignal(number) for number in WORDS}
    heeded = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in heeded:
        signal.signal(number, stop)
    try:
        yield
    except Exception as error:
        if seen:
            raise Stopped(seen[0]) from error
        raise
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_IGN if seen else before[number])
