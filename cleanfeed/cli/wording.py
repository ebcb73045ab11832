"""Parts of a report go in; the same short phrases for the terminal and for the page come out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from cleanfeed.cli.terminal import count, measure, visible

if TYPE_CHECKING:
    from cleanfeed.quarantine.model import (
        Fired,
        HandSample,
        IncidentReport,
        Place,
        Report,
        SuspectReport,
        Unusual,
    )

SLOTS_NAMED = 8
"""Slots of copies ahead that are named; the others are counted."""

DONE = {
    "record": "recorded only",
    "skip_step": "step not taken",
    "rollback": "rolled back",
    "lower_lr": "learning rate lowered",
    "halt": "training halted",
}
NAMED_AT_ONCE = 8
"""Hashes that a command to copy is given; with more, the report's JSON has them."""


def plural(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence, each once."""
    once = list(dict.fromkeys(names))
    return " and ".join([", ".join(once[:-1]), once[-1]] if len(once) > 1 else once)


def clock(seconds: float | None) -> str:
    """Return a time in UTC, or blanks of the same width where nobody noted it."""
    if seconds is None:
        return " " * 19
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def words(name: str) -> str:
    """Return a name from a file as words."""
    return name.replace("_", " ")


def number(value: float | None) -> str:
    """Return a value of a detector; what is null there was not finite or not known."""
    return "not finite" if value is None else measure(value)


def head_line(report: Report) -> str:
    """Return what the run is, in one line."""
    totals = report.totals
    incidents = plural(report.incident_count, "incident") if report.incident_count else "no incidents"
    if report.incident_count > 1 and len(report.incidents) == 1:
        incidents += f" (shown: number {report.incidents[0].incident_id})"
    parts = [incidents]
    if report.attempts:
        parts += [f"{plural(totals.steps, 'step')} trained", plural(report.attempts, "attempt")]
    if totals.undone_steps:
        parts.insert(2, f"{count(totals.undone_steps)} undone")
    if totals.refused_steps:
        parts.insert(2, f"{count(totals.refused_steps)} not taken")
    if totals.unjudged_steps:
        parts.append(f"{count(totals.unjudged_steps)} judged for NaN alone (grace, or the first of a stage)")
    if totals.last_time is not None:
        parts.append(f"last line {clock(totals.last_time)} UTC")
    return ", ".join(parts)


def rule_line(fired: Fired) -> str:
    """Return the rule that fired, with its numbers."""
    line = words(fired.rule)
    if fired.signal is not None:
        line += f": {words(fired.signal)} was {number(fired.value)}"
        if fired.limit is not None:
            line += f", limit {measure(fired.limit)}"
        if fired.z is not None:
            line += f", z {measure(fired.z)}"
    return line


def baseline_line(fired: Fired) -> str:
    """Return the baseline it was compared with; empty where there is none."""
    parts = []
    if fired.median is not None:
        parts.append(f"median {measure(fired.median)}")
    if fired.scale is not None:
        parts.append(f"scale {measure(fired.scale)}")
    line = ", ".join(parts)
    if fired.n is not None:
        line += f"{' over ' if line else ''}{plural(fired.n, 'healthy step')}"
    if fired.context:
        line += f"{' of ' if line else ''}{fired.context}"
    return line


def other_numbers(fired: Fired) -> str:
    """Return what else the detector said."""
    trips = fired.others.get("trips")
    on: dict[str, list[str]] = {}
    for trip in trips[1:] if isinstance(trips, list) else []:
        on.setdefault(words(str(trip.get("rule"))), []).append(words(str(trip.get("signal"))))
    parts = []
    if on:
        parts.append("as well: " + "; ".join(f"{rule} on {listed(signals)}" for rule, signals in on.items()))
    for name, value in fired.others.items():
        if isinstance(value, bool) or value is None or isinstance(value, str):
            parts.append(f"{words(name)} {value}")
        elif isinstance(value, int | float):
            parts.append(f"{words(name)} {measure(value)}")
        elif isinstance(value, list) and all(isinstance(one, int) for one in value):
            parts.append(f"{words(name)} {', '.join(map(str, value))}")
    return ", ".join(parts)


def done_line(incident: IncidentReport) -> str:
    """Return what was done about it."""
    parts = [DONE.get(incident.action, words(incident.action))]
    slots = sum(last - first + 1 for first, last in incident.skipped)
    if slots:
        parts.append(f"{plural(slots, 'slot')} skipped ({slot_ranges(incident.skipped)})")
    states = incident.samples_by_state
    parts += [
        f"{plural(states[state], 'sample')} {state}"
        for state in ("quarantined", "suspected", "released")
        if states.get(state)
    ]
    return ", ".join(parts)


def slot_ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ranges of slots in words."""
    return ", ".join(f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in ranges)


def lost_line(incident: IncidentReport) -> str:
    """Return what it cost."""
    return f"{plural(incident.steps_lost, 'step')} and {plural(incident.tokens_lost, 'token')}"


def checkpoint_line(incident: IncidentReport) -> str:
    """Return which checkpoint was chosen and why; without one, why not."""
    chosen = incident.checkpoint
    if chosen.step is None:
        return chosen.why or "none: training did not go back"
    # The guard's own reason names the step once more.
    why = chosen.why.removeprefix(f"step {chosen.step} is ")
    return f"step {chosen.step:,}" + (f": {why}" if why else "")


def outcome_line(incident: IncidentReport) -> str:
    """Return what became of it."""
    why = f": {incident.outcome_why}" if incident.outcome_why else ""
    return words(incident.outcome) + (why or (": not judged yet" if incident.outcome == "open" else ""))


def sample_line(sample: SuspectReport) -> str:
    """Return what is known of a sample besides its document."""
    parts = []
    if sample.slot is not None:
        parts.append(f"slot {sample.slot:,}")
    if sample.loss is not None:
        parts.append(f"loss {measure(sample.loss)}")
    if sample.score is not None:
        parts.append(f"score {measure(sample.score)}")
    if sample.n_tokens is not None:
        parts.append(plural(sample.n_tokens, "token"))
    if sample.stage is not None:
        parts.append(f"stage {sample.stage}")
    return ", ".join(parts)


def hand_line(report: Report) -> str:
    """Return the heading of what was decided by hand."""
    apart = " of no incident" if report.incident_count else ""
    return f"{plural(len(report.by_hand), 'sample')}{apart} decided by hand"


def hand_cells(sample: HandSample) -> list[str]:
    """Return what is known of a sample that was decided by hand: hash, state, document, by whom, when, why."""
    document = sample.doc_id or "–"
    if sample.source is not None:
        document += f" ({sample.source}, record {count(sample.source_row)})"
    return [
        sample.sample_hash,
        sample.state,
        visible(document),
        visible(sample.decided_by),
        clock(sample.decided_at),
        visible(sample.reason),
    ]


HAND_HEADINGS = ("state", "document", "decided by", "time (UTC)", "reason")
"""Of `hand_cells`, after the sample's hash."""


def nothing_line(report: Report) -> str:
    """Return what to say where there is neither an incident nor a sample; empty where there is."""
    if report.incidents or report.incident_count:
        return ""
    return "No incidents." if report.by_hand else "No incidents. No quarantined batches."


def unusual_line(unusual: Unusual) -> str:
    """Return a signal of a document beside those of the curriculum."""
    side, share = ("higher", unusual.below) if unusual.below >= unusual.above else ("lower", unusual.above)
    return (
        f"{unusual.signal} {measure(unusual.value)}: {side} than in {percent(share)} of the documents "
        f"(median {measure(unusual.median)})"
    )


def percent(share: float) -> str:
    """Return a share in per cent, never rounded up to all."""
    if share >= 1.0:
        return "100 %"
    return f"{min(100 * share, 99.99):.4g} %"


def evidence_names(incident: IncidentReport) -> list[str]:
    """Return the kinds of evidence that speak of any of the suspect batches."""
    return sorted(
        {name for batch in incident.batches for name, value in batch.evidence.items() if value is not None}
    )


def ahead_lines(sample: SuspectReport) -> list[str]:
    """Return what is still ahead that is like a sample."""
    copies = sample.ahead
    if copies is None:
        return []
    left_out = " and left out" if sample.state == "quarantined" else ""
    exact = f"the sample or exact copies of it: {_places(copies.exact, left_out)}"
    near = f"near copies: {_places(copies.near)}"
    if copies.similarity is not None:
        near += f", similarity up to {copies.similarity:.2f}"
    return [exact, near]


def _places(places: Sequence[Place], fate: str = "") -> str:
    if not places:
        return "none ahead"
    slots = list(dict.fromkeys(place.slot for place in places))
    named = ", ".join(f"{slot:,}" for slot in slots[:SLOTS_NAMED])
    more = f" and {count(len(slots) - SLOTS_NAMED)} more" if len(slots) > SLOTS_NAMED else ""
    return f"{count(len(places))} ahead{fate}, in {'slot' if len(slots) == 1 else 'slots'} {named}{more}"


def scope_line(report: Report) -> str:
    """Return what the comparisons were made with; empty where none was."""
    found, parts = report.curriculum, []
    if found.documents_compared:
        of = "" if found.documents_compared >= found.documents else f" of {count(found.documents)}"
        parts.append(f"signals are compared with {count(found.documents_compared)}{of} documents")
    if found.slots_ahead is not None:
        near = (
            f"; near copies were sought among the next {count(found.looked_ahead)} samples"
            if found.looked_ahead
            else ""
        )
        parts.append(
            f"{plural(found.slots_ahead, 'slot')} are ahead{near}"
            if found.slots_ahead
            else "nothing is ahead"
        )
    return "; ".join(parts)


def next_steps(report: Report) -> list[str]:
    """Return what a person may want to do next, as commands."""
    known = {sample.sample_hash for incident in report.incidents for sample in incident.samples}
    near = list(
        dict.fromkeys(
            name
            for incident in report.incidents
            for sample in incident.samples
            if sample.state == "quarantined" and sample.ahead is not None
            for name in sample.ahead.near_hashes
            if name not in known
        )
    )
    if not near:
        return []
    place = shlex.quote(report.run)
    if len(near) > NAMED_AT_ONCE:
        return [
            f"{count(len(near))} near copies of quarantined samples are ahead; --json lists them (near_hashes)."
        ]
    reason = shlex.quote("near copy of a quarantined sample")
    return [
        "To leave out the near copies of quarantined samples as well: "
        f"cleanfeed quarantine add {place} {' '.join(near)} --reason {reason}"
    ]
