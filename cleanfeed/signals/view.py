"""UTF-8 of one document goes in; the decoded view comes out: words, lines, and counts of characters by class.

One pass looks at every byte once. It fills arrays that are reused from document to document, so a document costs no
allocation, and everything the other measures need is in them: they never look at the text again character by
character.

A *word* is a run of characters without white space, as ``str.split`` gives it, but each Han, kana or Yi character
begins a word of its own, which its following punctuation joins. Two words are equal when their bytes are. A *line* ends
at a line feed; its content runs from its first word to its last, so blanks and a carriage return around it do not
count, and two lines are equal when their words are and stand apart or joined in the same way.

``cache=True`` looks only at the file a kernel stands in. So kernels call none of another file; the one that does, in
:mod:`cleanfeed.signals.measure`, is keyed by all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from cleanfeed.signals.tables import (
    BIDI,
    CJK,
    CLOSER,
    FORMAT,
    JOINER,
    LETTER,
    NUMBER,
    SPACE,
    SPACELESS,
    STACKING,
    SYMBOL,
    TAG,
    TERMINAL,
    VARIATION,
    WIDE,
    ZERO_WIDTH,
    Tables,
)

MAX_WORDS = 1 << 22
"""Words and lines past this number are counted but not kept: repeats are measured over the text before them."""

RULER = 10
"""A character repeated this often without a break is a run worth counting."""
DEEPEST_STACK = 4
"""Marks on one base that writing needs; those beyond are counted."""

(
    BYTES,
    CHARS,
    WORDS,
    WORD_CHARS,
    LONGEST_WORD,
    LONGEST_RUN,
    ALPHA_WORDS,
    SYMBOL_WORDS,
    SENTENCES,
    LINES,
    NEWLINES,
    LONGEST_CHAR_RUN,
    RULER_CHARS,
    DOT_TRIPLES,
    STACKED_MARKS,
    INVISIBLE,
    TAG_CHARS,
    KEPT_WORDS,
    KEPT_LINES,
    COUNTS,
) = range(20)

_WORDY = LETTER | NUMBER
_UNCUT = CJK | SPACELESS
_SEED = np.uint64(0x51_7C_C1_B7_27_22_0A_95)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(0xD6E8FEB86659FD93)
_32 = np.uint64(32)
_8 = np.uint64(8)
_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class View(NamedTuple):
    """What one pass over a document finds; arrays are reused, and only their first entries belong to the document."""

    counts: npt.NDArray[np.int64]
    """Plain counts, at the positions named above."""
    bytes: npt.NDArray[np.int64]
    """How often each byte occurs."""
    classes: npt.NDArray[np.int64]
    """How often each character class occurs outside ASCII; :func:`fold_ascii` adds the rest."""
    letters: npt.NDArray[np.int64]
    """Letters outside ASCII by the last eight bits of their code point."""
    word_start: npt.NDArray[np.int32]
    word_stop: npt.NDArray[np.int32]
    """Bytes the word lies between."""
    word_hash: npt.NDArray[np.uint64]
    word_total: npt.NDArray[np.int32]
    """Characters in all words before this one; one entry more than words."""
    line_start: npt.NDArray[np.int32]
    line_stop: npt.NDArray[np.int32]
    """Bytes the content lies between."""
    line_word: npt.NDArray[np.int32]
    """The line's first word; one entry more than lines."""
    line_chars: npt.NDArray[np.int32]
    line_sentences: npt.NDArray[np.int32]
    """Sentence ends in all lines before this one; one entry more than lines."""
    line_hash: npt.NDArray[np.uint64]
    line_template: npt.NDArray[np.uint64]
    """Hash of the line with each run of ASCII digits folded to one."""
    line_breaks: npt.NDArray[np.uint8]
    """1 where blank lines stand before the line, so that it begins a paragraph."""


def make_view(max_bytes: int, classes: int) -> View:
    """Return a view for documents of up to ``max_bytes`` bytes."""
    words = min(max_bytes // 2 + 1, MAX_WORDS)
    # A Han character is a word without a space: three bytes each, so two bytes a word bounds this as well.
    return View(
        counts=np.zeros(COUNTS, np.int64),
        bytes=np.zeros(256, np.int64),
        classes=np.zeros(classes, np.int64),
        letters=np.zeros(256, np.int64),
        word_start=np.empty(words, np.int32),
        word_stop=np.empty(words, np.int32),
        word_hash=np.empty(words, np.uint64),
        word_total=np.empty(words + 1, np.int32),
        line_start=np.empty(words, np.int32),
        line_stop=np.empty(words, np.int32),
        line_word=np.empty(words + 1, np.int32),
        line_chars=np.empty(words, np.int32),
        line_sentences=np.empty(words + 1, np.int32),
        line_hash=np.empty(words, np.uint64),
        line_template=np.empty(words, np.uint64),
        line_breaks=np.empty(words, np.uint8),
    )


@njit(nogil=True, cache=True)
def decode(data: Any, at: int) -> tuple[int, int]:  # pragma: no cover - compiled
    """Return the code point that starts at ``at`` and the bytes it takes; the text is valid UTF-8."""
    lead = np.int64(data[at])
    if lead < 0x80:
        return lead, 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | (np.int64(data[at + 1]) & 0x3F), 2
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | (np.int64(data[at + 1]) & 0x3F) << 6 | (np.int64(data[at + 2]) & 0x3F), 3
    high = (lead & 0x07) << 18 | (np.int64(data[at + 1]) & 0x3F) << 12
    return high | (np.int64(data[at + 2]) & 0x3F) << 6 | (np.int64(data[at + 3]) & 0x3F), 4


@njit(nogil=True, cache=True)
def flags_at(data: Any, at: int, tables: Tables) -> int:  # pragma: no cover - compiled
    """Return the class bits of the character that starts at ``at``."""
    point, _ = decode(data, at)
    return tables.flags[tables.classes[tables.blocks[point >> 8] * 256 + (point & 255)]]


@njit(nogil=True, cache=True)
def _load(data: Any, at: int) -> Any:  # pragma: no cover - compiled
    """Read 8 bytes as one number; compiles to a single load."""
    i = np.uint64(at)
    word = np.uint64(data[i])
    for k in range(1, 8):
        word |= np.uint64(data[i + np.uint64(k)]) << np.uint64(8 * k)
    return word


@njit(nogil=True, cache=True)
def hash_bytes(data: Any, start: int, stop: int) -> Any:  # pragma: no cover - compiled
    """Return a 64-bit hash of some bytes."""
    h = _SEED ^ np.uint64(stop - start)
    at = start
    while at + 8 <= stop:
        h = (h ^ _load(data, at)) * _MIX
        h ^= h >> _32
        at += 8
    if at < stop:
        if at + 8 <= len(data):
            tail = _load(data, at) & (_ALL >> np.uint64(64 - 8 * (stop - at)))
        else:
            tail = np.uint64(0)
            for k in range(stop - at):
                tail |= np.uint64(data[at + k]) << np.uint64(8 * k)
        h = (h ^ tail) * _MIX
        h ^= h >> _32
    h *= _FOLD
    return h ^ (h >> _32)


@njit(nogil=True, cache=True)
def hash_folded(data: Any, start: int, stop: int) -> Any:  # pragma: no cover - compiled
    """Return a hash of some bytes in which each run of ASCII digits counts as a single ``0``."""
    h = _SEED
    digits = False
    for i in range(start, stop):
        byte = data[i]
        if 48 <= byte <= 57:
            if digits:
                continue
            digits = True
            byte = 48
        else:
            digits = False
        h = (h ^ np.uint64(byte)) * _MIX
        h ^= h >> _32
    h *= _FOLD
    return h ^ (h >> _32)


@njit(nogil=True, cache=True)
def flags_before(data: Any, stop: int, tables: Tables) -> int:  # pragma: no cover - compiled
    """Return the class bits of the character that ends at ``stop``."""
    at = stop - 1
    while (data[at] & 0xC0) == 0x80:
        at -= 1
    return flags_at(data, at, tables)


@njit(nogil=True, cache=True)
def end_mark(data: Any, start: int, stop: int, tables: Tables) -> int:  # pragma: no cover - compiled
    """Return the bits of the last character that is no closing quote or bracket; 0 where there is none."""
    at = stop
    while at > start:
        flags = flags_before(data, at, tables)
        if flags & CLOSER == 0:
            return flags
        at -= 1
        while (data[at] & 0xC0) == 0x80:
            at -= 1
    return 0


@njit(nogil=True, cache=True)
def _hides(flags: int, before: int) -> bool:  # pragma: no cover - compiled
    """Tell whether a format character is hidden without a reason, given the bits of the character before it."""
    if flags & JOINER:
        # Joiners shape emoji and the Arabic, Indic and Mongolian scripts; between Latin letters they do nothing.
        script = before >> 28
        return before & (SYMBOL | STACKING | VARIATION | SPACELESS) == 0 and not (4 <= script <= 6 or script == 11)
    if flags & VARIATION:
        return before == 0 or before & (SPACE | FORMAT) != 0
    if flags & ZERO_WIDTH:
        return before & SPACELESS == 0
    return False


@njit(nogil=True, cache=True)
def _keep_line(
    view: View, line: int, start: int, stop: int, chars: int, whole: Any, template: Any, breaks: int
) -> None:  # pragma: no cover - compiled
    """Store a line that has at least one word."""
    if line < len(view.line_start):
        view.line_start[line] = start
        view.line_stop[line] = stop
        view.line_chars[line] = chars
        view.line_hash[line] = whole
        view.line_template[line] = template
        view.line_breaks[line] = breaks


@njit(nogil=True, cache=True)
def _end_line(view: View, line: int, words: int, sentences: int) -> None:  # pragma: no cover - compiled
    """Store how many words and sentence ends there are up to the end of a line."""
    if line < len(view.line_start):
        view.line_word[line + 1] = min(words, len(view.word_hash))
        view.line_sentences[line + 1] = sentences


@njit(nogil=True, cache=True)
def scan(data: Any, tables: Tables, view: View) -> None:  # pragma: no cover - compiled
    """Fill ``view`` from one document."""
    counts, seen, by_class, letters = view.counts, view.bytes, view.classes, view.letters
    counts[:] = 0
    seen[:] = 0
    by_class[:] = 0
    letters[:] = 0
    ascii_flags = tables.ascii_flags
    kept, total = len(view.word_hash), 0
    n = len(data)
    i = 0
    tail = 0  # continuation bytes so far: i - tail is the number of characters so far
    words = word_chars = longest_word = longest_run = alpha = symbol = sentences = lines = newlines = 0
    last = previous = -1  # the last two characters, -1 after white space
    run = longest_char = ruler = dots = 0
    run_at = -2
    pairs = False
    last_flags = 0
    stack = stacked = invisible = tags = 0
    mark_at = -1
    flag_tags = False
    run_from = 0
    word_stop = -1
    line_words = 0
    line_start = line_from = line_chars = 0
    line_hash = line_template = _SEED
    breaks = 1
    view.word_total[0] = 0
    view.line_word[0] = 0
    view.line_sentences[0] = 0
    while True:
        # White space and line ends.
        while i < n:
            byte = np.int64(data[i])
            if byte < 128:
                if ascii_flags[byte] & SPACE == 0:
                    break
                seen[byte] += 1
                i += 1
            else:
                point, size = decode(data, i)
                kind = tables.classes[tables.blocks[point >> 8] * 256 + (point & 255)]
                if tables.flags[kind] & SPACE == 0:
                    break
                by_class[kind] += 1
                for k in range(size):
                    seen[data[i + k]] += 1
                tail += size - 1
                i += size
            last = previous = -1
            last_flags = SPACE
            if byte == 10:
                newlines += 1
                if line_words:
                    _keep_line(view, lines, line_start, word_stop, line_chars, line_hash, line_template, breaks)
                    _end_line(view, lines, words, sentences)
                    lines += 1
                breaks = 0 if line_words else 1
                line_words = 0
        if i >= n:
            break
        # One word.
        start, start_tail = i, tail
        joined = start == word_stop
        if not joined:
            run_from = i - tail
        bits = 0
        stop_at = SPACE
        while i < n:
            byte = np.int64(data[i])
            if byte < 128:
                flags = ascii_flags[byte]
                if flags & stop_at:
                    break
                point = byte
                seen[byte] += 1
                i += 1
            else:
                point, size = decode(data, i)
                kind = tables.classes[tables.blocks[point >> 8] * 256 + (point & 255)]
                flags = tables.flags[kind]
                if flags & stop_at or (flags & CJK and bits & _WORDY):
                    break
                by_class[kind] += 1
                for k in range(size):
                    seen[data[i + k]] += 1
                if flags & (STACKING | FORMAT | WIDE):
                    if flags & STACKING:
                        stack = stack + 1 if mark_at == i else 1
                        mark_at = i + size
                        if stack > DEEPEST_STACK:
                            stacked += 1
                    elif flags & TAG:
                        if last == 0x1F3F4:
                            flag_tags = True
                        elif last_flags & TAG == 0:
                            flag_tags = False
                        if not flag_tags:
                            tags += 1
                            invisible += 1
                    elif flags & WIDE:
                        if last_flags & WIDE == 0:
                            sentences += 1
                    elif _hides(flags, last_flags):
                        invisible += 1
                elif flags & LETTER:
                    letters[point & 255] += 1
                if flags & _UNCUT:
                    longest_run = max(longest_run, i - tail - run_from)
                    run_from = i - tail + 1
                    if flags & CJK:
                        stop_at = SPACE | LETTER | NUMBER
                tail += size - 1
                i += size
            bits |= flags
            if point == last:
                pairs = True
                if point == previous:
                    run = run + 1 if run_at == i - tail - 1 else 3
                    run_at = i - tail
                    if run > longest_char:
                        longest_char = run
                    if run >= RULER:
                        ruler += RULER if run == RULER else 1
                    if point == 46 and run % 3 == 0:
                        dots += 1
            previous = last
            last = point
            last_flags = flags
        chars = (i - start) - (tail - start_tail)
        longest_word = max(longest_word, chars)
        longest_run = max(longest_run, i - tail - run_from)
        word_chars += chars
        if bits & LETTER:
            alpha += 1
        elif bits & _WORDY == 0 and bits & STACKING == 0:
            symbol += 1
        if last_flags & (TERMINAL | CLOSER) and (i >= n or flags_at(data, i, tables) & SPACE):
            ends = end_mark(data, start, i, tables)
            if ends & TERMINAL and ends & WIDE == 0:
                sentences += 1
        h = hash_bytes(data, start, i)
        if words < kept:
            view.word_start[words] = start
            view.word_stop[words] = i
            view.word_hash[words] = h
            total += chars
            view.word_total[words + 1] = total
        if line_words == 0:
            line_start = start
            line_from = start - start_tail
            line_hash = line_template = _SEED
        apart = np.uint64(0) if joined and line_words > 0 else _ONE
        line_hash = (line_hash ^ h ^ apart) * _MIX
        line_hash ^= line_hash >> _32
        if bits & NUMBER:
            h = hash_folded(data, start, i)
        line_template = (line_template ^ h ^ apart) * _MIX
        line_template ^= line_template >> _32
        line_chars = i - tail - line_from
        line_words += 1
        words += 1
        word_stop = i
    if line_words:
        _keep_line(view, lines, line_start, word_stop, line_chars, line_hash, line_template, breaks)
        _end_line(view, lines, words, sentences)
        lines += 1
    counts[BYTES] = n
    counts[CHARS] = n - tail
    counts[WORDS] = words
    counts[WORD_CHARS] = word_chars
    counts[LONGEST_WORD] = longest_word
    counts[LONGEST_RUN] = longest_run
    counts[ALPHA_WORDS] = alpha
    counts[SYMBOL_WORDS] = symbol
    counts[SENTENCES] = sentences
    counts[LINES] = lines
    counts[NEWLINES] = newlines
    counts[LONGEST_CHAR_RUN] = longest_char if longest_char else (2 if pairs else min(words, 1))
    counts[RULER_CHARS] = ruler
    counts[DOT_TRIPLES] = dots
    counts[STACKED_MARKS] = stacked
    counts[INVISIBLE] = invisible
    counts[TAG_CHARS] = tags
    counts[KEPT_WORDS] = min(words, kept)
    counts[KEPT_LINES] = min(lines, kept)
    for code in range(128):
        by_class[tables.ascii_classes[code]] += seen[code]
