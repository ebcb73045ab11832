"""The lines of a view go in; signals about lines and paragraphs come out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from cleanfeed.signals.tables import BULLET, COLON, ELLIPSIS, SPACE, TERMINAL, Tables
from cleanfeed.signals.view import (
    CHARS,
    KEPT_LINES,
    LINES,
    NEWLINES,
    WORDS,
    View,
    end_mark,
    flags_at,
    flags_before,
)
from cleanfeed.signals.words import Grams

SHORT_LINE = 30
"""Characters of a short line, as in FineWeb."""

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SEED = np.uint64(0x2545F4914F6CDD1D)


@njit(nogil=True, cache=True)
def _clear(grams: Grams, entries: int) -> Any:  # pragma: no cover - compiled
    """Empty the part of the table that ``entries`` keys need; return the mask of its slots."""
    size = 16
    while 2 * size < 3 * entries:
        size *= 2
    grams.keys[:size] = _ZERO
    return np.uint64(size - 1)


@njit(nogil=True, cache=True)
def _seen(grams: Grams, mask: Any, value: Any) -> bool:  # pragma: no cover - compiled
    """Tell whether a hash was met before, and remember it."""
    key = value | _ONE
    slot = (key >> np.uint64(20)) & mask
    while grams.keys[slot] != _ZERO:
        if grams.keys[slot] == key:
            return True
        slot = (slot + _ONE) & mask
    grams.keys[slot] = key
    return False


@njit(nogil=True, cache=True)
def _repeated(grams: Grams, view: View, hashes: Any, total: int) -> Any:  # pragma: no cover - compiled
    """Count the lines seen before, and their characters."""
    mask = _clear(grams, total)
    lines = chars = 0
    for k in range(total):
        if _seen(grams, mask, hashes[k]):
            lines += 1
            chars += view.line_chars[k]
    return lines, chars


@njit(nogil=True, cache=True)
def _paragraphs(grams: Grams, view: View, total: int) -> Any:  # pragma: no cover - compiled
    """Count the paragraphs, those seen before, and the characters of these."""
    mask = _clear(grams, total)
    number = repeated = repeated_chars = 0
    k = 0
    while k < total:
        h, chars = _SEED, 0
        begin = k
        while k < total and (k == begin or view.line_breaks[k] == 0):
            h = (h ^ view.line_hash[k]) * _MIX
            h ^= h >> np.uint64(32)
            chars += view.line_chars[k]
            k += 1
        number += 1
        if _seen(grams, mask, h):
            repeated += 1
            repeated_chars += chars
    return number, repeated, repeated_chars


@njit(nogil=True, cache=True)
def _bulleted(data: Any, start: int, stop: int, tables: Tables) -> bool:  # pragma: no cover - compiled
    """Tell whether a line begins with a list mark; ``-``, ``*`` and ``+`` must stand alone."""
    byte = data[start]
    if byte >= 128:
        return flags_at(data, start, tables) & BULLET != 0
    if byte != 45 and byte != 42 and byte != 43:
        return False
    return start + 1 < stop and flags_at(data, start + 1, tables) & SPACE != 0


@njit(nogil=True, cache=True)
def lines(
    data: Any, tables: Tables, view: View, grams: Grams, spaced: bool, out: Any
) -> None:  # pragma: no cover - compiled
    """Write the signals in the order of their declarations."""
    total = view.counts[KEPT_LINES]
    chars = longest = bullets = ellipses = terminals = colons = short = 0
    for k in range(total):
        start, stop, size = view.line_start[k], view.line_stop[k], view.line_chars[k]
        chars += size
        longest = max(longest, size)
        short += size <= SHORT_LINE
        bullets += _bulleted(data, start, stop, tables)
        last = flags_before(data, stop, tables)
        colons += last & COLON != 0
        dots = stop - start >= 3 and data[stop - 1] == 46 and data[stop - 2] == 46 and data[stop - 3] == 46
        ellipses += dots or last & ELLIPSIS != 0
        terminals += end_mark(data, start, stop, tables) & TERMINAL != 0
    whole = float(total) if total else math.nan
    char_whole = float(chars) if total else math.nan
    same, same_chars = _repeated(grams, view, view.line_hash, total)
    _, template_chars = _repeated(grams, view, view.line_template, total)
    paragraphs, repeated, repeated_chars = _paragraphs(grams, view, total)
    solid = view.counts[CHARS] - view.counts[NEWLINES]
    out[0] = view.counts[LINES]
    out[1] = paragraphs
    out[2] = chars / whole
    out[3] = longest
    out[4] = bullets / whole
    out[5] = ellipses / whole
    out[6] = terminals / whole if spaced else math.nan
    out[7] = colons / whole
    out[8] = short / whole
    out[9] = view.counts[NEWLINES] / view.counts[WORDS] if view.counts[WORDS] and spaced else math.nan
    out[10] = same / whole
    out[11] = same_chars / char_whole
    out[12] = repeated / paragraphs if paragraphs else math.nan
    out[13] = repeated_chars / char_whole
    out[14] = template_chars / char_whole
    out[15] = same_chars / solid if total else math.nan
