"""The words of a view go in; a number for each distinct word comes out, and what it has to do with known phrases."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import inner, load_8, prefetch
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
_8, _16, _24, _32, _40 = (np.uint64(bits) for bits in (8, 16, 24, 32, 40))
_FIRST_3, _FIRST_5, _FIRST_6, _FIRST_7 = (np.uint64((1 << 8 * size) - 1) for size in (3, 5, 6, 7))
_ONES, _HIGH, _EIGHT_J = (np.uint64(0x0101010101010101 * byte) for byte in (0x01, 0x80, ord("j")))
_SPREAD, _54 = np.uint64(0x9E3779B97F4A7C15), np.uint64(54)


def _ends() -> npt.NDArray[np.uint8]:
    """Tell the first three bytes of marked words (1) and the last three (2) from nearly all others."""
    ends = np.zeros(1024, np.uint8)
    beginnings = (*STOP_WORDS, "use", "ipsum", "policy", "cookies")
    endings = ("use", "uses", "terms", "lorem", "cookie", "privacy")
    for bit, pieces in ((1, [word[:3] for word in beginnings]), (2, [word[-3:] for word in endings])):
        for piece in pieces:
            ends[int(_ascii(piece)) * int(_SPREAD) % 2**64 >> int(_54)] |= bit
    return ends


_ENDS = _ends()
_NUMBER = np.uint64(MAX_WORDS - 1)
"""The bits of a table's entry that tell the number; those above are of the hash."""


FIRST_SLOTS, MOST_FIRST_SLOTS = 256, 2048
"""Slots a table begins with. It grows with the distinct words, of which even a book has few enough to stay close."""

AHEAD = 12
"""How far ahead a slot is fetched: which way to go on hangs on what it holds, and a wrong guess lasts as long as it is
not known."""

WORD_COUNTS = ("distinct", "stop_words")
"""What :func:`number_words` writes, in order."""


class Grams(NamedTuple):
    """Scratch to number words and runs of words with; what it held before never matters."""

    table: npt.NDArray[np.uint64]
    """Open addressing: a key and the number given to it in one, 0 where the slot is free."""
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
        table=np.empty(size, np.uint64),
        key_of=np.empty(words, np.uint64),
        sieve=np.empty(max(8 * words, FIRST_SLOTS) >> 5, np.uint64),
        number=np.empty(words, np.int32),
        first=np.empty(words + 1, np.int32),
        counts=np.empty(words + 1, np.int32),
        marks=np.empty(words, np.int32),
        at=np.empty(words, np.int32),
        gram=np.empty(words, np.int32),
    )


@inner
def _eight(data: Any, at: Any, stop: Any) -> Any:  # pragma: no cover - compiled
    """Read 8 bytes from ``at`` on as one number, with zeros for those from ``stop`` on; letters in lower case."""
    size = min(8, stop - at)
    if at + 8 <= len(data):
        return (load_8(data, at) | _CASE) & (_ALL >> np.uint64(64 - 8 * size))
    word = _ZERO
    for k in range(size):
        word |= np.uint64(data[np.uint64(at + k)] | 0x20) << np.uint64(8 * k)
    return word


@inner
def word_marks(data: Any, start: Any, stop: Any) -> Any:  # pragma: no cover - compiled
    """Return the marks of the word between two bytes; letters match in any case."""
    size = stop - start
    head = _eight(data, start, stop)
    # The last 8 bytes, in the upper end of the number, with zeros for those before the word.
    tail = head << np.uint64(64 - 8 * size) if size < 8 else load_8(data, stop - 8) | _CASE
    marks = 0
    if _ENDS[(head & _FIRST_3) * _SPREAD >> _54] & 1 | _ENDS[(tail >> _40) * _SPREAD >> _54] & 2:
        # All comparisons are made, and none is a branch: guessing which of them matter costs the processor more.
        marks |= (head == _THE) | (head == _BE) << 1 | (head == _TO) << 2 | (head == _OF) * (1 << 3 | MARK_OF)
        marks |= (head == _AND) << 4 | (head == _THAT) << 5 | (head == _HAVE) << 6 | (head == _WITH) << 7
        marks |= (head & _FIRST_3 == _USE) * MARK_USING | (head & _FIRST_5 == _IPSUM) * MARK_IPSUM
        marks |= (head & _FIRST_6 == _POLICY) * MARK_POLICY | (head & _FIRST_7 == _COOKIES) * MARK_COOKIES
        marks |= (tail >> _40 == _USE) * MARK_USE | (tail >> _32 == _USES) * MARK_USES
        marks |= (tail >> _24 == _TERMS) * MARK_TERMS | (tail >> _24 == _LOREM) * MARK_LOREM
        marks |= (tail >> _16 == _COOKIE) * MARK_COOKIE | (tail >> _8 == _PRIVACY) * MARK_PRIVACY
    for at in range(start, stop - 9, 8):
        unlike = _eight(data, at, stop) ^ _EIGHT_J
        if (unlike - _ONES) & ~unlike & _HIGH == _ZERO:
            continue
        for i in range(at, min(at + 8, stop - 9)):
            found = _eight(data, i, stop) == _JAVASCR
            if found and data[i + 8] | 0x20 == 112 and data[i + 9] | 0x20 == 116:
                marks |= MARK_JAVASCRIPT
    return marks


@inner
def _rebuild(
    table: Any, size: Any, distinct: Any, first: Any, word_hash: Any
) -> None:  # pragma: no cover - compiled
    """Empty the table and put the numbers 0 to ``distinct - 1`` back, into ``size`` slots."""
    table[:size] = _ZERO
    mask = np.uint64(size - 1)
    for number in range(distinct):
        key = word_hash[first[number]] | _NUMBER
        slot = word_hash[first[number]] & mask
        while table[slot] != _ZERO:
            slot = (slot + _ONE) & mask
        table[slot] = key - np.uint64(number)


@inner
def number_words(
    data: Any,
    total: Any,
    word_start: Any,
    word_stop: Any,
    word_hash: Any,
    table: Any,
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
    _rebuild(table, size, distinct, first, word_hash)
    mask = np.uint64(size - 1)
    for w in range(total):
        prefetch(table, word_hash[min(w + AHEAD, total - 1)] & mask)
        key = word_hash[w] | _NUMBER
        slot = word_hash[w] & mask
        # A slot holds the upper bits of a hash and, below, what the number lacks to the largest there may be.
        while key - table[slot] > _NUMBER and table[slot] != _ZERO:
            slot = (slot + _ONE) & mask
        # Whether a word is new is anyone's guess, so both cases take the same way.
        new = table[slot] == _ZERO
        number = distinct if new else np.int64(key - table[slot])
        table[slot] = key - np.uint64(number)
        counts[distinct] = 0
        first[distinct] = w
        counts[number] += 1
        numbers[w] = number
        distinct += new
        if 3 * distinct > 2 * size:
            size *= 2
            mask = np.uint64(size - 1)
            _rebuild(table, size, distinct, first, word_hash)
    every = 0
    for number in range(distinct):
        w = first[number]
        marks[number] = word_marks(data, np.int64(word_start[w]), np.int64(word_stop[w]))
        every |= marks[number]
    out[0] = distinct
    out[1] = 0.0
    for bit in range(len(STOP_WORDS)):
        out[1] += every >> bit & 1
    return every
