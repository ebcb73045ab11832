"""UTF-8 of one document goes in; the decoded view comes out: words, lines, and counts of characters by class.

One pass looks at every byte once. It fills arrays that are reused from document to document, so a document costs no
allocation, and everything the other measures need is in them.

A *word* is a run of characters without white space, as ``str.split`` gives it, but each Han, kana or Yi character
begins a word of its own, which its following punctuation joins. Two words are equal when their bytes are. A *line*
ends at a line feed; its content runs from its first word to its last, so blanks and a carriage return around it do
not count, and two lines are equal when their words are and stand apart or joined in the same way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import bytes_in, inner, load_8, same_as_next, trailing_zeros
from cleanfeed.signals.plain import AHEAD, BLOCK, is_mixed, plain_bytes, read_plain
from cleanfeed.signals.reading import (
    ALPHA_WORDS,
    BITS,
    BREAK,
    BULLETED,
    BYTES,
    CHARS,
    COLON_ENDS,
    COUNT_NAMES,
    ELLIPSIS_ENDS,
    ENDS,
    KEPT_LINES,
    KEPT_WORDS,
    LINES,
    LONGEST_CHAR_RUN,
    LONGEST_RUN,
    LONGEST_WORD,
    MARK_AT,
    MIX,
    NEWLINES,
    PAIRS,
    RUN_AT,
    RUN_FROM,
    SEED,
    SENTENCES,
    STATES,
    SYMBOL_WORDS,
    WORD_CHARS,
    WORDS,
    count_bytes,
    decode,
    end_mark,
    ends_in_dots,
    finish_hash,
    hash_folded,
    hash_word,
    is_bullet,
    read_on,
)
from cleanfeed.signals.tables import (
    ASCII_CLASSES_AT,
    BLOCKS_AT,
    CLOSER,
    COLON,
    ELLIPSIS,
    FLAGS_AT,
    LETTER,
    MARK,
    NUMBER,
    SPACE,
    TERMINAL,
    WIDE,
)

MAX_WORDS = 1 << 21
"""Words and lines past this number are counted but not kept: repeats are measured over the text before them."""
_32 = np.uint64(32)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
PART = 32
"""Bytes of a word looked at together."""
_WHOLE, _LAST = np.uint64(2**PART - 1), np.uint64(PART - 1)
_ends = bytes_in(PART, (9, 13), (32, 32), (128, 255))
_digits = bytes_in(PART, (48, 57))
_letters = bytes_in(PART, (97, 122), folded=True)
_pairs = same_as_next(PART)


class View(NamedTuple):
    """What one pass over a document finds; arrays are reused, and only their first entries belong to the document."""

    counts: npt.NDArray[np.int64]
    """Plain counts, in the order of ``COUNT_NAMES``, and behind them what the pass remembers."""
    seen: npt.NDArray[np.int64]
    """How often each byte occurs."""
    classes: npt.NDArray[np.int64]
    """How often each character class occurs."""
    letters: npt.NDArray[np.int64]
    """Letters outside ASCII by the last eight bits of their code point."""
    word_start: npt.NDArray[np.int32]
    word_stop: npt.NDArray[np.int32]
    """Bytes the word lies between."""
    word_hash: npt.NDArray[np.uint64]
    word_total: npt.NDArray[np.int32]
    """Characters in all words before this one; one entry more than words."""
    line_stop: npt.NDArray[np.int32]
    """Byte after the content."""
    line_word: npt.NDArray[np.int32]
    """The line's first word; one entry more than lines."""
    line_chars: npt.NDArray[np.int32]
    line_sentences: npt.NDArray[np.int32]
    """Sentence ends in all lines before this one; one entry more than lines."""
    line_bits: npt.NDArray[np.int32]
    line_hash: npt.NDArray[np.uint64]
    line_template: npt.NDArray[np.uint64]
    """Hash of the line with each run of ASCII digits folded to one."""


def make_view(max_bytes: int) -> View:
    """Return a view for documents of up to ``max_bytes`` bytes."""
    # A word takes two bytes or more: one and white space, or, of two that touch, three and one.
    words = min(max_bytes // 2 + 1, MAX_WORDS)
    return View(
        counts=np.zeros(len(COUNT_NAMES) + STATES, np.int64),
        seen=np.zeros(256, np.int64),
        classes=np.zeros(256, np.int64),
        letters=np.zeros(256, np.int64),
        word_start=np.empty(words, np.int32),
        word_stop=np.empty(words, np.int32),
        word_hash=np.empty(words, np.uint64),
        word_total=np.empty(words + 1, np.int32),
        line_stop=np.empty(words, np.int32),
        line_word=np.empty(words + 1, np.int32),
        line_chars=np.empty(words, np.int32),
        line_sentences=np.empty(words + 1, np.int32),
        line_bits=np.empty(words, np.int32),
        line_hash=np.empty(words, np.uint64),
        line_template=np.empty(words, np.uint64),
    )


@inner
def scan(
    data: Any,
    table: Any,
    counts: Any,
    seen: Any,
    classes: Any,
    letters: Any,
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
) -> None:  # pragma: no cover - compiled
    """Fill the arrays of a view from one document; ``table`` is :func:`cleanfeed.signals.tables.packed_tables`."""
    counts[:] = 0
    seen[:] = 0
    classes[:] = 0
    letters[:] = 0
    count_bytes(data, seen, classes, letters)
    counts[RUN_AT] = counts[MARK_AT] = -2
    kept, n = len(word_hash), len(data)
    # Typed, for a plain 0 is a type of its own to numba, and every function called with it would be compiled twice.
    # vain: byte up to which no block of plain words begins
    # tail: continuation bytes so far, so that i - tail is the number of characters so far
    i = tail = words = chars_before = line_words = lines = np.int64(0)
    line_from = length = bits_of_line = run_from = np.int64(0)
    stop = vain = np.int64(-1)
    if is_mixed(seen, n):
        vain = n
    breaks = np.int64(BREAK)
    whole = template = SEED
    word_total[0] = line_word[0] = line_sentences[0] = 0
    while True:
        # White space and line ends; the text ends its last line.
        byte = 0
        while True:
            if i < n:
                byte = np.int64(data[np.uint64(i)])
                if byte < 128:
                    if table[np.uint64(byte)] & SPACE == 0:
                        break
                    i += 1
                else:
                    point, size = decode(data, i)
                    kind = table[table[BLOCKS_AT + (point >> 8)] + (point & 255)]
                    if table[FLAGS_AT + kind] & SPACE == 0:
                        break
                    classes[kind] += 1
                    tail += size - 1
                    i += size
                if byte != 10:
                    continue
                counts[NEWLINES] += 1
            if line_words == 0:
                breaks = BREAK
            else:
                if lines < kept:
                    line_stop[lines] = stop
                    line_chars[lines] = length
                    line_hash[lines] = whole
                    line_template[lines] = template
                    line_bits[lines] = bits_of_line | breaks
                    line_word[lines + 1] = min(words, kept)
                    line_sentences[lines + 1] = counts[SENTENCES]
                lines += 1
                line_words = breaks = 0
            if i >= n:
                break
        if i >= n:
            break
        if i > vain and i != stop and byte < 128 and i + BLOCK + AHEAD <= n:
            ahead = plain_bytes(data, i)
            vain = i + ahead
            if ahead == BLOCK:
                (
                    i, vain, words, chars_before, lines, line_words, line_from, length, bits_of_line, breaks, stop,
                    whole, template,
                ) = read_plain(
                    data, counts, word_start, word_stop, word_hash, word_total,
                    line_stop, line_word, line_chars, line_sentences, line_bits, line_hash, line_template,
                    i, tail, words, chars_before, lines, line_words, line_from, length, bits_of_line, breaks, stop,
                    whole, template,
                )  # fmt: skip
                byte = np.int64(data[np.uint64(i)]) if i < n else np.int64(32)
                if byte >= 128 or table[np.uint64(byte)] & SPACE != 0:
                    continue
        # One word; first 32 bytes at once as long as they are ASCII and none stands three times in a row.
        start, start_tail, joined = i, tail, i == stop
        if not joined:
            run_from = i - tail
        some_letters = some_digits = some_pairs = pairs = h = _ZERO
        ended = False
        while byte < 128 and i + PART + 8 <= n:
            ends = _ends(data, i)
            inside = (
                ends ^ (ends - _ONE)
            ) >> _ONE & _WHOLE  # the bits below the first end; all where there is none
            before, pairs = pairs, _pairs(data, i) & inside
            if pairs & (pairs >> _ONE | before >> _LAST):
                break
            some_pairs |= pairs
            some_digits |= _digits(data, i) & inside
            some_letters |= _letters(data, i) & inside
            if ends == _ZERO:
                i += PART
                continue
            size = trailing_zeros(ends)
            i += size
            ended = data[np.uint64(i)] < 128
            at = start
            if i - start < 16:
                # A choice, not a branch: whether a word is longer than 7 bytes is anyone's guess.
                longer = (SEED ^ load_8(data, start)) * MIX
                h = longer ^ longer >> _32 if i - start > 7 else SEED
                at += i - start & 8
            else:
                h = SEED
                while at + 8 <= i:
                    h = (h ^ load_8(data, at)) * MIX
                    h ^= h >> _32
                    at += 8
            rest = load_8(data, at) & ((_ONE << np.uint64(8 * (i - at))) - _ONE)
            h = finish_hash((h ^ rest) * MIX, i - start)
            break
        bits = (LETTER if some_letters else 0) | (NUMBER if some_digits else 0)
        counts[PAIRS] |= np.int64(some_pairs)
        if ended:
            last_flags = table[np.uint64(data[np.uint64(i - 1)])]
            spaced = True
        else:
            counts[RUN_FROM], counts[BITS] = run_from, bits
            i, tail, last_flags, spaced = read_on(
                data, table, counts, classes, letters, start, i, tail, joined
            )
            run_from, bits = counts[RUN_FROM], counts[BITS]
            h = hash_word(data, start, i)
        stop = i
        chars = (i - start) - (tail - start_tail)
        counts[LONGEST_WORD] = max(counts[LONGEST_WORD], chars)
        counts[LONGEST_RUN] = max(counts[LONGEST_RUN], i - tail - run_from)
        # Sums, not branches, here and below: a wrong guess of the processor costs more than all of this.
        counts[ALPHA_WORDS] += bits & LETTER != 0
        counts[SYMBOL_WORDS] += bits & (LETTER | NUMBER | MARK) == 0
        ends_with = last_flags
        if ends_with & CLOSER:
            ends_with = end_mark(data, start, i, table)
        # A mark that more text follows without white space ends nothing: "3.5", "example.org".
        counts[SENTENCES] += (ends_with & (TERMINAL | WIDE) == TERMINAL) & spaced
        chars_before += chars
        if words < kept:
            word_start[words] = start
            word_stop[words] = i
            word_hash[words] = h
            word_total[words + 1] = chars_before
        apart = _ONE
        if line_words == 0:
            line_from = start - start_tail
            whole = template = SEED
            bits_of_line = BULLETED if is_bullet(data, start, chars, table) else 0
        elif joined:
            apart = _ZERO
        whole = (whole ^ h ^ apart) * MIX
        whole ^= whole >> _32
        if bits & NUMBER:
            h = hash_folded(data, start, i)
        template = (template ^ h ^ apart) * MIX
        template ^= template >> _32
        length = i - tail - line_from
        bits_of_line &= BULLETED
        if ends_with & TERMINAL:
            bits_of_line |= ENDS
        if last_flags & COLON:
            bits_of_line |= COLON_ENDS
        if last_flags & ELLIPSIS or (last_flags & TERMINAL and ends_in_dots(data, start, i)):
            bits_of_line |= ELLIPSIS_ENDS
        line_words += 1
        words += 1
    for code in range(128):
        classes[table[ASCII_CLASSES_AT + code]] += seen[code]
    if counts[LONGEST_CHAR_RUN] == 0:
        counts[LONGEST_CHAR_RUN] = 2 if counts[PAIRS] else min(words, 1)
    counts[BYTES] = n
    counts[CHARS] = n - tail
    counts[WORDS] = words
    counts[WORD_CHARS] = chars_before
    counts[LINES] = lines
    counts[KEPT_WORDS] = min(words, kept)
    counts[KEPT_LINES] = min(lines, kept)
