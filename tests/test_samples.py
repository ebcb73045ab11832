"""The files in data_samples go in; every document must get the verdict expected.json promises."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanfeed.build.runner import BuildRequest, build
from cleanfeed.documents.plan import plan_inputs
from cleanfeed.documents.read import read_piece
from cleanfeed.rules.pipeline import load_pipeline
from cleanfeed.rules.ruleset import VERDICTS, RuleSet
from cleanfeed.settings import DocumentSettings
from cleanfeed.signals.measure import measure_texts

SAMPLES = Path(__file__).resolve().parent.parent / "data_samples"
EXPECTED: dict[str, Any] = json.loads((SAMPLES / "expected.json").read_text(encoding="utf-8"))
DOCUMENTS: dict[str, dict[str, Any]] = EXPECTED["documents"]


@dataclass
class Read:
    """What the reader found in a folder of samples."""

    files: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    unreadable: set[tuple[str, int, str]] = field(default_factory=set)
    damaged: list[str] = field(default_factory=list)


def read_samples(folder: Path) -> Read:
    found = Read()
    for piece in plan_inputs([str(folder)]).pieces:
        source = piece.file.source
        batches, result = read_piece(piece, DocumentSettings())
        for batch in batches:
            for row in batch.table.select(["doc_id", "row", "text"]).to_pylist():
                name = row["doc_id"] if row["doc_id"] is not None else f"{source}:{row['row']}"
                assert name not in found.files, f"{name} came twice"
                found.files[name] = source
                found.texts[name] = row["text"]
            found.unreadable |= {(source, bad.row, bad.reason) for bad in batch.unreadable}
        if result.damage is not None:
            found.damaged.append(source)
    return found


@pytest.fixture(scope="module")
def found() -> Read:
    return read_samples(SAMPLES)


@pytest.fixture(scope="module")
def verdicts(found: Read) -> dict[str, tuple[str, list[str]]]:
    """Verdict and names of all reasons of each document."""
    names = sorted(found.texts)
    columns = measure_texts(pa.array([found.texts[name] for name in names], pa.large_string()))
    rules = RuleSet(load_pipeline(EXPECTED["pipeline"]).rules, tokenizer=False)
    given = rules.evaluate(columns)
    return {
        name: (VERDICTS[verdict], [reason["rule"] for reason in reasons])
        for name, verdict, reasons in zip(names, given.verdict, given.reasons.to_pylist(), strict=True)
    }


def test_every_document_arrives_from_its_file_and_no_other(found: Read) -> None:
    assert found.files == {name: document["file"] for name, document in DOCUMENTS.items()}


def test_every_unreadable_record_is_named_with_place_and_reason(found: Read) -> None:
    assert found.unreadable == {(bad["source"], bad["row"], bad["reason"]) for bad in EXPECTED["unreadable"]}
    assert found.damaged == []


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_sample_gets_its_verdict_for_its_reasons(
    name: str, verdicts: dict[str, tuple[str, list[str]]]
) -> None:
    expected = DOCUMENTS[name]
    verdict, reasons = verdicts[name]
    assert (verdict, reasons) == (expected["verdict"], reasons)
    assert set(expected["reasons"]) <= set(reasons)
    assert bool(reasons) == (verdict != "keep")


class Silent:
    """A progress nobody looks at."""

    def compiling(self) -> None: ...

    def phase(self, name: str, total: int, unit: str) -> None: ...

    def advance(self, amount: int) -> None: ...

    def note(self, text: str) -> None: ...


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples built as the README says, with their tokenizer."""
    out = tmp_path_factory.mktemp("samples") / "out"
    pipeline = load_pipeline(EXPECTED["pipeline"])
    request = BuildRequest((str(SAMPLES),), str(out), pipeline, tokenizer=str(SAMPLES / "tokenizer.json"))
    assert build(request, Silent()).exit_code == 0
    return out


def rows_of(folder: Path, *columns: str) -> list[dict[str, Any]]:
    files = sorted(folder.rglob("*.parquet"))
    return [row for file in files for row in pq.read_table(file, columns=list(columns)).to_pylist()]


def test_a_build_gives_every_sample_the_same_verdict(built: Path) -> None:
    rows = rows_of(built / "signals", "doc_id", "source", "verdict")
    assert {row["doc_id"]: (row["source"], row["verdict"]) for row in rows} == {
        name: (document["file"], document["verdict"]) for name, document in DOCUMENTS.items()
    }
    assert len(rows) == len(DOCUMENTS)


def test_a_build_counts_the_samples_once_each(built: Path) -> None:
    by_verdict = Counter(document["verdict"] for document in DOCUMENTS.values())
    unreadable = len(EXPECTED["unreadable"])
    assert json.loads((built / "manifest.json").read_text())["counts"] == {
        "read": len(DOCUMENTS) + unreadable,
        "kept": by_verdict["keep"] + by_verdict["flag"],
        "flagged": by_verdict["flag"],
        "rejected": by_verdict["reject"],
        "duplicate": 0,
        "excluded": 0,
        "unreadable": unreadable,
        "duplicate_ids": 0,
    }


def test_a_build_puts_machine_written_samples_behind_the_first_stage(built: Path) -> None:
    first = {row["doc_id"] for row in rows_of(built / "curriculum", "doc_id", "stage") if row["stage"] == 0}
    machine = {"mac-service-log", "mac-word-list", "mac-number-table", "mac-csv", "mac-calendar"}
    assert first & machine == set()
    assert {"form-verse", "form-dialogue", "form-definition"} <= first


def test_every_input_kind_has_a_sample() -> None:
    sources = {document["file"] for document in DOCUMENTS.values()}
    endings = {".jsonl", ".gz", ".zst", ".bz2", ".xz", ".parquet", ".arrow", ".txt"}
    assert {Path(source).suffix for source in sources} == endings
    assert any("/" in source for source in sources), "no folder saved by datasets"


def test_the_samples_stay_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()) < 1_000_000


def test_the_script_writes_the_samples_that_are_there(
    found: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.syspath_prepend(str(SAMPLES))
    written = importlib.import_module("make_samples").write_all(tmp_path)
    assert written == EXPECTED
    assert read_samples(tmp_path) == found


def test_the_tokenizer_spells_every_kept_sample_and_ends_documents(found: Read) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(SAMPLES / "tokenizer.json"))
    assert 2_000 <= tokenizer.get_vocab_size() <= 4_000
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    for name, document in DOCUMENTS.items():
        if document["verdict"] == "keep":
            ids = tokenizer.encode(found.texts[name], add_special_tokens=False).ids
            assert tokenizer.decode(ids, skip_special_tokens=False) == found.texts[name]
