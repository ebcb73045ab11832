"""Lines and marked words of a view go in; the page signs of C4 come out: phrases, braces, lines it would keep."""

from __future__ import annotations

import math
from typing import Any

from numba import njit

from cleanfeed.signals.view import KEPT_LINES, View
from cleanfeed.signals.words import (
    MARK_COOKIE,
    MARK_COOKIES,
    MARK_IPSUM,
    MARK_JAVASCRIPT,
    MARK_LOREM,
    MARK_OF,
    MARK_POLICY,
    MARK_PRIVACY,
    MARK_TERMS,
    MARK_USE,
    MARK_USES,
    MARK_USING,
    Grams,
)

MIN_LINE_WORDS = 5
MAX_WORD_CHARS = 1000
_PHRASES = ~255
"""All marks but the stop words."""


@njit(nogil=True, cache=True)
def _names_a_policy(marks: int, before: int, earlier: int) -> bool:  # pragma: no cover - compiled
    """Tell whether a word ends one of C4's phrases, given the marks of the two words before it."""
    if marks & MARK_POLICY and before & (MARK_PRIVACY | MARK_COOKIE):
        return True
    if marks & MARK_COOKIES and before & (MARK_USE | MARK_USES):
        return True
    if before & MARK_OF:
        return (marks & MARK_COOKIES and earlier & MARK_USE) or (marks & MARK_USING and earlier & MARK_TERMS)
    return False


@njit(nogil=True, cache=True)
def _ends_well(data: Any, start: int, stop: int) -> bool:  # pragma: no cover - compiled
    """Tell whether a line ends as C4 wants it: in . ? ! or a straight quote, but not in three dots."""
    last = data[stop - 1]
    if last != 46:
        return last == 63 or last == 33 or last == 34
    return not (stop - start >= 3 and data[stop - 2] == 46 and data[stop - 3] == 46)


@njit(nogil=True, cache=True)
def _marker(data: Any, at: int) -> int:  # pragma: no cover - compiled
    """Return the bytes of a tokenizer's marker that starts at ``at``; 0 where there is none."""
    n = len(data)
    if data[at] == 60:  # <s> </s> <unk> <pad> <bos> <eos> <mask> and <|...|>
        if at + 3 < n and data[at + 1] == 124:
            for i in range(at + 2, min(at + 40, n - 1)):
                if data[i] <= 32 or data[i] == 60 or data[i] == 62:
                    return 0
                if data[i] == 124 and data[i + 1] == 62:
                    return i + 2 - at if i > at + 2 else 0
            return 0
        i = at + 1
        if i < n and data[i] == 47:
            i += 1
        name = 0
        while i < n and i < at + 7 and 97 <= data[i] <= 122:
            name = name * 32 + (data[i] - 96)
            i += 1
        if i >= n or data[i] != 62:
            return 0
        if name == 19:
            return i + 1 - at
        # unk, pad, bos, eos, mask: letters as digits to base 32
        if name == 21963 or name == 16420 or name == 2547 or name == 5619 or name == 427627:
            return i + 1 - at if data[at + 1] != 47 else 0
        return 0
    i = at + 1
    name = 0
    while i < n and i < at + 6 and 65 <= data[i] <= 90:
        name = name * 32 + (data[i] - 64)
        i += 1
    if i >= n or data[i] != 93:
        return 0
    # CLS, SEP, PAD, UNK, MASK
    if name == 3475 or name == 19632 or name == 16420 or name == 21963 or name == 427627:
        return i + 1 - at
    return 0


@njit(nogil=True, cache=True)
def _markers(data: Any) -> int:  # pragma: no cover - compiled
    """Count the markers of tokenizers that stand in the text."""
    found = 0
    i, n = 0, len(data)
    while i < n:
        if data[i] == 60 or data[i] == 91:
            size = _marker(data, i)
            found += size > 0
            i += max(size, 1)
        else:
            i += 1
    return found


@njit(nogil=True, cache=True)
def page(data: Any, view: View, grams: Grams, spaced: bool, out: Any) -> None:  # pragma: no cover - compiled
    """Write the signals in the order of their declarations."""
    total = view.counts[KEPT_LINES]
    lorem = javascript = policy = sentences = chars = kept_chars = 0
    for k in range(total):
        first, after = view.line_word[k], view.line_word[k + 1]
        has_script = has_policy = has_long = False
        before = earlier = 0
        for w in range(first, after):
            marks = grams.marks[grams.word[w]] & _PHRASES
            if marks:
                has_script = has_script or marks & MARK_JAVASCRIPT != 0
                has_policy = has_policy or _names_a_policy(marks, before, earlier)
                lorem += marks & MARK_IPSUM != 0 and before & MARK_LOREM != 0
            has_long = has_long or view.word_total[w + 1] - view.word_total[w] > MAX_WORD_CHARS
            earlier, before = before, marks
        javascript += has_script
        policy += has_policy
        size = view.line_chars[k]
        chars += size
        if after - first < MIN_LINE_WORDS or has_script or has_policy or has_long:
            continue
        if _ends_well(data, view.line_start[k], view.line_stop[k]):
            kept_chars += size
            sentences += view.line_sentences[k + 1] - view.line_sentences[k]
    out[0] = view.bytes[123]
    out[1] = lorem
    out[2] = javascript
    out[3] = policy
    out[4] = sentences
    out[5] = kept_chars / chars if chars and spaced else math.nan
    out[6] = _markers(data) if view.bytes[60] or view.bytes[91] else 0
