"""A panel goes in; lines of characters that draw it on a terminal come out: braille, or stars where that is unknown."""

from __future__ import annotations

from rich.text import Text

from cleanfeed.cli.panels import Line, Mark, Panel, tick_label

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of each of the 4 rows and 2 columns of dots in a braille character."""
BLANK = 0x2800
LABEL_WIDTH = 8
MARK_LINES = 4
"""Lines for marks; what does not fit in is left out, where there are many in one place."""
COLOURS = {"onset": "red", "trip": "red", "checkpoint": "green"}
KEPT, UNDONE = "", "dim"


class _Canvas:
    """Dots, two across and four down in each character."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells = [[0] * width for _ in range(height)]

    def dot(self, x: int, y: int) -> None:
        """Set the dot in column x from the left and row y from the top."""
        if 0 <= x < 2 * self.width and 0 <= y < 4 * self.height:
            self.cells[y // 4][x // 2] |= DOTS[y % 4][x % 2]

    def line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Set the dots of a straight line."""
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for step in range(steps + 1):
            part = step / steps
            self.dot(
                round(start[0] + part * (end[0] - start[0])), round(start[1] + part * (end[1] - start[1]))
            )


def draw(panel: Panel, width: int, height: int, *, unicode: bool = True) -> list[Text]:
    """Return the lines of a plot.

    Args:
        panel: What to draw.
        width: Columns of the terminal to use.
        height: Lines of the plot itself; title, steps and marks come on top of these.
        unicode: Whether the terminal can show braille.
    """
    across = max(8, width - LABEL_WIDTH - 2)
    kept, undone = _Canvas(across, height), _Canvas(across, height)
    for line in panel.lines:
        _draw_line(panel, line, kept if line.survived else undone)
    labels = {min(height - 1, int((1 - panel.y(tick)) * height)): tick_label(tick) for tick in panel.ticks()}
    rows = [Text(f"{'':{LABEL_WIDTH}}  {panel.title}", style="bold")]
    for at in range(height):
        row = Text(f"{labels.get(at, ''):>{LABEL_WIDTH}} ", style="dim")
        row.append("┤" if unicode and at in labels else "│" if unicode else "|", style="dim")
        for bits, lost in zip(kept.cells[at], undone.cells[at], strict=True):
            both = bits | lost
            shown = chr(BLANK + both) if unicode else "*" if both else " "
            row.append(shown if both else " ", style=KEPT if bits else UNDONE)
        rows.append(row)
    _mark_nonfinite(panel, rows[1], across, unicode)
    rows += _marks(panel, across, unicode)
    return rows


def _draw_line(panel: Panel, line: Line, canvas: _Canvas) -> None:
    def place(step: float, value: float) -> tuple[int, int]:
        return (
            round(panel.x(step) * (2 * canvas.width - 1)),
            round((1 - panel.y(value)) * (4 * canvas.height - 1)),
        )

    before = place(*line.points[0])
    for point in line.points:
        here = place(*point)
        canvas.line(before, here)
        before = here
    for (step, _), low, high in zip(line.points, line.low, line.high, strict=False):
        canvas.line(place(step, low), place(step, high))


def _mark_nonfinite(panel: Panel, top: Text, across: int, unicode: bool) -> None:
    """Put a cross on the top line for each step that is no number."""
    columns = {min(across - 1, int(panel.x(step) * across)) for step in panel.nonfinite}
    if columns:
        plain, start = top.plain, LABEL_WIDTH + 2
        cross = "×" if unicode else "x"
        top.plain = "".join(cross if at - start in columns else char for at, char in enumerate(plain))
        for column in columns:
            top.stylize("red bold", start + column, start + column + 1)


def _marks(panel: Panel, across: int, unicode: bool) -> list[Text]:
    """Return the axis of steps and below it the marks, each on a line of its own where they would overlap."""
    edge = ("└" + "─" * across) if unicode else "+" + "-" * across
    rows = [Text(f"{'':{LABEL_WIDTH + 1}}{edge}", style="dim")]
    left, right = f"{panel.first_step:,}", f"{panel.last_step:,}"
    rows.append(
        Text(
            f"{'':{LABEL_WIDTH + 2}}{left}{'':{max(1, across - len(left) - len(right))}}{right}", style="dim"
        )
    )
    lines: list[list[tuple[int, Mark, str]]] = []
    for mark in panel.marks:
        column = min(across - 1, int(panel.x(mark.step) * across))
        words = f"{'▲' if unicode else '^'} {mark.label} {mark.step:,}"
        column = min(column, max(0, across - len(words)))
        fits = next((line for line in lines if line[-1][0] + len(line[-1][2]) + 1 < column), None)
        if fits is not None:
            fits.append((column, mark, words))
        elif len(lines) < MARK_LINES:
            lines.append([(column, mark, words)])
    for line in lines:
        row = Text(" " * (LABEL_WIDTH + 2))
        for column, mark, words in line:
            row.append(" " * (LABEL_WIDTH + 2 + column - len(row)))
            row.append(words, style=COLOURS[mark.kind])
        rows.append(row)
    return rows
