"""A piece of a file goes in; batches of its documents, then what is known of the piece, come out."""

from __future__ import annotations

from collections.abc import Iterator

from cleanfeed.documents.allocator import keep_freed_memory
from cleanfeed.documents.arrow import read_arrow
from cleanfeed.documents.fields import BATCH_BYTES, Columns, Fields, batches
from cleanfeed.documents.jsonl import JsonlReader
from cleanfeed.documents.parquet import read_parquet
from cleanfeed.documents.record import DocumentBatch, PieceResult
from cleanfeed.documents.tables import gather
from cleanfeed.documents.text import read_text
from cleanfeed.documents.work import Piece
from cleanfeed.settings import DocumentSettings


def read_piece(
    piece: Piece,
    settings: DocumentSettings,
    *,
    quality_column: str | None = None,
    batch_bytes: int = BATCH_BYTES,
    limit: int | None = None,
) -> tuple[Iterator[DocumentBatch], PieceResult]:
    """Read the documents of a piece.

    Args:
        piece: What to read.
        settings: Which fields to take.
        quality_column: A field whose numbers come as the column ``quality_column``.
        batch_bytes: Most bytes of text in a batch; a larger record is a batch alone.
        limit: Most records to read, unreadable ones included.

    Returns:
        The batches, and a result that is filled while they are taken and final after the last. A damaged file ends
        the batches; it never raises.

    Raises:
        MisuseError: While the batches are taken: no record of the file has the text field.
    """
    result = PieceResult()
    fields = Fields(settings, quality_column)
    return _batches(piece, fields, result, batch_bytes, limit), result


def _batches(
    piece: Piece, fields: Fields, result: PieceResult, batch_bytes: int, limit: int | None
) -> Iterator[DocumentBatch]:
    keep_freed_memory()
    schema = fields.schema()
    if limit is not None and limit <= 0:
        return
    for columns in _columns(piece, fields, result, batch_bytes):
        taken = columns if limit is None else columns.until(limit - result.records)
        result.records += len(taken.rows) + len(taken.unreadable)
        yield from batches(taken, schema, batch_bytes)
        if limit is not None and result.records >= limit:
            return


def _columns(piece: Piece, fields: Fields, result: PieceResult, batch_bytes: int) -> Iterator[Columns]:
    """Yield the records of a piece in blocks, by the kind of its file."""
    kind = piece.file.kind
    if kind == "jsonl":
        return JsonlReader(piece, fields, result, batch_bytes).columns()
    if kind == "parquet":
        return gather(read_parquet(piece, fields, result, batch_bytes), batch_bytes)
    if kind == "arrow":
        return gather(read_arrow(piece, fields, result, batch_bytes), batch_bytes)
    return read_text(piece, fields, result)
