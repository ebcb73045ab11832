"""``explain`` finds a document again and says what a build said of it."""

from pathlib import Path

import pytest

from cleanfeed.build.explain import explain_document, explain_text
from cleanfeed.errors import CleanfeedError, MisuseError
from cleanfeed.rules.pipeline import load_pipeline
from cleanfeed.signals.registry import SIGNALS

from .conftest import TOKENIZER, Build, prose, write_jsonl

BLOB = "A picture follows. " + "g4ODg4OD" * 2000
LONG = "\n".join(prose(n) for n in range(80))
RECORDS = [
    {"id": "good", "text": prose(1)},
    {"id": "blob", "text": BLOB},
    {"id": "long", "text": LONG},
    {"id": "twice", "text": prose(2)},
    {"id": "twice", "text": prose(3)},
]


@pytest.mark.parametrize("tokenizer", [None, TOKENIZER])
def test_a_document_is_explained_with_its_own_text_verdict_and_signals(
    tmp_path: Path, run: Build, tokenizer: str | None
):
    run(write_jsonl(tmp_path / "a.jsonl", RECORDS), tokenizer=tokenizer)
    out = str(tmp_path / "out")
    for name, text in (("good", prose(1)), ("blob", BLOB), ("long", LONG)):
        found = explain_document(out, name)
        assert (found.doc_id, found.source, found.text) == (name, "a.jsonl", text)
        assert list(found.signals) == [signal.name for signal in SIGNALS]
        alone = explain_text(text, load_pipeline("web_text"), tokenizer)
        # What a build rejects by its text alone it does not tokenise.
        measured = {signal: value for signal, value in found.signals.items() if value is not None}
        assert (found.verdict, measured) == (
            alone.verdict,
            {signal: alone.signals[signal] for signal in measured},
        )
        assert len(measured) > 80
    blob = explain_document(out, "blob")
    assert blob.verdict == "reject"
    rejecting = {reading.rule for reading in blob.rules if reading.outcome == "rejects"}
    assert rejecting <= {reason["rule"] for reason in blob.reasons}
    assert any(BLOB[span.start : span.end].startswith("g4ODg4OD") for span in blob.spans)


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("abc" * 5000, []),
        (prose(1), ["budget.memory=1048576"]),
        (prose(1, 3000), ["budget.memory=1048576"]),
        (prose(1, 400), ["budget.memory=2097152"]),
    ],
    ids=["rejected by its text", "healthy", "too costly", "too costly to tokenise"],
)
def test_a_text_is_explained_as_a_build_would_judge_it(
    tmp_path: Path, run: Build, text: str, sets: list[str]
):
    run(write_jsonl(tmp_path / "a.jsonl", [{"id": "one", "text": text}]), tokenizer=TOKENIZER, sets=sets)
    built = explain_document(str(tmp_path / "out"), "one")
    alone = explain_text(text, load_pipeline("web_text", sets), TOKENIZER)
    corpus = {signal.name for signal in SIGNALS if signal.needs_corpus}
    assert (alone.verdict, alone.reasons) == (built.verdict, built.reasons)
    assert {name: value for name, value in alone.signals.items() if name not in corpus} == {
        name: value for name, value in built.signals.items() if name not in corpus
    }
    assert (alone.spans, alone.rules) == (built.spans, built.rules)


def test_equal_ids_are_told_apart_by_their_place(tmp_path: Path, run: Build):
    run(write_jsonl(tmp_path / "a.jsonl", RECORDS))
    out = str(tmp_path / "out")
    first = explain_document(out, "twice")
    assert (first.source_row, first.others) == (3, 1)
    second = explain_document(out, "a.jsonl:4")
    assert (second.source_row, second.text, second.others) == (4, prose(3), 0)


def test_a_build_whose_files_are_damaged_is_one_line(tmp_path: Path, run: Build):
    run(write_jsonl(tmp_path / "a.jsonl", RECORDS))
    (tmp_path / "out" / "signals" / "part-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        CleanfeedError, match=r"cannot read the build: .*'cleanfeed verify .*' says"
    ) as caught:
        explain_document(str(tmp_path / "out"), "good")
    assert "\n" not in str(caught.value)


def test_an_unknown_document_is_misuse(tmp_path: Path, run: Build):
    run(write_jsonl(tmp_path / "a.jsonl", RECORDS))
    with pytest.raises(MisuseError, match="no such document: nobody"):
        explain_document(str(tmp_path / "out"), "nobody")
    with pytest.raises(MisuseError, match="no finished build"):
        explain_document(str(tmp_path), "good")
