"""Numbered words go in; Gopher's shares of repeated n-grams come out, in a form that cannot exceed 1.

A run of n words is told from others by the numbers of its words, so nothing is joined and nothing collides. A position
whose n-gram occurs once has no repeated (n + 1)-gram either: each length looks only at what the one before left
over. Characters are those of words, without white space, and each is counted once however many n-grams cover it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

MIN_WORDS = 20
"""With fewer words the share of repeated ones is a matter of chance."""
LONGEST_TOP = 4
"""Of n-grams up to this length the most frequent one is measured, of longer ones all that repeat."""
LONGEST = 10

REPETITION_COUNTS = ("kept_chars", *(f"{'top' if n <= LONGEST_TOP else 'dup'}_{n}gram" for n in range(2, LONGEST + 1)))
"""What :func:`repetition` writes, in order."""

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_32 = np.uint64(32)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True)
def _number_pairs(
    live: Any, keys: Any, slots: Any, at: Any, gram: Any, first: Any, counts: Any
) -> Any:  # pragma: no cover - compiled
    """Join neighbouring runs to runs one word longer, in place; return how many stand and how many are distinct."""
    size, bits = 16, 4
    while 2 * size < 3 * live:
        size *= 2
        bits += 1
    shift = np.uint64(64 - bits)
    mask = np.uint64(size - 1)
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
            counts[distinct] = 0
            distinct += 1
        number = slots[slot]
        counts[number] += 1
        at[found] = at[k]
        gram[found] = number
        found += 1
    return found, distinct


@njit(nogil=True, cache=True)
def repetition(
    total: Any,
    numbers: Any,
    word_total: Any,
    keys: Any,
    slots: Any,
    at: Any,
    gram: Any,
    first: Any,
    counts: Any,
    out: Any,
) -> None:  # pragma: no cover - compiled
    """Write what ``REPETITION_COUNTS`` names; ``counts`` holds how often each number of ``numbers`` occurs."""
    out[:] = 0.0
    out[0] = word_total[total]
    if total < MIN_WORDS:
        return
    live = np.int64(0)  # typed: a plain 0 would have _number_pairs compiled twice
    for w in range(total):
        at[live] = w
        gram[live] = numbers[w]
        live += counts[numbers[w]] > 1
    for length in range(2, LONGEST + 1):
        found, distinct = _number_pairs(live, keys, slots, at, gram, first, counts)
        # The most frequent run; ties go to the one with more characters, then to the earlier one.
        best, most, longest = -1, 2, 0
        if length <= LONGEST_TOP:
            for number in range(distinct):
                if counts[number] >= most:
                    chars = word_total[first[number] + length] - word_total[first[number]]
                    if counts[number] > most or chars > longest:
                        best, most, longest = number, counts[number], chars
        live = np.int64(0)
        covered = done = 0
        for k in range(found):
            start, number = at[k], gram[k]
            if counts[number] < 2:
                continue
            at[live] = start
            gram[live] = number
            live += 1
            if number == best or (length > LONGEST_TOP and first[number] != start):
                covered += word_total[start + length] - word_total[max(start, done)]
                done = start + length
        out[length - 1] = covered
        if live < 2:
            break
