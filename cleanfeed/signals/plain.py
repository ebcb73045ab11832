"""Stretches of plain ASCII go in, 64 bytes at once; their words come out, as the scan would read them one by one.

A block is read into numbers of 64 bits, one for each class of characters, whose bits say which bytes belong to it.
What is counted is then arithmetic on those numbers. The sum of the words and of their letters, for one, carries into
the byte after each word that has a letter, and into no other: the bits of a word are all set, so adding any more of
them overflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cleanfeed.kernel import (
    bytes_in,
    inner,
    leading_zeros,
    load_8,
    ones,
    same_as_next,
    trailing_zeros,
)
from cleanfeed.signals.reading import (
    ALPHA_WORDS,
    BREAK,
    BULLETED,
    COLON_ENDS,
    ENDS,
    LONGEST_RUN,
    LONGEST_WORD,
    MIX,
    NEWLINES,
    PAIRS,
    SEED,
    SENTENCES,
    SYMBOL_WORDS,
    finish_hash,
    hash_folded,
)

BLOCK = 64
AHEAD = 8
"""Bytes read past a block, by the load of a word that begins at its end."""
MIXED = 100
"""Where one byte in so many is outside ASCII, few blocks are without one."""
MOST_WORDS = BLOCK // 2
"""Words a block may hold."""

WHITE = ((9, 13), (32, 32))
TERMINALS = ((33, 33), (46, 46), (63, 63))
CLOSERS = ((34, 34), (39, 39), (41, 41), (93, 93), (125, 125))
"""First and last byte of what is white space, ends a sentence, may follow such an end: :mod:`.tables` in ASCII."""

_white = bytes_in(BLOCK, *WHITE)
_newlines = bytes_in(BLOCK, (10, 10))
_others = bytes_in(BLOCK, (128, 255))
_digits = bytes_in(BLOCK, (48, 57))
_letters = bytes_in(BLOCK, (97, 122), folded=True)
_terminals = bytes_in(BLOCK, *TERMINALS)
_closers = bytes_in(BLOCK, *CLOSERS)
_colons = bytes_in(BLOCK, (58, 58))
_same = same_as_next(BLOCK)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_32 = np.uint64(32)


@inner
def is_mixed(seen: Any, size: Any) -> Any:  # pragma: no cover - compiled
    """Tell from how often each byte occurs whether too few blocks are plain for a look at them to pay."""
    others = np.int64(0)
    for code in range(128, 256):
        others += seen[code]
    return others * MIXED > size


@inner
def plain_bytes(data: Any, i: Any) -> Any:  # pragma: no cover - compiled
    """Return how many of the 64 bytes from ``i`` on come before one outside ASCII or the first of three equal ones."""
    pairs = _same(data, i) & ~_white(data, i)
    return trailing_zeros(_others(data, i) | pairs & pairs >> _ONE)


@inner
def read_plain(
    data: Any,
    counts: Any,
    word_start: Any,
    word_stop: Any,
    word_hash: Any,
    word_total: Any,
    line_stop: Any,
    line_word: Any,
    line_chars: Any,
    line_sentences: Any,
    line_bits: Any,
    line_hash: Any,
    line_template: Any,
    i: Any,
    tail: Any,
    words: Any,
    chars_before: Any,
    lines: Any,
    line_words: Any,
    line_from: Any,
    length: Any,
    bits_of_line: Any,
    breaks: Any,
    stop: Any,
    whole: Any,
    template: Any,
) -> Any:  # pragma: no cover - compiled
    """Read whole words from ``i`` on, for as long as they are ASCII and repeat no character thrice.

    Takes what the scan knows of its line and its last word, and returns it as it is after the words that were read,
    led by where to go on and by the byte up to which another try is in vain.
    """
    n, kept = len(data), len(word_hash)
    vain = n
    longest = np.int64(0)
    while i + BLOCK + AHEAD <= n and words + MOST_WORDS <= kept:
        white = _white(data, i)
        pairs = _same(data, i) & ~white
        # No further than to a byte outside ASCII or the first of three equal ones, and there to the last white space.
        bad = _others(data, i) | pairs & pairs >> _ONE
        vain = i + trailing_zeros(bad)
        blanks = white & (bad ^ (bad - _ONE))
        if blanks == _ZERO:
            break
        size = 64 - leading_zeros(blanks)
        within = _ALL >> np.uint64(64 - size)
        inside, newlines = ~white & within, _newlines(data, i) & within
        starts, ends = inside & ~(inside << _ONE), inside << _ONE & ~inside
        letters, digits = _letters(data, i) & inside, _digits(data, i) & inside
        terminals, closers = _terminals(data, i), _closers(data, i)
        closed = closers + (terminals << _ONE & closers) & ~closers
        sentences, colons = (terminals << _ONE | closed) & ends, _colons(data, i) << _ONE & ends
        numbered = inside + digits & ends
        counts[PAIRS] |= np.int64(pairs & inside)
        counts[ALPHA_WORDS] += ones(inside + letters & ends)
        counts[SYMBOL_WORDS] += ones(ends & ~(inside + (letters | digits)))
        counts[NEWLINES] += ones(newlines)
        sentences_before = counts[SENTENCES]
        counts[SENTENCES] += ones(sentences)
        while True:
            start, lowest = i + trailing_zeros(starts), starts & (_ZERO - starts)
            passed = newlines & (lowest - _ONE)
            if passed != _ZERO:
                if line_words != 0:
                    line_stop[lines] = stop
                    line_chars[lines] = length
                    line_hash[lines] = whole
                    line_template[lines] = template
                    line_bits[lines] = bits_of_line | breaks
                    lines += 1
                    line_word[lines] = words
                    line_sentences[lines] = sentences_before + ones(sentences & (passed ^ (passed - _ONE)))
                    breaks = np.int64(0)
                    passed &= passed - _ONE
                    line_words = np.int64(0)
                if passed != _ZERO:
                    breaks = np.int64(BREAK)
                newlines &= ~(lowest - _ONE)
            if starts == _ZERO:
                break
            starts ^= lowest
            end = trailing_zeros(ends)
            stop = i + end
            chars = stop - start
            longest = max(longest, chars)
            at = start
            h = SEED
            if chars < 16:
                # A choice, not a branch: whether a word is longer than 7 bytes is anyone's guess.
                longer = (SEED ^ load_8(data, start)) * MIX
                h = longer ^ longer >> _32 if chars > 7 else SEED
                at += chars & 8
            else:
                while at + 8 <= stop:
                    h = (h ^ load_8(data, at)) * MIX
                    h ^= h >> _32
                    at += 8
            rest = load_8(data, at) & ((_ONE << np.uint64(8 * (stop - at))) - _ONE)
            h = finish_hash((h ^ rest) * MIX, chars)
            chars_before += chars
            word_start[words] = start
            word_stop[words] = stop
            word_hash[words] = h
            words += 1
            word_total[words] = chars_before
            if line_words == 0:
                line_from = start - tail
                whole = template = SEED
                byte = data[np.uint64(start)]
                bits_of_line = np.int64(0)
                if chars == 1 and (byte == 45 or byte == 42 or byte == 43):
                    bits_of_line = np.int64(BULLETED)
            line_words += 1
            length = stop - tail - line_from
            bits_of_line &= BULLETED
            bits_of_line |= np.int64(sentences >> np.uint64(end) & _ONE) * ENDS
            bits_of_line |= np.int64(colons >> np.uint64(end) & _ONE) * COLON_ENDS
            whole = (whole ^ h ^ _ONE) * MIX
            whole ^= whole >> _32
            if numbered >> np.uint64(end) & _ONE != _ZERO:
                h = hash_folded(data, start, stop)
            template = (template ^ h ^ _ONE) * MIX
            template ^= template >> _32
            ends &= ends - _ONE
        i += size
    counts[LONGEST_WORD] = max(counts[LONGEST_WORD], longest)
    counts[LONGEST_RUN] = max(counts[LONGEST_RUN], longest)
    return (
        i, vain, words, chars_before, lines, line_words, line_from, length, bits_of_line, breaks, stop, whole, template,
    )  # fmt: skip
