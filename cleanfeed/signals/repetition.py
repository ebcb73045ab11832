"""Numbered words go in; Gopher's shares of repeated n-grams come out, in a form that cannot exceed 1.

A run of n words is told from others by the numbers of its words, so nothing is joined and no two runs share a hash. A
position whose n-gram occurs once has no repeated (n + 1)-gram either: each length looks only at what the one before
left over. Characters are those of words, without white space, and each is counted once however many n-grams cover it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cleanfeed.kernel import inner, prefetch
from cleanfeed.signals.formulas import MIN_WORDS
from cleanfeed.signals.view import MAX_WORDS
from cleanfeed.signals.words import AHEAD, FIRST_SLOTS

LONGEST_TOP = 4
"""Of n-grams up to this length the most frequent one is measured, of longer ones all that repeat."""
LONGEST = 10

REPETITION_COUNTS = (
    "kept_chars",
    *(f"{'top' if n <= LONGEST_TOP else 'dup'}_{n}gram" for n in range(2, LONGEST + 1)),
)
"""What :func:`repetition` writes, in order."""

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_5 = np.uint64(5)
_31 = np.uint64(31)
_32 = np.uint64(32)
_BITS = np.uint64(21)
"""Bits of a number: two of them are a key, and three fill an entry of the table."""
_NUMBER = np.uint64(MAX_WORDS - 1)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@inner
def _rebuild(table: Any, size: Any, distinct: Any, key_of: Any) -> None:  # pragma: no cover - compiled
    """Empty the table and put the numbers 0 to ``distinct - 1`` back, into ``size`` slots."""
    table[:size] = _ZERO
    mask = np.uint64(size - 1)
    for number in range(distinct):
        slot = (key_of[number] * _MIX >> _32) & mask
        while table[slot] != _ZERO:
            slot = (slot + _ONE) & mask
        table[slot] = key_of[number] << _BITS | np.uint64(number)


@inner
def _sift(pairs: Any, key_of: Any, sieve: Any, at: Any) -> Any:  # pragma: no cover - compiled
    """Leave out most of the pairs that occur once; return how many are left.

    Of words, most pairs do. A sieve of two bits a cell lets only those through whose cell was met twice: all that
    repeat, and a few more. It is small enough to stay close, which the table is not. Its loops
    take no branch on what the text holds: a wrong guess of the processor costs more than the rest of a round.
    """
    size, bits = np.int64(FIRST_SLOTS), 8
    while size < 4 * pairs:
        size *= 2
        bits += 1
    shift = np.uint64(64 - bits)
    for k in range(size >> 5):
        sieve[k] = _ZERO
    for k in range(pairs):
        cell = key_of[k] * _MIX >> shift
        place = (cell & _31) << _ONE
        seen = sieve[cell >> _5]
        sieve[cell >> _5] = seen | (_ONE + (seen >> place & _ONE)) << place
    found = np.int64(0)
    for k in range(pairs):
        key = key_of[k]
        cell = key * _MIX >> shift
        at[found] = at[k]
        key_of[found] = key
        found += np.int64(sieve[cell >> _5] >> ((cell & _31) << _ONE) >> _ONE & _ONE)
    return found


@inner
def _number_pairs(
    found: Any, table: Any, key_of: Any, at: Any, gram: Any, first: Any, counts: Any
) -> Any:  # pragma: no cover - compiled
    """Number the pairs whose keys stand in ``key_of`` and whose places stand in ``at``; return how many differ."""
    size = np.int64(FIRST_SLOTS)
    while size < found:
        size *= 2
    mask = np.uint64(size - 1)
    distinct = np.int64(0)
    _rebuild(table, size, distinct, key_of)
    for k in range(found):
        prefetch(table, (key_of[min(k + AHEAD, found - 1)] * _MIX >> _32) & mask)
        key = key_of[k]
        slot = (key * _MIX >> _32) & mask
        while table[slot] >> _BITS != key and table[slot] != _ZERO:
            slot = (slot + _ONE) & mask
        # New or not, both take the same way here, too.
        new = table[slot] == _ZERO
        number = distinct if new else np.int64(table[slot] & _NUMBER)
        table[slot] = key << _BITS | np.uint64(number)
        key_of[distinct] = key
        first[distinct] = at[k]
        counts[distinct] = 0
        counts[number] += 1
        gram[k] = number
        distinct += new
        if 3 * distinct > 2 * size:
            size *= 2
            mask = np.uint64(size - 1)
            _rebuild(table, size, distinct, key_of)
    return distinct


@inner
def repetition(
    total: Any,
    numbers: Any,
    word_total: Any,
    table: Any,
    key_of: Any,
    sieve: Any,
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
    pairs = np.int64(0)  # typed: a plain 0 would have _number_pairs compiled twice
    one = numbers[0]
    repeated = counts[one] > 1
    for w in range(total - 1):
        two = numbers[w + 1]
        again = counts[two] > 1
        key_of[pairs] = (np.uint64(one) << _BITS | np.uint64(two)) + _ONE
        at[pairs] = w
        pairs += repeated & again
        one, repeated = two, again
    pairs = _sift(pairs, key_of, sieve, at)
    for length in range(2, LONGEST + 1):
        distinct = _number_pairs(pairs, table, key_of, at, gram, first, counts)
        # The most frequent run; ties go to the one with more characters, then to the earlier one.
        best, most, longest = -1, 2, 0
        if length <= LONGEST_TOP:
            for number in range(distinct):
                if counts[number] >= most:
                    chars = word_total[first[number] + length] - word_total[first[number]]
                    if counts[number] > most or chars > longest:
                        best, most, longest = number, counts[number], chars
        covered = done = k = 0
        # Those of one run are few, and passed over in haste; of all that repeat there may be any share.
        left = most if best >= 0 else 0
        while left > 0:
            while gram[k] != best:
                k += 1
            start = at[k]
            covered += word_total[start + length] - word_total[max(start, done)]
            done = start + length
            left -= 1
            k += 1
        for k in range(pairs if length > LONGEST_TOP else 0):
            start = at[k]
            counted = first[gram[k]] != start
            chars = word_total[start + length] - word_total[max(start, done)]
            covered += chars if counted else 0
            done = start + length if counted else done
        out[length - 1] = covered
        # Two repeated runs side by side may be a repeated run one word longer.
        found, pairs = pairs, np.int64(0)
        before, one, repeated = -2, gram[0], False
        for k in range(found):
            start, two = at[k], gram[k]
            key_of[pairs] = (np.uint64(one) << _BITS | np.uint64(two)) + _ONE
            at[pairs] = before
            again = counts[two] > 1
            pairs += (start == before + 1) & again & repeated
            before, one, repeated = start, two, again
        if pairs == 0:
            break
