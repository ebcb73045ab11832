"""A block of JSON Lines goes in; its texts, unescaped into one Arrow buffer, and the JSON of other fields come out.

Compiled code goes over the block once and is strict: whatever is out of the ordinary refuses the whole block, which is
then read in another way. What it accepts is JSON of the standard, each line one object of at most ``limit`` bytes.

No look at a byte needs to ask whether the block goes on: its last byte is a line end, no part of a record takes one,
and so there is always a byte after those that were taken. Only the instructions on 64 bytes ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanfeed.documents.json_steps import (
    AFTER_ITEM,
    AFTER_KEY,
    CLOSED,
    ENDED,
    FIRST_ITEM,
    FIRST_KEY,
    KEY,
    OPENED_LIST,
    SCALAR,
    START,
    STRING,
    WALKED,
    make_steps,
)
from cleanfeed.kernel import Kernel, bytes_in, copy_64, inner, ones, trailing_zeros
from cleanfeed.kernel_cache import ensure_cache

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

DEEPEST = 32
"""Objects and lists inside each other that are followed; more are refused."""

LONGEST = 32
"""Characters of a number that is believed; with an exponent of at most two digits none is out of range."""

_QUOTE, _BACKSLASH, _OBJECT, _LINE_END, _RETURN = (ord(char) for char in '"\\{\n\r')

_ends_plain = bytes_in(64, (_QUOTE, _QUOTE), (_BACKSLASH, _BACKSLASH), (0, 31))
_newlines = bytes_in(64, (_LINE_END, _LINE_END))

_MEANINGS = np.zeros(256, dtype=np.uint8)
_MEANINGS[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')
"""What a letter after a backslash stands for, 0 where that is no escape of one letter."""

_DIGITS = np.full(256, -1, dtype=np.int32)
_DIGITS[list(b"0123456789abcdef")] = range(16)
_DIGITS[list(b"ABCDEF")] = range(10, 16)

_LEADS = np.array([0, 0xC0, 0xE0, 0xF0], dtype=np.uint8)
"""What the first byte of a character begins with, by how many more it has."""

_STEPS = make_steps()
for _table in (_MEANINGS, _DIGITS, _LEADS, _STEPS):
    _table.flags.writeable = False


@inner
def _simple(data: Bytes, at: int, out: Bytes, to: int) -> tuple[int, int]:
    """Unescape a string up to its end, a control byte or an escape that may be of more than one letter.

    Near the end of the block it may stop at any escape. Returns where it stopped in both.

    ``to`` is never greater than ``at``, since no escape is shorter than what it stands for: 64 bytes that are in
    ``data``, which is as long as ``out``, are in ``out`` too.
    """
    # The last of 64 bytes may begin an escape, and behind that 64 bytes are copied again.
    while at + 65 + 64 <= len(data):
        after = at + 64
        copy_64(data, at, out, to)
        found = _ends_plain(data, at)
        while found:
            skip = trailing_zeros(found)
            at += skip
            to += skip
            meaning = _MEANINGS[data[at + 1]]
            if data[at] != _BACKSLASH or not meaning:
                return at, to
            out[to] = meaning
            at += 2
            to += 1
            copy_64(data, at, out, to)
            found = found >> np.uint64(skip) >> np.uint64(2)
        if at < after:
            to += after - at
            at = after
    while data[at] >= 32 and data[at] != _QUOTE and data[at] != _BACKSLASH:
        out[to] = data[at]
        at += 1
        to += 1
    return at, to


@inner
def _unit(data: Bytes, at: int) -> int:
    """Return the number of four hexadecimal digits, negative where they are none."""
    number = 0
    for place in range(at, at + 4):
        digit = _DIGITS[data[place]]
        if digit < 0:
            return -1
        number = number << 4 | digit
    return number


@inner
def _escaped_code(data: Bytes, at: int, out: Bytes, to: int) -> tuple[int, int]:
    """Read an escape by number, from its digits on, into ``out``; return where both go on, (-1, ..) if it is none."""
    code = _unit(data, at)
    at += 4
    if code >> 11 == 0xD800 >> 11:
        low = -1
        if code < 0xDC00 and data[at] == _BACKSLASH and data[at + 1] == 117:
            low = _unit(data, at + 2)
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) if low >> 10 == 0xDC00 >> 10 else -1
        at += 6
    if code < 0:
        return -1, to
    more = (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
    out[to] = _LEADS[more] | code >> 6 * more
    while more:
        more -= 1
        to += 1
        out[to] = 0x80 | (code >> 6 * more) & 0x3F
    return at, to + 1


@inner
def _string(data: Bytes, at: int, out: Bytes, to: int) -> tuple[int, int]:
    """Unescape a string from after its opening quote on into ``out``; return where both go on, (-1, ..) if refused."""
    while True:
        stop, to = _simple(data, at, out, to)
        at = stop + 1
        if data[stop] == _QUOTE:
            return at, to
        if data[stop] != _BACKSLASH:
            return -1, to
        meaning = _MEANINGS[data[at]]
        at += 1
        if meaning:
            out[to] = meaning
            to += 1
        elif data[at - 1] == 117:
            at, to = _escaped_code(data, at, out, to)
            if at < 0:
                return at, to
        else:
            return -1, to


@inner
def _slot(data: Bytes, start: int, stop: int, names: Bytes, ends: Places) -> int:
    """Return which name a key is, -1 for none."""
    begin = 0
    for slot in range(len(ends)):
        end = ends[slot]
        if end - begin == stop - start:
            place = begin
            while place < end and names[place] == data[start + place - begin]:
                place += 1
            if place == end:
                return slot
        begin = end
    return -1


@inner
def _record(
    data: Bytes, at: int, names: Bytes, ends: Places, out: Bytes, begin: int, spans: Places, first: int
) -> tuple[int, int]:
    """Read the rest of an object; return where it ends and where its text ends in ``out``, (-1, ..) if refused.

    Args:
        data: The block.
        at: Place after the byte that opens the object.
        names: The wanted names, the text's first, one after the other.
        ends: Where each ends.
        out: Takes the unescaped text.
        begin: Where it shall begin there.
        spans: Takes where the value of each other wanted field starts and stops.
        first: Where those of this object shall begin there.
    """
    refused = -1, begin
    # Of what is open, outermost highest, each bit says whether it is an object.
    depth, objects, slot, texts, to, start, state = 1, 1, -1, 0, begin, at, FIRST_KEY
    while True:
        while state >= WALKED:
            state = _STEPS[state << 8 | data[at]]
            at += 1
        if depth == 1 and state >= STRING:
            if slot > 0:
                spans[first + 2 * slot - 2] = at - 1
            elif slot == 0 and (state != STRING or texts):
                return refused
        if state in (KEY, STRING):
            start = at
            at, end = _string(data, at, out, to)
            if at < 0:
                return refused
            if state == KEY:
                if end - to != at - 1 - start:
                    return refused  # a key with an escape in it
                slot = _slot(data, start, at - 1, names, ends) if depth == 1 else slot
                state = AFTER_KEY
                continue
            if depth == 1 and slot == 0:
                to = end
                texts = 1
        elif state == SCALAR:
            at -= 1
            start = at
            state = START
            continue
        elif state >= OPENED_LIST:
            depth += 1
            if depth > DEEPEST:
                return refused
            objects = objects << 1 | state - OPENED_LIST
            state += FIRST_ITEM - OPENED_LIST
            continue
        elif state == ENDED:
            at -= 1
            if at - start > LONGEST:
                return refused
        elif state == CLOSED:
            depth -= 1
            objects >>= 1
            if depth == 0:
                return (at, to) if texts else refused
        else:
            return refused
        if depth == 1 and slot > 0:
            spans[first + 2 * slot - 1] = at
        state = AFTER_ITEM + (objects & 1)


@Kernel
def read_lines(
    data: Bytes, limit: int, names: Bytes, ends: Places, out: Bytes, offsets: Places, spans: Places
) -> bool:
    """Read as many lines as there are ``offsets`` but one, all there are in the block; return False if refused.

    Args:
        data: The block; its last byte is a line end.
        limit: Most bytes of a line, its end left out.
        names: The wanted names, the text's first, one after the other.
        ends: Where each ends.
        out: Takes the unescaped texts one after the other; as long as the block.
        offsets: Takes where each ends, after where the first one begins: 0.
        spans: Takes where the values of the other fields start and stop, line by line; holds -1 everywhere.
    """
    at = 0
    for line in range(len(offsets) - 1):
        start = at
        if data[at] != _OBJECT:
            return False
        first = line * 2 * (len(ends) - 1)
        at, offsets[line + 1] = _record(data, at + 1, names, ends, out, offsets[line], spans, first)
        if at < 0:
            return False
        at += data[at] == _RETURN
        if data[at] != _LINE_END or at - start > limit:
            return False
        at += 1
    return True


@Kernel
def _line_ends(data: Bytes) -> int:
    """Return how many lines a block has."""
    count = np.int64(0)
    for at in range(0, len(data) - 63, 64):
        count += ones(_newlines(data, at))
    for at in range(len(data) & ~63, len(data)):
        count += data[at] == _LINE_END
    return int(count)


class BlockScanner:
    """Reads blocks for one choice of top-level fields."""

    def __init__(self, names: Sequence[str]) -> None:
        """Take the names of the fields, the text's first, none of them twice."""
        coded = [name.encode() for name in names]
        self._names = np.frombuffer(b"".join(coded), dtype=np.uint8)
        self._ends = np.cumsum([len(name) for name in coded], dtype=np.int64)

    def read(self, data: bytes, limit: int) -> tuple[pa.LargeStringArray, Places] | None:
        """Return the texts of a block, and where the values of the other fields lie in it, or None if it is refused.

        The places have one row a line, with start and stop of each field; -1 is what is not there.
        """
        if not data.endswith(b"\n"):
            return None
        codes = np.frombuffer(data, dtype=np.uint8)
        count, others = _line_ends(codes), len(self._ends) - 1
        offsets = np.zeros(count + 1, dtype=np.int64)
        spans = np.full(count * 2 * others, -1, dtype=np.int64)
        out = np.empty(len(data), dtype=np.uint8)
        if not read_lines(codes, limit, self._names, self._ends, out, offsets, spans):
            return None
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out).slice(0, int(offsets[-1]))]
        texts = pa.Array.from_buffers(pa.large_string(), count, buffers, null_count=0)
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            return None
        return texts, spans.reshape(count, 2 * others)


ensure_cache(Path(__file__).parent)
