"""The fields a build asks for go in; their paths, and the Arrow batches that carry them, come out.

A field is named by keys joined with dots. ``meta.text`` is first looked for as ``text`` inside ``meta``, then as one
key that is spelled ``meta.text``, which is what flattening tools write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field

from cleanfeed.documents.record import DocumentBatch, Unreadable
from cleanfeed.errors import MisuseError, one_line
from cleanfeed.settings import DocumentSettings

QUALITY_COLUMN = "quality_column"
"""Column of a batch with the number the pipeline takes quality from; only there when it is asked for."""

BATCH_ROWS = 16_384
"""Rows in the largest batch."""

BATCH_BYTES = 8 * 2**20
"""Bytes of text in the largest batch; a larger record is a batch alone."""

EXCERPT_CHARS = 200

FIXED_COLUMNS = ("doc_id", "row", "text", "lone_surrogates")

TEXT, ID, FIRST_KEPT = 0, 1, 2
"""Slots: the places of a record's values, in the order of :attr:`Fields.names`."""


class Fields(Struct, frozen=True):
    """What is taken from each record."""

    settings: DocumentSettings
    quality: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The fields in slot order: text, id, the kept ones, then the quality column where there is one."""
        last = () if self.quality is None else (self.quality,)
        return (self.settings.text_field, self.settings.id_field, *self.settings.keep_fields, *last)

    @property
    def kept(self) -> range:
        """Slots of the kept fields."""
        return range(FIRST_KEPT, FIRST_KEPT + len(self.settings.keep_fields))

    def schema(self) -> pa.Schema:
        """Return the schema of every batch, whatever the records hold."""
        columns = [
            pa.field("doc_id", pa.string()),
            pa.field("row", pa.int64(), nullable=False),
            pa.field("text", pa.large_string(), nullable=False),
            pa.field("lone_surrogates", pa.int32(), nullable=False),
        ]
        columns += [pa.field(name, pa.string()) for name in self.settings.keep_fields]
        if self.quality is not None:
            columns.append(pa.field(QUALITY_COLUMN, pa.float64()))
        return pa.schema(columns)

    def _origin(self, slot: int) -> str:
        """Return where the name of a slot's field is given."""
        if slot in self.kept:
            return "documents.keep_fields (--keep-field)"
        options = {TEXT: "documents.text_field (--text-field)", ID: "documents.id_field (--id-field)"}
        return options.get(slot, "quality.column")

    def check(self) -> None:
        """Refuse names that no record could have or that would be two columns at once.

        Raises:
            MisuseError: A name is empty, cannot be looked up, is asked for twice or belongs to another column.
        """
        for slot, name in enumerate(self.names):
            if not all(name.split(".")) or any(char in '"\\' or ord(char) < 32 for char in name):
                raise MisuseError(
                    one_line(
                        "a field name cannot be looked up",
                        self._origin(slot),
                        repr(name),
                        "a key, or keys joined by dots",
                    )
                )
        kept = self.settings.keep_fields
        for name in kept:
            if kept.count(name) > 1:
                raise MisuseError(
                    one_line(
                        "a field is kept twice", self._origin(FIRST_KEPT), repr(name), todo="Name it once."
                    )
                )
            if name in (*FIXED_COLUMNS, QUALITY_COLUMN):
                raise MisuseError(
                    one_line(
                        "a kept field has the name of a column every record has",
                        self._origin(FIRST_KEPT),
                        repr(name),
                        todo="Rename the field in the input.",
                    )
                )


class Columns(Struct):
    """Decoded records of one block, column by column, and the records that failed."""

    rows: npt.NDArray[np.int64]
    texts: pa.LargeStringArray
    ids: pa.StringArray
    kept: list[pa.StringArray]
    quality: pa.DoubleArray | None
    lone: npt.NDArray[np.int32]
    unreadable: list[Unreadable] = field(default_factory=list)

    def until(self, records: int) -> Columns:
        """Return the first records only, documents and unreadable ones counted together."""
        if len(self.rows) + len(self.unreadable) <= records:
            return self
        failed = np.array([record.row for record in self.unreadable], dtype=np.int64)
        last = np.sort(np.concatenate((self.rows, failed)))[records - 1] if records else np.int64(-1)
        keep = int(np.searchsorted(self.rows, last, side="right"))
        return Columns(
            rows=self.rows[:keep],
            texts=self.texts.slice(0, keep),
            ids=self.ids.slice(0, keep),
            kept=[column.slice(0, keep) for column in self.kept],
            quality=None if self.quality is None else self.quality.slice(0, keep),
            lone=self.lone[:keep],
            unreadable=[record for record in self.unreadable if record.row <= last],
        )


def batches(columns: Columns, schema: pa.Schema, batch_bytes: int) -> Iterator[DocumentBatch]:
    """Yield the records of a block in batches of at most ``batch_bytes`` of text and :data:`BATCH_ROWS` rows."""
    arrays = [columns.ids, pa.array(columns.rows), columns.texts, pa.array(columns.lone), *columns.kept]
    if columns.quality is not None:
        arrays.append(columns.quality)
    table = pa.RecordBatch.from_arrays(arrays, schema=schema)
    cuts = _cuts(columns.texts, batch_bytes)
    failed = columns.unreadable
    for start, stop in cuts:
        if stop == len(columns.rows):
            mine, failed = failed, []
        else:
            edge = int(columns.rows[stop])
            mine = [record for record in failed if record.row < edge]
            failed = failed[len(mine) :]
        yield DocumentBatch(table.slice(start, stop - start), tuple(mine))


def _cuts(texts: pa.LargeStringArray, batch_bytes: int) -> list[tuple[int, int]]:
    """Return where to cut so that no part has too many bytes or rows; one empty part where there are no texts."""
    count = len(texts)
    if not count:
        return [(0, 0)]
    offsets = text_offsets(texts)
    cuts, start = [], 0
    while start < count:
        stop = int(np.searchsorted(offsets, offsets[start] + batch_bytes, side="right")) - 1
        stop = min(max(stop, start + 1), start + BATCH_ROWS, count)
        cuts.append((start, stop))
        start = stop
    return cuts


def text_offsets(texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Return the offsets of an array's texts in its data, one more than there are texts."""
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int64)
    return offsets[texts.offset : texts.offset + len(texts) + 1]


def excerpt(data: bytes | memoryview, around: int = 0) -> str:
    """Return a short piece of a record for a person to read, bytes that are no UTF-8 shown as U+FFFD."""
    start = max(0, around - EXCERPT_CHARS // 2)
    return bytes(data[start : start + 4 * EXCERPT_CHARS]).decode("utf-8", "replace")[:EXCERPT_CHARS]


def strings_of(values: Sequence[bytes | msgspec.Raw]) -> list[str | None]:
    """Return JSON values as text: strings as they are, null as None, anything else as it is written.

    Raises:
        UnicodeDecodeError: A value is not valid UTF-8.
        msgspec.DecodeError: The same, inside a string.
    """
    joined = b",".join(values)
    if b'"' not in joined and b"[" not in joined and b"{" not in joined:
        plain = joined.decode("ascii").split(",") if values else []
        return [None if value == "null" else value for value in plain]
    try:
        return _STRINGS.decode(b"[" + joined + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A number or a container among the strings, or bytes that are no UTF-8: each value by itself.
        return [string_of(bytes(value)) for value in values]


def string_of(value: bytes) -> str | None:
    """Return one JSON value as text, like :func:`strings_of`."""
    if value == b"null":
        return None
    return _STRING.decode(value) if value.startswith(b'"') else value.decode("utf-8")


def number_of(value: bytes) -> float | None:
    """Return a JSON value as a finite number, or None where it is none."""
    if value[:1] not in b"-0123456789":
        return None
    number = float(value)
    return number if math.isfinite(number) else None


_STRINGS = msgspec.json.Decoder(list[str | None])
_STRING = msgspec.json.Decoder(str)
