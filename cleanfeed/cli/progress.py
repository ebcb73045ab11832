"""What a build reports while it runs goes in; bars with rate and time left come out on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from cleanfeed.cli.terminal import count, duration, stderr, visible, volume

if TYPE_CHECKING:
    from cleanfeed.build.request import Progress

COMPILING = "compiling kernels, once per installation"
BYTES = ("B", "bytes")
QUIET = 5.0
"""Seconds after which a build whose stderr is a file says again how far it is."""


def quantity(value: float, unit: str) -> str:
    """Return so much of a unit in words."""
    return volume(value) if unit in BYTES else f"{count(int(value))} {unit}"


def rate(value: float, unit: str) -> str:
    """Return so much of a unit per second in words."""
    return f"{volume(value)}/s" if unit in BYTES else f"{value:,.1f} {unit}/s"


class _Amount(ProgressColumn):
    def render(self, task: Task) -> Text:
        unit = str(task.fields["unit"])
        done = quantity(task.completed, unit)
        return Text(done if not task.total else f"{done} of {quantity(task.total, unit)}", style="dim")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if not speed else rate(speed, str(task.fields["unit"])))


class LiveProgress:
    """Bars that move, for a terminal."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            _Amount(),
            _Rate(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            expand=True,
        )
        self._current: TaskID | None = None

    def start(self) -> None:
        """Begin to draw."""
        self._bars.start()

    def stop(self) -> None:
        """Draw the last state and give the terminal back."""
        self._bars.stop()

    abandon = stop

    def compiling(self) -> None:
        """Say why nothing moves yet."""
        self.note(COMPILING)

    def phase(self, name: str, total: int, unit: str) -> None:
        """Begin a new bar below the finished ones."""
        self._current = self._bars.add_task(name, total=total or None, unit=unit)

    def advance(self, amount: int) -> None:
        """Move the bar of the phase."""
        if self._current is not None:
            self._bars.advance(self._current, amount)

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(visible(text))


class PlainProgress:
    """One line at a time, for a log file or a pipe."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console, self._clock = console, clock
        self._name, self._unit = "", ""
        self._total, self._done = 0, 0
        self._began = self._said = clock()

    def start(self) -> None:
        """Begin; nothing is printed before there is something to say."""

    def stop(self) -> None:
        """Say how the last phase went."""
        if self._name:
            seconds = self._clock() - self._began
            speed = rate(self._done / max(seconds, 1e-9), self._unit)
            self._say(f"{self._name}: {quantity(self._done, self._unit)} in {duration(seconds)}, {speed}")
        self._name = ""

    def abandon(self) -> None:
        """Say nothing of a phase that did not end."""

    def compiling(self) -> None:
        """Say why nothing moves yet."""
        self._say(COMPILING)

    def phase(self, name: str, total: int, unit: str) -> None:
        """Close the phase before and begin a new one."""
        self.stop()
        self._name, self._total, self._unit, self._done = name, total, unit, 0
        self._began = self._said = self._clock()

    def advance(self, amount: int) -> None:
        """Say how far the phase is, unless that was said just now."""
        self._done += amount
        now = self._clock()
        if now - self._said < QUIET or not 0 < self._done < self._total:
            return
        self._said = now
        seconds = now - self._began
        left = duration(seconds * (self._total - self._done) / self._done)
        speed = rate(self._done / seconds, self._unit)
        percent = 100 * self._done // self._total
        self._say(f"{self._name}: {percent} % of {quantity(self._total, self._unit)}, {speed}, {left} left")

    def note(self, text: str) -> None:
        """Print a line."""
        self._say(text)

    def _say(self, line: str) -> None:
        self._console.print(visible(line), soft_wrap=True)


@contextmanager
def progress(
    console: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Progress]:
    """Show the progress of what runs inside, in the form that suits stderr."""
    console = console or stderr()
    shown = LiveProgress(console) if console.is_terminal else PlainProgress(console, clock)
    shown.start()
    try:
        yield shown
    except BaseException:
        shown.abandon()
        raise
    shown.stop()
