"""The commands on real input, end to end: what is printed where, and with which exit code."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import xxhash

from cleanfeed.cli.main import main

STORY = (
    "The ferry left the island at six, as it did every morning of the year, with the post, the bread and the two "
    "children who went to school on the other side. Nobody on board spoke before the lighthouse. After it, the "
    "captain told them what the weather would be, and he was mostly wrong.\n\nIn winter the crossing took an hour. "
    "The children did their sums on the lid of the fish box and asked the baker what he thought of the answers."
)
LOOP = "ha" * 5_000
DEFAULT_EXPLANATION = ["doc_id", "source", "source_row", "verdict", "reasons", "signals", "spans", "rules"]


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def result(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``in.jsonl`` and its finished build ``out``."""
    folder = tmp_path_factory.mktemp("built")
    records = [{"id": "story", "text": STORY}, {"id": "[loop]", "text": LOOP}, {"id": "none", "text": None}]
    (folder / "in.jsonl").write_bytes(lines(*records))
    assert main(["build", str(folder / "in.jsonl"), "--out", str(folder / "out"), "--workers", "1"]) == 0
    return folder


def test_build_prints_the_table_on_stdout_and_progress_on_stderr(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["build", str(built / "in.jsonl"), "--out", str(out), "--workers", "1"]) == 0
    printed, progress = capsys.readouterr()
    rows = [line.split() for line in printed.splitlines()]
    assert ["all", "3", "1", "0", "1", "0", "0", "1"] in rows
    assert ["text_null", "1"] in rows
    assert ["next:", "cleanfeed", "verify", str(out)] in rows
    assert ["cleanfeed", "explain", str(out), "'[loop]'"] in rows
    assert any(line.startswith("measure: ") for line in progress.splitlines())
    assert "measure" not in printed


def test_one_worker_is_one_thread_of_small_pages_unless_the_environment_says_otherwise(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unset = (
        "TOKENIZERS_PARALLELISM",
        "RAYON_NUM_THREADS",
        "ARROW_DEFAULT_MEMORY_POOL",
        "NUMPY_MADVISE_HUGEPAGE",
    )
    for name in unset:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["build", str(built / "in.jsonl"), "--out", str(tmp_path / "out"), "--workers", "1"]) == 0
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    assert os.environ["RAYON_NUM_THREADS"] == "1"
    assert os.environ["NUMPY_MADVISE_HUGEPAGE"] == "0"
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_build_json_is_the_manifest_with_what_the_run_adds(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["build", str(built / "in.jsonl"), "--out", str(out), "--workers", "1", "--json"]) == 0
    printed = result(capsys)
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    assert {key: printed[key] for key in manifest} == manifest
    added = {key: value for key, value in printed.items() if key not in manifest}
    assert added.pop("seconds") >= 0
    assert added.pop("mb_per_second") >= 0
    assert added == {
        "out": str(out),
        "already_done": False,
        "exit_code": 0,
        "input_bytes": (built / "in.jsonl").stat().st_size,
        "next": [f"cleanfeed verify {out}", f"cleanfeed explain {out} '[loop]'"],
    }


def test_the_same_build_again_says_so_and_does_nothing(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (built / "out" / "manifest.json").stat().st_mtime_ns
    assert main(["build", str(built / "in.jsonl"), "--out", str(built / "out")]) == 0
    assert "is already built from these inputs with this pipeline: nothing to do." in " ".join(
        capsys.readouterr().out.split()
    )
    assert (built / "out" / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "change",
    [
        ["--set", "curriculum.seed=7"],
        ["--pipeline", "code"],
        ["--id-field", "name"],
        ["--keep-field", "lang"],
    ],
    ids=lambda change: change[0],
)
def test_another_build_into_the_same_folder_is_refused(
    built: Path, capsys: pytest.CaptureFixture[str], change: list[str]
) -> None:
    assert main(["build", str(built / "in.jsonl"), "--out", str(built / "out"), *change]) == 2
    printed, error = capsys.readouterr()
    assert printed == ""
    assert "--overwrite" in error.splitlines()[-1]


def test_fields_named_on_the_command_line_are_read_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"name": "n1", "meta": {"body": STORY}, "lang": "en", "url": "u"}
    (tmp_path / "in.jsonl").write_bytes(lines(record))
    fields = [
        "--text-field",
        "meta.body",
        "--id-field",
        "name",
        "--keep-field",
        "lang",
        "--keep-field",
        "url",
    ]
    words = ["build", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out"), "--workers", "1", "--json"]
    assert main([*words, *fields]) == 0
    printed = result(capsys)
    assert printed["counts"]["kept"] == 1
    assert printed["pipeline"]["documents"]["text_field"] == "meta.body"
    assert printed["pipeline"]["documents"]["keep_fields"] == ["lang", "url"]


def test_a_damaged_file_is_said_and_gives_exit_code_3(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress((built / "in.jsonl").read_bytes() * 50)[:-4])
    words = ["build", str(tmp_path / "cut.jsonl.gz"), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert main(words) == 3
    printed = capsys.readouterr().out
    assert "damaged: cut.jsonl.gz: truncated" in printed
    assert "exit code 3" in printed


def test_nothing_readable_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"not json\n")
    assert main(["build", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out"), "--workers", "1"]) == 1
    printed, error = capsys.readouterr()
    assert printed == ""
    assert "in.jsonl" in error.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["missing.jsonl"], "missing.jsonl"),
        (["in.jsonl", "--pipeline", "web_txt"], "web_text"),
        (["in.jsonl", "--set", "rules.too_lnog.above=3"], "too_long"),
        (["in.jsonl", "--tokenizer", "none.json"], "none.json"),
        (["in.jsonl", "--text-field", "body"], "body"),
        (["in.jsonl", "--text-field", "."], "--text-field"),
    ],
    ids=["input", "pipeline", "set", "tokenizer", "text-field", "dot"],
)
def test_misuse_names_what_is_wrong_and_leaves_no_output(
    built: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    named: str,
) -> None:
    monkeypatch.chdir(built)
    assert main(["build", *words, "--out", str(tmp_path / "new"), "--workers", "1"]) == 2
    printed, error = capsys.readouterr()
    assert printed == ""
    assert named in error.splitlines()[-1]
    assert not (tmp_path / "new").exists()


def test_verify_says_what_was_proved(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((built / "out" / "manifest.json").read_text("utf-8"))
    assert main(["verify", str(built / "out")]) == 0
    assert f"digest {manifest['digest']}." in capsys.readouterr().out
    assert main(["verify", str(built / "out"), "--json"]) == 0
    printed = result(capsys)
    assert (printed["ok"], printed["digest"]) == (True, manifest["digest"])
    assert printed["counts"] == manifest["counts"]


def test_verify_names_the_file_that_was_changed(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["build", str(built / "in.jsonl"), "--out", str(out), "--workers", "1"]) == 0
    part = next(iter(sorted((out / "signals").glob("part-*.parquet"))))
    part.write_bytes(part.read_bytes()[:-1])
    capsys.readouterr()
    assert main(["verify", str(out)]) == 1
    printed, error = capsys.readouterr()
    assert printed == ""
    assert part.name in error


def test_explain_shows_verdict_signals_limits_and_spans(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(built / "out"), "[loop]"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("[loop] (in.jsonl, record 1): reject\n")
    assert main(["explain", str(built / "out"), "[loop]", "--json"]) == 0
    explained = result(capsys)
    assert list(explained) == DEFAULT_EXPLANATION
    assert {key: explained[key] for key in ("doc_id", "source", "source_row", "verdict")} == {
        "doc_id": "[loop]",
        "source": "in.jsonl",
        "source_row": 1,
        "verdict": "reject",
    }
    assert all(set(reason) == {"rule", "signal", "value", "limit"} for reason in explained["reasons"])
    spans = [span for span in explained["spans"] if span["signal"] == explained["reasons"][0]["signal"]]
    assert (spans[0]["start"], spans[0]["end"]) == (0, len(LOOP))
    for name in explained["signals"]:
        assert f"\n{name} " in printed


def test_explain_says_why_a_document_the_rules_keep_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = STORY.replace("ferry", "train").replace("island", "city")
    records = [{"id": "story", "text": STORY}, {"id": "twin", "text": STORY}, {"id": "listed", "text": other}]
    (tmp_path / "in.jsonl").write_bytes(lines(*records))
    (tmp_path / "list.txt").write_text(xxhash.xxh3_128_hexdigest(other.encode()) + "\n")
    out = str(tmp_path / "out")
    words = ["build", str(tmp_path / "in.jsonl"), "--out", out, "--workers", "1"]
    assert main([*words, "--exclude", str(tmp_path / "list.txt")]) == 0
    for doc_id, verdict, line in (
        ("twin", "duplicate", "duplicate of story: the same text"),
        ("listed", "excluded", "excluded: its content_hash is listed in a store given with --exclude"),
    ):
        capsys.readouterr()
        assert main(["explain", out, doc_id]) == 0
        printed = capsys.readouterr().out.splitlines()
        assert printed[0].endswith(f": {verdict}")
        assert line in printed


def test_a_list_that_leaves_nothing_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines({"id": "story", "text": STORY}))
    listed = {"none": "ab" * 16, "one": xxhash.xxh3_128_hexdigest(STORY.encode())}
    for name, digest in listed.items():
        (tmp_path / name).write_text(digest + "\n")
        words = [
            "build",
            str(tmp_path / "in.jsonl"),
            "--out",
            str(tmp_path / f"out-{name}"),
            "--workers",
            "1",
        ]
        assert main([*words, "--exclude", str(tmp_path / name)]) == 0
        assert ("--exclude left nothing out" in capsys.readouterr().err) == (name == "none")


def test_explain_of_an_unknown_document_is_misuse(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(built / "out"), "no such id"]) == 2
    assert "no such id" in capsys.readouterr().err


def test_explain_text_judges_a_file_by_the_pipeline_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop.txt").write_text(LOOP)
    assert main(["explain", "--text", str(tmp_path / "loop.txt"), "--json"]) == 0
    explained = result(capsys)
    assert (explained["doc_id"], explained["source"], explained["verdict"]) == ("loop.txt", None, "reject")


def test_explain_text_reads_stdin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(STORY.encode())))
    assert main(["explain", "--text", "-", "--json"]) == 0
    explained = result(capsys)
    assert (explained["doc_id"], explained["verdict"]) == ("stdin", "keep")
    assert explained["signals"]["chars"] == len(STORY)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            b"abc\xffdef",
            "not UTF-8: {file}: got byte 0xff at offset 3, expected UTF-8 text. Convert it first.",
        ),
        (None, "cannot read the text: {file}: got No such file or directory."),
    ],
    ids=["bytes", "missing"],
)
def test_a_text_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes | None, line: str
) -> None:
    file = tmp_path / "a.txt"
    if data is not None:
        file.write_bytes(data)
    assert main(["explain", "--text", str(file)]) == (2 if data is None else 1)
    assert capsys.readouterr().err == line.format(file=file) + "\n"
