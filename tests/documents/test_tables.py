from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanfeed.documents.plan import plan_inputs
from cleanfeed.errors import MisuseError

ReadInputs = Any


def write_parquet(path: Path, table: pa.Table, rows: int = 2**20) -> None:
    pq.write_table(table, path, row_group_size=rows)


def write_file(path: Path, table: pa.Table, rows: int = 2**20) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_stream(path: Path, table: pa.Table, rows: int = 2**20) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


WRITERS: dict[str, Callable[..., None]] = {
    "a.parquet": write_parquet,
    "a.arrow": write_file,
    "b.arrow": write_stream,
}


@pytest.fixture(params=WRITERS)
def read_table(request: Any, tmp_path: Path, read_inputs: ReadInputs) -> ReadInputs:
    """Write a table in each of the formats and read it back."""

    def write_and_read(table: pa.Table, rows: int = 2**20, **options: Any) -> Any:
        path = tmp_path / request.param
        WRITERS[request.param](path, table, rows)
        return read_inputs([str(path)], **options)

    return write_and_read


LAYOUTS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.large_string()),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_text_of_every_layout_is_ordinary_text(read_table: ReadInputs, layout: pa.DataType) -> None:
    texts = [
        "same text that is longer than a view",
        "",
        "same text that is longer than a view",
        "naïve 中\0文",
    ]
    column = (
        pa.array(texts, pa.string()).cast(layout)
        if not pa.types.is_dictionary(layout)
        else pa.array(texts, layout)
    )
    outcome = read_table(pa.table({"id": ["a", "b", "c", "d"], "text": column}))
    assert (outcome.ids, outcome.texts, outcome.rows) == (["a", "b", "c", "d"], texts, [0, 1, 2, 3])
    assert outcome.columns["lone_surrogates"] == [0, 0, 0, 0]


@pytest.mark.parametrize("layout", [*LAYOUTS, pa.null()], ids=str)
def test_null_text_is_unreadable_and_takes_its_row(read_table: ReadInputs, layout: pa.DataType) -> None:
    values = [None, None] if pa.types.is_null(layout) else [None, "x"]
    outcome = read_table(pa.table({"text": pa.array(values, layout)}))
    assert outcome.texts == values[1:] if values[1] else outcome.texts == []
    first = outcome.unreadable[0]
    assert (first.row, first.line_format, first.byte_offset, first.reason) == (0, False, None, "text_null")


def test_the_columns_do_not_depend_on_the_first_file(tmp_path: Path, read_inputs: ReadInputs) -> None:
    for name, values in (("0.parquet", [None, None]), ("1.parquet", ["a", "b"]), ("2.parquet", [1, 2])):
        write_parquet(tmp_path / name, pa.table({"text": ["x", "y"], "title": values}))
    outcome = read_inputs([str(tmp_path)], keep_fields=("title",))
    assert outcome.columns["title"] == [None, None, "a", "b", "1", "2"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([["a"], ["b"]]), "got list<.*>, expected string, .*Name a nested field with dots"),
        (pa.array([[{"role": "r", "content": "c"}]] * 2), "got list<.*struct<.*>.*>, expected"),
        (
            pa.array([{"en": "a", "n": 1}] * 2),
            r"got struct<.*Pick a field inside it: --text-field text\.en\.",
        ),
        (pa.array([b"a", b"b"]), "got binary, .*Bytes are not decoded silently"),
        (pa.array([1, 2]), "got int64"),
    ],
)
def test_a_text_column_of_another_type_is_refused_before_reading(
    read_table: ReadInputs, column: pa.Array, message: str
) -> None:
    with pytest.raises(
        MisuseError, match=rf"^the text column holds no strings: [ab]\..*, column 'text': {message}"
    ):
        read_table(pa.table({"text": column}))


def test_a_missing_text_column_is_refused_and_the_columns_are_named(read_table: ReadInputs) -> None:
    with pytest.raises(MisuseError, match="got the columns id, content, expected 'text'"):
        read_table(pa.table({"id": [1], "content": ["x"]}))


def test_a_nested_id_is_refused(read_table: ReadInputs) -> None:
    with pytest.raises(MisuseError, match=r"the id column holds no single values.*--id-field"):
        read_table(pa.table({"id": [["a"]], "text": ["x"]}))


def test_quality_that_is_no_number_is_refused(read_table: ReadInputs) -> None:
    with pytest.raises(MisuseError, match=r"the quality column holds no numbers.*got string"):
        read_table(pa.table({"q": ["high"], "text": ["x"]}), quality="q")


def test_nested_text_is_found_and_its_absence_told_from_null(read_table: ReadInputs) -> None:
    table = pa.table(
        {
            "id": [1, 2, 3, 4],
            "doc": [{"body": {"text": "deep"}}, {"body": None}, {"body": {"text": None}}, None],
        }
    )
    outcome = read_table(table, text_field="doc.body.text", id_field="id")
    assert (outcome.ids, outcome.texts) == (["1"], ["deep"])
    assert outcome.reasons == [(1, "no_text_field"), (2, "text_null"), (3, "no_text_field")]


def test_a_column_whose_name_has_a_dot_is_found(read_table: ReadInputs) -> None:
    assert read_table(pa.table({"meta.text": ["flat"]}), text_field="meta.text").texts == ["flat"]


def test_ids_and_kept_fields_become_text(read_table: ReadInputs) -> None:
    table = pa.table(
        {
            "text": ["x", "y"],
            "id": pa.array([2**63, None], pa.uint64()),
            "price": pa.array([Decimal("1.50"), None]),
            "day": pa.array([date(2024, 2, 29), None]),
            "raw": pa.array([b"\x00\xff", None]),
            "tags": pa.array([["a", "é"], None]),
            "kind": pa.array(["k", None]).dictionary_encode(),
            "score": pa.array([0.5, float("nan")]),
        }
    )
    kept = ("price", "day", "raw", "tags", "kind", "score", "absent")
    outcome = read_table(table, keep_fields=kept, quality="score")
    assert outcome.ids == ["9223372036854775808", None]
    assert {name: outcome.columns[name] for name in (*kept, "quality_column")} == {
        "price": ["1.50", None],
        "day": ["2024-02-29", None],
        "raw": ["00ff", None],
        "tags": ['["a","é"]', None],
        "kind": ["k", None],
        "score": ["0.5", None],
        "absent": [None, None],
        "quality_column": [0.5, None],
    }


FAR = 86_400_000 * 5 * 10**10
"""A time, in whole days, that no datetime of Python can hold, whatever the unit."""

TIMES = [pa.date64(), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.duration("ns")]
SINGLE: list[tuple[pa.Array, list[str | None] | None]] = [
    (pa.array([True, None]), ["true", None]),
    (pa.array([1.5, float("nan")], pa.float64()).cast(pa.float16()), ["1.5", None]),
    (pa.array([b"ok", None], pa.binary_view()), ["6f6b", None]),
    (pa.array([b"ok", None], pa.large_binary()), ["6f6b", None]),
    (pa.array([b"ok", None]).dictionary_encode(), ["6f6b", None]),
    (pa.array(["ok", None], pa.string_view()), ["ok", None]),
    (pa.array([Decimal(1) / 8, None], pa.decimal256(50, 3)), ["0.125", None]),
    (pa.array([86399001, None], pa.time32("ms")), ["23:59:59.001", None]),
    (pa.array([10**9, None], pa.date32()), ["<value out of range: 1000000000>", None]),
    *((pa.array([FAR, None], pa.int64()).cast(kind, safe=False), None) for kind in TIMES),
    (pa.array([(1, 2, 3), None], pa.month_day_nano_interval()), None),
    (pa.RunEndEncodedArray.from_arrays([1, 2], pa.array(["ok", None])), ["ok", None]),
    (pa.RunEndEncodedArray.from_arrays([1, 2], pa.array([7, None])), ["7", None]),
    (
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(range(16)), None], pa.binary(16))),
        ["00010203-0405-0607-0809-0a0b0c0d0e0f", None],
    ),
    (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None])), ["{}", None]),
    (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None], pa.int8())), ["1", None]),
]
REFUSED = {
    True: ("the id column holds no single values", "a column holds what cannot be written as text"),
    False: "a column holds what cannot be written as text",
}
NESTED: list[tuple[pa.Array, list[str | None] | None]] = [
    (pa.array([{"a": b"\0"}, None]), ['{"a":"AA=="}', None]),
    (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())), ['[["k",1]]', None]),
    (pa.array([[1], None], pa.list_view(pa.int8())), ["[1]", None]),
    (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), ["[1,2]", None]),
    (pa.array([[1], None], pa.large_list(pa.timestamp("ns"))), ['["1970-01-01 00:00:00.000000001"]', None]),
    *(
        (pa.array([[FAR], None], pa.list_(pa.int64())).cast(pa.list_(kind), safe=False), None)
        for kind in TIMES
    ),
    (pa.array([{"t": 1}, None], pa.struct([("t", pa.time64("ns"))])), ['{"t":"00:00:00.000000001"}', None]),
    (pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, None])]), ["1", None]),
]


@pytest.mark.parametrize(
    ("column", "expected"), SINGLE + NESTED, ids=lambda value: str(getattr(value, "type", ""))
)
def test_a_column_of_any_type_is_text_or_refused_before_anything_is_read_and_never_damage(
    read_table: ReadInputs, column: pa.Array, expected: list[str | None] | None
) -> None:
    for as_id in (True, False):
        table = pa.table({"id" if as_id else "kept": column, "text": ["x", "y"]})
        try:
            outcome = read_table(table, keep_fields=() if as_id else ("kept",))
        except (MisuseError, pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            # Parquet has not all types of Arrow, nor all their values.
            refused = isinstance(error, pa.ArrowException) or str(error).startswith(REFUSED[as_id])
            assert refused, error  # noqa: PT017
            continue
        assert (outcome.damage, outcome.texts, outcome.reasons) == ([], ["x", "y"], [])
        found = outcome.ids if as_id else outcome.columns["kept"]
        assert found[1] is None
        assert expected is None or found == expected


def test_a_piece_of_a_compressed_stream_is_read_without_those_before_it(
    read_inputs: ReadInputs, tmp_path: Path
) -> None:
    path, texts = tmp_path / "a.arrow", [f"text number {n} of the stream" * 30 for n in range(12)]
    kinds = pa.array([f"kind {n // 4}" for n in range(12)])
    options = pa.ipc.IpcWriteOptions(compression="lz4", emit_dictionary_deltas=True)
    table = pa.table({"text": texts, "kind": kinds})
    schema = pa.schema([("text", pa.string()), ("kind", pa.dictionary(pa.int8(), pa.string()))])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema, options=options) as writer:
        # Each batch has a dictionary of its own.
        for start in range(0, 12, 3):
            writer.write_table(pa.table(table.slice(start, 3).to_pydict()).cast(schema))
    whole = read_inputs([str(path)], keep_fields=("kind",))
    parts = read_inputs([str(path)], keep_fields=("kind",), piece_bytes=100)
    assert (parts.pieces, whole.pieces, parts.damage) == (4, 1, [])
    assert (parts.texts, parts.columns["kind"]) == (texts, kinds.to_pylist())
    assert whole.texts == texts
    data = path.read_bytes()
    place = data.index(b"text number 0")
    # LZ4 that promises more than there is: whoever decompresses it says so.
    path.write_bytes(data[: place - 8] + b"\xff" * 8 + data[place:])
    damaged = read_inputs([str(path)], keep_fields=("kind",), piece_bytes=100)
    assert (len(damaged.damage), damaged.texts) == (1, texts[3:])


def test_text_stored_by_runs_or_under_a_name_of_its_own_is_text(
    read_inputs: ReadInputs, tmp_path: Path
) -> None:
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["ab", "c"]))
    write_file(tmp_path / "a.arrow", pa.table({"text": runs}))
    named = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[1]"]))
    write_file(tmp_path / "b.arrow", pa.table({"text": named}))
    assert read_inputs([str(tmp_path)]).texts == ["ab", "ab", "c", "[1]"]


def test_what_datasets_add_to_a_schema_changes_nothing(read_table: ReadInputs) -> None:
    table = pa.table({"label": [0, 1], "translation": [{"en": "a", "de": "b"}, {"en": "c", "de": "d"}]})
    table = table.replace_schema_metadata(
        {"huggingface": '{"info": {"features": {"label": {"names": ["n", "p"]}}}}'}
    )
    outcome = read_table(table, text_field="translation.en", keep_fields=("label",))
    assert (outcome.texts, outcome.columns["label"]) == (["a", "c"], ["0", "1"])


def test_strings_that_are_no_utf8_cost_one_record(read_table: ReadInputs) -> None:
    data = pa.array([b"ok", b"bad \xff", b"\xed\xa0\x80", None, b"fine"], pa.binary())
    text = pa.StringArray.from_buffers(5, data.buffers()[1], data.buffers()[2], data.buffers()[0])
    ids = pa.array([b"\xff", b"b", b"c", b"d", b"e"], pa.binary())
    ids = pa.StringArray.from_buffers(5, ids.buffers()[1], ids.buffers()[2])
    outcome = read_table(pa.table({"id": ids, "text": text}))
    assert (outcome.ids, outcome.texts, outcome.rows) == (["e"], ["fine"], [4])
    assert outcome.reasons == [(0, "bad_utf8"), (1, "bad_utf8"), (2, "bad_utf8"), (3, "text_null")]
    assert outcome.unreadable[1].excerpt == "bad \ufffd"


def test_a_record_over_the_limit_is_unreadable(read_table: ReadInputs) -> None:
    outcome = read_table(pa.table({"text": ["x" * 1025, "y" * 1024]}), max_record_bytes=1024)
    assert (outcome.texts, outcome.reasons) == (["y" * 1024], [(0, "record_too_large")])
    assert (outcome.unreadable[0].detail, len(outcome.unreadable[0].excerpt)) == ("1025 bytes", 200)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_how_a_table_is_cut_never_changes_what_is_read(read_table: ReadInputs, rows: int) -> None:
    texts = [None if i % 7 == 3 else f"text {i} " * (i % 5) for i in range(100)]
    table = pa.table({"id": list(range(100)), "text": texts})
    whole = read_table(table, rows=100)
    cut = read_table(table, rows=rows, piece_bytes=64, batch_bytes=100)
    assert cut.pieces > 1 or rows == 1000
    assert (cut.ids, cut.texts, cut.rows) == (whole.ids, whole.texts, whole.rows)
    assert cut.unreadable == whole.unreadable
    assert cut.batches > whole.batches


def test_a_limit_stops_after_so_many_records(read_table: ReadInputs) -> None:
    outcome = read_table(pa.table({"text": ["a", None, "b", "c"]}), limit=3)
    assert (outcome.texts, outcome.reasons) == (["a", "b"], [(1, "text_null")])


def test_tables_without_rows_are_empty(read_table: ReadInputs) -> None:
    outcome = read_table(pa.table({"text": pa.array([], pa.string())}))
    assert (outcome.records, outcome.damage) == (0, [])


def test_a_parquet_file_without_row_groups_is_empty(tmp_path: Path, read_inputs: ReadInputs) -> None:
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(tmp_path / "none.parquet", schema):
        pass
    with pq.ParquetWriter(tmp_path / "other.parquet", pa.schema([("x", pa.int64())])):
        pass
    with pq.ParquetWriter(tmp_path / "some.parquet", schema) as writer:
        for texts in (["a"], [], ["b"]):
            writer.write_table(pa.table({"text": texts}, schema=schema))
    outcome = read_inputs([str(tmp_path)])
    assert (outcome.texts, outcome.rows, outcome.damage) == (["a", "b"], [0, 1], [])


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_file_of_no_bytes_is_empty(tmp_path: Path, read_inputs: ReadInputs, name: str) -> None:
    (tmp_path / name).touch()
    assert (read_inputs([str(tmp_path / name)]).records, read_inputs([str(tmp_path / name)]).damage) == (
        0,
        [],
    )


TABLE = pa.table({"id": [str(i) for i in range(30)], "text": [f"some words {i} " * 40 for i in range(30)]})


def test_a_parquet_file_without_a_footer_is_damage(tmp_path: Path, read_inputs: ReadInputs) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, TABLE)
    path.write_bytes(path.read_bytes()[:-20])
    outcome = read_inputs([str(path)])
    assert (outcome.records, [damage.reason for damage in outcome.damage]) == (0, ["no_footer"])
    assert outcome.damage[0].byte_offset == path.stat().st_size


def test_a_damaged_row_group_costs_only_itself(tmp_path: Path, read_inputs: ReadInputs) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        TABLE, path, row_group_size=10, compression="zstd", write_page_checksum=True, use_dictionary=False
    )
    about = pq.ParquetFile(path).metadata.row_group(1).column(1)
    data = bytearray(path.read_bytes())
    place = about.data_page_offset + about.total_compressed_size - 20
    data[place] ^= 0xFF
    path.write_bytes(data)
    outcome = read_inputs([str(path)])
    assert outcome.rows == [*range(10), *range(20, 30)]
    assert [damage.reason for damage in outcome.damage] == ["corrupt"]
    assert outcome.damage[0].detail.startswith("row group 1: ")
    assert outcome.damage[0].byte_offset is not None
    assert 0 < outcome.damage[0].byte_offset <= place


def test_an_arrow_file_without_a_footer_is_read_as_the_stream_it_holds(
    tmp_path: Path, read_inputs: ReadInputs
) -> None:
    path = tmp_path / "a.arrow"
    write_file(path, TABLE, 10)
    path.write_bytes(path.read_bytes()[:-20])
    outcome = read_inputs([str(path)])
    assert outcome.rows == list(range(30))
    assert [damage.reason for damage in outcome.damage] == ["no_footer"]


@pytest.mark.parametrize("piece_bytes", [2**20, 1000])
def test_a_stream_that_is_cut_gives_the_batches_before(
    tmp_path: Path, read_inputs: ReadInputs, piece_bytes: int
) -> None:
    path = tmp_path / "a.arrow"
    write_stream(path, TABLE, 10)
    path.write_bytes(path.read_bytes()[:-1000])
    outcome = read_inputs([str(path)], piece_bytes=piece_bytes)
    assert outcome.rows == list(range(20))
    assert [damage.reason for damage in outcome.damage] == ["truncated"]


def test_offsets_that_lead_outside_the_data_are_damage(tmp_path: Path, read_inputs: ReadInputs) -> None:
    path = tmp_path / "a.arrow"
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 0x01020304, 2)))
    broken = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"ab"))
    schema = pa.schema([("text", pa.string())])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([["before"]], schema=schema))
        writer.write_batch(pa.RecordBatch.from_arrays([broken], schema=schema))
        writer.write_batch(pa.record_batch([["after"]], schema=schema))
    outcome = read_inputs([str(path)])
    assert outcome.texts == ["before", "after"]
    assert [damage.reason for damage in outcome.damage] == ["corrupt"]
    assert outcome.damage[0].detail.startswith("record batch 1: ")
    place = outcome.damage[0].byte_offset or 0
    assert path.read_bytes()[place:].startswith(b"\xff\xff\xff\xff")
    assert path.read_bytes()[:place].count(b"before") == 1


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_bytes_that_are_nothing_are_damage_and_never_an_exception(
    tmp_path: Path, read_inputs: ReadInputs, name: str
) -> None:
    (tmp_path / name).write_bytes(b"\x00\x01\x02 nothing that could be read" * 10)
    outcome = read_inputs([str(tmp_path / name)])
    assert (outcome.records, len(outcome.damage)) == (0, 1)


def test_large_tables_are_cut_into_groups(tmp_path: Path) -> None:
    for name, write in WRITERS.items():
        write(tmp_path / name, TABLE, 5)
    plan = plan_inputs([str(tmp_path)], piece_bytes=8000)
    ranges = [[(p.start, p.stop) for p in plan.pieces if p.file is file] for file in plan.files]
    assert ranges[0] == [(0, 2), (2, 4), (4, 6)]
    for found in ranges:
        assert [stop for _, stop in found[:-1]] == [start for start, _ in found[1:]]
        assert found[0][0] == 0
        assert found[-1][1] in (6, -1)
    assert [piece.first for piece in plan.pieces] == [piece.start == 0 for piece in plan.pieces]


def test_a_folder_saved_by_datasets_gives_its_arrow_files(tmp_path: Path, read_inputs: ReadInputs) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"id": ["a", "b", "c"], "text": ["1", "2", "3"]})
    saved = datasets.DatasetDict({"train": data, "test": data.select([2, 0])})
    saved.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "saved" / "train" / "cache-0123.arrow").write_bytes(b"left by a map")
    plan = plan_inputs([str(tmp_path / "saved")])
    assert [file.source for file in plan.files] == [
        "test/data-00000-of-00001.arrow",
        "train/data-00000-of-00001.arrow",
    ]
    outcome = read_inputs([str(tmp_path / "saved")])
    assert outcome.texts == ["3", "1", "1", "2", "3"]
    one = read_inputs([str(tmp_path / "saved" / "train")])
    assert (one.ids, one.damage) == (["a", "b", "c"], [])


def test_a_saved_folder_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(
        MisuseError, match=r"a saved dataset lacks a file: .* expected data-00000-of-00001.arrow"
    ):
        plan_inputs([str(tmp_path)])
