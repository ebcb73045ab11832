"""The table at the end and ``--json`` say the same, and end in a step one can take."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cleanfeed.cli.summary import build_result, explain_command, show_build
from cleanfeed.cli.terminal import print_json

COUNTS = {
    "read": 12_345,
    "kept": 12_000,
    "flagged": 40,
    "rejected": 341,
    "duplicate": 1,
    "excluded": 0,
    "unreadable": 3,
}


def manifest(tokenizer: bool = True) -> dict[str, Any]:
    tokens = 987_654 if tokenizer else None
    return {
        "tokenizer": {"digest": "ab", "vocab_size": 10, "end_of_text": "<|endoftext|>"}
        if tokenizer
        else None,
        "inputs": [
            {"source": "a.jsonl", "bytes": 1_000_000, "counts": COUNTS, "damage": None},
            {
                "source": "[b].jsonl.gz",
                "bytes": 1_000_000,
                "counts": COUNTS,
                "damage": {
                    "reason": "truncated",
                    "byte_offset": 4096,
                    "detail": "end of file inside a member",
                },
            },
        ],
        "counts": {**COUNTS, "duplicate_ids": 2},
        "unreadable_by_reason": {"bad_json": 2, "text_null": 1},
        "rejected_by_rule": {
            "small": {"documents": 1, "tokens": 5 if tokenizer else None, "chars": 9},
            "blob": {"documents": 340, "tokens": tokens, "chars": 4_000_000},
        },
        "flagged_by_rule": {"table": {"documents": 40, "tokens": tokens, "chars": 1_000}},
        "stages": [
            {
                "index": 0,
                "name": "short_good",
                "samples": 7,
                "tokens": tokens,
                "chars": 70,
                "mean_quality": 0.875,
            },
            {
                "index": 1,
                "name": "long_rest",
                "samples": 0,
                "tokens": 0 if tokenizer else None,
                "chars": 0,
                "mean_quality": None,
            },
        ],
        "digest": "00ff",
    }


@pytest.fixture
def out(tmp_path: Path) -> str:
    (tmp_path / "rejected").mkdir()
    rejected = pa.table({"doc_id": ["twin", "-odd id"], "verdict": ["duplicate", "reject"]})
    pq.write_table(rejected, tmp_path / "rejected" / "part-00000.parquet")
    return str(tmp_path)


def result(out: str, *, tokenizer: bool = True, already_done: bool = False) -> dict[str, Any]:
    report = SimpleNamespace(
        manifest=manifest(tokenizer), seconds=0.5, already_done=already_done, exit_code=3
    )
    return build_result(report, out)  # type: ignore[arg-type]


def shown(values: dict[str, Any]) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=120, markup=False, highlight=False, emoji=False)
    show_build(values, console)
    assert isinstance(console.file, io.StringIO)
    return [line.split() for line in console.file.getvalue().splitlines()]


def test_the_result_is_the_manifest_with_time_rate_and_next_steps(out: str) -> None:
    assert result(out) == {
        **manifest(),
        "out": out,
        "already_done": False,
        "exit_code": 3,
        "seconds": 0.5,
        "input_bytes": 2_000_000,
        "mb_per_second": 4.0,
        "next": [f"cleanfeed verify {out}", f"cleanfeed explain -- {out} '-odd id'"],
    }


def test_the_tables_hold_every_count_of_the_result(out: str) -> None:
    lines = shown(result(out))
    counts = ["12,345", "12,000", "40", "341", "1", "0", "3"]
    for row in (
        ["a.jsonl", *counts],
        ["[b].jsonl.gz", *counts],
        ["all", *counts],
        ["blob", "340", "987,654", "4,000,000"],
        ["small", "1", "5", "9"],
        ["table", "40", "987,654", "1,000"],
        ["bad_json", "2"],
        ["text_null", "1"],
        ["00", "short_good", "7", "987,654", "0.875"],
        ["01", "long_rest", "0", "0", "–"],
        ["0.5", "s", "for", "2.0", "MB", "of", "input,", "4.0", "MB/s"],
        f"next: cleanfeed verify {out}".split(),
    ):
        assert row in lines
    assert lines.index(["blob", "340", "987,654", "4,000,000"]) < lines.index(["small", "1", "5", "9"])


def test_damage_is_said_with_file_place_and_reason(out: str) -> None:
    line = "damaged: [b].jsonl.gz: truncated at byte 4,096: end of file inside a member"
    assert line.split() in shown(result(out))


def test_damage_is_one_line_however_long_the_name(out: str) -> None:
    values = result(out)
    values["inputs"][1]["source"] = "deep/" * 60 + "b.jsonl.gz"
    (line,) = (line for line in shown(values) if line[:1] == ["damaged:"])
    assert line[1:] == [
        "deep/" * 60 + "b.jsonl.gz:",
        "truncated",
        *"at byte 4,096: end of file inside a member".split(),
    ]


@pytest.mark.parametrize("limit", [1000, None, "absent"])
def test_a_build_of_the_first_records_only_says_so(out: str, limit: Any) -> None:
    values = result(out)
    if limit != "absent":
        values["limit"] = limit
    said = "Only the first 1,000 records were read (--limit).".split() in shown(values)
    assert said == (limit == 1000)


def test_without_a_tokenizer_lengths_are_in_characters(out: str) -> None:
    lines = shown(result(out, tokenizer=False))
    assert ["blob", "340", "4,000,000"] in lines
    assert ["stage", "samples", "chars", "mean", "quality"] in lines


def test_a_build_done_before_says_so_and_claims_no_speed(out: str) -> None:
    values = result(out, already_done=True)
    assert values["mb_per_second"] is None
    lines = shown(values)
    said = f"{out} is already built from these inputs with this pipeline: nothing to do."
    assert " ".join(word for line in lines[:3] for word in line).startswith(said)
    assert not any("MB/s" in line for line in lines)


def test_json_is_ascii_and_reads_back_as_it_was(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    values = {**result(out), "out": "größe\u202e"}
    print_json(values)
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert json.loads(printed) == values


@pytest.mark.parametrize("doc_id", ["a", "two words", "it's", "-x", "$(rm)", "a.jsonl:7"])
def test_the_next_step_can_be_pasted_into_a_shell(doc_id: str) -> None:
    words = shlex.split(explain_command("my out", doc_id))
    assert [word for word in words if word != "--"] == ["cleanfeed", "explain", "my out", doc_id]
