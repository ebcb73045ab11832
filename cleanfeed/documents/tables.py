"""Arrow record batches of any schema go in; columns of documents, and the rows that are none, come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cleanfeed.documents.fields import ID, TEXT, Columns, Fields, excerpt, text_offsets
from cleanfeed.documents.record import Unreadable
from cleanfeed.errors import MisuseError, one_line

Mask = npt.NDArray[np.bool_]


def find_field(schema: pa.Schema, name: str) -> tuple[str, ...] | None:
    """Return the path of a field in a schema: nested where there is one, else the column of that very name."""
    path = tuple(name.split("."))
    level: Any = schema
    for key in path:
        at = level.get_field_index(key) if isinstance(level, pa.Schema | pa.StructType) else -1
        if at < 0:
            return (name,) if schema.get_field_index(name) >= 0 else None
        found = level.field(at)
        level = found.type
    return path


def type_of(schema: pa.Schema, path: tuple[str, ...]) -> pa.DataType:
    """Return the type at a path that :func:`find_field` gave."""
    found = schema.field(path[0])
    for key in path[1:]:
        found = found.type.field(key)
    return found.type


def check_schema(schema: pa.Schema, fields: Fields, where: str, *, empty: bool = False) -> None:
    """Refuse a schema whose columns cannot become documents.

    Args:
        schema: What the file declares.
        fields: What is asked for.
        where: The file, for the message.
        empty: The file has no rows, so a missing column hurts nothing.

    Raises:
        MisuseError: The text column is missing or of another type, or the id, quality or a kept column cannot be used.
    """
    names = fields.names
    path = find_field(schema, names[TEXT])
    if path is None:
        if empty:
            return
        raise MisuseError(
            one_line(
                "no record has the text field",
                where,
                got=f"the columns {', '.join(schema.names[:20])}",
                expected=repr(names[TEXT]),
                todo="Name the field with the text with --text-field.",
            )
        )
    kind = type_of(schema, path)
    if not (_is_text(kind) or pa.types.is_null(kind)):
        raise MisuseError(
            one_line(
                "the text column holds no strings",
                f"{where}, column {names[TEXT]!r}",
                got=str(kind),
                expected="string, large_string, string_view or dictionary of these",
                todo=_nearby(kind, names[TEXT]),
            )
        )
    path = find_field(schema, names[ID])
    if path is not None and pa.types.is_nested(_values(type_of(schema, path))):
        got = str(type_of(schema, path))
        raise MisuseError(
            one_line(
                "the id column holds no single values",
                f"{where}, column {names[ID]!r}",
                got=got,
                expected="strings or numbers",
                todo="Name another field with --id-field.",
            )
        )
    for slot in (ID, *fields.kept):
        path = find_field(schema, names[slot])
        if path is not None and not _can_be_strings(type_of(schema, path)):
            raise MisuseError(
                one_line(
                    "a column holds what cannot be written as text",
                    f"{where}, column {names[slot]!r}",
                    got=str(type_of(schema, path)),
                    todo="Leave it out, or write the column as strings.",
                )
            )
    path = None if fields.quality is None else find_field(schema, fields.quality)
    if path is not None and not _is_number(type_of(schema, path)):
        raise MisuseError(
            one_line(
                "the quality column holds no numbers",
                f"{where}, column {fields.quality!r}",
                got=str(type_of(schema, path)),
                expected="a number",
            )
        )


def _nearby(kind: pa.DataType, name: str) -> str:
    """Return what to do about a text column of another type."""
    if pa.types.is_struct(kind):
        inner = [field.name for field in kind if _is_text(field.type)]
        if inner:
            return f"Pick a field inside it: --text-field {name}.{inner[0]}."
    if _is_bytes(_values(kind)):
        return "Bytes are not decoded silently: write the column as UTF-8 strings."
    return "Name a nested field with dots (--text-field a.b), or write the column as strings."


class TableReader:
    """Turns record batches of one schema into columns."""

    def __init__(self, fields: Fields, schema: pa.Schema) -> None:
        self.fields = fields
        self.paths = [find_field(schema, name) for name in fields.names]

    def read(self, batch: pa.RecordBatch, row: int) -> Columns:
        """Return the records of a batch whose first record has this row number."""
        fields, size = self.fields, batch.num_rows
        reasons = np.full(size, "", dtype=object)
        texts, present = self._column(batch, TEXT)
        texts = _as_text(texts, pa.large_string())
        offsets = text_offsets(texts)
        nulls = np.asarray(pc.is_null(texts).to_numpy(zero_copy_only=False))
        reasons[nulls] = "text_null"
        reasons[~present] = "no_text_field"
        sizes = np.diff(offsets)
        reasons[(sizes > fields.settings.max_record_bytes) & (reasons == "")] = "record_too_large"
        ids = _as_strings(self._column(batch, ID)[0])
        kept = [_as_strings(self._column(batch, slot)[0]) for slot in fields.kept]
        for column in (texts, ids, *kept):
            reasons[_bad_utf8(column) & (reasons == "")] = "bad_utf8"
        good = reasons == ""
        mask = pa.array(good)
        quality = None
        if fields.quality is not None:
            quality = _as_numbers(self._column(batch, len(fields.names) - 1)[0]).filter(mask)
        failed = [self._failure(str(reasons[i]), texts, sizes, int(i), row) for i in np.flatnonzero(~good)]
        everything = bool(good.all())
        return Columns(
            rows=np.flatnonzero(good).astype(np.int64) + row,
            texts=texts if everything else texts.filter(mask),
            ids=ids if everything else ids.filter(mask),
            kept=[column if everything else column.filter(mask) for column in kept],
            quality=quality,
            lone=np.zeros(int(good.sum()), dtype=np.int32),
            unreadable=failed,
        )

    def _failure(self, reason: str, texts: Any, sizes: Any, at: int, row: int) -> Unreadable:
        details = {
            "text_null": "the text is null",
            "no_text_field": f"no field {self.fields.names[TEXT]!r}",
            "record_too_large": f"{sizes[at]} bytes",
            "bad_utf8": "a string holds bytes that are no UTF-8",
        }
        start = int(text_offsets(texts)[at])
        stop = min(start + int(sizes[at]), start + 1024)
        data = texts.buffers()[2]
        shown = excerpt(memoryview(data)[start:stop]) if data is not None and stop > start else ""
        return Unreadable(row + at, False, None, reason, details[reason], shown)

    def _column(self, batch: pa.RecordBatch, slot: int) -> tuple[Any, Mask]:
        """Return the values of a slot, and which rows have the record they lie in."""
        path = self.paths[slot]
        present = np.ones(batch.num_rows, dtype=bool)
        if path is None:
            return pa.nulls(batch.num_rows), ~present
        column = batch.column(batch.schema.get_field_index(path[0]))
        for key in path[1:]:
            present &= np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False))
            column = pc.struct_field(column, [column.type.get_field_index(key)])
        return column, present


def gather(parts: Iterator[Columns], batch_bytes: int) -> Iterator[Columns]:
    """Join small blocks into ones of about ``batch_bytes`` of text, so that what follows has less to call."""
    held: list[Columns] = []
    size = 0
    for part in parts:
        bytes_here = _text_bytes(part.texts)
        if held and size + bytes_here > batch_bytes:
            yield _joined(held)
            held, size = [], 0
        held.append(part)
        size += bytes_here
    if held:
        yield _joined(held)


def _joined(parts: list[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return Columns(
        rows=np.concatenate([part.rows for part in parts]),
        texts=pa.concat_arrays([part.texts for part in parts]),
        ids=pa.concat_arrays([part.ids for part in parts]),
        kept=[pa.concat_arrays([part.kept[i] for part in parts]) for i in range(len(first.kept))],
        quality=None if first.quality is None else pa.concat_arrays([part.quality for part in parts]),
        lone=np.concatenate([part.lone for part in parts]),
        unreadable=[record for part in parts for record in part.unreadable],
    )


def _text_bytes(texts: pa.LargeStringArray) -> int:
    offsets = text_offsets(texts)
    return int(offsets[-1] - offsets[0]) if len(texts) else 0


def _values(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values, also where they are stored once each or once a run, or have a type's own name."""
    while True:
        if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def _plain(column: Any) -> Any:
    """Return a column of the same values, whose type is what :func:`_values` says."""
    while column.type != _values(column.type):
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        elif pa.types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        else:
            column = column.storage
    return column


def _is_text(kind: pa.DataType) -> bool:
    kind = _values(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def _as_text(column: Any, to: pa.DataType) -> Any:
    """Return strings of any layout in one layout. The bytes are not looked at."""
    return _plain(column).cast(to, safe=False)


def _can_be_strings(kind: pa.DataType) -> bool:
    try:
        _as_strings(pa.nulls(1, kind))
    except pa.ArrowException:
        return False
    return True


def _as_strings(column: Any) -> Any:
    """Return single values as text: numbers as they are written, bytes in hex, anything nested as JSON."""
    is_uuid = getattr(column.type, "extension_name", "") == "arrow.uuid"
    column = _plain(column)
    kind = column.type
    if _is_text(kind) or pa.types.is_null(kind):
        return _as_text(column, pa.string())
    if pa.types.is_floating(kind):
        # Not-a-number is how data frames write a missing value.
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
    write: Callable[[Any], str | bytes]
    if is_uuid:
        write = _uuid
    elif _is_bytes(kind):
        write = bytes.hex
    elif pa.types.is_nested(kind):
        write, column = msgspec.json.Encoder(enc_hook=str).encode, column.cast(_spelt(kind))
    else:
        return column.cast(pa.string())
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], pa.string())


def _uuid(value: bytes) -> str:
    return str(UUID(bytes=value))


def _spelt(kind: pa.DataType) -> pa.DataType:
    """Return a type with dates and times inside it as text, as they are outside: not all of them exist in Python."""
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_spelt(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_spelt(kind.key_type), _spelt(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_spelt(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_spelt(kind.value_type))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_spelt(kind.value_type))
    return kind


def _as_numbers(column: Any) -> Any:
    """Return numbers as float64, null where they are not finite."""
    if pa.types.is_null(column.type):
        return column.cast(pa.float64())
    numbers = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))


def _bad_utf8(column: Any) -> Mask:
    """Return which strings are no valid UTF-8. Files may hold such strings; Arrow itself looks only when asked."""
    bad = np.zeros(len(column), dtype=bool)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raw = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
        for i, value in enumerate(raw):
            try:
                (value.as_py() or b"").decode("utf-8")
            except UnicodeDecodeError:
                bad[i] = True
    return bad
