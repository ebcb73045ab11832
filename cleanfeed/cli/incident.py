"""A report goes in; what an engineer on call needs of it, in order, comes out on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cleanfeed.cli import wording
from cleanfeed.cli.braille import draw
from cleanfeed.cli.panels import Panel, whole, zoomed
from cleanfeed.cli.terminal import count, measure, row, shortened, stdout, table, visible

if TYPE_CHECKING:
    from cleanfeed.quarantine.model import IncidentReport, Report, SuspectReport

PLOT_WIDTH, ZOOM_HEIGHT, WHOLE_HEIGHT = 100, 9, 6
BATCHES, SAMPLES, UNUSUAL, EXCERPT = 8, 5, 3, 240
"""Batches and samples that are shown, signals of each sample, and code points of its text."""
BY_HAND = 50
"""Samples decided by hand that are shown."""
LOOK = {
    "open": "yellow",
    "halted": "red",
    "did_not_help": "yellow",
    "state_not_data": "yellow",
    "helped": "green",
    "recovered": "green",
}
STATES = {"quarantined": "red", "suspected": "yellow", "released": "green"}


def show_report(report: Report, console: Console | None = None) -> None:
    """Print the whole report."""
    console = console or stdout()
    _say(console, f"{visible(report.run)}: {wording.head_line(report)}", style="bold")
    for note in report.notes:
        _say(console, f"note: {visible(note)}", style="yellow")
    nothing = wording.nothing_line(report)
    if nothing:
        console.print(f"\n{nothing}")
    for incident in report.incidents:
        console.print()
        _show_incident(incident, console)
    _show_by_hand(report, console)
    for panel in whole(report):
        console.print()
        _plot(panel, WHOLE_HEIGHT, console)
    for line in wording.next_steps(report):
        _say(console, f"\n{line}")
    scope = wording.scope_line(report)
    if scope and report.incidents:
        _say(console, f"\n{scope[0].upper()}{scope[1:]}.", style="dim")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def _show_by_hand(report: Report, console: Console) -> None:
    if not report.by_hand:
        return
    console.print()
    _say(console, wording.hand_line(report), style="bold")
    grid = table("sample", *wording.HAND_HEADINGS, left=1 + len(wording.HAND_HEADINGS))
    grid.columns[0].no_wrap = True
    for sample in report.by_hand[:BY_HAND]:
        row(grid, *wording.hand_cells(sample))
    console.print(grid)
    _more(len(report.by_hand), BY_HAND, console)


def _show_incident(incident: IncidentReport, console: Console) -> None:
    outcome = wording.words(incident.outcome)
    title = Text(f"Incident {incident.incident_id}, step {count(incident.trip_step)}: ", style="bold")
    title.append(outcome, style=f"bold {LOOK[incident.outcome]}")
    console.print(title)
    console.print()
    facts = [
        ("rule", wording.rule_line(incident.fired)),
        ("baseline", wording.baseline_line(incident.fired)),
        ("", wording.other_numbers(incident.fired)),
        ("onset", f"step {count(incident.onset_step)}, attempt {incident.attempt}, epoch {incident.epoch}"),
        ("done", wording.done_line(incident)),
        ("checkpoint", wording.checkpoint_line(incident)),
        ("lost", wording.lost_line(incident)),
        ("outcome", wording.outcome_line(incident)),
    ]
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in facts:
        if value:
            grid.add_row(Text(name, style="dim"), Text(visible(value)))
    console.print(Padding(grid, (0, 0, 0, 2), expand=False))
    console.print()
    _show_timeline(incident, console)
    for panel in zoomed(incident):
        _plot(panel, ZOOM_HEIGHT, console)
        console.print()
    _show_batches(incident, console)
    _show_samples(incident, console)


def _show_timeline(incident: IncidentReport, console: Console) -> None:
    grid = table("time (UTC)", "step", "what happened")
    grid.columns[2].justify = "left"
    grid.columns[2].no_wrap = False
    for moment in incident.timeline:
        row(grid, wording.clock(moment.at), count(moment.step), visible(moment.what))
    console.print(Padding(grid, (0, 0, 1, 2), expand=False))


def _plot(panel: Panel, height: int, console: Console) -> None:
    unicode = "utf" in (console.encoding or "").lower()
    for line in draw(panel, min(console.width, PLOT_WIDTH), height, unicode=unicode):
        console.print(line, no_wrap=True, crop=True)


def _show_batches(incident: IncidentReport, console: Console) -> None:
    if not incident.batches:
        return
    names = wording.evidence_names(incident)
    grid = table("suspect batch", "step", "slot", "score", *(wording.words(name) for name in names))
    for batch in incident.batches[:BATCHES]:
        evidence = [measure(batch.evidence.get(name)) for name in names]
        row(grid, batch.batch_hash, count(batch.step), count(batch.slot), measure(batch.score), *evidence)
    console.print(Padding(grid, (0, 0, 0, 2), expand=False))
    _more(len(incident.batches), BATCHES, console)
    console.print()


def _show_samples(incident: IncidentReport, console: Console) -> None:
    if not incident.samples:
        return
    total = sum(incident.samples_by_state.values())
    _say(console, f"  {wording.plural(total, 'suspect sample')}, the most suspect first", style="bold")
    for sample in incident.samples[:SAMPLES]:
        console.print()
        _show_sample(sample, console)
    console.print()
    _more(total, SAMPLES, console)


def _show_sample(sample: SuspectReport, console: Console) -> None:
    place = f"{visible(sample.source or '?')}, record {count(sample.source_row)}"
    title = Text.assemble(
        ("  "), (sample.state, STATES.get(sample.state, "")), f"  {visible(sample.doc_id or '?')} ({place})"
    )
    console.print(title, soft_wrap=True)
    indented = [f"{sample.sample_hash}, {wording.sample_line(sample)}".rstrip(", ")]
    if sample.reason:
        indented.append(f"{visible(sample.reason)} ({visible(sample.decided_by)})")
    indented += [wording.unusual_line(one) for one in sample.unusual[:UNUSUAL]]
    indented += wording.ahead_lines(sample)
    for line in indented:
        console.print(Padding(Text(line), (0, 0, 0, 4), expand=False))
    if sample.excerpt:
        text = visible(shortened(sample.excerpt, EXCERPT))
        console.print(Padding(Text(text, style="dim"), (0, 0, 0, 4), expand=False))


def _more(total: int, shown: int, console: Console) -> None:
    if total > shown:
        _say(console, f"  {count(total - shown)} more: --json and --html have further ones", style="dim")
