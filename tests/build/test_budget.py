"""No document stalls a build or ends it: what costs too much, or breaks the tokenizer, is one rejected document."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cleanfeed.build.budget import Finding, OverrunError, Place, Reporter, most_text_bytes, needed_bytes
from cleanfeed.build.pool import Pool
from cleanfeed.build.verify import verify

from .conftest import TOKENIZER, Build, prose, tree, write_jsonl

PATTERN = "(?:[a-z]|[a-z])+[0-9]"
"""Tries two ways for each letter of a word without a digit at its end: 2 to the power of its length."""


@pytest.fixture
def hasty(tmp_path: Path) -> str:
    """A tokenizer that takes 0.02 s for a word of 21 letters, and panics at one of 40."""
    spec = json.loads(Path(TOKENIZER).read_text())
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, spec["pre_tokenizer"]]}
    path = tmp_path / "hasty.json"
    path.write_text(json.dumps(spec))
    return str(path)


def with_long_words(number: int, letters: int, words: int) -> str:
    text = prose(number, sentences=3 * words).split(" ")
    for place in range(words):
        text.insert(7 * place, "".join(chr(97 + (place * 7 + n * n) % 26) for n in range(letters)))
    return " ".join(text)


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["doc_id"]: row for row in pq.read_table(folder).to_pylist()}


def test_a_text_larger_than_the_memory_allows_is_rejected_before_it_is_measured(tmp_path: Path, run: Build):
    long = "\n".join(prose(n, sentences=40) for n in range(40))
    records = [{"id": "a", "text": prose(1)}, {"id": "long", "text": long}, {"id": "b", "text": prose(2)}]
    source = write_jsonl(tmp_path / "in.jsonl", records)
    manifest = run(source, sets=["budget.memory=1048576"]).manifest
    assert {name: manifest["counts"][name] for name in ("read", "kept", "rejected")} == {
        "read": 3,
        "kept": 2,
        "rejected": 1,
    }
    assert manifest["rejected_by_rule"] == {"too_costly": {"documents": 1, "tokens": None, "chars": 0}}
    needed = needed_bytes(len(long.encode()), tokens=False)
    reason = {"rule": "too_costly", "signal": "bytes", "value": float(needed), "limit": float(2**20)}
    rejected = rows(tmp_path / "out" / "rejected")["long"]
    assert (rejected["verdict"], rejected["reasons"], rejected["text"]) == ("reject", [reason], long)
    signals = rows(tmp_path / "out" / "signals")["long"]
    assert signals["reasons"] == [reason]
    assert signals["chars"] is None
    assert signals["letter_share"] is None
    verify(str(tmp_path / "out"))


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("memory", [2**20, 2**28, 2**30])
def test_the_longest_text_allowed_needs_no_more_than_the_budget(memory: int, tokens: bool):
    longest = most_text_bytes(memory, tokens=tokens)
    assert needed_bytes(longest, tokens=tokens) <= memory < needed_bytes(longest + 1, tokens=tokens)


@pytest.mark.parametrize("isolated", [False, True])
def test_a_tokenizer_that_panics_costs_one_document(tmp_path: Path, run: Build, hasty: str, isolated: bool):
    broken = with_long_words(9, letters=40, words=1)
    records = [*({"id": str(n), "text": prose(n)} for n in range(5)), {"id": "broken", "text": broken}]
    source = write_jsonl(tmp_path / "in.jsonl", [*records, *({"text": prose(n)} for n in range(5, 9))])
    counts = run(source, tokenizer=hasty, isolated=isolated).manifest["counts"]
    assert (counts["read"], counts["kept"], counts["rejected"]) == (10, 9, 1)
    rejected = rows(tmp_path / "out" / "rejected")["broken"]
    assert rejected["reasons"] == [
        {"rule": "tokenizer_failed", "signal": "tokenizer", "value": 1.0, "limit": 0.0}
    ]
    signals = rows(tmp_path / "out" / "signals")["broken"]
    assert signals["chars"] == len(broken)
    assert signals["tokens"] is None
    verify(str(tmp_path / "out"))


def test_a_document_that_stalls_the_tokenizer_is_rejected_and_its_neighbours_are_kept(
    tmp_path: Path, run: Build, hasty: str
):
    stalling = with_long_words(9, letters=21, words=300)
    records = [*({"id": str(n), "text": prose(n)} for n in range(5)), {"id": "slow", "text": stalling}]
    source = write_jsonl(tmp_path / "in.jsonl", [*records, *({"text": prose(n)} for n in range(5, 9))])
    sets = ["budget.seconds=0.5"]
    counts = run(source, tokenizer=hasty, sets=sets, isolated=True).manifest["counts"]
    assert (counts["read"], counts["kept"], counts["rejected"]) == (10, 9, 1)
    rejected = rows(tmp_path / "out" / "rejected")["slow"]
    assert rejected["reasons"] == [{"rule": "too_costly", "signal": "seconds", "value": 0.5, "limit": 0.5}]
    assert rejected["text"] == stalling
    verify(str(tmp_path / "out"))
    # In two processes and alone in its file it comes to the same.
    again = tmp_path / "again"
    run(source, tokenizer=hasty, sets=sets, workers=2, out=again)
    assert tree(again) == tree(tmp_path / "out")


def test_time_goes_on_for_the_same_documents_and_begins_anew_for_others():
    now = [0.0]
    reporter = Reporter(lambda amount: None, lambda: now[0])
    first, second = Place(0, 1, 1), Place(0, 2, 3)
    reporter.begin(first, 10.0)
    now[0] = 9.0
    reporter.begin(first, 10.0)
    now[0] = 11.0
    with pytest.raises(OverrunError) as caught:
        reporter.begin(second, 10.0)
    assert caught.value.place == first
    reporter.begin(second, 10.0)
    now[0] = 20.0
    reporter.end()
    now[0] = 100.0
    reporter.end()


def test_a_document_at_which_two_workers_are_killed_is_rejected(
    tmp_path: Path, run: Build, hasty: str, monkeypatch: pytest.MonkeyPatch
):
    killed = []
    take = Pool._take

    def kill_at_the_slow_one(pool: Pool, worker: Any, work: Any) -> None:
        take(pool, worker, work)
        # Alone in its file, so it is alone at work.
        if worker.place == Place(1, 0, 0):
            killed.append(worker.process.pid)
            worker.process.kill()
            worker.process.join()

    monkeypatch.setattr(Pool, "_take", kill_at_the_slow_one)
    slow = with_long_words(9, letters=21, words=300)
    for name, text in (("a", prose(1)), ("b", slow), ("c", prose(2))):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [{"id": name, "text": text}])
    counts = run(tmp_path / "in", tokenizer=hasty, isolated=True).manifest["counts"]
    assert (counts["read"], counts["kept"], counts["rejected"]) == (3, 2, 1)
    rejected = rows(tmp_path / "out" / "rejected")["b"]
    assert rejected["reasons"] == [
        {"rule": "too_costly", "signal": "worker_deaths", "value": 2.0, "limit": 1.0}
    ]
    assert len(set(killed)) == 2
    verify(str(tmp_path / "out"))


def test_what_kills_its_reader_is_damage_and_what_was_read_before_is_used(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("cleanfeed.build.attempts.Findings.of", lambda self, task: found)
    found = (Finding(0, Place(0, 2, None), None),)
    source = write_jsonl(tmp_path / "in.jsonl", [{"id": str(n), "text": prose(n)} for n in range(5)])
    report = run(source)
    assert report.exit_code == 3
    assert report.manifest["counts"]["read"] == 2
    assert report.manifest["inputs"][0]["damage"]["reason"] == "reader_dies"
    verify(str(tmp_path / "out"))
