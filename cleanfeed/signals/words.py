"""The words of a view go in; a number for each distinct word comes out, and what it has to do with known phrases."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanfeed.signals.kernel import inner
from cleanfeed.signals.view import MAX_WORDS

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's; bit ``i`` of a word's marks says that it is the ``i``-th."""

(
    MARK_OF,
    MARK_TERMS,
    MARK_PRIVACY,
    MARK_POLICY,
    MARK_COOKIE,
    MARK_USE,
    MARK_USES,
    MARK_USING,
    MARK_COOKIES,
    MARK_LOREM,
    MARK_IPSUM,
    MARK_JAVASCRIPT,
) = (1 << k for k in range(8, 20))
"""What a distinct word has to do with C4's phrases: it starts or ends with the piece of a phrase."""


def _ascii(word: str) -> Any:
    """Return up to eight ASCII bytes as one little-endian number."""
    return np.uint64(int.from_bytes(word.encode("ascii")[:8], "little"))


_THE, _BE, _TO, _OF, _AND, _THAT, _HAVE, _WITH = (_ascii(word) for word in STOP_WORDS)
_USE, _USES, _TERMS, _PRIVACY = _ascii("use"), _ascii("uses"), _ascii("terms"), _ascii("privacy")
_POLICY, _COOKIE, _COOKIES = _ascii("policy"), _ascii("cookie"), _ascii("cookies")
_LOREM, _IPSUM, _JAVASCR = _ascii("lorem"), _ascii("ipsum"), _ascii("javascri")
_CASE = np.uint64(0x2020202020202020)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_20 = np.uint64(20)


FIRST_SLOTS, MOST_FIRST_SLOTS = 256, 2048
"""Slots a table begins with. It grows with the distinct words, of which even a book has few enough to stay close."""

WORD_COUNTS = ("distinct", "stop_words")
"""What :func:`number_words` writes, in order."""


class Grams(NamedTuple):
    """Scratch to number words and runs of words with; what it held before never matters."""

    table: npt.NDArray[np.uint64]
    """Open addressing: a key, 0 where the slot is free, and beside it the number given to the key."""
    key_of: npt.NDArray[np.uint64]
    """The key of each number."""
    sieve: npt.NDArray[np.uint64]
    """Two bits a cell, of which there are at least four a word."""
    number: npt.NDArray[np.int32]
    """The number of each word of the text."""
    first: npt.NDArray[np.int32]
    """Where a number occurs first."""
    counts: npt.NDArray[np.int32]
    """How often a number occurs."""
    marks: npt.NDArray[np.int32]
    """Marks of each distinct word."""
    at: npt.NDArray[np.int32]
    """Positions of runs of words still in question."""
    gram: npt.NDArray[np.int32]
    """Their numbers."""


def make_grams(max_bytes: int) -> Grams:
    """Return scratch for documents of up to ``max_bytes`` bytes."""
    words = min(max_bytes // 2 + 1, MAX_WORDS)
    size = FIRST_SLOTS
    while 2 * size < 3 * words:
        size *= 2
    return Grams(
        table=np.empty(2 * size, np.uint64),
        key_of=np.empty(words, np.uint64),
        sieve=np.empty(max(8 * words, FIRST_SLOTS) >> 5, np.uint64),
        number=np.empty(words, np.int32),
        first=np.empty(words, np.int32),
        counts=np.empty(words, np.int32),
        marks=np.empty(words, np.int32),
        at=np.empty(words, np.int32),
        gram=np.empty(words, np.int32),
    )


@inner
def _eight(data: Any, at: Any, stop: Any) -> Any:  # pragma: no cover - compiled
    """Read up to 8 bytes from ``at`` on as one number, with bit 5 of each set, which folds the case of letters."""
    word = _ZERO
    size = min(8, stop - at)
    if at + 8 <= len(data):
        i = np.uint64(at)
        for k in range(8):
            word |= np.uint64(data[i + np.uint64(k)]) << np.uint64(8 * k)
        word |= _CASE
        return word & (_ALL >> np.uint64(64 - 8 * size))
    for k in range(size):
        word |= np.uint64(data[at + k] | 0x20) << np.uint64(8 * k)
    return word


@inner
def word_marks(data: Any, start: Any, stop: Any) -> Any:  # pragma: no cover - compiled
    """Return the marks of the word between two bytes; letters match in any case."""
    size = stop - start
    if size < 2:
        return 0
    head = _eight(data, start, stop)
    if size <= 4:
        if size == 2:
            return (head == _BE) << 1 | (head == _TO) << 2 | (MARK_OF | 1 << 3 if head == _OF else 0)
        marks = MARK_USING if head & np.uint64(0xFFFFFF) == _USE else 0
        if size == 3:
            return marks | (head == _THE) | (head == _AND) << 4 | (MARK_USE if head == _USE else 0)
        marks |= (head == _THAT) << 5 | (head == _HAVE) << 6 | (head == _WITH) << 7
    else:
        marks = MARK_USING if head & np.uint64(0xFFFFFF) == _USE else 0
        if head & np.uint64(0xFFFFFFFFFF) == _IPSUM:
            marks |= MARK_IPSUM
        if head & np.uint64(0xFFFFFFFFFFFF) == _POLICY:
            marks |= MARK_POLICY
        if head & np.uint64(0xFFFFFFFFFFFFFF) == _COOKIES:
            marks |= MARK_COOKIES
    last = data[stop - 1] | 0x20
    if last == 101 or last == 115 or last == 109 or last == 121:  # e, s, m, y
        tail = _eight(data, max(start, stop - 8), stop)
        gap = np.uint64(8 * (min(size, 8)))
        if tail >> (gap - np.uint64(24)) == _USE:
            marks |= MARK_USE
        if size >= 4 and tail >> (gap - np.uint64(32)) == _USES:
            marks |= MARK_USES
        if size >= 5:
            if tail >> (gap - np.uint64(40)) == _TERMS:
                marks |= MARK_TERMS
            if tail >> (gap - np.uint64(40)) == _LOREM:
                marks |= MARK_LOREM
        if size >= 6 and tail >> (gap - np.uint64(48)) == _COOKIE:
            marks |= MARK_COOKIE
        if size >= 7 and tail >> (gap - np.uint64(56)) == _PRIVACY:
            marks |= MARK_PRIVACY
    if size >= 10:
        for i in range(start, stop - 9):
            found = data[i] | 0x20 == 106 and _eight(data, i, stop) == _JAVASCR
            if found and data[i + 8] | 0x20 == 112 and data[i + 9] | 0x20 == 116:
                marks |= MARK_JAVASCRIPT
    return marks


@inner
def _grow(table: Any, size: Any, distinct: Any, key_of: Any) -> None:  # pragma: no cover - compiled
    """Empty the table and put the numbers 0 to ``distinct - 1`` back, into ``size`` slots."""
    for k in range(2 * size):
        table[k] = _ZERO
    mask = np.uint64(size - 1)
    for number in range(distinct):
        slot = (key_of[number] >> _20) & mask
        while table[slot << _ONE] != _ZERO:
            slot = (slot + _ONE) & mask
        table[slot << _ONE] = key_of[number]
        table[slot << _ONE | _ONE] = np.uint64(number)


@inner
def number_words(
    data: Any,
    total: Any,
    word_start: Any,
    word_stop: Any,
    word_hash: Any,
    table: Any,
    key_of: Any,
    numbers: Any,
    first: Any,
    counts: Any,
    marks: Any,
    out: Any,
) -> Any:  # pragma: no cover - compiled
    """Give equal words equal numbers, in order of first occurrence; write what ``WORD_COUNTS`` names.

    Returns the marks of all words together.
    """
    distinct = np.int64(0)
    size = np.int64(FIRST_SLOTS)
    while size < MOST_FIRST_SLOTS and size < 2 * total:
        size *= 2
    _grow(table, size, distinct, key_of)
    mask = np.uint64(size - 1)
    every = 0
    for w in range(total):
        key = word_hash[w] | _ONE
        slot = (key >> _20) & mask
        while table[slot << _ONE] != key and table[slot << _ONE] != _ZERO:
            slot = (slot + _ONE) & mask
        if table[slot << _ONE] == _ZERO:
            table[slot << _ONE] = key
            table[slot << _ONE | _ONE] = np.uint64(distinct)
            key_of[distinct] = key
            first[distinct] = w
            counts[distinct] = 1
            marks[distinct] = word_marks(data, np.int64(word_start[w]), np.int64(word_stop[w]))
            every |= marks[distinct]
            numbers[w] = distinct
            distinct += 1
            if 3 * distinct > 2 * size:
                size *= 2
                mask = np.uint64(size - 1)
                _grow(table, size, distinct, key_of)
            continue
        number = np.int64(table[slot << _ONE | _ONE])
        counts[number] += 1
        numbers[w] = number
    out[0] = distinct
    out[1] = 0.0
    for bit in range(len(STOP_WORDS)):
        out[1] += every >> bit & 1
    return every
