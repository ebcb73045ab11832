"""One document explained: every signal beside its limits, and its worst spans made safe to print."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cleanfeed.cli.explanation import EXCERPT, explanation_result, show_explanation, worst
from cleanfeed.rules.explain import BoundReading, RuleReading

BLOB = RuleReading(
    rule="blob",
    action="reject",
    limit=BoundReading("blob_share", 0.75, "above", 0.1, True),
    extreme=BoundReading("blob_share", 0.75, "above", 0.5, True),
    where=(),
    evidence=(),
    outcome="rejects",
    words="rejects: blob_share is 0.75, beyond the extreme of 0.5",
    because="Encoded data is noise to a model.",
    source="",
)
FEW = RuleReading(
    rule="few_letters",
    action="flag",
    limit=BoundReading("letter_share", None, "below", 0.5, False),
    extreme=None,
    where=(),
    evidence=(),
    outcome="silent",
    words="does not speak: letter_share is null",
    because="",
    source="",
)


def explanation(text: str | None = "a\x1b[31mb\u202ec" + "x" * 500) -> Any:
    return SimpleNamespace(
        doc_id="doc\x07 7",
        source="[a].jsonl",
        source_row=6,
        verdict="reject",
        reasons=[{"rule": "blob", "signal": "blob_share", "value": 0.75, "limit": 0.5}],
        signals={"chars": 1234567.0, "blob_share": 0.75, "letter_share": None},
        spans=[SimpleNamespace(signal="blob_share", start=0, end=8)],
        rules=[BLOB, FEW],
        text=text,
        others=2,
    )


def lines(shown: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=120, markup=False, highlight=False, emoji=False)
    show_explanation(shown, console)
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_the_page_holds_verdict_rules_spans_and_every_signal_with_its_limit() -> None:
    assert lines(explanation()) == [
        r"doc\x07 7 ([a].jsonl, record 6): reject",
        "",
        "2 more with this id; name one as SOURCE:ROW.",
        "",
        "blob rejects: blob_share is 0.75, beyond the extreme of 0.5",
        "Encoded data is noise to a model.",
        "0 rules pass, 1 do not speak for this document",
        "",
        "where from to text",
        r"blob_share 0 8 a\x1b[31mb\u202e",
        "",
        "signal value limit",
        "chars 1,234,567",
        "blob_share 0.75 > 0.1 blob rejects",
        "letter_share – < 0.5 few_letters silent",
    ]


@pytest.mark.parametrize(
    ("rule", "signal", "limit", "line"),
    [
        (
            "excluded",
            "sample_hash",
            0.0,
            "excluded: its sample_hash is listed in a store given with --exclude",
        ),
        (
            "excluded",
            "content_hash",
            0.0,
            "excluded: its content_hash is listed in a store given with --exclude",
        ),
        ("duplicate_of my_doc_7", "content_hash", 1.0, "duplicate of my_doc_7: the same text"),
        (
            "duplicate_of [b]\x07",
            "similarity",
            0.5,
            r"duplicate of [b]\x07: nearly the same text (estimated similarity at least 0.5)",
        ),
        ("too_costly", "seconds", 10.0, "too_costly: it takes more than 10 s of CPU time"),
        ("too_costly", "worker_deaths", 1.0, "too_costly: 1 workers died at it"),
        ("too_costly", "bytes", 0.5, "too_costly: it would take 1 bytes of memory, more than 0.5"),
        ("tokenizer_failed", "tokenizer", 0.0, "tokenizer_failed: the tokenizer fails on it"),
        ("blobs", "unknown_share", 0.5, "blobs: unknown_share is 1, limit 0.5"),
    ],
)
def test_reasons_that_are_not_of_a_rule_are_shown_too(
    rule: str, signal: str, limit: float, line: str
) -> None:
    shown = explanation()
    shown.reasons.insert(0, {"rule": rule, "signal": signal, "value": 1.0, "limit": limit})
    assert lines(shown)[4:7] == [line, "", "blob rejects: blob_share is 0.75, beyond the extreme of 0.5"]


def test_a_long_span_shows_its_ends() -> None:
    shown = explanation("y" + "x" * 500 + "z")
    shown.spans = [SimpleNamespace(signal="blob_share", start=0, end=502)]
    (line,) = (line for line in lines(shown) if line.startswith("blob_share 0 502"))
    excerpt = line.split()[-1]
    assert (excerpt[0], excerpt[-1], len(excerpt)) == ("y", "z", EXCERPT)


def test_without_the_text_no_spans_are_shown() -> None:
    assert "where from to text" not in lines(explanation(None))


def test_the_result_is_plain_data_with_spans_in_code_points() -> None:
    result = explanation_result(explanation())
    assert list(result) == [
        "doc_id",
        "source",
        "source_row",
        "verdict",
        "reasons",
        "signals",
        "spans",
        "rules",
    ]
    assert result["spans"] == [{"signal": "blob_share", "start": 0, "end": 8}]
    assert result["signals"] == {"chars": 1234567.0, "blob_share": 0.75, "letter_share": None}
    assert [rule["outcome"] for rule in result["rules"]] == ["rejects", "silent"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_text_file_is_read_with_or_without_a_byte_order_mark(tmp_path: Any, encoding: str) -> None:
    from cleanfeed.cli.explain import read_text

    (tmp_path / "a.txt").write_text("größe\r\n", encoding, newline="")
    assert read_text(str(tmp_path / "a.txt")) == "größe\r\n"


def span(signal: str, start: int, end: int) -> Any:
    return SimpleNamespace(signal=signal, start=start, end=end)


def test_spans_of_the_signals_that_fired_are_shown_and_tiny_ones_left_out() -> None:
    long, half, tiny, other = (
        span("blob_share", 0, 100),
        span("blob_share", 200, 250),
        span("blob_share", 300, 310),
        span("chars", 0, 400),
    )
    assert worst([long, half, tiny, other], [BLOB, FEW]) == [long, half]


def test_where_no_rule_fired_the_longest_span_of_each_signal_is_shown() -> None:
    long, half, twin, other = (
        span("blob_share", 0, 100),
        span("blob_share", 200, 250),
        span("blob_share", 300, 400),
        span("chars", 0, 400),
    )
    assert worst([half, long, twin, other], [FEW]) == [long, other]
