"""Bytes of a word go in; what it ends with comes out, its hash, and counts of what its characters are.

The pieces of :func:`cleanfeed.signals.view.scan`, which reads words in ASCII itself and all others by
:func:`read_on`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cleanfeed.kernel import inner, load_8
from cleanfeed.signals.tables import (
    BLOCKS_AT,
    BULLET,
    CJK,
    CLOSER,
    FLAGS_AT,
    FORMAT,
    JOINER,
    LETTER,
    NUMBER,
    SCRIPT_SHIFT,
    SCRIPTS,
    SPACE,
    SPACELESS,
    STACKING,
    SYMBOL,
    TAG,
    VARIATION,
    WIDE,
    ZERO_WIDTH,
)

RULER = 10
"""A character repeated this often without a break is a run worth counting."""
DEEPEST_STACK = 4
"""Marks on one base that writing needs; those beyond are counted."""


COUNT_NAMES = (
    "bytes",
    "chars",
    "words",
    "word_chars",
    "longest_word",
    "longest_run",
    "alpha_words",
    "symbol_words",
    "sentences",
    "lines",
    "newlines",
    "longest_char_run",
    "ruler_chars",
    "dot_triples",
    "stacked_marks",
    "invisible",
    "tag_chars",
    "kept_words",
    "kept_lines",
)
"""What :func:`cleanfeed.signals.view.scan` counts, in order."""
BYTES, CHARS, WORDS, WORD_CHARS, LONGEST_WORD, LONGEST_RUN, ALPHA_WORDS, SYMBOL_WORDS, SENTENCES = range(9)
LINES, NEWLINES, LONGEST_CHAR_RUN, RULER_CHARS, DOTS, STACKED, INVISIBLE, TAGS = range(9, 17)
KEPT_WORDS, KEPT_LINES = 17, 18
STATES = 11
"""What it remembers from word to word, behind the counts."""
RUN, RUN_AT, STACK, MARK_AT, FLAG_TAGS, PAIRS, LAST, BEFORE_LAST, LAST_FLAGS, BITS, RUN_FROM = range(
    len(COUNT_NAMES), len(COUNT_NAMES) + STATES
)


BREAK, ENDS, COLON_ENDS, ELLIPSIS_ENDS, BULLETED = 1, 2, 4, 8, 16
"""Bits of a line: it begins a paragraph; how it ends; it begins with a list mark."""

_WORDY = LETTER | NUMBER
_UNCUT = CJK | SPACELESS
_JOINED_SCRIPTS = tuple(SCRIPTS.index(name) + 1 for name in ("arabic", "hebrew", "indic", "other"))
_FIRST_JOINED, _LAST_JOINED, _OTHER = _JOINED_SCRIPTS[0], _JOINED_SCRIPTS[2], _JOINED_SCRIPTS[3]
SEED = np.uint64(0x517CC1B727220A95)
MIX = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(0xD6E8FEB86659FD93)
_32 = np.uint64(32)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_BYTE = np.uint64(0xFF)


@inner
def decode(data: Any, at: Any) -> Any:  # pragma: no cover - compiled
    """Return the code point that starts at ``at``, outside ASCII, and the bytes it takes; the text is valid UTF-8."""
    i = np.uint64(at)  # a signed index may count from the end, which takes a check
    lead = np.int64(data[i])
    point = np.int64(data[i + _ONE]) & 0x3F
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | point, 2
    point = point << 6 | (np.int64(data[i + np.uint64(2)]) & 0x3F)
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | point, 3
    return (lead & 0x07) << 18 | point << 6 | (np.int64(data[i + np.uint64(3)]) & 0x3F), 4


@inner
def end_mark(data: Any, start: Any, stop: Any, table: Any) -> Any:  # pragma: no cover - compiled
    """Return the bits of the last character of a word that is no closing quote or bracket; 0 where there is none."""
    at = stop
    while at > start:
        at -= 1
        while data[at] & 0xC0 == 0x80:
            at -= 1
        point = np.int64(data[at])
        if point >= 128:
            point, _ = decode(data, at)
        flags = table[FLAGS_AT + table[table[BLOCKS_AT + (point >> 8)] + (point & 255)]]
        if flags & CLOSER == 0:
            return flags
    return 0


@inner
def hash_word(data: Any, start: Any, stop: Any) -> Any:  # pragma: no cover - compiled
    """Return a 64-bit hash of some bytes; the scan finds the same in passing for a word in ASCII."""
    h = SEED
    at = start
    while at + 8 <= stop:
        h = (h ^ load_8(data, at)) * MIX
        h ^= h >> _32
        at += 8
    rest = _ZERO
    if at + 8 <= len(data):
        rest = load_8(data, at) & ((_ONE << np.uint64(8 * (stop - at))) - _ONE)
    else:
        for k in range(stop - at):
            rest |= np.uint64(data[np.uint64(at + k)]) << np.uint64(8 * k)
    h = (h ^ rest) * MIX
    return finish_hash(h, stop - start)


@inner
def finish_hash(h: Any, size: Any) -> Any:  # pragma: no cover - compiled
    """Return the hash of a word from that of its pieces."""
    h = (h ^ (h >> _32) ^ np.uint64(size)) * _FOLD
    return h ^ (h >> _32)


@inner
def hash_folded(data: Any, start: Any, stop: Any) -> Any:  # pragma: no cover - compiled
    """Return a hash of some bytes in which each run of ASCII digits counts as a single ``0``."""
    h = SEED
    digits = False
    for i in range(start, stop):
        byte = np.uint64(data[np.uint64(i)])
        digit = byte - np.uint64(48) < np.uint64(10)
        longer = (h ^ (np.uint64(48) if digit else byte)) * MIX
        h = h if digit & digits else longer
        digits = digit
    h = (h ^ (h >> _32)) * _FOLD
    return h ^ (h >> _32)


@inner
def count_bytes(data: Any, seen: Any, second: Any, third: Any) -> None:  # pragma: no cover - compiled
    """Count each byte; all three arrays are zeros before, and the others are again afterwards.

    Equal bytes stand side by side often, and one counter would wait for itself.
    """
    n = len(data)
    for at in range(0, n - 7, 8):
        word = load_8(data, at)
        for k in range(0, 6, 3):
            seen[word >> np.uint64(8 * k) & _BYTE] += 1
            second[word >> np.uint64(8 * k + 8) & _BYTE] += 1
            third[word >> np.uint64(8 * k + 16) & _BYTE] += 1
        seen[word >> np.uint64(48) & _BYTE] += 1
        second[word >> np.uint64(56)] += 1
    for at in range(n & ~7, n):
        seen[data[at]] += 1
    for code in range(256):
        seen[code] += second[code] + third[code]
        second[code] = third[code] = 0


@inner
def _hides(flags: Any, before: Any) -> Any:  # pragma: no cover - compiled
    """Tell whether a format character is hidden without a reason, given the bits of the character before it."""
    if flags & JOINER:
        # Joiners shape emoji and the Arabic, Indic and Mongolian scripts; between Latin letters they do nothing.
        if before & (SYMBOL | STACKING | VARIATION | SPACELESS):
            return False
        script = before >> SCRIPT_SHIFT
        return script != _OTHER and not _FIRST_JOINED <= script <= _LAST_JOINED
    if flags & VARIATION:
        return before == 0 or before & (SPACE | FORMAT) != 0
    return flags & ZERO_WIDTH != 0 and before & SPACELESS == 0


@inner
def is_bullet(data: Any, start: Any, chars: Any, table: Any) -> Any:  # pragma: no cover - compiled
    """Tell whether a word begins with a list mark; ``-``, ``*`` and ``+`` must be the whole word."""
    byte = data[start]
    if byte < 128:
        return chars == 1 and (byte == 45 or byte == 42 or byte == 43)
    point, _ = decode(data, start)
    return table[FLAGS_AT + table[table[BLOCKS_AT + (point >> 8)] + (point & 255)]] & BULLET != 0


@inner
def ends_in_dots(data: Any, start: Any, stop: Any) -> Any:  # pragma: no cover - compiled
    """Tell whether the last three bytes of a word are full stops."""
    if stop - start < 3:
        return False
    return (
        data[np.uint64(stop - 1)] == 46
        and data[np.uint64(stop - 2)] == 46
        and data[np.uint64(stop - 3)] == 46
    )


@inner
def read_on(
    data: Any,
    table: Any,
    counts: Any,
    classes: Any,
    letters: Any,
    start: Any,
    at: Any,
    tail: Any,
    joined: Any,
) -> Any:  # pragma: no cover - compiled
    """Read the rest of a word, character by character.

    What it keeps from word to word, and returns beside, stands in ``counts``: registers are few, and the scan
    needs them for words in ASCII.

    Returns:
        Where the word ends; ``tail`` there; the bits of its last character; whether white space or nothing follows.
    """
    i, n = at, len(data)
    bits, run_from = counts[BITS], counts[RUN_FROM]
    last = previous = np.int64(-1)  # the last two characters, -1 after white space
    last_flags = np.int64(SPACE)
    if joined:
        last, previous, last_flags = counts[LAST], counts[BEFORE_LAST], counts[LAST_FLAGS]
    if i > start:
        previous = np.int64(data[i - 2]) if i > start + 1 else last
        last = np.int64(data[i - 1])
        last_flags = table[last]
    pairs = False
    cut, flags = np.int64(SPACE), np.int64(SPACE)
    while i < n:
        byte = np.int64(data[np.uint64(i)])
        if byte < 128:
            flags = table[np.uint64(byte)]
            if flags & cut:
                break
            point = byte
            i += 1
        else:
            point, size = decode(data, i)
            kind = table[table[BLOCKS_AT + (point >> 8)] + (point & 255)]
            flags = table[FLAGS_AT + kind]
            if flags & cut or (flags & CJK and bits & _WORDY):
                break
            classes[kind] += 1
            if flags & LETTER:
                letters[point & 255] += 1
            elif flags & STACKING:
                counts[STACK] = counts[STACK] + 1 if counts[MARK_AT] == i else 1
                counts[MARK_AT] = i + size
                counts[STACKED] += counts[STACK] > DEEPEST_STACK
            elif flags & TAG:
                flag = last == 0x1F3F4 or (counts[FLAG_TAGS] != 0 and last_flags & TAG != 0)
                counts[FLAG_TAGS] = flag
                counts[TAGS] += not flag
                counts[INVISIBLE] += not flag
            elif flags & WIDE:
                counts[SENTENCES] += last_flags & WIDE == 0
            elif flags & FORMAT:
                counts[INVISIBLE] += _hides(flags, last_flags)
            if flags & _UNCUT:
                counts[LONGEST_RUN] = max(counts[LONGEST_RUN], i - tail - run_from)
                run_from = i - tail + 1
                if flags & CJK:
                    cut = np.int64(SPACE | LETTER | NUMBER)
            tail += size - 1
            i += size
        bits |= flags
        pairs |= point == last
        if (point ^ last) | (point ^ previous) == 0:
            run = counts[RUN] + 1 if counts[RUN_AT] == i - tail - 1 else 3
            counts[RUN], counts[RUN_AT] = run, i - tail
            counts[LONGEST_CHAR_RUN] = max(counts[LONGEST_CHAR_RUN], run)
            if run >= RULER:
                counts[RULER_CHARS] += RULER if run == RULER else 1
            counts[DOTS] += (point == 46) & (run % 3 == 0)
        previous = last
        last = point
        last_flags = flags
    counts[LAST], counts[BEFORE_LAST], counts[LAST_FLAGS] = last, previous, last_flags
    counts[BITS], counts[RUN_FROM] = bits, run_from
    counts[PAIRS] |= pairs
    return i, tail, last_flags, i >= n or flags & SPACE != 0
