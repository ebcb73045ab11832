"""What is known of one document goes in; the result for ``--json`` and its page for the terminal come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cleanfeed.cli.terminal import count, measure, row, shortened, stdout, table, visible

if TYPE_CHECKING:
    from cleanfeed.build.explain import Explanation
    from cleanfeed.rules.explain import RuleReading
    from cleanfeed.signals.spans import Span

EXCERPT = 72
"""Code points of a span that are shown: its beginning and its end."""
LOOK = {"rejects": "red", "flags": "yellow"}
"""How the rules that fired are shown, worst first."""
SHORT = 5
"""A span is worth showing down to this part of its signal's longest."""


def explanation_result(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as plain data; null signals are null, spans are in code points."""
    return {
        "doc_id": explanation.doc_id,
        "source": explanation.source,
        "source_row": explanation.source_row,
        "verdict": explanation.verdict,
        "reasons": [dict(reason) for reason in explanation.reasons],
        "signals": dict(explanation.signals),
        "spans": [
            {"signal": span.signal, "start": span.start, "end": span.end} for span in explanation.spans
        ],
        "rules": [reading.plain() for reading in explanation.rules],
    }


def show_explanation(explanation: Explanation, console: Console | None = None) -> None:
    """Print the verdict, what each rule said, the worst spans and every signal with its limits."""
    console = console or stdout()
    _show_head(explanation, console)
    _show_left_out(explanation, console)
    _show_rules(explanation.rules, console)
    _show_spans(explanation, console)
    _show_signals(explanation, console)


def _show_head(explanation: Explanation, console: Console) -> None:
    place = ""
    if explanation.source is not None:
        place = f" ({visible(explanation.source)}, record {count(explanation.source_row)})"
    console.print(
        f"{visible(explanation.doc_id)}{place}: {explanation.verdict}\n", style="bold", soft_wrap=True
    )
    if explanation.others:
        console.print(f"{count(explanation.others)} more with this id; name one as SOURCE:ROW.\n")


def _show_left_out(explanation: Explanation, console: Console) -> None:
    """Print the reasons that are of no rule of the pipeline: a copy, a document to be left out or too costly."""
    rules = {reading.rule for reading in explanation.rules}
    others = [reason for reason in explanation.reasons if reason["rule"] not in rules]
    for reason in others:
        console.print(_left_out(reason), style=LOOK["rejects"], soft_wrap=True)
    if others:
        console.print()


def _left_out(reason: Mapping[str, Any]) -> str:
    rule, signal = visible(reason["rule"]), visible(reason["signal"])
    copied = rule.startswith("duplicate_of ")
    if copied and signal == "content_hash":
        return f"{rule.replace('_', ' ', 1)}: the same text"
    if copied and signal == "similarity":
        least = measure(reason["limit"])
        return f"{rule.replace('_', ' ', 1)}: nearly the same text (estimated similarity at least {least})"
    if rule == "excluded":
        return f"excluded: its {signal} is listed in a store given with --exclude"
    said = {
        "bytes": f"it would take {measure(reason['value'])} bytes of memory, more than {measure(reason['limit'])}",
        "seconds": f"it takes more than {measure(reason['limit'])} s of CPU time",
        "worker_deaths": f"{measure(reason['value'])} workers died at it",
        "tokenizer": "the tokenizer fails on it",
    }
    limit = f"{signal} is {measure(reason['value'])}, limit {measure(reason['limit'])}"
    return f"{rule}: {said.get(signal, limit)}"


def _show_rules(rules: Sequence[RuleReading], console: Console) -> None:
    """Print each rule that rejects or flags with the reason, and count the others."""
    for outcome in LOOK:
        for reading in rules:
            if reading.outcome == outcome:
                console.print(f"{reading.rule} {reading.words}", style=LOOK[outcome], soft_wrap=True)
                if reading.because:
                    console.print(f"    {' '.join(reading.because.split())}", soft_wrap=True)
    rest = [sum(reading.outcome == outcome for reading in rules) for outcome in ("passes", "silent")]
    console.print(f"{rest[0]} rules pass, {rest[1]} do not speak for this document\n")


def _show_spans(explanation: Explanation, console: Console) -> None:
    spans = worst(explanation.spans, explanation.rules)
    if explanation.text is None or not spans:
        return
    grid = table("where", "from", "to", "text", left=1)
    grid.columns[3].justify = "left"
    for span in spans:
        part = _excerpt(explanation.text, span.start, span.end)
        row(grid, span.signal, count(span.start), count(span.end), part)
    console.print(grid)
    console.print()


def worst(spans: Sequence[Span], rules: Sequence[RuleReading]) -> list[Span]:
    """Return the spans worth a look: of signals that fired a rule, or if none did, the longest of each signal.

    A span much shorter than the longest of its signal is left out; ``--json`` has them all.
    """
    fired = [reading for reading in rules if reading.outcome in LOOK]
    named = {
        bound.signal for reading in fired for bound in (reading.limit, *reading.evidence) if bound.crossed
    }
    longest: dict[str, int] = {}
    for span in spans:
        longest[span.signal] = max(longest.get(span.signal, 0), span.end - span.start)
    worth = [span for span in spans if (span.end - span.start) * SHORT >= longest[span.signal]]
    if named:
        return [span for span in worth if span.signal in named]
    first: dict[str, Span] = {}
    for span in worth:
        if span.end - span.start == longest[span.signal]:
            first.setdefault(span.signal, span)
    return list(first.values())


def _excerpt(text: str, start: int, end: int) -> str:
    """Return the ends of a span; cut before escaping, so that a span of megabytes costs nothing."""
    return visible(shortened(text[start:end], EXCERPT))


def _show_signals(explanation: Explanation, console: Console) -> None:
    """Print every signal, beside it each rule's limit, and mark the limits that were crossed."""
    readings: dict[str, list[RuleReading]] = {}
    for reading in explanation.rules:
        readings.setdefault(reading.limit.signal, []).append(reading)
    grid = table("signal", "value", "limit")
    grid.columns[2].justify = "left"
    grid.columns[2].no_wrap = False
    for name, value in explanation.signals.items():
        rules = readings.get(name, [])
        outcomes = {rule.outcome for rule in rules}
        look = next((style for outcome, style in LOOK.items() if outcome in outcomes), "")
        row(grid, name, measure(value), "; ".join(map(_limit, rules)), style=look)
    console.print(grid)


def _limit(reading: RuleReading) -> str:
    """Return a rule's limit, its name and what came of it."""
    sign = ">" if reading.limit.side == "above" else "<"
    said = {"rejects": " rejects", "flags": " flags", "silent": " silent", "passes": ""}[reading.outcome]
    return f"{sign} {measure(reading.limit.limit)} {reading.rule}{said}"
