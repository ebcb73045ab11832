"""Of several copies of a document one is kept: the best, then the first; the others are named and counted."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from cleanfeed.build import candidates, queries, tasks
from cleanfeed.build.judge import DUPLICATES_SCHEMA, between
from cleanfeed.build.verify import verify
from cleanfeed.curriculum import duplicates
from cleanfeed.curriculum.writer import PartWriter

from .conftest import TOKENIZER, Build, prose, tree, write_jsonl


def rejected(out: Path) -> dict[tuple[str, int], tuple]:
    query = f"SELECT source, source_row, verdict, reasons, text FROM read_parquet('{out}/rejected/*.parquet')"
    with duckdb.connect() as store:
        return {(row[0], row[1]): row[2:] for row in store.execute(query).fetchall()}


def copy_of(kept: str, signal: str = "content_hash", value: float = 1.0) -> dict[str, object]:
    return {"rule": f"duplicate_of {kept}", "signal": signal, "value": value, "limit": value}


def test_the_first_of_equal_texts_is_kept_and_the_others_name_it(tmp_path: Path, run: Build):
    records = [{"id": f"a{n}", "text": prose(n % 3)} for n in range(7)] + [{"id": "b", "text": prose(9)}]
    manifest = run(write_jsonl(tmp_path / "a.jsonl", records)).manifest
    assert (manifest["counts"]["kept"], manifest["counts"]["duplicate"]) == (4, 4)
    assert manifest["duplicates"] == {"documents": 8, "exact": 4, "near": 0}
    assert rejected(tmp_path / "out") == {
        ("a.jsonl", n): ("duplicate", [copy_of(f"a{n % 3}")], None) for n in range(3, 7)
    }
    verify(str(tmp_path / "out"))


def test_what_memory_cannot_hold_is_grouped_and_counted_on_disk_with_the_same_result(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch
):
    records = [{"id": f"d{n % 4}", "text": prose(n % 3)} for n in range(9)]
    source = write_jsonl(tmp_path / "a.jsonl", records)
    assert run(source, out=tmp_path / "few").manifest["counts"]["duplicate_ids"] == 5
    for module in (candidates, duplicates, queries):
        monkeypatch.setattr(module, "FEW", 0)
    run(source, out=tmp_path / "many")
    assert tree(tmp_path / "few") == tree(tmp_path / "many")


def test_copies_of_a_rejected_or_excluded_text_are_judged_like_it(tmp_path: Path, run: Build):
    blob = "g4ODg4OD" * 2000
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in (blob, blob, prose(1), prose(1))])
    first = run(source, out=tmp_path / "first").manifest["counts"]
    assert (first["rejected"], first["duplicate"], first["kept"]) == (2, 1, 1)
    with duckdb.connect() as store:
        query = f"SELECT content_hash FROM read_parquet('{tmp_path}/first/curriculum/*/*.parquet') JOIN "
        query += f"read_parquet('{tmp_path}/first/signals/*.parquet') USING (source, source_row)"
        (digest,) = store.execute(query).fetchall()[0]
    (tmp_path / "list.txt").write_text(digest.hex())
    second = run(source, exclude=(str(tmp_path / "list.txt"),)).manifest["counts"]
    assert (second["rejected"], second["duplicate"], second["excluded"], second["kept"]) == (2, 0, 2, 0)


def test_the_copy_of_highest_quality_is_kept(tmp_path: Path, run: Build):
    pipeline = tmp_path / "mine.yaml"
    pipeline.write_text(
        "name: mine\nrules: []\nquality: {column: score}\n"
        "curriculum:\n  bands: [{name: all, max_tokens: 4096, max_chars: 9999}]\n  tiers: [{name: all}]\n"
    )
    scores = [1, 5, None, 5, 2]
    records = [{"id": f"d{n}", "text": prose(0), "score": score} for n, score in enumerate(scores)]
    run(write_jsonl(tmp_path / "a.jsonl", records), pipeline=str(pipeline))
    assert sorted(rejected(tmp_path / "out")) == [("a.jsonl", n) for n in (0, 2, 3, 4)]
    assert {row[1][0]["rule"] for row in rejected(tmp_path / "out").values()} == {"duplicate_of d1"}


def test_nothing_is_left_out_where_duplicates_are_off(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": prose(0)}] * 3)
    manifest = run(source, sets=["duplicates.method=off"]).manifest
    assert (manifest["counts"]["kept"], manifest["duplicates"]) == (3, None)


@pytest.mark.parametrize("tokenizer", [None, TOKENIZER])
def test_near_duplicates_are_found_and_the_result_does_not_depend_on_the_workers(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch, tokenizer: str | None
):
    monkeypatch.setattr(tasks, "TASK_BYTES", 8192)
    monkeypatch.setattr(tasks, "TOKENISED_TASK_BYTES", 8192)
    texts = [prose(n, sentences=20) for n in range(40)]
    edited = [text.replace("ferry", "lorry").replace("the", "some", 1) for text in texts[:10]]
    for number in range(5):
        write_jsonl(
            tmp_path / "in" / f"{number}.jsonl",
            [{"id": f"o{n}", "text": texts[n]} for n in range(number, 40, 5)]
            + [{"id": f"e{n}", "text": edited[n]} for n in range(number, 10, 5)],
        )
    trees = []
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        sets = ["duplicates.method=near"]
        manifest = run(tmp_path / "in", out=out, workers=workers, sets=sets, tokenizer=tokenizer).manifest
        assert manifest["counts"]["duplicate"] == 10
        assert manifest["duplicates"]["near"] + manifest["duplicates"]["exact"] == 10
        assert len({row[1][0]["rule"] for row in rejected(out).values()}) == 10
        trees.append(tree(out))
    assert trees[0] == trees[1]


def test_of_the_listed_duplicates_those_of_a_segment_are_found_in_whatever_row_group_they_lie(tmp_path: Path):
    positions = [3, 8, 9, 20, 21, 40]
    path = tmp_path / "duplicates.parquet"
    with PartWriter(path, DUPLICATES_SCHEMA, row_group_rows=2) as part:
        rows = [positions, ["exact"] * 6, ["kept"] * 6]
        part.write(pa.table(rows, schema=DUPLICATES_SCHEMA))
    for first, stop in ((0, 3), (4, 10), (9, 21), (40, 41), (41, 99)):
        found = between(path, first, stop).column("position").to_pylist()
        assert [p for p in found if first <= p < stop] == [p for p in positions if first <= p < stop]
        assert len(found) <= 4
