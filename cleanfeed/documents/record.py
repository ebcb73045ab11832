"""What a reader gives: Arrow batches of documents, unreadable records beside them, and damage to whole files."""

from __future__ import annotations

import pyarrow as pa
from msgspec import Struct

UNREADABLE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("line", pa.int64()),
        pa.field("row", pa.int64()),
        pa.field("byte_offset", pa.int64()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("excerpt", pa.string(), nullable=False),
    ]
)
"""One record that could not become a document: ``line`` is 1-based and null where there are no lines; ``row`` is
0-based; ``byte_offset`` is in the decompressed stream and null where a format has no such thing."""


class Unreadable(Struct, frozen=True):
    """A record that could not become a document, and why.

    ``row`` counts records from the start of the piece being read; the build adds the records before the piece.
    """

    row: int
    line_format: bool
    byte_offset: int | None
    reason: str
    detail: str
    excerpt: str


class Damage(Struct, frozen=True):
    """A file that could be read only in part; it is no record and is not counted as one."""

    reason: str
    byte_offset: int | None
    detail: str


class DocumentBatch(Struct, frozen=True):
    """Some consecutive records of one piece of one file.

    ``table`` has the columns ``doc_id`` (string, null where the record has none), ``row`` (int64, 0-based from the
    start of the piece), ``text`` (large_string, never null, valid UTF-8), ``lone_surrogates`` (int32: escapes
    repaired to U+FFFD), then one column for each kept field, under its own name.
    """

    table: pa.RecordBatch
    unreadable: tuple[Unreadable, ...] = ()


class PieceResult(Struct):
    """What is known of a piece after its last batch."""

    records: int = 0
    """Records that took a row number: documents and unreadable ones."""
    rows: int = 0
    """Row numbers used: for line formats every physical line, blank ones too."""
    bytes_read: int = 0
    damage: Damage | None = None
