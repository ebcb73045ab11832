"""Plots show what the numbers say: every point in its place, also where steps were undone or are not finite."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.cli.braille import LABEL_WIDTH, draw
from cleanfeed.cli.panels import Line, Mark, Panel, linear_ticks, log_ticks, tick_label, whole, zoomed
from cleanfeed.cli.svg import svg
from cleanfeed.quarantine.model import Checkpoint, CurriculumReport, Fired, IncidentReport, Report
from cleanfeed.runs.curve import Bucket, CurveLine, Totals


def line(attempt: int, step: int, loss: float | None, survived: bool = True) -> CurveLine:
    finite = loss is not None
    return CurveLine(attempt, step, 0, step, 0, 8, 8, loss, loss, None, 0.1, 1.0, True, finite, survived)


def incident(*lines: CurveLine) -> IncidentReport:
    return IncidentReport(
        incident_id=1,
        run="run",
        opened_at=1.0,
        closed_at=None,
        attempt=1,
        epoch=0,
        onset_step=3,
        trip_step=4,
        fired=Fired("robust_z"),
        action="rollback",
        actions=[],
        outcome="open",
        outcome_why="",
        checkpoint=Checkpoint(2, ""),
        steps_lost=0,
        tokens_lost=0,
        timeline=[],
        zoom=list(lines),
        batches=[],
        samples=[],
        samples_by_state={},
        skipped=[],
    )


SPIKE = (
    line(1, 1, 2.0),
    line(1, 2, 2.1),
    line(1, 3, 9.0, survived=False),
    line(1, 4, None, survived=False),
    line(1, 5, 8.0, survived=False),
    line(2, 3, 2.0),
    line(2, 4, 1.9),
)


def test_steps_that_survived_are_one_line_and_those_undone_are_drawn_on_top() -> None:
    (panel,) = zoomed(incident(*SPIKE))
    assert [(one.survived, one.points) for one in panel.lines] == [
        (True, [(1, 2.0), (2, 2.1), (3, 2.0), (4, 1.9)]),
        (False, [(3, 9.0)]),
        (False, [(5, 8.0)]),
    ]
    assert panel.nonfinite == [4]
    assert [(mark.step, mark.kind) for mark in panel.marks] == [(2, "checkpoint"), (3, "onset"), (4, "trip")]
    assert (panel.title, panel.first_step, panel.last_step) == ("loss, steps 1 to 5", 1, 5)


def test_without_any_value_the_plot_of_the_loss_is_crosses() -> None:
    (panel,) = zoomed(incident(line(1, 1, None), line(1, 2, None)))
    assert (panel.lines, panel.nonfinite, panel.ticks()) == ([], [1, 2], [])
    assert panel.title == "loss, steps 1 to 2, not finite anywhere"
    assert draw(panel, 60, 5)[1].plain.count("×") == 2
    assert svg(panel).count('class="nan"') == 2
    assert zoomed(incident()) == []


def test_the_whole_run_is_drawn_with_its_bands() -> None:
    buckets = [
        Bucket(1, 10, 1.0, 2.0, 50.0, True),
        Bucket(11, 20, 1.0, 1.5, 2.0, True),
        Bucket(9, 10, 3.0, 4.0, 5.0, False),
    ]
    report = Report(
        run="run",
        made_at=1.0,
        totals=Totals(),
        attempts=1,
        curriculum=CurriculumReport(),
        incident_count=1,
        incidents=[incident(*SPIKE)],
        loss=buckets,
        grad_norm=[],
        notes=[],
    )
    (panel,) = whole(report)
    assert panel.title == "loss, whole run, log scale"
    assert [(one.survived, one.points, one.high) for one in panel.lines] == [
        (True, [(5.5, 2.0), (15.5, 1.5)], [50.0, 2.0]),
        (False, [(9.5, 4.0)], [5.0]),
    ]
    assert panel.marks == [Mark(3, "incident 1 at", "onset")]
    assert panel.nonfinite == []


def test_a_run_without_a_finite_loss_is_drawn_as_crosses() -> None:
    report = Report(
        run="run",
        made_at=1.0,
        totals=Totals(),
        attempts=1,
        curriculum=CurriculumReport(),
        incident_count=0,
        incidents=[],
        loss=[],
        grad_norm=[],
        nonfinite=[2, 9],
        notes=[],
    )
    (panel,) = whole(report)
    assert (panel.title, panel.first_step, panel.last_step) == ("loss, whole run, not finite anywhere", 2, 9)
    assert (panel.lines, panel.nonfinite) == ([], [2, 9])


def panel_of(points: list[tuple[float, float]], log: bool = False) -> Panel:
    values = [y for _, y in points]
    low, high = min(values), max(values)
    return Panel("t", "loss", [Line(points, True)], [], [], 0, 100, low if log else low - 1, high + 1, log)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.floats(1e-6, 1e6)), min_size=1, max_size=20),
    st.integers(20, 120),
    st.integers(2, 12),
    st.booleans(),
)
def test_every_point_is_a_dot_in_its_character(
    points: list[tuple[int, float]], width: int, height: int, log: bool
) -> None:
    panel = panel_of([(float(x), y) for x, y in points], log)
    rows = [row.plain for row in draw(panel, width, height)]
    across = max(8, width - LABEL_WIDTH - 2)
    for step, value in points:
        x = round(panel.x(step) * (2 * across - 1)) // 2
        y = round((1 - panel.y(value)) * (4 * height - 1)) // 4
        assert 0x2800 < ord(rows[1 + y][LABEL_WIDTH + 2 + x]) <= 0x28FF
    assert all(len(row) <= LABEL_WIDTH + 2 + across for row in rows[1 : height + 1])


def test_a_terminal_without_braille_gets_stars() -> None:
    (panel,) = zoomed(incident(*SPIKE))
    text = "\n".join(row.plain for row in draw(panel, 60, 6, unicode=False))
    assert text.isascii()
    assert "*" in text
    assert "^ onset 3" in text
    assert re.search(r"^ .*x", text.splitlines()[1])


def test_marks_that_would_overlap_have_lines_of_their_own() -> None:
    panel = panel_of([(0.0, 1.0), (100.0, 2.0)])
    panel.marks = [Mark(50, "one", "onset"), Mark(51, "two", "trip"), Mark(90, "three", "checkpoint")]
    rows = [row.plain.split() for row in draw(panel, 80, 4)[-2:]]
    assert rows == [["▲", "one", "50", "▲", "three", "90"], ["▲", "two", "51"]]


def test_of_many_marks_in_one_place_some_are_named() -> None:
    panel = panel_of([(0.0, 1.0), (100.0, 2.0)])
    panel.marks = [Mark(50, f"incident {number}", "onset") for number in range(30)]
    assert len(draw(panel, 80, 4)) == 1 + 4 + 2 + 4
    picture = svg(panel)
    assert picture.count('class="mark onset"') == 30
    assert picture.count('class="label onset"') == 2


def test_an_svg_shows_points_marks_and_steps_that_are_not_finite() -> None:
    (panel,) = zoomed(incident(*SPIKE))
    picture = svg(panel)
    assert picture.count('class="line kept"') == 1
    assert picture.count('class="line undone"') == 2
    assert picture.count('class="nan"') == 1
    assert "<title>step 3: 9, undone</title>" in picture
    assert 'class="mark onset"' in picture
    for number in re.findall(r'(?:x|y|cx|cy|x1|x2|y1|y2)="(-?[\d.]+)"', picture):
        assert math.isfinite(float(number))
        assert 0 <= float(number) <= 760


def test_names_in_an_svg_are_text() -> None:
    panel = panel_of([(0.0, 1.0)])
    panel.title = '<script>"&'
    panel.marks = [Mark(5, "<b>", "onset")]
    picture = svg(panel)
    assert "<script" not in picture
    assert "<b>" not in picture
    assert "&lt;script&gt;" in picture


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(1, 12))
def test_ticks_are_few_and_inside(low: float, span: float, wanted: int) -> None:
    ticks = linear_ticks(low, low + span, wanted)
    assert len(ticks) <= wanted + 1
    room = 1e-6 * (abs(low) + span)
    assert all(low - room <= tick <= low + span + room for tick in ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.5, 300.0, [1.0, 10.0, 100.0]),
        (1.5, 60.0, [2.0, 5.0, 10.0, 20.0, 50.0]),
        (1e-8, 1e8, [1e-8, 1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6, 1e8]),
    ],
)
def test_ticks_of_a_log_axis(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (1234.0, "1,234"),
        (1e-4, "1e-4"),
        (2e6, "2e6"),
        (0.001, "0.001"),
        (-3.5, "-3.5"),
    ],
)
def test_labels_are_short(value: float, label: str) -> None:
    assert tick_label(value) == label
