"""UTF-8 of one document goes in; the decoded view comes out: words, lines, and counts of characters by class.

One pass looks at every byte once. It fills arrays that are reused from document to document, so a document costs no
allocation, and everything the other measures need is in them.

A *word* is a run of characters without white space, as ``str.split`` gives it, but each Han, kana or Yi character
begins a word of its own, which its following punctuation joins. Two words are equal when their bytes are. A *line*
ends at a line feed; its content runs from its first word to its last, so blanks and a carriage return around it do
not count, and two lines are equal when their words are and stand apart or joined in the same way.

``cache=True`` looks only at the file a kernel stands in. So kernels call none of another file; the one that does, in
:mod:`cleanfeed.signals.measure`, is keyed by all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanfeed.signals.kernel import inner
from cleanfeed.signals.tables import (
    ASCII_CLASSES_AT,
    BLOCKS_AT,
    BULLET,
    CJK,
    CLOSER,
    COLON,
    ELLIPSIS,
    FLAGS_AT,
    FORMAT,
    JOINER,
    LETTER,
    MARK,
    NUMBER,
    SCRIPT_SHIFT,
    SCRIPTS,
    SPACE,
    SPACELESS,
    STACKING,
    SYMBOL,
    TAG,
    TERMINAL,
    VARIATION,
    WIDE,
    ZERO_WIDTH,
)

MAX_WORDS = 1 << 21
"""Words and lines past this number are counted but not kept: repeats are measured over the text before them."""
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
"""What :func:`scan` counts, in order."""
BYTES, CHARS, _WORDS, _WORD_CHARS, LONGEST_WORD, _LONGEST_RUN, _ALPHA, _SYMBOL, _SENTENCES = range(9)
_LINES, _NEWLINES, _LONGEST_CHAR_RUN, _RULER_CHARS, _DOTS, _STACKED, _INVISIBLE, _TAGS = range(9, 17)
KEPT_WORDS, KEPT_LINES = 17, 18

BREAK, ENDS, COLON_ENDS, ELLIPSIS_ENDS, BULLETED = 1, 2, 4, 8, 16
"""Bits of a line: it begins a paragraph; how it ends; it begins with a list mark."""

_WORDY = LETTER | NUMBER
_UNCUT = CJK | SPACELESS
_JOINED_SCRIPTS = tuple(SCRIPTS.index(name) + 1 for name in ("arabic", "hebrew", "indic", "other"))
_FIRST_JOINED, _LAST_JOINED, _OTHER = _JOINED_SCRIPTS[0], _JOINED_SCRIPTS[2], _JOINED_SCRIPTS[3]
_SEED = np.uint64(0x517CC1B727220A95)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(0xD6E8FEB86659FD93)
_32 = np.uint64(32)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class View(NamedTuple):
    """What one pass over a document finds; arrays are reused, and only their first entries belong to the document."""

    counts: npt.NDArray[np.int64]
    """Plain counts, in the order of ``COUNT_NAMES``."""
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
        counts=np.zeros(len(COUNT_NAMES), np.int64),
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
def _end_mark(data: Any, start: Any, stop: Any, table: Any) -> Any:  # pragma: no cover - compiled
    """Return the bits of the last character of a word that is no closing quote or bracket; 0 where there is none."""
    at = stop
    while at > start:
        at -= 1
        while data[at] & 0xC0 == 0x80:
            at -= 1
        point = np.int64(data[at])
        if point >= 128:
            point, _ = _decode(data, at)
        flags = table[FLAGS_AT + table[table[BLOCKS_AT + (point >> 8)] + (point & 255)]]
        if flags & CLOSER == 0:
            return flags
    return 0


@inner
def _load(data: Any, at: Any) -> Any:  # pragma: no cover - compiled
    """Read 8 bytes as one number; compiles to a single load."""
    i = np.uint64(at)
    word = np.uint64(data[i])
    for k in range(1, 8):
        word |= np.uint64(data[i + np.uint64(k)]) << np.uint64(8 * k)
    return word


@inner
def _hash(data: Any, start: Any, stop: Any) -> Any:  # pragma: no cover - compiled
    """Return a 64-bit hash of some bytes."""
    h = _SEED ^ np.uint64(stop - start)
    at = start
    while at < stop:
        if at + 8 <= len(data):
            word = _load(data, at)
            if at + 8 > stop:
                word &= _ALL >> np.uint64(64 - 8 * (stop - at))
        else:
            word = _ZERO
            for k in range(min(8, stop - at)):
                word |= np.uint64(data[at + k]) << np.uint64(8 * k)
        h = (h ^ word) * _MIX
        h ^= h >> _32
        at += 8
    h *= _FOLD
    return h ^ (h >> _32)


@inner
def _hash_folded(data: Any, start: Any, stop: Any) -> Any:  # pragma: no cover - compiled
    """Return a hash of some bytes in which each run of ASCII digits counts as a single ``0``."""
    h = _SEED
    digits = False
    for i in range(start, stop):
        byte = np.uint64(data[i])
        digit = byte - np.uint64(48) < np.uint64(10)
        if digit and digits:
            continue
        digits = digit
        h = (h ^ (np.uint64(48) if digit else byte)) * _MIX
        h ^= h >> _32
    h *= _FOLD
    return h ^ (h >> _32)


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
def _is_bullet(data: Any, start: Any, chars: Any, table: Any) -> Any:  # pragma: no cover - compiled
    """Tell whether a word begins with a list mark; ``-``, ``*`` and ``+`` must be the whole word."""
    byte = data[start]
    if byte < 128:
        return chars == 1 and (byte == 45 or byte == 42 or byte == 43)
    point, _ = _decode(data, start)
    return table[FLAGS_AT + table[table[BLOCKS_AT + (point >> 8)] + (point & 255)]] & BULLET != 0


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
    kept, n = len(word_hash), len(data)
    # Typed, for a plain 0 is a type of its own to numba, and every function called with it would be compiled twice.
    i = tail = np.int64(
        0
    )  # tail: continuation bytes so far, so that i - tail is the number of characters so far
    words = word_chars = alpha = symbol = sentences = lines = newlines = total = 0
    longest_word = longest_run = longest_char = ruler = dots = stacked = invisible = tags = 0
    last = previous = -1  # the last two characters, -1 after white space
    run = stack = run_from = 0
    run_at, mark_at, stop = -2, -1, -1
    pairs = flag_tags = False
    last_flags = ends = 0
    line_words = line_from = length = bits_of_line = 0
    breaks = BREAK
    whole = template = _SEED
    word_total[0] = line_word[0] = line_sentences[0] = 0
    while True:
        # White space and line ends; the text ends its last line.
        byte = 0
        while True:
            if i < n:
                byte = np.int64(data[i])
                if byte < 128:
                    if table[byte] & SPACE == 0:
                        break
                    i += 1
                    seen[byte] += 1
                else:
                    point, size = _decode(data, i)
                    kind = table[table[BLOCKS_AT + (point >> 8)] + (point & 255)]
                    if table[FLAGS_AT + kind] & SPACE == 0:
                        break
                    classes[kind] += 1
                    for k in range(size):
                        seen[data[i + k]] += 1
                    tail += size - 1
                    i += size
                last = previous = -1
                last_flags = SPACE
                if byte != 10:
                    continue
                newlines += 1
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
                    line_sentences[lines + 1] = sentences
                lines += 1
                line_words = breaks = 0
            if i >= n:
                break
        if i >= n:
            break
        # One word.
        start, start_tail, joined = i, tail, i == stop
        if not joined:
            run_from = i - tail
        bits = 0
        cut = SPACE
        while i < n:
            byte = data[
                np.uint64(i)
            ]  # an unsigned index: a signed one may count from the end, which takes a check
            if byte < 128:
                flags = table[byte]
                if flags & cut:
                    break
                point = np.int64(byte)
                seen[byte] += 1
                i += 1
            else:
                point, size = _decode(data, i)
                kind = table[table[BLOCKS_AT + (point >> 8)] + (point & 255)]
                flags = table[FLAGS_AT + kind]
                if flags & cut or (flags & CJK and bits & _WORDY):
                    break
                classes[kind] += 1
                for k in range(size):
                    seen[data[i + k]] += 1
                if flags & LETTER:
                    letters[point & 255] += 1
                elif flags & STACKING:
                    stack = stack + 1 if mark_at == i else 1
                    mark_at = i + size
                    stacked += stack > DEEPEST_STACK
                elif flags & TAG:
                    flag_tags = last == 0x1F3F4 or (flag_tags and last_flags & TAG != 0)
                    tags += not flag_tags
                    invisible += not flag_tags
                elif flags & WIDE:
                    sentences += last_flags & WIDE == 0
                elif flags & FORMAT:
                    invisible += _hides(flags, last_flags)
                if flags & _UNCUT:
                    longest_run = max(longest_run, i - tail - run_from)
                    run_from = i - tail + 1
                    if flags & CJK:
                        cut = SPACE | LETTER | NUMBER
                tail += size - 1
                i += size
            bits |= flags
            pairs |= point == last
            if (point ^ last) | (point ^ previous) == 0:
                run = run + 1 if run_at == i - tail - 1 else 3
                run_at = i - tail
                longest_char = max(longest_char, run)
                if run >= RULER:
                    ruler += RULER if run == RULER else 1
                dots += point == 46 and run % 3 == 0
            previous = last
            last = point
            last_flags = flags
        stop = i
        chars = (i - start) - (tail - start_tail)
        longest_word = max(longest_word, chars)
        longest_run = max(longest_run, i - tail - run_from)
        word_chars += chars
        if bits & LETTER:
            alpha += 1
        elif bits & (NUMBER | MARK) == 0:
            symbol += 1
        ends = last_flags
        if ends & CLOSER:
            ends = _end_mark(data, start, i, table)
        if ends & TERMINAL and ends & WIDE == 0:
            # A mark that more text follows without white space ends nothing: "3.5", "example.org".
            sentences += i >= n or flags & SPACE != 0
        h = _hash(data, start, i)
        if words < kept:
            word_start[words] = start
            word_stop[words] = i
            word_hash[words] = h
            total += chars
            word_total[words + 1] = total
        apart = _ONE
        if line_words == 0:
            line_from = start - start_tail
            whole = template = _SEED
            bits_of_line = BULLETED if _is_bullet(data, start, chars, table) else 0
        elif joined:
            apart = _ZERO
        whole = (whole ^ h ^ apart) * _MIX
        whole ^= whole >> _32
        if bits & NUMBER:
            h = _hash_folded(data, start, i)
        template = (template ^ h ^ apart) * _MIX
        template ^= template >> _32
        length = i - tail - line_from
        bits_of_line &= BULLETED
        if ends & TERMINAL:
            bits_of_line |= ENDS
        if last_flags & COLON:
            bits_of_line |= COLON_ENDS
        if last_flags & ELLIPSIS or (
            i - start > 2 and data[i - 1] == 46 and data[i - 2] == 46 and data[i - 3] == 46
        ):
            bits_of_line |= ELLIPSIS_ENDS
        line_words += 1
        words += 1
    for code in range(128):
        classes[table[ASCII_CLASSES_AT + code]] += seen[code]
    if longest_char == 0:
        longest_char = 2 if pairs else min(words, 1)
    counts[BYTES] = n
    counts[CHARS] = n - tail
    counts[_WORDS] = words
    counts[_WORD_CHARS] = word_chars
    counts[LONGEST_WORD] = longest_word
    counts[_LONGEST_RUN] = longest_run
    counts[_ALPHA] = alpha
    counts[_SYMBOL] = symbol
    counts[_SENTENCES] = sentences
    counts[_LINES] = lines
    counts[_NEWLINES] = newlines
    counts[_LONGEST_CHAR_RUN] = longest_char
    counts[_RULER_CHARS] = ruler
    counts[_DOTS] = dots
    counts[_STACKED] = stacked
    counts[_INVISIBLE] = invisible
    counts[_TAGS] = tags
    counts[KEPT_WORDS] = min(words, kept)
    counts[KEPT_LINES] = min(lines, kept)
