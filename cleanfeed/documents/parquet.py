"""A Parquet file goes in; groups of its row groups, or the documents in one such group, come out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from cleanfeed.documents.codecs import open_raw
from cleanfeed.documents.fields import TEXT, Columns, Fields
from cleanfeed.documents.record import Damage, PieceResult
from cleanfeed.documents.tables import TableReader
from cleanfeed.documents.work import Piece

DICTIONARY_ROWS = 256
"""Rows read at a time where a text may be stored once and used often: such rows are larger than they look."""

DAMAGE = (pa.ArrowException, OSError, EOFError, ValueError)
"""What pyarrow raises on a file it cannot read."""


class Cut(NamedTuple):
    """A range of neighbouring parts of a file; a ``stop`` of -1 is the end of the file."""

    start: int
    stop: int
    size: int
    """How large it is beside the others of its file; never 0."""


@contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file at a path or address; page checksums are checked where the file has them."""
    with open_raw(path, jumps=True) as raw:
        yield pq.ParquetFile(raw, page_checksum_verification=True, pre_buffer=False)


def cut_parquet(path: str, piece_bytes: int) -> list[Cut]:
    """Return ranges of row groups of about ``piece_bytes``, uncompressed; the whole file where it cannot be read."""
    try:
        with open_parquet(path) as file:
            about = file.metadata
            sizes = [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]
    except DAMAGE:
        return [Cut(0, -1, 1)]
    return cut_groups(sizes, piece_bytes)


def cut_groups(sizes: list[int], piece_bytes: int) -> list[Cut]:
    """Return ranges of neighbouring parts whose sizes add up to about ``piece_bytes``; at least one range."""
    cuts: list[Cut] = []
    start, held = 0, 0
    for i, size in enumerate(sizes):
        if i > start and held + size > piece_bytes:
            cuts.append(Cut(start, i, max(1, held)))
            start, held = i, 0
        held += size
    return [*cuts, Cut(start, len(sizes), max(1, held))] if cuts else [Cut(0, -1, 1)]


def parquet_schema(path: str) -> tuple[pa.Schema, bool] | None:
    """Return the schema of a file and whether it has no rows, or None where it cannot be read."""
    try:
        with open_parquet(path) as file:
            return file.schema_arrow, file.metadata.num_rows == 0
    except DAMAGE:
        return None


def read_parquet(piece: Piece, fields: Fields, result: PieceResult, batch_bytes: int) -> Iterator[Columns]:
    """Yield the records of a range of row groups, and note damage."""
    if not piece.file.size:
        return
    try:
        with open_parquet(piece.file.path) as file:
            stop = file.metadata.num_row_groups if piece.stop < 0 else piece.stop
            reader = TableReader(fields, file.schema_arrow)
            for group in range(piece.start, stop):
                yield from _group(file, group, reader, result, batch_bytes)
    except DAMAGE as error:
        reason = "no_footer" if isinstance(error, pa.ArrowInvalid) else "unreadable_file"
        result.damage = Damage(reason, piece.file.size, " ".join(str(error).split()))


def _group(
    file: pq.ParquetFile, group: int, reader: TableReader, result: PieceResult, batch_bytes: int
) -> Iterator[Columns]:
    """Yield the records of one row group. What follows a damaged page is lost, but keeps its row numbers."""
    about = file.metadata.row_group(group)
    first = result.rows
    columns = sorted({".".join(path) for path in reader.paths if path is not None})
    try:
        for batch in file.iter_batches(
            batch_size=_batch_rows(file, group, reader, batch_bytes),
            row_groups=[group],
            columns=columns,
            use_threads=False,
        ):
            records = reader.read(batch, result.rows)
            result.rows += batch.num_rows
            result.bytes_read += batch.nbytes
            yield records
    except DAMAGE as error:
        detail = f"row group {group}: {' '.join(str(error).split())}"
        result.damage = result.damage or Damage("corrupt", _place(about), detail)
    result.rows = first + about.num_rows


def _place(group: pq.RowGroupMetaData) -> int:
    """Return where a row group begins in the file."""
    columns = [group.column(i) for i in range(group.num_columns)]
    return int(min(column.dictionary_page_offset or column.data_page_offset for column in columns))


def _batch_rows(file: pq.ParquetFile, group: int, reader: TableReader, batch_bytes: int) -> int:
    """Return how many rows to read at a time so that they hold about ``batch_bytes`` of text."""
    about = file.metadata.row_group(group)
    path = ".".join(reader.paths[TEXT] or ())
    for i in range(about.num_columns):
        column = about.column(i)
        if column.path_in_schema == path and about.num_rows:
            size = max(1, column.total_uncompressed_size // about.num_rows)
            most = DICTIONARY_ROWS if any("DICTIONARY" in name for name in column.encodings) else 16_384
            return int(min(max(1, batch_bytes // size), most))
    return DICTIONARY_ROWS
