"""Bytes of a text go in; the share that is UTF-8 read as another encoding comes out (``Ã¤`` for ``ä``).

A character that stands for a lead byte must be followed by as many characters as that byte asks for, each standing
for a continuation byte, and together they must be valid UTF-8 again. Such a sequence counts if no healthy text has
it: ``é »`` and ``“Spaß”`` decode as well, and are French and German.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import Kernel, bytes_in, inner, trailing_zeros

MIN_CYRILLIC_CHAIN = 3
"""Pairs that must follow each other: two of them occur in healthy Ukrainian and Russian."""
MOJIBAKE_COUNTS = ("mojibake_chars",)
"""What the kernel writes."""
_SLOTS = 364
"""Size of the tables below, chosen so that no two characters of an encoding share a slot."""
_ODD, _LETTER = 0x100, 0x200
_NONE = np.uint64(0)
_BLOCK = 64
_leads = bytes_in(_BLOCK, (0xC3, 0xC3), (0xD0, 0xD0))
"""What is looked for begins with one of these."""


def _continuations(encoding: str, marks: str, letters: str) -> npt.NDArray[np.uint32]:
    """Map characters to the continuation byte they stand for in an encoding.

    Args:
        encoding: A code page.
        marks: Quotes, dashes, dots and spaces, which healthy text puts behind an accented letter.
        letters: Letters, which it puts there too.

    Returns:
        At slot ``code % _SLOTS``: the code point times 2**16, plus what it is to healthy text, plus the byte.
    """
    table = np.zeros(_SLOTS, np.uint32)
    for byte in range(0x80, 0xC0):
        char = bytes([byte]).decode(encoding, "ignore")
        # C1 controls come from readers of Latin-1, and from bytes that a code page leaves open
        for code in {ord(char or chr(byte)), byte if byte < 0xA0 else ord(char)}:
            if table[code % _SLOTS]:
                raise AssertionError(f"two characters of {encoding} share a slot")
            kind = 0 if chr(code) in marks else _LETTER if chr(code) in letters else _ODD
            table[code % _SLOTS] = code << 16 | kind | byte
    return table


_LATIN = _continuations("cp1252", "‚„…‹‘’“”•–—›\xa0\xab\xb0\xb7\xbb™®©²³¹´˜ˆ§", "ŠšŽžŒœŸ")
_CYRILLIC = _continuations("cp1251", "", "")


@inner
def _decode(data: Any, at: int) -> tuple[int, int]:
    """Return the code point at a position and the position after it; (0, at) at the end and beyond U+FFFF."""
    n = len(data)
    if at >= n:
        return 0, at
    byte = np.int64(data[at])
    if byte < 0x80:
        return byte, at + 1
    if byte < 0xE0:
        return (byte & 31) << 6 | np.int64(data[at + 1] & 63), at + 2
    if byte < 0xF0:
        low = np.int64(data[at + 1] & 63) << 6 | np.int64(data[at + 2] & 63)
        return (byte & 15) << 12 | low, at + 3
    return 0, at


@inner
def _sequence(data: Any, at: int, lead: int, table: Any) -> tuple[int, int]:
    """Read the characters a lead byte asks for.

    Returns:
        The position after them, or ``at`` if they do not decode; and bits: 1 if one of them is odd there, 2 if one
        is a letter.
    """
    needed = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
    odd, stop = 0, at
    for k in range(needed):
        code, after = _decode(data, stop)
        entry = np.int64(table[code % _SLOTS])
        value = entry & 0xFF
        if entry >> 16 == code and value:
            # overlong forms, surrogates and what lies beyond U+10FFFF
            low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
            high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
            if k == 0 and (value < low or value > high):
                return at, 0
            odd |= entry >> 8 & 3
        elif code == 0xFFFD and k == needed - 1 and (needed == 1 or odd & 1):
            # a byte the code page lacks, lost on the way
            odd |= 1
        else:
            return at, 0
        stop = after
    return stop, odd


@inner
def _upper_before(data: Any, at: int) -> bool:
    """Tell whether a capital letter stands before a position (ASCII or À to Þ)."""
    if at == 0:
        return False
    last = data[at - 1]
    if last < 0x80:
        return bool(0x41 <= last <= 0x5A)
    return bool(at > 1 and data[at - 2] == 0xC3 and last < 0x9F)


@inner
def _latin_end(data: Any, at: int) -> int:
    """Return the end of the broken characters that begin at ``at`` with a Latin lead, or ``at``."""
    stop, certain, chained = at, False, 0
    while stop + 1 < len(data) and data[stop] == 0xC3:
        lead = np.int64(data[stop + 1]) + 0x40
        if lead < 0xC2 or lead > 0xF4:
            break
        after, odd = _sequence(data, stop + 2, lead, _LATIN)
        if after == stop + 2:
            break
        # after A-tilde and A-circumflex anything is odd, save closing marks behind a word in capitals
        certain = certain or odd & 1 != 0 or (lead <= 0xC3 and (odd != 0 or not _upper_before(data, stop)))
        chained += 1
        stop = after
    return stop if certain or chained > 1 else at


@inner
def _cyrillic_end(data: Any, at: int) -> int:
    """Return the end of the broken characters that begin at ``at`` with a Cyrillic lead, or ``at``."""
    stop, pairs = at, 0
    while stop + 1 < len(data) and data[stop] == 0xD0 and (data[stop + 1] == 0xA0 or data[stop + 1] == 0xA1):
        # U+0420 and U+0421 stand for D0 and D1
        after, _ = _sequence(data, stop + 2, np.int64(data[stop + 1]) + 0x30, _CYRILLIC)
        if after == stop + 2:
            break
        pairs += 1
        stop = after
    return stop if pairs >= MIN_CYRILLIC_CHAIN else at


@inner
def _quote_end(data: Any, at: int) -> int:
    """Return the end of a typographic mark read as cp1251 (``вЂ™``) at ``at``, or ``at``."""
    after, _ = _sequence(data, at + 2, np.int64(0xE2), _CYRILLIC)
    return after if after > at + 2 else at


@Kernel
def scan_mojibake(data: Any, offsets: Any, chars: Any, listed: Any, out: Any) -> int:
    """Measure documents, given as UTF-8, each into a row of ``out`` in the order of ``MOJIBAKE_COUNTS``.

    Args:
        data: The bytes.
        offsets: Where the documents start and stop in them, shape [documents + 1].
        chars: Their code points; where they are as many as the bytes there is nothing to look at.
        listed: Rows of (1, start, end) for the stretches of the last document; those beyond its length are measured,
            not listed.
        out: Where the numbers go, shape [documents, counts].

    Returns:
        Rows written to ``listed``.
    """
    found = np.int64(0)
    for d in range(len(offsets) - 1):
        start, stop = offsets[d], offsets[d + 1]
        found = _scan(data[start:stop], chars[d] == stop - start, listed, out[d])
    return int(found)


@inner
def _scan(data: Any, ascii_only: Any, listed: Any, out: Any) -> Any:
    """Do what :func:`scan_mojibake` does for one document."""
    n = len(data)
    broken, found, at = np.int64(0), np.int64(0), np.int64(0)
    while at + 3 < n and not ascii_only:
        if at + _BLOCK <= n:
            leads = _leads(data, at)
            at += trailing_zeros(leads)
            if leads == _NONE or at + 3 >= n:
                continue
        byte = data[np.uint64(at)]
        stop = at
        if byte == 0xC3:
            stop = _latin_end(data, at)
        elif byte == 0xD0:
            second = data[at + 1]
            if second == 0xA0 or second == 0xA1:
                stop = _cyrillic_end(data, at)
            elif second == 0xB2 and data[at + 2] == 0xD0 and data[at + 3] == 0x82:
                stop = _quote_end(data, at)
        if stop == at:
            at += 1
            continue
        for i in range(at, stop):
            broken += (data[i] & 0xC0) != 0x80
        if found < len(listed):
            listed[found, 0], listed[found, 1], listed[found, 2] = 1, at, stop
            found += 1
        at = stop
    out[0] = broken
    return found
