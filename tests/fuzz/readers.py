"""Bytes go in as a file of some format and compression; every promise of a reader is held against what comes out."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from cleanfeed.documents.fields import Fields
from cleanfeed.documents.plan import check_columns, plan_inputs
from cleanfeed.documents.read import read_piece
from cleanfeed.errors import CleanfeedError
from cleanfeed.settings import DocumentSettings

SUFFIXES = (".jsonl", ".json", ".txt", ".parquet", ".arrow")
CODECS: tuple[tuple[str, Any], ...] = (
    ("", lambda data: data),
    (".gz", gzip.compress),
    (".zst", zstandard.ZstdCompressor().compress),
    (".bz2", bz2.compress),
    (".xz", lzma.compress),
    # Compressed bytes that are fuzzed themselves.
    (".gz", lambda data: data),
    (".zst", lambda data: data),
    (".bz2", lambda data: data),
    (".xz", lambda data: data),
)
SETTINGS = (
    (DocumentSettings(), None),
    (DocumentSettings(text_field="a.b", keep_fields=("text", "n")), None),
    (DocumentSettings(id_field="n", max_record_bytes=1024), "q"),
)
FOLDER = Path(tempfile.mkdtemp(prefix="cleanfeed-fuzz-"))


def target(data: bytes) -> None:
    """Read the bytes, twice cut in different ways, and compare."""
    if len(data) < 3:
        return
    suffix = SUFFIXES[data[0] % len(SUFFIXES)]
    ending, compress = CODECS[data[1] % len(CODECS)]
    settings, quality = SETTINGS[data[2] % len(SETTINGS)]
    path = FOLDER / f"in{suffix}{ending}"
    path.write_bytes(compress(data[3:]))
    try:
        found = [_read(path, settings, quality, piece_bytes, batch) for piece_bytes, batch in CUTS]
    finally:
        path.unlink()
    if suffix in (".jsonl", ".json"):
        assert found[0] == found[1], "how a file is cut changes what is read"


CUTS = ((1 << 25, 1 << 23), (200, 64))


def _read(
    path: Path, settings: DocumentSettings, quality: str | None, piece_bytes: int, batch_bytes: int
) -> Any:
    try:
        plan = plan_inputs([str(path)], piece_bytes=piece_bytes)
        check_columns(plan, settings, quality)
    except CleanfeedError as error:
        return _refused(error)
    schema = Fields(settings, quality).schema()
    documents: list[tuple[int, Any]] = []
    unreadable: list[tuple[int, str, int | None]] = []
    before = 0
    try:
        for piece in plan.pieces:
            rows: list[int] = []
            batches, result = read_piece(piece, settings, quality_column=quality, batch_bytes=batch_bytes)
            for batch in batches:
                batch.table.validate(full=True)
                assert batch.table.schema.equals(schema)
                assert batch.table.column("text").null_count == 0
                columns = batch.table.to_pydict()
                rows += columns["row"]
                documents += [
                    (before + row, tuple(columns[name][n] for name in ("doc_id", "text", "lone_surrogates")))
                    for n, row in enumerate(columns["row"])
                ]
                for record in batch.unreadable:
                    rows.append(record.row)
                    unreadable.append((before + record.row, record.reason, record.byte_offset))
                    record.excerpt.encode()
                    record.detail.encode()
            assert len(rows) == len(set(rows)), "a row twice"
            assert len(rows) == result.records, "records do not add up"
            assert all(0 <= row < result.rows for row in rows), "a row that is none"
            before += result.rows
    except CleanfeedError as error:
        return _refused(error)
    return sorted(documents), sorted(unreadable), before


def _refused(error: CleanfeedError) -> str:
    assert "\n" not in str(error), "an error of more than one line"
    return "refused"


def _table() -> pa.Table:
    return pa.table(
        {
            "id": ["a", None, "c", "d"],
            "text": ["one", "zwei \u00e4\u00f6\u00fc", None, "vier"],
            "n": [1, 2, 3, None],
            "q": [0.5, None, float("nan"), 1.0],
            "a": [{"b": "deep"}, None, {"b": None}, {"b": "x"}],
        }
    )


def _parquet(**options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(_table(), sink, **options)
    return sink.getvalue()


def _arrow(*, stream: bool) -> bytes:
    sink = io.BytesIO()
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(sink, _table().schema) as writer:
        for _ in range(3):
            writer.write_table(_table())
    return sink.getvalue()


LINES = b"".join(
    json.dumps(record).encode() + b"\n"
    for record in (
        {"id": "a", "text": "first"},
        {"id": 7, "text": "\u00e4 \ud83d\ude00 \u2028", "n": 1e300, "q": 2},
        {"text": None},
        {"a": {"b": "deep"}, "text": ["x"], "n": None},
        {"text": "x" * 2000, "q": "no"},
    )
)
EXTRA = (
    b'\xef\xbb\xbf{"id":"b","text":"\\ud83d half"}\r\n\n {"text":"a"}{"text":"b"}\n[{"text":"c"}]\n{"text":"t',
    b'{"text":"a","text":"b","n":' + b"9" * 500 + b"}\n" + b"[" * 300 + b"\n\xff\xfe\n",
    b'{"a.b":"flat","text":"\\u0000"}\n{"a":{"b":3}}\n{"\\u0061":{"b":"escaped"}}\n',
)


def _seeds() -> list[bytes]:
    plain = [LINES, *EXTRA]
    seeds = [bytes([0, codec, n % 3]) + data for n, data in enumerate(plain) for codec in range(5)]
    seeds += [bytes([2, codec, 0]) + data for data in plain for codec in (0, 1, 2)]
    for codec, (_, compress) in enumerate(CODECS[1:5]):
        whole = compress(LINES)
        seeds += [bytes([0, 5 + codec, 0]) + whole, bytes([0, 5 + codec, 0]) + whole + whole]
    tables = (_parquet(), _parquet(row_group_size=1), _parquet(compression="zstd", data_page_version="2.0"))
    seeds += [bytes([3, 0, n]) + data for n, data in enumerate(tables)]
    seeds += [bytes([4, 0, n]) + _arrow(stream=n % 2 == 0) for n in range(3)]
    return seeds


SEEDS = _seeds()
