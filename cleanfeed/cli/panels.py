"""A report goes in; what its plots show, as panels of lines and marks in data units, comes out for any face to draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cleanfeed.quarantine.model import IncidentReport, Report
    from cleanfeed.runs.curve import Bucket, CurveLine

Point = tuple[float, float]
LOG_RATIO = 20.0
"""Where the largest value is more than so many times the smallest, the axis is logarithmic."""
WANTED_TICKS = 5


@dataclass(slots=True)
class Line:
    """Neighbouring points, joined."""

    points: list[Point]
    survived: bool
    low: list[float] = field(default_factory=list)
    """Least values of the steps each point stands for, where it stands for several; likewise the greatest."""
    high: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mark:
    """A step that matters."""

    step: int
    label: str
    kind: str
    """``onset``, ``trip`` or ``checkpoint``."""


@dataclass(slots=True)
class Panel:
    """One signal over a range of steps."""

    title: str
    signal: str
    """``loss`` or ``grad_norm``."""
    lines: list[Line]
    marks: list[Mark]
    nonfinite: list[int]
    """Steps whose value is NaN or infinite."""
    first_step: int
    last_step: int
    low: float
    high: float
    log: bool

    def x(self, step: float) -> float:
        """Return where a step lies, from 0 to 1."""
        return (step - self.first_step) / max(1, self.last_step - self.first_step)

    def y(self, value: float) -> float:
        """Return where a value lies, 0 at the bottom and 1 at the top."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return round values along the axis of values; none where there is no value."""
        if not self.lines:
            return []
        return log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high)


NAMES = {"loss": "loss", "grad_norm": "gradient norm"}


def zoomed(incident: IncidentReport) -> list[Panel]:
    """Return the panels around an incident: loss, and gradient norm where it is known."""
    lines = incident.zoom
    if not lines:
        return []
    first, last = min(line.step for line in lines), max(line.step for line in lines)
    marks = [mark for mark in marks_of(incident) if first <= mark.step <= last]
    panels = []
    for signal, name in NAMES.items():
        drawn = _runs(lines, signal)
        if drawn or signal == "loss":
            lost = [line.step for line in lines if _is_nonfinite(line, signal)]
            panels.append(
                _panel(f"{name}, steps {first:,} to {last:,}", signal, drawn, marks, lost, first, last)
            )
    return panels


def whole(report: Report) -> list[Panel]:
    """Return the panels of the whole run."""
    panels = []
    marks = [mark for incident in report.incidents for mark in marks_of(incident, whole_run=True)]
    for signal, buckets in (("loss", report.loss), ("grad_norm", report.grad_norm)):
        lost = report.nonfinite if signal == "loss" else []
        steps = [*lost, *(b.first_step for b in buckets), *(b.last_step for b in buckets)]
        if steps:
            lines = [line for kept in (True, False) for line in _bucket_lines(buckets, kept)]
            title = f"{NAMES[signal]}, whole run"
            panels.append(_panel(title, signal, lines, marks, lost, min(steps), max(steps)))
    return panels


def marks_of(incident: IncidentReport, *, whole_run: bool = False) -> list[Mark]:
    """Return the steps of an incident that matter; over the whole run onset and trip are one."""
    name = f"incident {incident.incident_id} at" if whole_run else "onset"
    marks = [Mark(incident.onset_step, name, "onset")]
    if not whole_run and incident.trip_step != incident.onset_step:
        marks.append(Mark(incident.trip_step, "trip", "trip"))
    if incident.checkpoint.step is not None and not whole_run:
        marks.append(Mark(incident.checkpoint.step, "checkpoint", "checkpoint"))
    return sorted(marks, key=lambda mark: mark.step)


def _is_nonfinite(line: CurveLine, signal: str) -> bool:
    return getattr(line, signal) is None and not line.finite


def _runs(lines: Sequence[CurveLine], signal: str) -> list[Line]:
    """Return runs of neighbouring steps with a value: the surviving ones, then those undone, to be drawn on top."""
    attempts = sorted({line.attempt for line in lines if not line.survived})
    kept = sorted((line for line in lines if line.survived), key=lambda line: line.step)
    groups = [kept, *([x for x in lines if x.attempt == one and not x.survived] for one in attempts)]
    runs: list[Line] = []
    for group in groups:
        joined = False
        for line in group:
            value = getattr(line, signal)
            if value is not None and not joined:
                runs.append(Line([], line.survived))
            if value is not None:
                runs[-1].points.append((line.step, value))
            joined = value is not None
    return runs


def _bucket_lines(buckets: Sequence[Bucket], survived: bool) -> Iterable[Line]:
    drawn = Line([], survived)
    for bucket in buckets:
        if bucket.survived == survived:
            drawn.points.append(((bucket.first_step + bucket.last_step) / 2, bucket.mean))
            drawn.low.append(bucket.low)
            drawn.high.append(bucket.high)
    return [drawn] if drawn.points else []


def _panel(
    title: str,
    signal: str,
    lines: list[Line],
    marks: list[Mark],
    nonfinite: list[int],
    first: int,
    last: int,
) -> Panel:
    values = [y for line in lines for y in (*(y for _, y in line.points), *line.low, *line.high)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    log = low > 0 and high / low > LOG_RATIO
    if log:
        low, high = low / 1.15, high * 1.15
    else:
        room = 0.06 * (high - low) or max(abs(high), 1.0) * 0.05
        low, high = (max(0.0, low - room) if low >= 0 else low - room), high + room
    title += ", log scale" if log else ""
    title += ", not finite anywhere" if nonfinite and not values else ""
    return Panel(title, signal, lines, marks, nonfinite, first, max(last, first + 1), low, high, log)


def linear_ticks(low: float, high: float, wanted: int = WANTED_TICKS) -> list[float]:
    """Return up to ``wanted`` + 1 values from ``low`` to ``high``: multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(number * step, 12) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten from ``low`` to ``high``; with fewer than three of them also 2 and 5 times them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    tens = [10.0**power for power in range(first, last + 1)]
    stride = max(1, len(tens) // (WANTED_TICKS + 2))
    inside = [tick for tick in tens[::stride] if low <= tick <= high]
    if len(inside) >= 3:
        return inside
    return [tick for ten in tens for tick in (ten, 2 * ten, 5 * ten) if low <= tick <= high]


def tick_label(value: float) -> str:
    """Return a value in few characters."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
