"""An Arrow IPC file or stream goes in; groups of its record batches, or the documents in one, come out."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from cleanfeed.documents.codecs import open_raw
from cleanfeed.documents.fields import BATCH_ROWS, Columns, Fields
from cleanfeed.documents.parquet import DAMAGE, DICTIONARY_ROWS, Cut, cut_groups
from cleanfeed.documents.record import Damage, PieceResult
from cleanfeed.documents.tables import TableReader
from cleanfeed.documents.work import Piece

MAGIC = b"ARROW1"

BODY_START = 8
"""Where the stream begins that an Arrow file wraps: after its magic, padded."""


@contextmanager
def _open(path: str) -> Iterator[tuple[Any, bool]]:
    """Open a file, mapped into memory where it is local; also say whether it has the form of an Arrow file."""
    if "://" in path:
        with open_raw(path) as raw, pa.PythonFile(raw, mode="r") as source:
            yield source, _is_file(source)
    else:
        with pa.memory_map(path) as source:
            yield source, _is_file(source)


def _is_file(source: Any) -> bool:
    head: bytes = source.read(len(MAGIC))
    source.seek(0)
    return head == MAGIC


def cut_arrow(path: str, size: int, piece_bytes: int) -> list[Cut]:
    """Return ranges of record batches of about ``piece_bytes``; the last one is open where the file is cut."""
    if size <= piece_bytes:
        return [Cut(0, -1, 1)]
    sizes: list[int] = []
    whole = True
    try:
        with _open(path) as (source, is_file):
            if is_file:
                count = pa.ipc.open_file(source).num_record_batches
                sizes = [size // count] * count
            else:
                for message in pa.ipc.MessageReader.open_stream(source):
                    if message.type == "record batch":
                        sizes.append(message.body.size)
    except DAMAGE:
        whole = False
    cuts = cut_groups(sizes, piece_bytes)
    return cuts if whole else [*cuts[:-1], cuts[-1]._replace(stop=-1)]


def arrow_schema(path: str) -> pa.Schema | None:
    """Return the schema of a file, or None where it cannot be read."""
    try:
        with _open(path) as (source, is_file):
            if is_file:
                source.seek(BODY_START)
            return pa.ipc.open_stream(source).schema
    except DAMAGE:
        return None


def read_arrow(piece: Piece, fields: Fields, result: PieceResult, batch_bytes: int) -> Iterator[Columns]:
    """Yield the records of a range of record batches, and note damage."""
    if not piece.file.size:
        return
    try:
        with _open(piece.file.path) as (source, is_file):
            footer = _footer(source, result) if is_file else None
            if footer is None:
                source.seek(BODY_START if is_file else 0)
                found = _streamed(source, piece, result)
            else:
                found = _indexed(source, footer, piece, result)
            reader: TableReader | None = None
            for batch in found:
                reader = reader or TableReader(fields, batch.schema)
                yield from _records(batch, reader, result, batch_bytes)
    except DAMAGE as error:
        result.damage = result.damage or Damage("unreadable_file", 0, _said(error))


def _footer(source: Any, result: PieceResult) -> Any:
    """Open an Arrow file by its footer; without one the stream inside it can still be read."""
    try:
        return pa.ipc.open_file(source)
    except DAMAGE as error:
        result.damage = Damage("no_footer", source.size(), _said(error))
        return None


def _indexed(source: Any, file: Any, piece: Piece, result: PieceResult) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file that has a footer; a damaged one is passed over."""
    stop = file.num_record_batches if piece.stop < 0 else piece.stop
    for number in range(piece.start, stop):
        try:
            batch = file.get_batch(number)
            _check(batch)
        except DAMAGE as error:
            result.damage = result.damage or Damage(
                "corrupt", _place(source, number), f"record batch {number}: {_said(error)}"
            )
            continue
        yield batch


def _place(source: Any, number: int) -> int:
    """Return where a record batch begins in an Arrow file, or the nearest place before it that can be found."""
    source.seek(BODY_START)
    place: int = source.tell()
    with suppress(*DAMAGE, StopIteration):
        messages = pa.ipc.MessageReader.open_stream(source)
        while number >= 0:
            place = source.tell()
            number -= messages.read_next_message().type == "record batch"
    return place


def _streamed(source: Any, piece: Piece, result: PieceResult) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a stream up to where it breaks."""
    place, number = source.tell(), piece.start
    try:
        reader = pa.ipc.open_stream(_after(source, piece.start) if piece.start else source)
        while piece.stop < 0 or number < piece.stop:
            place = source.tell()
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            number += 1
            _check(batch)
            yield batch
    except DAMAGE as error:
        reason = "truncated" if isinstance(error, OSError) else "corrupt"
        result.damage = result.damage or Damage(reason, place, _said(error))


def _after(source: Any, count: int) -> pa.PythonFile:
    """Return a stream without its first record batches, which are neither decompressed nor decoded."""
    head = pa.BufferOutputStream()
    messages = pa.ipc.MessageReader.open_stream(source)
    while count:
        message = messages.read_next_message()
        if message.type == "record batch":
            count -= 1
        else:
            message.serialize_to(head)
    return pa.PythonFile(_Joined(head.getvalue().to_pybytes(), source), mode="r")


class _Joined(io.RawIOBase):
    """Some bytes and what is left of an open file, read as one."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head, self._rest = io.BytesIO(head), rest

    def read(self, size: int) -> bytes:  # type: ignore[override]
        found = self._head.read(size)
        if len(found) < size:
            found += self._rest.read(size - len(found))
        return found

    def readable(self) -> bool:
        return True


def _check(batch: pa.RecordBatch) -> None:
    """Raise where offsets lead outside the data. Bytes that are no UTF-8 cost only their record, later."""
    for column in batch.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise


def _records(
    batch: pa.RecordBatch, reader: TableReader, result: PieceResult, batch_bytes: int
) -> Iterator[Columns]:
    """Yield the records of a batch in parts of about ``batch_bytes``."""
    rows = max(1, min(BATCH_ROWS, batch_bytes * batch.num_rows // max(1, batch.nbytes)))
    if any(pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) for kind in batch.schema.types):
        rows = min(rows, DICTIONARY_ROWS)
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        records = reader.read(part, result.rows)
        result.rows += part.num_rows
        result.bytes_read += part.nbytes
        yield records


def _said(error: Exception) -> str:
    return " ".join(str(error).split())
