"""A build is exact: every record is accounted for, and nothing but inputs and settings decides its bytes."""

import json
from pathlib import Path

import duckdb
import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from cleanfeed.build import runner, spool, tasks
from cleanfeed.build.lock import only_build
from cleanfeed.build.verify import verify
from cleanfeed.curriculum.tokenizer import TextEncoder
from cleanfeed.documents import read
from cleanfeed.errors import BusyError, CleanfeedError, MisuseError, NothingReadableError

from .conftest import TOKENIZER, Build, Silent, prose, tree, write_jsonl

RECORDS = [
    *({"id": f"p{n}", "text": prose(n)} for n in range(40)),
    {"id": "blob", "text": "g4ODg4OD" * 2000},
    {"id": "empty", "text": ""},
    b'{"id": "broken", "text": "no end',
    {"id": 7, "text": prose(99)},
    {"id": "7", "text": prose(98)},
    {"text": prose(97)},
    {"id": "null", "text": None},
]


def rows(out: Path, pattern: str, select: str = "*") -> list[tuple]:
    with duckdb.connect() as store:
        return store.execute(f"SELECT {select} FROM read_parquet('{out}/{pattern}')").fetchall()


def test_every_record_is_counted_once_and_lies_where_its_verdict_says(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "in" / "a.jsonl", RECORDS)
    report = run(source)
    manifest, out = report.manifest, tmp_path / "out"
    assert report.exit_code == 0
    assert manifest["counts"] == {
        "read": 47,
        "kept": 43,
        "flagged": 0,
        "rejected": 2,
        "duplicate": 0,
        "excluded": 0,
        "unreadable": 2,
        "duplicate_ids": 1,
    }
    assert manifest["inputs"][0]["counts"] == {
        name: manifest["counts"][name] for name in manifest["inputs"][0]["counts"]
    }
    assert sorted(rows(out, "rejected/*.parquet", "doc_id, source, source_row, verdict")) == [
        ("blob", "a.jsonl", 40, "reject"),
        ("empty", "a.jsonl", 41, "reject"),
    ]
    assert sorted(rows(out, "unreadable/*.parquet", 'source, line, "row", reason')) == [
        ("a.jsonl", 43, None, "bad_json"),
        ("a.jsonl", 47, None, "text_null"),
    ]
    kept = rows(out, "curriculum/*/*.parquet", "doc_id, source_row, text")
    assert sorted((row, text) for _, row, text in kept) == sorted(
        (row, record["text"])
        for row, record in enumerate(RECORDS)
        if isinstance(record, dict) and row not in (40, 41, 46)
    )
    assert {name for name, row, _ in kept if row >= 43} == {"7", "a.jsonl:45"}
    assert len(rows(out, "signals/*.parquet", "doc_id")) == 45
    assert verify(str(out)).counts == manifest["counts"]
    assert not (out / ".work").exists()


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASK_BYTES", 4096)
    monkeypatch.setattr(tasks, "TOKENISED_TASK_BYTES", 4096)


def many_files(folder: Path) -> Path:
    for number in range(12):
        records = [{"id": f"{number}-{n}", "text": prose(100 * number + n)} for n in range(15)]
        write_jsonl(folder / f"part-{number}.jsonl", records)
    return folder


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("tokenizer", [None, TOKENIZER])
def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, run: Build, tokenizer: str | None):
    folder = many_files(tmp_path / "in")
    sets = [
        "curriculum.file_row_groups=1",
        "curriculum.row_group_tokens=512",
        "curriculum.row_group_chars=4096",
    ]
    trees = []
    for workers in (1, 2, 4, 1):
        out = tmp_path / f"out-{len(trees)}"
        run(folder, out=out, workers=workers, tokenizer=tokenizer, sets=sets)
        trees.append(tree(out))
    assert len(trees[0]) > 20
    assert all(other == trees[0] for other in trees[1:])


def test_a_task_in_many_segments_gives_the_same_curriculum(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch
):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    whole = run(source, out=tmp_path / "whole").manifest
    monkeypatch.setattr(spool, "SEGMENT_DOCUMENTS", 1)
    monkeypatch.setitem(read.read_piece.__kwdefaults__, "batch_bytes", 1024)
    parts = run(source, out=tmp_path / "parts").manifest
    assert len(list((tmp_path / "parts" / "signals").iterdir())) > 5
    assert len(list((tmp_path / "whole" / "signals").iterdir())) == 1
    assert (parts["digest"], parts["counts"]) == (whole["digest"], whole["counts"])
    verify(str(tmp_path / "parts"))


@pytest.mark.usefixtures("small_tasks")
def test_files_are_cut_at_full_row_groups_and_follow_one_shuffled_order(tmp_path: Path, run: Build):
    folder = many_files(tmp_path / "in")
    whole = run(folder, out=tmp_path / "whole").manifest
    sets = ["curriculum.file_row_groups=2", "curriculum.row_group_chars=2048"]
    cut = run(folder, out=tmp_path / "cut", sets=sets).manifest
    for one, many in zip(whole["stages"], cut["stages"], strict=True):
        order = [
            [
                row
                for name in stage["files"]
                for row in pq.read_table(tmp_path / folder / name, columns=["doc_id"])["doc_id"].to_pylist()
            ]
            for folder, stage in (("whole", one), ("cut", many))
        ]
        assert order[0] == order[1]
        assert order[0] != sorted(order[0]) or len(order[0]) < 3
    largest = max(cut["stages"], key=lambda stage: stage["samples"])
    sizes = [
        meta.row_group(i).num_rows
        for meta in (pq.read_metadata(tmp_path / "cut" / name) for name in largest["files"])
        for i in range(meta.num_row_groups)
    ]
    assert len(largest["files"]) > 2
    assert set(sizes[:-1]) == {largest["row_group_samples"]}


def test_samples_are_what_the_tokenizer_says_and_long_documents_come_in_parts(tmp_path: Path, run: Build):
    long = "\n".join(prose(n) for n in range(80))
    source = write_jsonl(
        tmp_path / "a.jsonl", [{"id": "long", "text": long}, {"id": "short", "text": prose(1)}]
    )
    manifest = run(source, tokenizer=TOKENIZER, keep_text=True).manifest
    encoder = TextEncoder(TOKENIZER)
    samples = rows(
        tmp_path / "out", "curriculum/*/*.parquet", "doc_id, part, n_tokens, n_chars, input_ids, text"
    )
    for name, text in (("long", long), ("short", prose(1))):
        parts = sorted(sample[1:] for sample in samples if sample[0] == name)
        ids = [token for part in parts for token in part[3]]
        assert ids == [*encoder.encode([text])[0].tolist(), encoder.end_of_text_id]
        assert [part[0] for part in parts] == list(range(len(parts)))
        assert [part[1] for part in parts] == [len(part[3]) for part in parts]
        assert max(part[1] for part in parts) <= 4096
        assert sum(part[2] for part in parts) == len(text)
        assert "".join(part[4] for part in parts) == text
    assert len([sample for sample in samples if sample[0] == "long"]) > 1
    assert sum(stage["tokens"] for stage in manifest["stages"]) == sum(sample[2] for sample in samples)


def test_the_sample_hash_is_the_xxh3_of_what_the_model_sees(tmp_path: Path, run: Build):
    import xxhash

    source = write_jsonl(tmp_path / "a.jsonl", [{"id": "a", "text": prose(1)}])
    run(source, out=tmp_path / "text")
    run(source, out=tmp_path / "ids", tokenizer=TOKENIZER)
    text = rows(tmp_path / "text", "curriculum/*/*.parquet", "sample_hash, text")
    assert [row[0] for row in text] == [xxhash.xxh3_128_digest(prose(1).encode())]
    ids = rows(tmp_path / "ids", "curriculum/*/*.parquet", "sample_hash, input_ids")
    assert [row[0] for row in ids] == [xxhash.xxh3_128_digest(np.array(ids[0][1], dtype="<i4").tobytes())]


def test_what_a_store_lists_is_left_out_and_counted(tmp_path: Path, run: Build):
    long = "\n".join(prose(n) for n in range(80))
    records = [{"id": f"p{n}", "text": prose(n)} for n in range(10)] + [{"id": "long", "text": long}]
    source = write_jsonl(tmp_path / "a.jsonl", records)
    run(source, out=tmp_path / "all")
    part = rows(tmp_path / "all", "curriculum/*/*.parquet", "sample_hash, doc_id, part")
    listed = {(name, number): digest.hex() for digest, name, number in part}
    store = tmp_path / "bad.txt"
    store.write_text("\n".join([listed["p3", 0], listed["long", 1], "ff" * 16]) + "\n")
    manifest = run(source, exclude=(str(store),)).manifest
    assert (manifest["counts"]["kept"], manifest["counts"]["excluded"]) == (9, 2)
    left = rows(tmp_path / "out", "rejected/*.parquet", "doc_id, verdict, reasons, text")
    assert sorted(left) == [
        ("long", "excluded", [reason("sample_hash")], long),
        ("p3", "excluded", [reason("content_hash"), reason("sample_hash")], prose(3)),
    ]
    kept = {row[0] for row in rows(tmp_path / "out", "curriculum/*/*.parquet", "doc_id")}
    assert kept == {f"p{n}" for n in range(10) if n != 3}
    verify(str(tmp_path / "out"))
    assert run(source, exclude=(str(store),)).already_done
    with pytest.raises(MisuseError, match="other inputs or settings"):
        run(source)


def reason(signal: str) -> dict[str, object]:
    return {"rule": "excluded", "signal": signal, "value": 1.0, "limit": 0.0}


def test_a_finished_build_is_not_repeated_and_another_one_is_refused(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    first = run(source)
    before = tree(tmp_path / "out")
    again = run(source)
    assert (again.already_done, again.manifest) == (True, first.manifest)
    with pytest.raises(MisuseError, match="finished build of other inputs or settings"):
        run(source, sets=["curriculum.seed=1"])
    assert tree(tmp_path / "out") == before
    (tmp_path / "out" / "notes.txt").write_text("mine")
    progress = Silent()
    other = run(source, sets=["curriculum.seed=1"], overwrite=True, progress=progress)
    assert not other.already_done
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert ["notes.txt" in note for note in progress.notes] == [True]
    verify(str(tmp_path / "out"))


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("do not touch")
    with pytest.raises(MisuseError, match=r"not empty and holds no build.*thesis\.tex"):
        run(source)
    assert tree(tmp_path / "out") == {"thesis.tex": b"do not touch"}


@pytest.mark.parametrize("bad", [b"", b"x\n", b'{"id": 1}\n'])
def test_an_old_build_stays_whole_until_its_successor_has_documents(tmp_path: Path, run: Build, bad: bytes):
    run(write_jsonl(tmp_path / "a.jsonl", RECORDS))
    before = tree(tmp_path / "out")
    (tmp_path / "bad.jsonl").write_bytes(bad)
    with pytest.raises(CleanfeedError):
        run(tmp_path / "bad.jsonl", overwrite=True)
    assert tree(tmp_path / "out") == before
    verify(str(tmp_path / "out"))


@pytest.mark.parametrize("ours", [True, False])
def test_an_overwrite_removes_the_tokenizer_of_a_build_that_was_dropped_and_no_one_elses(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch, ours: bool
):
    source, out = write_jsonl(tmp_path / "a.jsonl", RECORDS), tmp_path / "out"
    stop_before("write_manifest", run, monkeypatch, source, tokenizer=TOKENIZER if ours else None)
    if not ours:
        (out / "tokenizer.json").write_text("mine")
    run(source, sets=["curriculum.seed=3"], overwrite=True)
    assert (out / "tokenizer.json").exists() == (not ours)
    if ours:
        verify(str(out))


def test_an_overwrite_that_was_killed_while_reading_goes_on_and_ends_like_any_other(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch
):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    expected = run(source, out=tmp_path / "expected", sets=["curriculum.seed=3"]).manifest
    run(source, sets=SMALL_FILES)
    stop_before("remove_old", run, monkeypatch, source, sets=["curriculum.seed=3"], overwrite=True)
    verify(str(tmp_path / "out"))
    assert run(source, sets=["curriculum.seed=3"], overwrite=True).manifest == expected
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")


@pytest.mark.parametrize("effect", [1, 3, 9])
def test_a_removal_that_was_killed_is_taken_up_again(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch, effect: int
):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    run(source, sets=SMALL_FILES)
    (tmp_path / "out" / "mine.txt").write_text("mine")
    unlink, done = Path.unlink, []

    def dying(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".parquet":
            done.append(path)
            if len(done) == effect:
                raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", dying)
        with pytest.raises(KeyboardInterrupt):
            run(source, overwrite=True)
    progress = Silent()
    run(source, overwrite=True, progress=progress)
    assert progress.notes == []
    verify(str(tmp_path / "out"))
    (tmp_path / "out" / "mine.txt").unlink()
    run(source, out=tmp_path / "expected")
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")


def test_a_second_build_into_a_folder_uses_its_own_exclusions(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", [{"id": n, "text": prose(n)} for n in range(5)])
    run(source, out=tmp_path / "all")
    hashes = [digest.hex() for (digest,) in rows(tmp_path / "all", "signals/*.parquet", "content_hash")]
    for number in (1, 3):
        (tmp_path / "list.txt").write_text("\n".join(hashes[:number]))
        manifest = run(source, exclude=(str(tmp_path / "list.txt"),), overwrite=True).manifest
        assert manifest["counts"]["excluded"] == number


def test_a_build_that_is_done_does_not_disturb_one_that_replaces_it(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    run(source)
    with only_build(tmp_path / "out" / ".work"), pytest.raises(BusyError):
        run(source)
    assert run(source).already_done
    assert not (tmp_path / "out" / ".work").exists()


@pytest.mark.parametrize("manifest", [b"", b"{}", b"[]", b'{"format_version": 99}', b"altered"])
def test_a_manifest_that_cannot_be_read_is_one_line_and_can_be_overwritten(
    tmp_path: Path, run: Build, manifest: bytes
):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    run(source)
    path = tmp_path / "out" / "manifest.json"
    path.write_bytes(
        path.read_bytes().replace(b'"samples"', b'"simples"', 1) if manifest == b"altered" else manifest
    )
    for call in (lambda: run(source), lambda: verify(str(tmp_path / "out"))):
        with pytest.raises(CleanfeedError, match=r"manifest.*--overwrite") as caught:
            call()
        assert "\n" not in str(caught.value)
    progress = Silent()
    run(source, overwrite=True, progress=progress)
    # What the old build has listed is known to be its own.
    assert manifest != b"altered" or progress.notes == []
    verify(str(tmp_path / "out"))


SMALL_FILES = ["curriculum.row_group_chars=1000", "curriculum.file_row_groups=1"]


def stop_before(name: str, run: Build, stopped: pytest.MonkeyPatch, *inputs: Path, **fields: object) -> None:
    """Run a build that ends where it would call ``name``."""
    with stopped.context() as patched:
        patched.setattr(runner, name, lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(*inputs, **fields)


def test_an_unfinished_build_is_left_alone_by_one_of_other_settings(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch
):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    stop_before("write_manifest", run, monkeypatch, source, sets=SMALL_FILES)
    before = tree(tmp_path / "out")
    with pytest.raises(MisuseError, match="unfinished build of other inputs or settings"):
        run(source)
    after = tree(tmp_path / "out")
    del before[".work/lock"], after[".work/lock"]
    assert after == before
    run(source, sets=SMALL_FILES)
    run(source, out=tmp_path / "expected", sets=SMALL_FILES)
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")


def test_an_old_build_survives_several_attempts_to_replace_it(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch
):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    run(source)
    before = tree(tmp_path / "out")
    for seed in (1, 2):
        sets = [f"curriculum.seed={seed}"]
        stop_before("remove_old", run, monkeypatch, source, sets=sets, overwrite=True)
        after = {name: data for name, data in tree(tmp_path / "out").items() if not name.startswith(".work/")}
        assert after == before
    verify(str(tmp_path / "out"))


def test_an_unfinished_build_of_other_settings_leaves_nothing_when_it_is_overwritten(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch
):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    stop_before("write_manifest", run, monkeypatch, source, sets=SMALL_FILES)
    assert len(list((tmp_path / "out" / "curriculum").rglob("*.parquet"))) > 12
    run(source, overwrite=True)
    run(source, out=tmp_path / "expected")
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")


@pytest.mark.parametrize("name", ["quality", "source", "stage", "n_tokens", "input_ids"])
def test_a_kept_field_cannot_have_the_name_of_a_column(tmp_path: Path, run: Build, name: str):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    with pytest.raises(MisuseError, match=f"--keep-field has the name of a column: {name}"):
        run(source, sets=[f"documents.keep_fields=[{name}]"])
    assert not (tmp_path / "out").exists()


def test_an_out_that_can_be_no_folder_is_misuse(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    with pytest.raises(MisuseError, match="--out is no"):
        run(source, out=tmp_path / "a.jsonl" / "x")
    assert sorted(tree(tmp_path)) == ["a.jsonl"]


def test_a_glob_that_matches_files_of_out_is_refused(tmp_path: Path, run: Build):
    write_jsonl(tmp_path / "in" / "a.jsonl", RECORDS)
    run(tmp_path / "in" / "*.jsonl", out=tmp_path / "in" / "out")
    with pytest.raises(MisuseError, match="an input lies inside --out"):
        run(str(tmp_path / "in" / "*" / "*" / "*_good" / "*"), out=tmp_path / "in" / "out", overwrite=True)
    verify(str(tmp_path / "in" / "out"))


def test_a_local_file_may_have_a_name_that_looks_like_an_address(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "zip::a.jsonl", [{"id": 1, "text": prose(1)}])
    assert run(source).manifest["counts"]["kept"] == 1


def test_a_quality_beyond_all_bounds_is_unknown(tmp_path: Path, run: Build):
    records = [{"id": n, "text": prose(n), "score": score} for n, score in enumerate([1e300, -1e300, 0.5])]
    manifest = run(write_jsonl(tmp_path / "a.jsonl", records), sets=["quality={column: score}"]).manifest
    found = dict(rows(tmp_path / "out", "curriculum/*/*.parquet", "doc_id, quality"))
    assert found == {"0": None, "1": None, "2": 0.5}
    assert {stage["mean_quality"] for stage in manifest["stages"] if stage["samples"]} <= {0.5, None}


def test_a_build_in_which_everything_is_excluded_is_finished(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", [{"id": n, "text": prose(n)} for n in range(3)])
    run(source, out=tmp_path / "first")
    manifest = run(source, exclude=(str(tmp_path / "first/signals/part-00000.parquet"),)).manifest
    assert (manifest["counts"]["excluded"], manifest["counts"]["kept"]) == (3, 0)
    verify(str(tmp_path / "out"))


def test_a_field_no_document_has_is_refused_or_said_aloud(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", [{"id": n, "text": prose(n)} for n in range(3)])
    with pytest.raises(MisuseError, match="no document has a number in the quality column: nope"):
        run(source, sets=["quality={column: nope}"])
    assert not (tmp_path / "out").exists()
    progress = Silent()
    run(source, sets=["documents.keep_fields=[gone]", "documents.id_field=key"], progress=progress)
    assert progress.notes == [
        "no document has the field gone that is to be kept: its column is empty",
        "no document has the id field key: ids are <source>:<row>",
    ]


def test_what_is_passed_over_in_a_folder_is_said_aloud(tmp_path: Path, run: Build):
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": 1, "text": prose(1)}])
    (tmp_path / "in" / "table.csv").write_text("a,b")
    progress = Silent()
    manifest = run(tmp_path / "in", progress=progress).manifest
    assert manifest["ignored"] == [str(tmp_path / "in" / "table.csv")]
    assert progress.notes == [f"passed over: {tmp_path / 'in' / 'table.csv'}"]


def test_rules_that_flag_are_counted_over_kept_documents_alone(tmp_path: Path, run: Build):
    few = "1234 5678 !! 9012 ?? 3456 ## 7890 "
    records = [{"id": "kept", "text": prose(1)}, {"id": "gone", "text": few + "g4ODg4OD" * 2000}]
    manifest = run(write_jsonl(tmp_path / "a.jsonl", records)).manifest
    assert manifest["counts"]["rejected"] == 1
    assert (
        sum(row["documents"] for row in manifest["flagged_by_rule"].values())
        == manifest["counts"]["flagged"]
        == 0
    )


def test_a_reference_that_holds_no_text_is_misuse(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", [{"id": n, "text": prose(n)} for n in range(3)])
    run(source)
    before = tree(tmp_path / "out")
    write_jsonl(tmp_path / "ref.jsonl", [{"id": 1, "body": "x"}])
    with pytest.raises(MisuseError, match=r"quality\.reference: .*ref\.jsonl"):
        run(source, sets=[f"quality={{reference: {tmp_path}/ref.jsonl}}"], overwrite=True)
    with pytest.raises(MisuseError, match=r"quality\.reference: an input does not exist: .*gone\.jsonl"):
        run(source, sets=[f"quality={{reference: {tmp_path}/gone.jsonl}}"], overwrite=True)
    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("given", "out", "which"),
    [
        ("in", "in/out", "--out lies inside an input"),
        ("in", "in", "--out lies inside an input"),
        ("in", "link", "--out lies inside an input"),
        ("in", "link/out", "--out lies inside an input"),
        ("link", "in/out", "--out lies inside an input"),
        ("file://{}/in", "in/out", "--out lies inside an input"),
        ("in", "file://{}/in/out", "--out lies inside an input"),
        ("in/sub/..", "in/out", "--out lies inside an input"),
        ("~/in", "in/out", "--out lies inside an input"),
        ("in/a.jsonl", "in", "an input lies inside --out"),
        ("in/a.jsonl", "link", "an input lies inside --out"),
        ("link/a.jsonl", "in", "an input lies inside --out"),
        ("in/sub", "in", "an input lies inside --out"),
        ("in/*.jsonl", "in", "an input lies inside --out"),
        ("elsewhere.jsonl", "in", "an input lies inside --out"),
        # Globs that match nothing of OUT as yet: but a build that goes on after a kill would read itself.
        ("in/*", "in/out", "--out lies inside an input"),
        ("i*", "in/out", "--out lies inside an input"),
        ("link/*", "in/sub/out", "--out lies inside an input"),
        ("in/*/*/*", "in/out", "--out lies inside an input"),
        ("in/**", "in/out", "--out lies inside an input"),
        ("in/**/part-*", "in/sub/out", "--out lies inside an input"),
        ("in/*/*.json", "in/out", "--out lies inside an input"),
        ("file://{}/in/**", "in/out", "--out lies inside an input"),
    ],
)
def test_out_inside_an_input_and_an_input_inside_out_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Build, given: str, out: str, which: str
):
    write_jsonl(tmp_path / "in" / "a.jsonl", RECORDS)
    (tmp_path / "in" / "sub").mkdir()
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "elsewhere.jsonl").symlink_to("in/a.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    given, out = given.format(tmp_path), out.format(tmp_path)
    with pytest.raises(MisuseError, match=f"^{which}: "):
        run(given, out=out)
    assert sorted(tree(tmp_path)) == ["elsewhere.jsonl", "in/a.jsonl"]


@pytest.mark.parametrize(
    "given", ["in/*.jsonl", "in/**/*.jsonl", "in/a*", "in/[a]*", "in/*/*.jsonl", "odd/[x]"]
)
def test_a_glob_that_matches_nothing_a_build_writes_may_stand_beside_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Build, given: str
):
    write_jsonl(tmp_path / "in" / "a.jsonl", RECORDS)
    write_jsonl(tmp_path / "in" / "sub" / "b.jsonl", RECORDS)
    write_jsonl(tmp_path / "odd" / "[x]" / "c.jsonl", RECORDS)
    monkeypatch.chdir(tmp_path)
    out = "odd/x" if given.startswith("odd") else "in/out"
    assert not run(given, out=out).already_done
    assert run(given, out=out).already_done


def test_a_field_no_record_has_is_misuse_and_leaves_nothing_behind(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", [{"id": n, "content": prose(n)} for n in range(5)])
    with pytest.raises(MisuseError, match=r"text.*content"):
        run(source)
    assert not (tmp_path / "out").exists()
    assert run(source, sets=["documents.text_field=content"]).manifest["counts"]["kept"] == 5


def test_nothing_readable_is_an_error_that_says_why(tmp_path: Path, run: Build):
    source = write_jsonl(tmp_path / "a.jsonl", [b"{broken", b'{"text": 3}'])
    with pytest.raises(NothingReadableError, match="bad_json"):
        run(source)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("small_tasks")
def test_inputs_in_memory_are_read_whatever_the_number_of_workers(run: Build):
    files = fsspec.filesystem("memory")
    for number in range(3):
        lines = [json.dumps({"text": prose(10 * number + n)}) for n in range(9)]
        files.pipe(f"/raw/{number}.jsonl", "\n".join(lines).encode())
    manifest = run("memory://raw", workers=2).manifest
    assert (manifest["counts"]["kept"], len(manifest["inputs"])) == (27, 3)


def test_limit_reads_the_first_records_only(tmp_path: Path, run: Build):
    folder = many_files(tmp_path / "in")
    manifest = run(folder, limit=20, workers=4).manifest
    assert manifest["counts"]["read"] == 20
    assert {row[0] for row in rows(tmp_path / "out", "signals/*.parquet", "doc_id")} == {
        *(f"0-{n}" for n in range(15)),
        *(f"1-{n}" for n in range(5)),
    }


def test_kept_fields_and_a_quality_column_travel_to_the_curriculum(tmp_path: Path, run: Build):
    records = [
        {"id": n, "text": prose(n), "lang": "en", "score": n / 10, "meta": {"a": n}} for n in range(10)
    ]
    del records[3]["score"]
    pipeline = tmp_path / "mine.yaml"
    pipeline.write_text(
        "name: mine\nrules: []\nquality: {column: score}\ndocuments: {keep_fields: [lang, meta]}\n"
        "curriculum:\n  bands: [{name: all, max_tokens: 4096, max_chars: 9999}]\n"
        "  tiers: [{name: top, share: 0.5}, {name: rest}]\n"
    )
    source = write_jsonl(tmp_path / "a.jsonl", records)
    manifest = run(source, pipeline=str(pipeline)).manifest
    found = {
        int(row[0]): row[1:]
        for row in rows(tmp_path / "out", "curriculum/*/*.parquet", "doc_id, stage, quality, lang, meta")
    }
    top = {number for number, row in found.items() if row[0] == 0}
    assert top == {5, 6, 7, 8, 9}
    assert found[3][1] is None
    assert found[9][1] == pytest.approx(0.9)
    assert found[4][2:] == ("en", '{"a":4}') or json.loads(found[4][3]) == {"a": 4}
    assert [stage["samples"] for stage in manifest["stages"]] == [5, 5]


def test_likeness_to_a_reference_sample_orders_documents(tmp_path: Path, run: Build):
    records = [{"id": f"sea{n}", "text": prose(n)} for n in range(20)]
    other = (
        "Quarterly revenue rose as the committee approved the budget for new software licences and audits. "
    )
    records += [{"id": f"money{n}", "text": f"Item {n}. " + other * 3} for n in range(20)]
    reference = write_jsonl(tmp_path / "ref" / "ref.jsonl", [{"text": prose(500 + n)} for n in range(5)])
    pipeline = tmp_path / "mine.yaml"
    pipeline.write_text(
        f"name: mine\nrules: []\nquality: {{reference: {reference}}}\n"
        "curriculum:\n  bands: [{name: all, max_tokens: 4096, max_chars: 9999}]\n"
        "  tiers: [{name: top, share: 0.5}, {name: rest}]\n"
    )
    run(write_jsonl(tmp_path / "a.jsonl", records), pipeline=str(pipeline))
    stage_of = dict(rows(tmp_path / "out", "curriculum/*/*.parquet", "doc_id, stage"))
    assert {stage for name, stage in stage_of.items() if name.startswith("sea")} == {0}
    assert {stage for name, stage in stage_of.items() if name.startswith("money")} == {1}
