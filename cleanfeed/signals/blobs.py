"""Bytes of a text go in; how much of it is encoded data comes out: base64, hex, hex dumps, data URIs, ids.

A run of letters and digits is data when upper case, lower case and digits follow each other as by chance; words,
identifiers, paths and sequences of one case (DNA) do not. Runs shorter than ``PROBE`` are never looked at, so only
every ``PROBE``-th byte is read where the text is made of words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import Kernel, inner, load_8, trailing_zeros

PROBE = 16
"""Shortest run that is looked at."""
MIN_BASE64 = 32
MIN_HEX = 32
MIN_MIXED = 40
MIN_UNBROKEN = 200
MIN_UNBROKEN_LETTERS = 17
"""A longer unbroken run is data too if it has more different characters than DNA, numbers or one held key."""
MIN_LINE = 40
"""Shortest line of an encoded block that continues on the next line."""
MIN_DUMP_BYTES = 8
MIN_DUMP_WORDS = 6

_UPPER, _LOWER, _DIGIT, _PLUS, _DASH, _HEX, _GAP, _BREAK = 1, 2, 4, 8, 16, 32, 64, 128
_ALNUM = _UPPER | _LOWER | _DIGIT
_RUN = _ALNUM | _PLUS | _DASH
NOTHING, BASE64, HEX, DUMP, DATA_URI, IDENTITY, OTHER = 0, 1, 2, 3, 4, 5, 6
"""Kinds of blob."""
BLOB_COUNTS = (
    "longest_blob",
    "base64_chars",
    "hex_chars",
    "hex_dump_chars",
    "data_uri_chars",
    "id_chars",
    "other_blob_chars",
)
"""What the kernel writes; the characters of each kind stand at its number. Blobs are ASCII: bytes are characters."""


def _byte_classes() -> npt.NDArray[np.uint8]:
    """Class flags of each byte."""
    classes = np.zeros(256, np.uint8)
    groups = [
        (b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", _UPPER),
        (b"abcdefghijklmnopqrstuvwxyz", _LOWER),
        (b"0123456789", _DIGIT),
        (b"+/", _PLUS),
        (b"-_", _DASH),
        (b"0123456789abcdefABCDEF", _HEX),
        (b" \t", _GAP),
        (b"\n\r", _BREAK),
    ]
    for members, flag in groups:
        for byte in members:
            classes[byte] |= flag
    return classes


_CLASS = _byte_classes()


_EACH = np.uint64(0x0101010101010101)
"""A one in each of eight bytes. Seven bits added to it cannot reach the next byte, which compares eight at once."""
_HIGH, _LOW, _CASE = (_EACH * np.uint64(byte) for byte in (0x80, 0x7F, 0x20))
_FROM_SLASH, _PAST_9, _FROM_A, _PAST_Z = (_EACH * np.uint64(0x80 - byte) for byte in (0x2F, 0x3A, 0x61, 0x7B))
_FIRST = np.uint64(0x80)
_ALL_PLUS, _ALL_DASH, _ALL_UNDERSCORE = (_EACH * np.uint64(byte) for byte in b"+-_")


@inner
def _outside(eight: Any) -> Any:
    """Mark in the highest bit of each of eight bytes that it is no letter, digit or one of ``+/-_``: ``_RUN``."""
    low = eight & _LOW
    folded = low | _CASE
    run = (low + _FROM_SLASH) & ~(low + _PAST_9)
    run |= (folded + _FROM_A) & ~(folded + _PAST_Z)
    run |= (_HIGH - (low ^ _ALL_PLUS)) | (_HIGH - (low ^ _ALL_DASH)) | (_HIGH - (low ^ _ALL_UNDERSCORE))
    return (~run | eight) & _HIGH


@inner
def _is_uuid(data: Any, start: int, stop: int) -> bool:
    """Tell 8-4-4-4-12 hex digits; the caller has checked that all other characters are hex digits."""
    if stop - start != 36:
        return False
    return bool(
        data[start + 8] == 0x2D
        and data[start + 13] == 0x2D
        and data[start + 18] == 0x2D
        and data[start + 23] == 0x2D
    )


@inner
def _distinct(data: Any, start: int, stop: int) -> int:
    """Count the different ASCII bytes of a stretch."""
    low, high = np.uint64(0), np.uint64(0)
    for i in range(start, stop):
        bit = np.uint64(1) << np.uint64(data[i] & 63)
        if data[i] & 64:
            high |= bit
        else:
            low |= bit
    count = 0
    for k in range(64):
        count += (low >> np.uint64(k)) & np.uint64(1)
        count += (high >> np.uint64(k)) & np.uint64(1)
    return int(count)


@inner
def classify_run(data: Any, start: int, stop: int) -> int:
    """Tell what a run of letters, digits and ``+/-_`` is: a kind of blob, or nothing."""
    n = stop - start
    upper = lower = digits = plus = dash = other = pairs = changes = capitals = before = byte_before = 0
    for i in range(start, stop):
        byte = np.int64(data[i])
        kind = np.int64(_CLASS[byte])
        group = kind & 7
        upper += kind & 1
        lower += kind >> 1 & 1
        digits += kind >> 2 & 1
        plus += kind >> 3 & 1
        dash += kind >> 4 & 1
        other += kind >> 5 & 1 ^ 1
        # pairs across + / - _ say nothing: these part words in paths and names; neither do equal neighbours
        if group != 0 and before != 0 and byte != byte_before:
            pairs += 1
            if group != before:
                changes += 1
            else:
                capitals += group & 1
        before, byte_before = group, byte
    letters = upper + lower
    if digits and letters:
        if other == 0 and n >= MIN_HEX:
            return 5 if n in (32, 40, 48, 56, 64, 96, 128) else 2
        if other == 4 and dash == 4 and _is_uuid(data, start, stop):
            return 5
        if other == 1 and n >= MIN_HEX + 2 and data[start] == 0x30 and data[start + 1] == 0x78:
            return 5 if n - 2 in (40, 64) else 2
    if n >= MIN_BASE64 and pairs >= 20 and not (plus and dash):
        few = n // 32
        random_case = changes * 5 >= pairs * 2 or (n >= 200 and changes * 10 >= pairs * 3)
        if random_case and capitals * 25 >= pairs and upper >= few and lower >= few and digits >= few:
            return 1
    if plus or dash:
        return 0
    if n >= MIN_MIXED and digits * 12 >= n and letters and changes * 5 >= pairs and pairs >= 20:
        return 6
    if n >= MIN_UNBROKEN and _distinct(data, start, stop) >= MIN_UNBROKEN_LETTERS:
        return 6
    return 0


@inner
def _dump(data: Any, floor: int, at: int) -> tuple[int, int, int, int]:
    """Look for a row of hex numbers around ``at``, as hex dumps have them.

    Returns:
        Start and end of the row, how many of its numbers are of the width of a dump, and how many of those
        have a letter; a count of 0 where there is no row.
    """
    n = len(data)
    start = at
    while start > floor and at - start < 64 and _CLASS[data[start - 1]] & 96:
        start -= 1
    if start > 0 and _CLASS[data[start - 1]] & 31:
        # the first number is the tail of a word
        while start < n and _CLASS[data[start]] & 32:
            start += 1
    while start < n and _CLASS[data[start]] & 64:
        start += 1
    i, stop, count, letters, width, fresh = start, start, 0, 0, 0, True
    while i < n:
        begin = i
        letter = False
        while i < n and _CLASS[data[i]] & 32:
            letter = letter or (_CLASS[data[i]] & 4) == 0
            i += 1
        size = i - begin
        ends = i >= n or not _CLASS[data[i]] & 31
        if fresh and 4 <= size <= 16 and ends:
            # an address; in dumps of 4-digit groups it may look like a group, which does no harm
            i += i < n and data[i] == 0x3A
        elif not ends or size == 0 or (size != 2 and size != 4) or (width and size != width):
            break
        else:
            width = size
            count += 1
            letters += letter
        stop = i
        fresh = False
        gap = i
        while i < n and i - gap < 12 and _CLASS[data[i]] & 192:
            fresh = fresh or (_CLASS[data[i]] & 128) != 0
            i += 1
    if (width == 2 and count >= MIN_DUMP_BYTES) or (width == 4 and count >= MIN_DUMP_WORDS):
        return start, stop, count, letters
    return start, stop, 0, 0


@inner
def _data_uri_start(data: Any, floor: int, start: int) -> int:
    """Return where the data URI begins whose payload begins at ``start``, or -1."""
    mark = b";base64,"
    if start - floor < 13:
        return -1
    for k in range(8):
        if data[start - 8 + k] != mark[k]:
            return -1
    i = start - 9
    while i > floor and start - i < 128 and data[i] < 0x80 and not (_CLASS[data[i]] & 192):
        if data[i] == 0x3A and i - 4 >= floor and data[i - 1] == 0x61 and data[i - 4] == 0x64:
            return i - 4
        i -= 1
    return -1


@inner
def _next_line(data: Any, at: int) -> int:
    """Return where the next line's text begins if only a line end (and an indent) follows, else -1."""
    n = len(data)
    i = at
    if i < n and data[i] == 0x0D:
        i += 1
    if i >= n or data[i] != 0x0A:
        return -1
    i += 1
    while i < n and i - at < 12 and _CLASS[data[i]] & 64:
        i += 1
    return i


@inner
def _run_end(data: Any, at: int) -> int:
    """Return the end of the run of letters, digits and ``+/-_`` that goes on at ``at``."""
    n = len(data)
    while at < n and _CLASS[data[at]] & 31:
        at += 1
    return at


@inner
def _padded(data: Any, at: int) -> int:
    """Return the position after up to two ``=``."""
    limit = min(len(data), at + 2)
    while at < limit and data[at] == 0x3D:
        at += 1
    return at


@inner
def _closes(data: Any, at: int) -> bool:
    """Tell whether the last, shorter line of a block may end here: a word of a sentence ends otherwise."""
    return bool(
        at >= len(data)
        or _CLASS[data[at]] & _BREAK
        or data[at] == 0x22
        or data[at] == 0x27
        or data[at] == 0x3C
    )


@inner
def _whole_block(data: Any, start: int, stop: int) -> int:
    """Follow an encoded block over its lines and return its end; the first line is [start, stop).

    Lines of the first line's length need no look at their letters, and a shorter one closes the block.
    """
    width = stop - start
    if width < MIN_LINE:
        return stop
    while True:
        begin = _next_line(data, stop)
        if begin < 0:
            return stop
        end = _run_end(data, begin)
        padded = _padded(data, end)
        if end == begin or end - begin > width or (end - begin < width and not _closes(data, padded)):
            return stop
        stop = padded
        if end - begin < width:
            return stop


@inner
def _in_row(data: Any, at: int) -> bool:
    """Tell whether five bytes look like the inside of a row of short hex numbers."""
    if at + 5 > len(data):
        return False
    seen, fits = 0, True
    for i in range(at, at + 5):  # to the end, for where to stop is anyone's guess, and a wrong one costs more
        kind = _CLASS[data[np.uint64(i)]] & 96
        fits &= kind != 0
        seen |= kind
    return fits & (seen == 96)


@Kernel
def scan_blobs(data: Any, offsets: Any, listed: Any, out: Any) -> int:
    """Measure documents, given as UTF-8, each into a row of ``out`` in the order of ``BLOB_COUNTS``.

    Args:
        data: The bytes.
        offsets: Where the documents start and stop in them, shape [documents + 1].
        listed: Rows of (kind, start, end) for the blobs of the last document; those beyond its length are measured,
            not listed.
        out: Where the numbers go, shape [documents, counts].

    Returns:
        Rows written to ``listed``.
    """
    found = np.int64(0)
    for d in range(len(offsets) - 1):
        found = _scan(data[offsets[d] : offsets[d + 1]], listed, out[d])
    return int(found)


@inner
def _scan(data: Any, listed: Any, out: Any) -> Any:
    """Do what :func:`scan_blobs` does for one document."""
    n = len(data)
    for k in range(7):
        out[k] = 0
    # typed: a literal 0 would have the functions below compiled once more for it
    floor = blob_end = at = found = longest = unsure = no_dump = np.int64(0)
    at += PROBE - 1
    while at < n:
        start, stop, kind = at, at, NOTHING
        if at >= no_dump and _in_row(data, at):
            start, stop, count, letters = _dump(data, floor, at)
            no_dump = stop
            if letters * 8 >= count > 0:
                kind = DUMP
            elif count:
                # numbers without a letter are a table unless the rest of the text is a dump
                unsure += stop - start
        after = before = np.uint64(0)
        if kind == NOTHING and at + 8 <= n:
            after, before = _outside(load_8(data, at)), _outside(load_8(data, at - 8))
        if after and before:
            # The run, if there is one, has less than 8 bytes to either side.
            if after & _FIRST == 0:
                floor = stop = at + (trailing_zeros(after) >> 3)
        elif kind == NOTHING and _CLASS[data[at]] & _RUN:
            start = at
            while start > floor and _CLASS[data[start - 1]] & _RUN:
                start -= 1
            stop = _run_end(data, at)
            if stop - start >= PROBE:
                uri = _data_uri_start(data, blob_end, start)
                if uri >= 0:
                    start, stop, kind = uri, _padded(data, stop), DATA_URI
                else:
                    kind = classify_run(data, start, stop)
                    if kind:
                        stop = _whole_block(data, start, _padded(data, stop))
            floor = stop
        if kind:
            floor = blob_end = stop
            out[kind] += stop - start
            longest = max(longest, stop - start)
            if found < len(listed):
                listed[found, 0], listed[found, 1], listed[found, 2] = kind, start, stop
                found += 1
        at = max(stop, at) + PROBE
    if unsure <= 4 * out[DUMP]:
        out[DUMP] += unsure
    out[0] = longest
    return found
