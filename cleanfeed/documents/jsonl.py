"""A piece of a JSON Lines file goes in; batches of documents and the lines that are none come out.

Whole blocks are read at once by compiled code, or by msgspec where that refuses a block, into exactly the fields that
are wanted. Only a block that both refuse is read line by line, and only a line that is refused again is looked at
closely.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from cleanfeed.documents.codecs import BrokenStream, ByteStream
from cleanfeed.documents.fields import ID, TEXT, Columns, Fields, excerpt, number_of, string_of, strings_of
from cleanfeed.documents.json_record import MAX_DIGITS, NULL, Failure, LineReader, Values, keys_of
from cleanfeed.documents.lines import HEAD_BYTES, Block, LongLine, read_blocks, skip_line
from cleanfeed.documents.record import Damage, PieceResult, Unreadable
from cleanfeed.documents.shape import BOM, SHAPE_BYTES, shape_damage
from cleanfeed.documents.work import InputFile, Piece
from cleanfeed.errors import MisuseError, one_line

if TYPE_CHECKING:
    from cleanfeed.documents.json_blocks import BlockScanner

KERNEL = "cleanfeed.documents.json_blocks"
"""Module with the compiled code, which brings numba; where it is loaded it is used for every block."""

KERNEL_BYTES = 2**22
"""Blocks and files that are smaller do not make anyone load it, much less compile it, which takes 2 s."""

CHECK_BYTES = 2**16
"""Size of a block where only the first record with a text is looked for."""

_BLANK = b" \t\r\n"

_with_text: set[tuple[InputFile, str]] = set()
"""Files this process found a record with the text field in, so that each is searched once, not once a piece."""


class BlockReader:
    """Turns blocks of lines into columns."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.lines = LineReader(fields)
        self.with_text = 0
        """Records that had the text field, whatever it held."""
        self.keys_seen: list[str] | None = None
        """The keys of the first record without it."""
        self._fast = _FastDecoder(fields)
        names = fields.names
        self._flat = len(set(names)) == len(names) and not any("." in name for name in names)
        self._scanner: BlockScanner | None = None

    def read(self, block: Block, row: int) -> tuple[Columns, int]:
        """Return the records of a block whose first line has this row number, and how many lines it has."""
        data = block.data
        whole = self._compiled(data, row) or self._whole(data, row)
        if whole is not None:
            self.with_text += len(whole.texts)
            return whole, len(whole.texts)
        return self._by_line(block, row)

    def _compiled(self, data: bytes, row: int) -> Columns | None:
        """Read a block by compiled code, or return None where that is not at hand or refuses it."""
        if not self._flat or (len(data) < KERNEL_BYTES and KERNEL not in sys.modules):
            return None
        if self._scanner is None:
            from cleanfeed.documents.json_blocks import BlockScanner

            self._scanner = BlockScanner(self.fields.names)
        found = self._scanner.read(data, self.fields.settings.max_record_bytes)
        if found is None:
            return None
        texts, spans = found
        sizes = spans[:, 1] - spans[:, 0]
        if sizes.max() > MAX_DIGITS:
            return None
        slots = [
            _cut(data, *spans[:, 2 * slot : 2 * slot + 2].T.tolist()) for slot in range(spans.shape[1] // 2)
        ]
        try:
            others = [strings_of(slots[slot - ID]) for slot in (ID, *self.fields.kept)]
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        quality = None if self.fields.quality is None else [number_of(value) for value in slots[-1]]
        rows = np.arange(row, row + len(texts), dtype=np.int64)
        return _columns(rows, texts, others[0], others[1:], quality, np.zeros(len(texts), dtype=np.int32), [])

    def _whole(self, data: bytes, row: int) -> Columns | None:
        """Decode a block in one go, or return None where it holds anything out of the ordinary."""
        limit = self.fields.settings.max_record_bytes
        count = regular_lines(data, limit)
        if not count or self._fast.decoder is None:
            return None
        try:
            records = self._fast.decoder.decode_lines(data)
            if len(records) != count:
                return None
            slots = self._fast.columns(records)
            if slots is None:
                return None
            ids = strings_of(slots[ID])
            if any(len(value) > MAX_DIGITS for value in ids if value is not None):
                return None
            kept = [strings_of(slots[slot]) for slot in self.fields.kept]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        quality = None if self.fields.quality is None else [number_of(bytes(value)) for value in slots[-1]]
        rows = np.arange(row, row + count, dtype=np.int64)
        return _columns(rows, slots[TEXT], ids, kept, quality, np.zeros(count, dtype=np.int32), [])

    def pass_over(self, line: LongLine, row: int) -> Columns:
        """Return the one failed record a line over the limit is."""
        failure = _too_large(line.head, line.size)
        failed = Unreadable(row, True, line.offset, failure.reason, failure.detail, failure.excerpt)
        return self._gathered([], [failed])

    def _by_line(self, block: Block, row: int) -> tuple[Columns, int]:
        """Decode a block one line at a time."""
        found: list[tuple[int, Values]] = []
        failed: list[Unreadable] = []
        data, position, number = block.data, 0, row
        while position < len(data):
            end = data.find(b"\n", position)
            end = len(data) if end < 0 else end
            line = data[position:end]
            if line.strip(_BLANK):
                values = self._line(line)
                if isinstance(values, Values):
                    found.append((number, values))
                elif not block.torn:
                    failed.append(
                        Unreadable(
                            number,
                            True,
                            block.offset + position,
                            values.reason,
                            values.detail,
                            values.excerpt,
                        )
                    )
            position = end + 1
            number += 1
        if block.torn and not found:
            number = row
        return self._gathered(found, failed), number - row

    def _line(self, line: bytes) -> Values | Failure:
        if len(line) > self.fields.settings.max_record_bytes:
            return _too_large(line[:HEAD_BYTES], len(line))
        values = self._fast.line(line) or self.lines.read(line)
        if isinstance(values, Failure) and values.reason == "no_text_field":
            self.keys_seen = keys_of(line) if self.keys_seen is None else self.keys_seen
        elif isinstance(values, Values) or values.reason in ("text_null", "text_not_string"):
            self.with_text += 1
        return values

    def _gathered(self, found: list[tuple[int, Values]], failed: list[Unreadable]) -> Columns:
        fields = self.fields
        values = [value for _, value in found]
        slots = [value.slots for value in values]
        quality = None if fields.quality is None else [number_of(slot[-1]) for slot in slots]
        return _columns(
            np.array([number for number, _ in found], dtype=np.int64),
            [value.text for value in values],
            [string_of(slot[ID]) for slot in slots],
            [[string_of(slot[kept]) for slot in slots] for kept in fields.kept],
            quality,
            np.array([value.lone_surrogates for value in values], dtype=np.int32),
            failed,
        )


class _FastDecoder:
    """A msgspec decoder for exactly the fields wanted, where they do not lie inside each other."""

    def __init__(self, fields: Fields) -> None:
        self.decoder: msgspec.json.Decoder[Any] | None = None
        paths = [tuple(name.split(".")) for name in fields.names]
        inside = any(a != b and a == b[: len(a)] for a in paths for b in paths)
        if inside or len(set(paths)) < len(paths):
            return
        self._getters: list[attrgetter[Any]] = [attrgetter("")] * len(paths)
        literal = {(name,): None for name in fields.names if "." in name}
        shape = self._shape({path: slot for slot, path in enumerate(paths)}, "", tuple(literal))
        self._literals = [attrgetter(f"l{i}") for i in range(len(literal))]
        self.decoder = msgspec.json.Decoder(shape)

    def _shape(
        self, paths: dict[tuple[str, ...], int], prefix: str, literal: tuple[tuple[str], ...] = ()
    ) -> type:
        members: list[Any] = []
        renamed: dict[str, str] = {}
        for number, key in enumerate(sorted({path[0] for path in paths})):
            name = f"f{number}"
            renamed[name] = key
            slot = paths.get((key,))
            if slot == TEXT:
                members.append((name, str))
            elif slot is not None:
                members.append((name, msgspec.Raw, NULL))
            else:
                below = {path[1:]: slot for path, slot in paths.items() if path[0] == key}
                shape = self._shape(below, f"{prefix}{name}.")
                needed = any(slot == TEXT for slot in below.values())
                members.append(
                    (name, shape) if needed else (name, shape, msgspec.field(default_factory=shape))
                )
            if slot is not None:
                self._getters[slot] = attrgetter(prefix + name)
        for number, (key,) in enumerate(literal):
            renamed[f"l{number}"] = key
            members.append((f"l{number}", msgspec.Raw, b""))
        members.sort(key=len)
        return msgspec.defstruct("Record", members, rename=renamed, gc=False)

    def columns(self, records: list[Any]) -> list[list[Any]] | None:
        """Return the values of records slot by slot, or None where one is under its flat name."""
        for getter in self._literals:
            if any(map(len, map(getter, records))):
                return None
        return [list(map(getter, records)) for getter in self._getters]

    def line(self, line: bytes) -> Values | None:
        """Return the values of one line, or None where it must be looked at closely."""
        if self.decoder is None:
            return None
        try:
            record = self.decoder.decode(line)
            if any(len(getter(record)) for getter in self._literals):
                return None
            slots = [
                NULL if slot == TEXT else bytes(getter(record)) for slot, getter in enumerate(self._getters)
            ]
            for value in slots:
                value.decode("utf-8")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return None if len(slots[ID]) > MAX_DIGITS else Values(self._getters[TEXT](record), slots, 0)


def regular_lines(data: bytes, limit: int) -> int:
    """Return how many lines a block has if all are regular, else 0.

    Regular: each starts with ``{``, ends with ``}`` and a line end, and is no longer than ``limit``. Since a line end
    cannot be inside a string, nor between ``}`` and ``{`` inside a value, each such line is one object or several;
    as many objects as lines are then exactly one in each.
    """
    end = b"}\r\n" if data.endswith(b"}\r\n") else b"}\n"
    if not data.startswith(b"{") or not data.endswith(end):
        return 0
    codes = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(codes == 10)
    if len(data) > limit and np.diff(ends, prepend=-1).max() - 1 > limit:
        return 0
    if not (codes[ends[:-1] + 1] == ord("{")).all() or not (codes[ends - len(end) + 1] == ord("}")).all():
        return 0
    return 0 if len(end) == 3 and not (codes[ends - 1] == 13).all() else len(ends)


def _too_large(head: bytes, size: int) -> Failure:
    return Failure("record_too_large", f"{size} bytes", excerpt(head))


def _cut(data: bytes, starts: list[int], stops: list[int]) -> list[bytes]:
    """Return the values of a field in a block; null where it is not there, which has a negative start."""
    return [data[start:stop] if start >= 0 else NULL for start, stop in zip(starts, stops, strict=True)]


def _columns(
    rows: Any,
    texts: list[str] | pa.LargeStringArray,
    ids: list[str | None],
    kept: list[list[str | None]],
    quality: list[float | None] | None,
    lone: Any,
    failed: list[Unreadable],
) -> Columns:
    return Columns(
        rows=rows,
        texts=pa.array(texts, pa.large_string()) if isinstance(texts, list) else texts,
        ids=pa.array(ids, pa.string()),
        kept=[pa.array(column, pa.string()) for column in kept],
        quality=None if quality is None else pa.array(quality, pa.float64()),
        lone=lone,
        unreadable=failed,
    )


def check_text_field(file: InputFile, fields: Fields) -> None:
    """Read a file up to its first record with the text field.

    Raises:
        MisuseError: There are records and none has it.
    """
    reader = JsonlReader(Piece(file, 0, -1, first=True, bytes=file.size), fields, PieceResult(), CHECK_BYTES)
    for _ in reader.columns():
        if reader.found_text:
            return


class JsonlReader:
    """Reads one piece of a JSON Lines file."""

    def __init__(self, piece: Piece, fields: Fields, result: PieceResult, block_bytes: int) -> None:
        self._piece = piece
        self._fields = fields
        self._result = result
        self._block_bytes = block_bytes
        self._reader = BlockReader(fields)

    @property
    def found_text(self) -> bool:
        """A record with the text field was read."""
        return bool(self._reader.with_text)

    def columns(self) -> Iterator[Columns]:
        """Yield the records of the piece block by block, and note damage.

        Raises:
            MisuseError: There are records, and none in the whole file has the text field.
        """
        yield from self._blocks()
        reader = self._reader
        known = (self._piece.file, self._fields.names[TEXT])
        if self.found_text:
            _with_text.add(known)
        if reader.keys_seen is None or known in _with_text:
            return
        if self._elsewhere():
            _with_text.add(known)
            return
        keys = ", ".join(reader.keys_seen[:20])
        raise MisuseError(
            one_line(
                "no record has the text field",
                self._piece.file.source,
                got=f"the keys {keys}" if keys else "records without keys",
                expected=repr(self._fields.names[TEXT]),
                todo="Name the field with the text with --text-field.",
            )
        )

    def _blocks(self) -> Iterator[Columns]:
        result = self._result
        file = self._piece.file
        try:
            with ByteStream(file.path, file.compression, max(0, self._piece.start - 1)) as stream:
                for part in self._parts(stream):
                    if isinstance(part, Damage):
                        result.damage = part
                        return
                    if isinstance(part, LongLine):
                        columns, lines = self._reader.pass_over(part, result.rows), 1
                        result.bytes_read += part.size
                    else:
                        columns, lines = self._reader.read(part, result.rows)
                        result.bytes_read += len(part.data)
                    result.rows += lines
                    yield columns
        except BrokenStream as broken:
            result.damage = Damage(broken.reason, broken.offset, broken.detail)

    def _parts(self, stream: ByteStream) -> Iterator[Block | LongLine | Damage]:
        """Yield the blocks of the piece; at the start of a file look first whether it is JSON Lines at all."""
        piece, size = self._piece, self._block_bytes
        if piece.start:
            offset, held = skip_line(stream.read, piece.start - 1, size)
        else:
            offset, held = 0, stream.read(SHAPE_BYTES)
            damage = shape_damage(held)
            if damage is not None:
                yield damage
                return
            if held.startswith(BOM):
                offset, held = len(BOM), held[len(BOM) :]
        yield from read_blocks(
            stream.read,
            offset=offset,
            held=held,
            stop=None if piece.stop < 0 else piece.stop,
            block_bytes=size,
            max_line=self._fields.settings.max_record_bytes,
            broken=BrokenStream,
        )

    def _elsewhere(self) -> bool:
        """Whether a record in another part of the file has the text field."""
        if self._piece.start == 0 and self._piece.stop < 0:
            return False
        file = self._piece.file
        whole = Piece(file, 0, -1, first=True, bytes=file.size)
        other = JsonlReader(whole, self._fields, PieceResult(), self._block_bytes)
        return any(other.found_text for _ in other._blocks())
