"""A place in a text goes in; the hash of the word that begins there, its kind and its end come out.

A word is a run of letters, marks, digits and underscores, in lower case. A run of punctuation or symbols is a word of
a kind of its own, for those who count them. In scripts without spaces between words each character is a word, so that
n words in a row are n characters there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import inner
from cleanfeed.signals.tables import CJK, LETTER, MARK, NUMBER, PUNCT, SPACELESS, SYMBOL, tables

END, SPACED, SIGNS, ALONE = range(4)
"""Kinds of word: none left, letters and digits, punctuation and symbols, a character of a script without spaces."""

_UNDERSCORE = 0x5F
_DENSE = 0x32400
"""Above it are tags and private use, no words (:mod:`cleanfeed.signals.tables`)."""
_POINT_BITS = 21
_POINT = (1 << _POINT_BITS) - 1
_SEED = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = np.uint64(0x100000001B3)


@lru_cache(maxsize=1)
def word_table() -> npt.NDArray[np.int32]:
    """Return kind and lower-case form of every character: ``table[point] = kind << 21 | lower``."""
    found = tables()
    points = np.arange(_DENSE)
    bits = found.flags[found.classes[found.blocks[points >> 8] * 256 + (points & 255)]]
    wordy = (bits & (LETTER | MARK | NUMBER)) != 0
    wordy[_UNDERSCORE] = True
    kinds = np.where(wordy, np.where(bits & (CJK | SPACELESS), ALONE, SPACED), END)
    kinds[~wordy & ((bits & (PUNCT | SYMBOL)) != 0)] = SIGNS
    lower = points.copy()
    for point in range(0x10000):
        small = chr(point).lower()
        if len(small) == 1:
            lower[point] = ord(small)
    table: npt.NDArray[np.int32] = (kinds << _POINT_BITS | lower).astype(np.int32)
    table.flags.writeable = False
    return table


@inner
def spread(value: Any) -> Any:  # pragma: no cover - compiled
    """Spread a hash over all bits (the finaliser of SplitMix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@inner
def _decode(data: Any, at: Any) -> Any:  # pragma: no cover - compiled
    """Return the code point that starts at ``at``, outside ASCII, and the bytes it takes; the text is valid UTF-8."""
    lead = np.int64(data[at])
    point = np.int64(data[at + 1]) & 0x3F
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | point, 2
    point = point << 6 | (np.int64(data[at + 2]) & 0x3F)
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | point, 3
    return (lead & 0x07) << 18 | point << 6 | (np.int64(data[at + 3]) & 0x3F), 4


@inner
def next_word(data: Any, at: Any, stop: Any, table: Any) -> Any:  # pragma: no cover - compiled
    """Return hash, kind and end of the next word in ``data[at:stop]``; the kind is ``END`` where there is none.

    ``table`` is :func:`word_table`.
    """
    kind = np.int64(END)
    value = _SEED
    while at < stop:
        point = np.int64(data[np.uint64(at)])
        size = 1
        if point >= 128:
            point, size = _decode(data, at)
        entry = np.int64(table[point]) if point < _DENSE else np.int64(0)
        now = entry >> _POINT_BITS
        if kind != END and (now != kind or now == ALONE):
            break
        at += size
        if now == END:
            continue
        value = (value ^ np.uint64(entry & _POINT)) * _FACTOR
        kind = now
    return spread(value), kind, at
