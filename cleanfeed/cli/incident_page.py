"""A report goes in; one HTML file comes out that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined

from cleanfeed import __version__
from cleanfeed.cli import wording
from cleanfeed.cli.panels import whole, zoomed
from cleanfeed.cli.svg import svg
from cleanfeed.cli.terminal import count, measure, visible

if TYPE_CHECKING:
    from cleanfeed.quarantine.model import Report

TEMPLATE = "incident_page.html.j2"
BATCHES = 20


def page(report: Report) -> str:
    """Return the report as an HTML page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        visible=visible,
        lines_visible=lines_visible,
        count=count,
        measure=measure,
        unusual_line=wording.unusual_line,
    )
    template = environment.from_string(files("cleanfeed.cli").joinpath(TEMPLATE).read_text("utf-8"))
    return template.render(
        report=report,
        version=__version__,
        words=wording,
        zoomed={
            incident.incident_id: [svg(panel) for panel in zoomed(incident)] for incident in report.incidents
        },
        whole=[svg(panel) for panel in whole(report)],
        batches=BATCHES,
    )


def lines_visible(text: str) -> str:
    """Return text with its line breaks, and every other character that would hide or turn text as an escape."""
    return "\n".join(visible(line) for line in text.split("\n"))
