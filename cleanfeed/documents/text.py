"""A plain text file goes in; the one document it is comes out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cleanfeed.documents.codecs import BrokenStream, ByteStream
from cleanfeed.documents.fields import Columns, Fields, excerpt
from cleanfeed.documents.record import Damage, PieceResult, Unreadable
from cleanfeed.documents.shape import BOM, wide_encoding
from cleanfeed.documents.work import Piece

READ_BYTES = 2**20


def read_text(piece: Piece, fields: Fields, result: PieceResult) -> Iterator[Columns]:
    """Yield the document of a file; an empty file has none. A file that is cut gives what is before the cut."""
    limit = fields.settings.max_record_bytes
    parts: list[bytes] = []
    size = 0
    try:
        with ByteStream(piece.file.path, piece.file.compression) as stream:
            while chunk := stream.read(READ_BYTES):
                size += len(chunk)
                if size <= limit + len(BOM) or not parts:
                    parts.append(chunk)
                else:
                    del parts[1:]
    except BrokenStream as broken:
        result.damage = Damage(broken.reason, broken.offset, broken.detail)
    data = b"".join(parts)
    result.bytes_read = size
    wide = wide_encoding(data[:4])
    if wide is not None:
        result.damage = wide
        return
    if data.startswith(BOM):
        data, size = data[len(BOM) :], size - len(BOM)
    if not size:
        return
    result.rows = 1
    if size > limit:
        yield _failed(fields, "record_too_large", f"{size} bytes", excerpt(data))
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        cut = result.damage is not None and error.reason == "unexpected end of data"
        if not cut:
            detail = f"byte 0x{data[error.start]:02x} at byte {error.start} is no UTF-8"
            yield _failed(fields, "bad_utf8", detail, excerpt(data, error.start))
            return
        text = data[: error.start].decode("utf-8")
    yield _column(fields, [text], [])


def _failed(fields: Fields, reason: str, detail: str, shown: str) -> Columns:
    return _column(fields, [], [Unreadable(0, False, 0, reason, detail, shown)])


def _column(fields: Fields, texts: list[str], failed: list[Unreadable]) -> Columns:
    count = len(texts)
    return Columns(
        rows=np.zeros(count, dtype=np.int64),
        texts=pa.array(texts, pa.large_string()),
        ids=pa.nulls(count, pa.string()),
        kept=[pa.nulls(count, pa.string()) for _ in fields.kept],
        quality=None if fields.quality is None else pa.nulls(count, pa.float64()),
        lone=np.zeros(count, dtype=np.int32),
        unreadable=failed,
    )
