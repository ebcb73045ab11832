"""One line of a JSON Lines file that the fast way refused goes in; its values, or the reason it has none, come out."""

from __future__ import annotations

import re
import threading
from typing import Any

import msgspec
from msgspec import Struct

from cleanfeed.documents.fields import ID, TEXT, Fields, excerpt

MAX_DIGITS = 4300
"""An id that is a longer number is not believed; Python itself reads no longer integers from text."""

NULL = b"null"

_LONE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""A whole surrogate pair, half of one (group 1), or any other escape."""

_CONSTANT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(-?(?:Infinity|NaN))', re.DOTALL)
"""A string, or a number no JSON has (group 1)."""

_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")

_TYPES = {
    ord("{"): "an object",
    ord("["): "an array",
    ord('"'): "a string",
    ord("t"): "true",
    ord("f"): "false",
}


class Values(Struct, frozen=True):
    """A line that became a record: its text, and the JSON of every slot (the text's own is not used)."""

    text: str
    slots: list[bytes]
    lone_surrogates: int


class Failure(Struct, frozen=True):
    """A line that became none."""

    reason: str
    detail: str
    excerpt: str


class _Level:
    """The keys wanted of one object, and below them those of the objects they hold."""

    def __init__(self, paths: dict[int, tuple[str, ...]]) -> None:
        keys = sorted({path[0] for path in paths.values()})
        self.slots = {key: [slot for slot, path in paths.items() if path == (key,)] for key in keys}
        deeper = {
            key: {s: path[1:] for s, path in paths.items() if path[0] == key and len(path) > 1}
            for key in keys
        }
        self.levels = {key: _Level(below) for key, below in deeper.items() if below}
        names = {key: f"f{i}" for i, key in enumerate(keys)}
        self.attributes = names
        shape = msgspec.defstruct(
            "Level",
            [(name, msgspec.Raw, b"") for name in names.values()],
            rename={n: k for k, n in names.items()},
        )
        self.decoder = msgspec.json.Decoder(shape)

    def walk(self, data: Any, found: dict[int, bytes]) -> None:
        """Put the JSON of every slot that is there into ``found``."""
        values = self.decoder.decode(data)
        for key, attribute in self.attributes.items():
            value = bytes(getattr(values, attribute))
            if not value:
                continue
            for slot in self.slots[key]:
                found[slot] = value
            if key in self.levels and value.startswith(b"{"):
                self.levels[key].walk(value, found)


class LineReader:
    """Reads one line at a time with every repair and every reason there is."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._nested = _Level({slot: tuple(name.split(".")) for slot, name in enumerate(fields.names)})
        literal: dict[int, tuple[str, ...]] = {
            slot: (name,) for slot, name in enumerate(fields.names) if "." in name
        }
        self._literal = _Level(literal) if literal else None

    def read(self, line: bytes) -> Values | Failure:
        """Return what a line holds. Lines of blanks are the caller's."""
        try:
            return self._read(line)
        except RecursionError:
            # How deep the decoder may go depends on how deep the caller already is. In a thread of its own it is
            # the same for every caller, and never less than the fast way had.
            return self._in_fresh_thread(line)

    def _in_fresh_thread(self, line: bytes) -> Values | Failure:
        results: list[Values | Failure] = []

        def run() -> None:
            try:
                results.append(self._read(line))
            except RecursionError:
                results.append(Failure("bad_json", "nested too deeply", excerpt(line)))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return results[0]

    def _read(self, line: bytes) -> Values | Failure:
        other = repaired = line
        try:
            found = self._find(line)
        except msgspec.ValidationError:
            return _no_object(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Two versions of the same length: where their texts differ, a half of a pair was repaired.
            repaired, other = (_CONSTANT.sub(_null, _LONE.sub(half, line)) for half in (_repair, _mark))
            try:
                found = self._find(repaired)
            except msgspec.ValidationError:
                return _no_object(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return _malformed(line, repaired, str(error))
        failure = self._check(line, found)
        if failure:
            return failure
        try:
            text = _TEXT.decode(found[TEXT])
            slots = [found.get(slot, NULL) for slot in range(len(self.fields.names))]
            for slot, value in enumerate(slots):
                if slot != TEXT:
                    value.decode("utf-8")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return _bad_utf8(line)
        lone = 0
        if repaired is not other:
            lone = text.count("\ufffd") - _TEXT.decode(self._find(other)[TEXT]).count("\ufffd")
        return Values(text, slots, lone)

    def _find(self, line: bytes) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        if self._literal is not None:
            self._literal.walk(line, found)
        self._nested.walk(line, found)
        return found

    def _check(self, line: bytes, found: dict[int, bytes]) -> Failure | None:
        """Return why the values found make no document."""
        text = found.get(TEXT)
        if text is None:
            return Failure("no_text_field", f"no field {self.fields.names[TEXT]!r}", excerpt(line))
        if text == NULL:
            return Failure("text_null", "the text is null", excerpt(line))
        if not text.startswith(b'"'):
            return Failure("text_not_string", f"the text is {_type(text)}", excerpt(line))
        number = found.get(ID, NULL)
        if len(number) > MAX_DIGITS and number[:1] in b"-0123456789":
            return Failure("bad_json", f"the id is a number of {len(number)} characters", excerpt(line))
        return None


def keys_of(line: bytes) -> list[str]:
    """Return the keys of an object, for a message."""
    try:
        return list(_KEYS.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def is_object(line: bytes) -> bool:
    """Whether a line is one whole JSON object."""
    return line.lstrip()[:1] == b"{" and is_json(line)


def is_json(line: bytes) -> bool:
    """Whether a line is one whole JSON value."""
    try:
        _ANY.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _no_object(line: bytes) -> Failure:
    if not is_json(line):
        return _malformed(line, line, _error(line))
    return Failure("not_an_object", f"the line is {_type(line.lstrip())}", excerpt(line))


def _error(line: bytes) -> str:
    try:
        _ANY.decode(line)
    except msgspec.DecodeError as error:
        return str(error)
    return "not JSON"


def _malformed(line: bytes, repaired: bytes, message: str) -> Failure:
    """Return why a line is no JSON."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return _bad_utf8(line)
    trailing = _TRAILING.search(message)
    if trailing:
        end = int(trailing[1]) - 1  # msgspec has already taken the byte it does not want
        if repaired[:end].lstrip()[:1] == b"{" and repaired[end:].lstrip()[:1] == b"{":
            detail = f"a second object starts at byte {end} of the line"
            return Failure("two_objects_on_one_line", detail, excerpt(line))
    return Failure("bad_json", message.removeprefix("JSON is malformed: "), excerpt(line))


def _bad_utf8(line: bytes) -> Failure:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"byte 0x{line[error.start]:02x} at byte {error.start} of the line is no UTF-8"
        return Failure("bad_utf8", detail, excerpt(line, error.start))
    return Failure("bad_json", "a string that cannot be decoded", excerpt(line))


def _type(value: bytes) -> str:
    if value[:1] in (b"n",):
        return "null"
    return _TYPES.get(value[0], "a number")


def _repair(match: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if match[1] else match[0]


def _mark(match: re.Match[bytes]) -> bytes:
    return b"\\ufffe" if match[1] else match[0]


def _null(match: re.Match[bytes]) -> bytes:
    return NULL if match[1] else match[0]


_TEXT = msgspec.json.Decoder(str)
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.json.Decoder(msgspec.Raw)
