"""A panel goes in; an inline SVG picture of it comes out, whose colours the page around it decides."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup, escape

from cleanfeed.cli.panels import Line, Panel, linear_ticks, tick_label

WIDTH, HEIGHT = 760, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 46, 26
STEP_TICKS = 9
FEW_POINTS = 1200
"""Up to so many points, each says its step and value when pointed at."""


def svg(panel: Panel) -> Markup:
    """Return the picture of a panel."""
    label = escape(panel.title)
    parts = [
        f'<svg class="plot {escape(panel.signal)}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">',
        f'<text class="title" x="{LEFT}" y="13">{label}</text>',
        *_axes(panel),
        *_marks(panel),
        *(part for line in panel.lines for part in _line(panel, line)),
        *_nonfinite(panel),
        *_points(panel),
        "</svg>",
    ]
    return Markup("\n".join(parts))


def _x(panel: Panel, step: float) -> float:
    return round(LEFT + panel.x(step) * (WIDTH - LEFT - RIGHT), 1)


def _y(panel: Panel, value: float) -> float:
    return round(TOP + (1 - panel.y(value)) * (HEIGHT - TOP - BOTTOM), 1)


def _axes(panel: Panel) -> Iterator[str]:
    for tick in panel.ticks():
        y = _y(panel, tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5}" text-anchor="end">{tick_label(tick)}</text>'
    for step in linear_ticks(panel.first_step, panel.last_step, STEP_TICKS):
        if step == int(step):
            x = _x(panel, step)
            yield f'<text class="tick" x="{x}" y="{HEIGHT - 8}" text-anchor="middle">{int(step):,}</text>'


def _marks(panel: Panel) -> Iterator[str]:
    """Yield a line for each mark, its name above; names that would overlap go to a second line."""
    taken: list[float] = [-1e9, -1e9]
    for mark in panel.marks:
        if not panel.first_step <= mark.step <= panel.last_step:
            continue
        x = _x(panel, mark.step)
        words = f"{mark.label} {mark.step:,}"
        half = 3.1 * len(words)
        middle = min(max(x, LEFT + half), WIDTH - RIGHT - half)
        kind = escape(mark.kind)
        yield f'<line class="mark {kind}" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        row = next((at for at, end in enumerate(taken) if end < middle - half), None)
        if row is None:
            continue  # too many in one place to be read: the line alone stands for it
        taken[row] = middle + half + 6
        y = TOP - 5 - 12 * row
        yield f'<text class="label {kind}" x="{middle}" y="{y}" text-anchor="middle">{escape(words)}</text>'


def _line(panel: Panel, line: Line) -> Iterator[str]:
    fate = "kept" if line.survived else "undone"
    steps = [_x(panel, step) for step, _ in line.points]
    if line.low:
        upper = [f"{x},{_y(panel, value)}" for x, value in zip(steps, line.high, strict=True)]
        lower = [f"{x},{_y(panel, value)}" for x, value in zip(steps, line.low, strict=True)]
        yield f'<polygon class="band {fate}" points="{" ".join([*upper, *reversed(lower)])}"/>'
    points = " ".join(f"{x},{_y(panel, value)}" for x, (_, value) in zip(steps, line.points, strict=True))
    yield f'<polyline class="line {fate}" points="{points}"/>'
    if len(line.points) == 1 and not line.low:
        yield f'<circle class="dot {fate}" cx="{steps[0]}" cy="{_y(panel, line.points[0][1])}" r="2.5"/>'


def _nonfinite(panel: Panel) -> Iterator[str]:
    for step in panel.nonfinite:
        x, y = _x(panel, step), TOP + 5
        yield (
            f'<path class="nan" d="M{x - 3.5},{y - 3.5}l7,7m0,-7l-7,7">'
            f"<title>step {step:,}: not finite</title></path>"
        )


def _points(panel: Panel) -> Iterator[str]:
    """Yield an invisible circle on each point that tells its numbers, where a point is one step."""
    if any(line.low for line in panel.lines) or sum(len(line.points) for line in panel.lines) > FEW_POINTS:
        return
    for line in panel.lines:
        fate = "" if line.survived else ", undone"
        for step, value in line.points:
            yield (
                f'<circle class="touch" cx="{_x(panel, step)}" cy="{_y(panel, value)}" r="5">'
                f"<title>step {int(step):,}: {tick_label(value)}{fate}</title></circle>"
            )
