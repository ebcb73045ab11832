"""``build --exclude`` leaves out what a run has quarantined, whatever has become of its store."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import xxhash

from cleanfeed.cli import quarantine_store
from cleanfeed.cli.main import main
from cleanfeed.quarantine.store import Quarantine
from cleanfeed.runs.incident_files import write_incident
from cleanfeed.runs.layout import RunDir
from tests.quarantine.incidents import incident, sample
from tests.quarantine.test_processes import HOLD, held

TEXTS = [
    "The ferry left the island before noon, and the harbour was quiet again until the evening boat came back.",
    "An old teacher carried the ladder to the orchard, where the early pears had fallen into the grey grass.",
    "Under the station clock a singer waited for the last train, with bread in one hand and a letter in the other.",
]
A, B, C = (xxhash.xxh3_128_hexdigest(text.encode()) for text in TEXTS)
"""Hashes of the samples that the texts are, since nothing tokenises or cuts them."""


@pytest.fixture(autouse=True)
def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine_store, "PATIENCE", 0.0)


@pytest.fixture
def incidents(tmp_path: Path) -> Path:
    """A run with one incident, in which A is quarantined and B is not, and its store."""
    folder = tmp_path / "run"
    one = incident(1, [sample(A), sample(B, "suspected")])
    write_incident(RunDir(folder), one)
    assert Quarantine(folder).record(one)
    return folder


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    """A run to which nothing has happened."""
    folder = tmp_path / "run"
    RunDir(folder).ledger.mkdir(parents=True)
    return folder


def build(folder: Path, *stores: Path) -> int:
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS)))
    words = ["build", str(source), "--out", str(folder / "out"), "--workers", "1", "--json"]
    for store in stores:
        words += ["--exclude", str(store)]
    return main(words)


def excluded(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Return how many documents were left out, and what was noted."""
    printed, said = capsys.readouterr()
    return json.loads(printed)["counts"]["excluded"], [line for line in said.splitlines() if "note:" in line]


@pytest.mark.parametrize("what", ["whole", "missing", "damaged", "not even a database", "held", "behind"])
@pytest.mark.parametrize("given", ["run", "store"])
def test_a_build_leaves_out_what_is_quarantined_whatever_became_of_the_store(
    tmp_path: Path, incidents: Path, capsys: pytest.CaptureFixture[str], what: str, given: str
) -> None:
    store = incidents / "quarantine.duckdb"
    with ExitStack() as stack:
        if what == "missing":
            store.unlink()
        elif what == "damaged":
            store.write_bytes(store.read_bytes()[:5000])
        elif what == "not even a database":
            store.write_bytes(b"no store any more")
        elif what == "held":
            stack.enter_context(held(HOLD, store))
        elif what == "behind":
            write_incident(RunDir(incidents), incident(2, [sample(C)]))
        assert build(tmp_path, incidents if given == "run" else store) == 0
    number, notes = excluded(capsys)
    assert number == (2 if what == "behind" else 1)
    instead = {"damaged", "not even a database", "held"}
    assert ["read from the incident files instead" in note for note in notes] == [True] * (what in instead)


def test_a_run_without_incidents_leaves_nothing_out_and_that_is_said(
    tmp_path: Path, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(tmp_path, healthy) == 0
    assert excluded(capsys) == (0, [f"note: no sample is quarantined in {healthy}: it leaves nothing out"])


def test_an_export_of_a_run_without_incidents_is_a_list_of_nothing_that_a_build_takes(
    tmp_path: Path, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("list.txt", "list.parquet"):
        assert main(["quarantine", "export", str(healthy), "--out", str(tmp_path / name)]) == 0
        assert capsys.readouterr().out == f"wrote 0 quarantined samples to {tmp_path / name}\n"
    assert not list(healthy.glob("*.duckdb"))
    assert build(tmp_path, tmp_path / "list.txt", tmp_path / "list.parquet") == 0
    assert excluded(capsys)[0] == 0


@pytest.mark.parametrize(
    "name", ["runs", "run/typo.duckdb", "run/typo.txt", "typo/quarantine.duckdb", "other"]
)
def test_a_place_that_is_neither_run_nor_store_is_misuse(
    tmp_path: Path, incidents: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "other").mkdir()
    assert build(tmp_path, tmp_path / name) == 2
    printed, said = capsys.readouterr()
    assert (printed, said.count("\n")) == ("", 1)
    assert str(tmp_path / name) in said
    assert not (tmp_path / "out").exists()


def test_a_damaged_store_of_which_nothing_else_speaks_is_an_error(
    tmp_path: Path, incidents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "copy.duckdb"
    store.write_bytes((incidents / "quarantine.duckdb").read_bytes()[:5000])
    assert build(tmp_path, store) == 1
    assert capsys.readouterr().err.startswith(f"the store is damaged: {store}: ")
    for command in ("list", "export"):
        words = ["quarantine", command, str(store)]
        assert main(words if command == "list" else [*words, "--out", str(tmp_path / "x.txt")]) == 1
        assert capsys.readouterr().err.startswith(f"the store is damaged: {store}: ")
    assert not (tmp_path / "x.txt").exists()
