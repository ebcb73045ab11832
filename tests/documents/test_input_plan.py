from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanfeed.documents.allocator import POOL, keep_freed_memory
from cleanfeed.documents.plan import check_columns, plan_inputs
from cleanfeed.documents.read import read_piece
from cleanfeed.errors import CleanfeedError, MisuseError
from cleanfeed.settings import DocumentSettings

ReadInputs = Any
LINE = b'{"id":"a","text":"x"}\n'


def put(root: Path, *names: str, data: bytes = LINE) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def sources(*inputs: Path | str) -> list[str]:
    return [file.source for file in plan_inputs([str(given) for given in inputs]).files]


@pytest.mark.parametrize("pattern", ["*.jsonk", "missing/**/*.jsonl", "missing.jsonl", "missing", ""])
def test_an_input_that_stands_for_nothing_is_misuse_and_named(tmp_path: Path, pattern: str) -> None:
    given = f"{tmp_path}/{pattern}" if pattern else ""
    with pytest.raises(MisuseError) as caught:
        plan_inputs([given])
    assert given in str(caught.value)
    assert caught.value.exit_code == 2


def test_no_input_and_an_empty_folder_are_misuse(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="no input given"):
        plan_inputs([])
    with pytest.raises(MisuseError, match="no input file found"):
        plan_inputs([str(tmp_path)])


@pytest.mark.parametrize("given", ["in", "in/*"])
def test_markers_hidden_and_temporary_files_are_passed_over_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "in", "part-0.jsonl", "_SUCCESS", "part-1.jsonl.tmp", "_temporary/x.jsonl", "a.crc")
    put(tmp_path / "in", "notes.md", data=b"# Notes")
    (tmp_path / "in" / "sub.jsonl").mkdir()
    plan = plan_inputs([given])
    assert [file.source for file in plan.files] == ["part-0.jsonl"]
    ignored = {path.rstrip("/") for path in plan.ignored}
    expected = {"in/_SUCCESS", "in/part-1.jsonl.tmp", "in/a.crc"}
    assert expected <= ignored
    put(tmp_path / "in", ".part-0.jsonl.crc", ".git/x.jsonl")
    assert [file.source for file in plan_inputs([given]).files] == ["part-0.jsonl"]


def test_a_file_that_may_not_be_read_is_an_error_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "part.jsonl", "secret.jsonl")
    from cleanfeed.documents import codecs

    real = codecs.open_raw

    def refuse(path: str) -> Any:
        if path.endswith("secret.jsonl"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(codecs, "open_raw", refuse)
    with pytest.raises(MisuseError, match=r"cannot be read: .*secret\.jsonl: got Permission denied"):
        plan_inputs([str(tmp_path)])


def test_files_are_sorted_by_code_point_whatever_the_folder_says(tmp_path: Path) -> None:
    put(tmp_path, "part-10.jsonl", "part-2.jsonl", "part-1.jsonl", "a/z.jsonl", "B.jsonl", "é.jsonl")
    expected = ["B.jsonl", "a/z.jsonl", "part-1.jsonl", "part-10.jsonl", "part-2.jsonl", "é.jsonl"]
    assert sources(tmp_path) == expected
    assert sources(f"{tmp_path}/**/*.jsonl") == expected


def test_inputs_keep_their_order_and_their_names(tmp_path: Path) -> None:
    put(tmp_path, "b/x.jsonl", "a/y.jsonl", "a/deep/z.jsonl")
    plan = plan_inputs([f"{tmp_path}/b/x.jsonl", f"{tmp_path}/a"])
    assert [(file.index, file.input, file.source) for file in plan.files] == [
        (0, f"{tmp_path}/b/x.jsonl", "x.jsonl"),
        (1, f"{tmp_path}/a", "deep/z.jsonl"),
        (2, f"{tmp_path}/a", "y.jsonl"),
    ]


def test_files_of_one_name_get_the_folders_that_tell_them_apart(tmp_path: Path) -> None:
    put(tmp_path, "one/in/x.jsonl", "two/in/x.jsonl", "two/in/y.jsonl")
    assert sources(tmp_path / "one/in", tmp_path / "two/in") == [
        "one/in/x.jsonl",
        "two/in/x.jsonl",
        "y.jsonl",
    ]


def test_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    put(tmp_path, "x.jsonl", "y.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "x.jsonl")
    plan = plan_inputs([f"{tmp_path}/x.jsonl", str(tmp_path), f"{tmp_path}/x.jsonl"])
    assert [file.source for file in plan.files] == ["x.jsonl", "y.jsonl"]
    assert len(plan.ignored) == 3


@pytest.mark.parametrize("again", ["{}/./x.jsonl", "{}/*.jsonl", "{}/link.jsonl", "{}/../{}"])
def test_an_input_of_nothing_but_files_that_were_given_before_is_no_mistake(
    tmp_path: Path, again: str
) -> None:
    put(tmp_path, "x.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "x.jsonl")
    spelled = again.format(tmp_path, tmp_path.name)
    assert [file.source for file in plan_inputs([f"{tmp_path}/x.jsonl", spelled]).files] == ["x.jsonl"]


def test_a_name_with_wildcard_characters_is_a_name_first(tmp_path: Path) -> None:
    put(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert sources(f"{tmp_path}/a[1].jsonl") == ["a[1].jsonl"]


def test_a_folder_that_links_to_itself_is_walked_once(tmp_path: Path) -> None:
    put(tmp_path, "in/x.jsonl")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    assert sources(tmp_path / "in") == ["x.jsonl"]


def test_a_link_that_leads_nowhere_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("gone.jsonl", "pipe.jsonl"):
        with pytest.raises(MisuseError, match=f"an input cannot be read: .*{name}"):
            plan_inputs([str(tmp_path / name)])
    with pytest.raises(MisuseError, match=r"an input file cannot be read: .*gone\.jsonl"):
        plan_inputs([str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.jsonl", LINE, "jsonl"),
        ("a.NDJSON", LINE, "jsonl"),
        ("a.json.gz", gzip.compress(LINE), "jsonl"),
        ("part-00000", LINE, "jsonl"),
        ("part-00001", gzip.compress(LINE), "jsonl"),
        ("data.gz", gzip.compress(LINE), "jsonl"),
        ("wrong.parquet", LINE, "jsonl"),
        ("a.txt", LINE, "text"),
        ("a.txt.gz", gzip.compress(b"words"), "text"),
        ("poem.text", b"PAR1 is a string", "text"),
    ],
)
def test_the_kind_comes_from_the_content_and_then_the_name(
    tmp_path: Path, name: str, data: bytes, kind: str
) -> None:
    put(tmp_path, name, data=data)
    for given in (tmp_path, tmp_path / name):
        [file] = plan_inputs([str(given)]).files
        assert (file.source, file.kind, file.size) == (name, kind, len(data))


def test_a_table_under_another_name_is_still_a_table(tmp_path: Path, read_inputs: ReadInputs) -> None:
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a.jsonl")
    pq.write_table(pa.table({"text": ["y"]}), tmp_path / "part-0")
    assert read_inputs([str(tmp_path)]).texts == ["x", "y"]


def test_a_file_of_no_kind_is_refused_by_name_and_passed_over_in_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.py", data=b"id,text\n1,x\n")
    with pytest.raises(MisuseError, match=r"of no kind that is read: .*a\.csv: got a name ending in '\.csv'"):
        plan_inputs([str(tmp_path / "a.csv")])
    with pytest.raises(MisuseError, match=r"no file that can be read: .*\*\.csv: got only .*a\.csv"):
        plan_inputs([f"{tmp_path}/*.csv"])
    put(tmp_path, "c.jsonl")
    assert sources(tmp_path) == ["c.jsonl"]


def test_settings_beside_documents_are_not_read_as_documents(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl")
    put(tmp_path, "tokenizer.json", "config.json", data=b'{"a": 1}')
    put(tmp_path, "expected.json", data=json.dumps({"a": [1]}, indent=1).encode())
    put(tmp_path, "b.json")
    assert sources(tmp_path) == ["a.jsonl", "b.json"]


def test_a_compressed_table_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a.parquet")
    put(tmp_path, "b.parquet.gz", data=gzip.compress((tmp_path / "a.parquet").read_bytes()))
    with pytest.raises(MisuseError, match="a parquet file cannot be read through gzip"):
        plan_inputs([str(tmp_path)])


def test_large_plain_files_are_cut_and_compressed_ones_are_not(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", data=LINE * 100)
    put(tmp_path, "b.jsonl.gz", data=gzip.compress(LINE * 100))
    plan = plan_inputs([str(tmp_path)], piece_bytes=900)
    assert [(p.file.source, p.start, p.stop, p.first) for p in plan.pieces] == [
        ("a.jsonl", 0, 550, True),
        ("a.jsonl", 550, 1100, False),
        ("a.jsonl", 1100, 1650, False),
        ("a.jsonl", 1650, 2200, False),
        ("b.jsonl.gz", 0, -1, True),
    ]


@pytest.mark.parametrize(
    ("least", "cut"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (23, 24), (33, 40)]
)
def test_a_large_file_is_cut_so_that_two_four_or_eight_workers_have_the_same_to_do(
    tmp_path: Path, least: int, cut: int
) -> None:
    put(tmp_path, "a.jsonl", data=LINE * 100)
    size = len(LINE) * 100
    shares = [piece.bytes for piece in plan_inputs([str(tmp_path)], piece_bytes=-(-size // least)).pieces]
    assert len(shares) == cut
    assert sum(shares) == size
    assert max(shares) - min(shares) <= 1


def test_addresses_are_read_like_paths(read_inputs: ReadInputs) -> None:
    system = fsspec.filesystem("memory")
    table = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["parquet"]}), table)
    files = {
        "a.jsonl": b'{"text":"plain"}\n' * 3,
        "b/c.jsonl.gz": gzip.compress(b'{"text":"gzip"}\n'),
        "d.parquet": table.getvalue().to_pybytes(),
        "e.txt": b"text",
        "_SUCCESS": b"",
        "f.arrow": stream(pa.table({"text": ["arrow"]})),
    }
    for name, data in files.items():
        system.pipe(f"/corpus/{name}", data)
    try:
        outcome = read_inputs(["memory://corpus"], piece_bytes=20)
        assert outcome.texts == ["plain", "plain", "plain", "gzip", "parquet", "text", "arrow"]
        plan = plan_inputs(["memory://corpus"])
        assert [file.source for file in plan.files] == [
            "a.jsonl",
            "b/c.jsonl.gz",
            "d.parquet",
            "e.txt",
            "f.arrow",
        ]
        assert plan.ignored == ("memory:///corpus/_SUCCESS",)
        assert sources("memory://corpus/*.jsonl") == ["a.jsonl"]
        assert sources("memory://corpus/b/c.jsonl.gz") == ["c.jsonl.gz"]
        with pytest.raises(MisuseError, match="memory://corpus/none"):
            plan_inputs(["memory://corpus/none"])
        with pytest.raises(MisuseError, match=r"no input file found: memory://corpus/\*\.none"):
            plan_inputs(["memory://corpus/*.none"])
    finally:
        system.rm("/corpus", recursive=True)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_an_unknown_protocol_is_misuse() -> None:
    with pytest.raises(MisuseError, match="an address cannot be read: nonsense://x/y"):
        plan_inputs(["nonsense://x/y"])


def test_a_plan_and_its_pieces_survive_pickling(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl")
    plan = pickle.loads(pickle.dumps(plan_inputs([str(tmp_path)])))
    [piece] = plan.pieces
    [batch] = read_piece(piece, DocumentSettings())[0]
    assert batch.table.column("text").to_pylist() == ["x"]
    assert pickle.loads(pickle.dumps(batch)).table.equals(batch.table)


@pytest.mark.parametrize("name", ["", ".", "a..b", ".a", 'a"b', "a\\b", "a\nb"])
def test_a_field_name_nothing_can_have_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, "a.jsonl")
    plan = plan_inputs([str(tmp_path)])
    for key, option, settings in (
        ("text_field", "--text-field", DocumentSettings(text_field=name)),
        ("id_field", "--id-field", DocumentSettings(id_field=name)),
        ("keep_fields", "--keep-field", DocumentSettings(keep_fields=(name,))),
    ):
        place = re.escape(f"documents.{key} ({option}): got {name!r}, expected a key, or keys joined by dots")
        with pytest.raises(MisuseError, match="a field name cannot be looked up: " + place):
            check_columns(plan, settings)
    with pytest.raises(MisuseError, match=r"a field name cannot be looked up: quality\.column"):
        check_columns(plan, DocumentSettings(), name)


def test_kept_fields_cannot_hide_other_columns(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl")
    plan = plan_inputs([str(tmp_path)])
    for kept in (("text",), ("row",), ("quality_column",)):
        with pytest.raises(MisuseError, match="has the name of a column every record has"):
            check_columns(plan, DocumentSettings(keep_fields=kept))
    with pytest.raises(
        MisuseError, match=r"a field is kept twice: documents.keep_fields \(--keep-field\): got 'a'"
    ):
        check_columns(plan, DocumentSettings(keep_fields=("a", "a")))


def test_a_file_name_that_is_no_utf8_can_be_read_and_stored(tmp_path: Path, read_inputs: ReadInputs) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    with open(path, "wb") as handle:  # noqa: PTH123 - a Path cannot be made of bytes
        handle.write(LINE)
    assert sources(tmp_path) == ["caf\\xe9.jsonl"]
    assert read_inputs([str(tmp_path)]).texts == ["x"]


def test_a_missing_text_field_is_refused_before_reading(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl")
    put(tmp_path, "b.jsonl.gz", data=gzip.compress(b'{"id":1,"content":"x"}\n' * 10_000))
    plan = plan_inputs([str(tmp_path)])
    with pytest.raises(
        MisuseError, match=r"no record has the text field: b\.jsonl\.gz: got the keys id, content"
    ):
        check_columns(plan, DocumentSettings())
    put(tmp_path, "b.jsonl.gz", data=gzip.compress(b'{"id":1,"content":"x"}\n' * 10_000 + LINE))
    check_columns(plan_inputs([str(tmp_path)]), DocumentSettings())


def test_the_allocator_is_set_once_and_only_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_freed_memory.cache_clear()
    monkeypatch.setattr("os.confstr", lambda name: "musl 1.2", raising=False)
    assert keep_freed_memory() is False
    keep_freed_memory.cache_clear()


def test_an_allocator_that_the_user_names_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_freed_memory.cache_clear()
    monkeypatch.setenv(POOL, "mimalloc")
    before = pa.default_memory_pool().backend_name
    assert keep_freed_memory() is False
    assert pa.default_memory_pool().backend_name == before
    keep_freed_memory.cache_clear()


def test_a_dataset_name_is_loaded_through_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_inputs: ReadInputs
) -> None:
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "unused.parquet")
    path = tmp_path / "cached.arrow"
    path.write_bytes(stream(pa.table({"id": ["a", "b"], "text": ["1", "2"]})))
    asked: list[tuple[str, str | None]] = []

    def load(name: str, configuration: str | None) -> Any:
        asked.append((name, configuration))
        return {"train": types.SimpleNamespace(cache_files=[{"filename": str(path)}])}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load))
    assert read_inputs(["hf://someone/words@small"]).texts == ["1", "2"]
    assert sources("someone/words") == ["someone/words/train/00000.arrow"]
    assert asked == [("someone/words", "small"), ("someone/words", None)]


def test_without_the_library_or_the_network_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MisuseError, match=r"needs the 'datasets' library: .*pip install 'cleanfeed\[hub\]'"):
        plan_inputs(["someone/words"])

    def fail(name: str, configuration: str | None) -> Any:
        raise ConnectionError("no route to host\nand a long story")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=fail))
    with pytest.raises(
        CleanfeedError, match=r"got ConnectionError: no route to host\. Check the name"
    ) as caught:
        plan_inputs(["hf://someone/words"])
    assert "\n" not in str(caught.value)


def test_a_mistyped_path_below_a_folder_is_no_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "data/raw.jsonl")
    with pytest.raises(MisuseError, match="an input does not exist: data/ray"):
        plan_inputs(["data/ray"])
