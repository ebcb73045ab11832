"""Numbered words go in; Gopher's shares of repeated n-grams come out, in a form that cannot exceed 1.

A run of n words is told from others by the numbers of its words, so nothing is joined and nothing collides. A position
whose n-gram occurs once has no repeated (n + 1)-gram either: each length looks only at what the one before left
over. Characters are those of words, without white space, and each is counted once however many n-grams cover it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from cleanfeed.signals.view import KEPT_WORDS, View
from cleanfeed.signals.words import MIN_WORDS, Grams

LONGEST_TOP = 4
"""Of n-grams up to this length the most frequent one is measured, of longer ones all that repeat."""
LONGEST = 10

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_32 = np.uint64(32)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True)
def _number_pairs(grams: Grams, live: int) -> Any:  # pragma: no cover - compiled
    """Join neighbouring runs to runs one word longer, in place; return how many stand and how many are distinct."""
    size, bits = 16, 4
    while 2 * size < 3 * live:
        size *= 2
        bits += 1
    shift = np.uint64(64 - bits)
    keys, slots, mask = grams.keys, grams.slots, np.uint64(size - 1)
    at, gram, first, count = grams.at, grams.gram, grams.first, grams.count
    keys[:size] = _ZERO
    found = distinct = 0
    for k in range(live - 1):
        if at[k + 1] != at[k] + 1:
            continue
        key = (np.uint64(gram[k]) << _32 | np.uint64(gram[k + 1])) + _ONE
        slot = (key * _MIX) >> shift
        while keys[slot] != key and keys[slot] != _ZERO:
            slot = (slot + _ONE) & mask
        if keys[slot] == _ZERO:
            keys[slot] = key
            slots[slot] = distinct
            first[distinct] = at[k]
            count[distinct] = 0
            distinct += 1
        number = slots[slot]
        count[number] += 1
        at[found] = at[k]
        gram[found] = number
        found += 1
    return found, distinct


@njit(nogil=True, cache=True)
def _most_frequent(view: View, grams: Grams, distinct: int, length: int) -> int:  # pragma: no cover - compiled
    """Return the number of the most frequent run (ties: more characters, then the earlier); -1 if none repeats."""
    best, most, longest = -1, 1, 0
    for number in range(distinct):
        count = grams.count[number]
        if count < 2 or count < most:
            continue
        start = grams.first[number]
        chars = view.word_total[start + length] - view.word_total[start]
        if count > most or chars > longest:
            best, most, longest = number, count, chars
    return best


@njit(nogil=True, cache=True)
def _covered(
    view: View, grams: Grams, found: int, length: int, only: int
) -> int:  # pragma: no cover - compiled
    """Count characters under the copies of one run, or where ``only`` is -1 under all copies but the first."""
    covered = done = 0
    for k in range(found):
        start, number = grams.at[k], grams.gram[k]
        if (only >= 0 and number != only) or (only < 0 and grams.first[number] == start):
            continue
        covered += view.word_total[start + length] - view.word_total[max(start, done)]
        done = start + length
    return covered


@njit(nogil=True, cache=True)
def repetition(view: View, grams: Grams, spaced: bool, out: Any) -> None:  # pragma: no cover - compiled
    """Write the signals in the order of their declarations; ``grams`` holds the numbered words and is used up."""
    total = view.counts[KEPT_WORDS]
    chars = view.word_total[total]
    if not spaced or total < MIN_WORDS:
        out[:] = math.nan
        return
    out[:] = 0.0
    at, gram = grams.at, grams.gram
    live = 0
    for w in range(total):
        number = grams.word[w]
        at[live] = w
        gram[live] = number
        live += grams.count[number] > 1
    for length in range(2, LONGEST + 1):
        found, distinct = _number_pairs(grams, live)
        if length <= LONGEST_TOP:
            best = _most_frequent(view, grams, distinct, length)
            if best >= 0:
                out[length - 2] = _covered(view, grams, found, length, best) / chars
        else:
            out[length - 2] = _covered(view, grams, found, length, -1) / chars
        live = 0
        for k in range(found):
            at[live] = at[k]
            gram[live] = gram[k]
            live += grams.count[gram[k]] > 1
        if live < 2:
            break
