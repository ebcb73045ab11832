"""Lines and marked words of a view go in; the page signs of C4 come out: phrases, braces, lines it would keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from cleanfeed.kernel import bytes_in, inner, trailing_zeros
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
)

MIN_LINE_WORDS = 5
MAX_WORD_CHARS = 1000
_NEEDED = MARK_JAVASCRIPT | MARK_IPSUM | MARK_POLICY | MARK_COOKIES | MARK_TERMS
"""Without one of these there is no phrase."""
_LAST = MARK_JAVASCRIPT | MARK_IPSUM | MARK_POLICY | MARK_COOKIES | MARK_USING
"""The last word of a phrase has one of these."""

PAGE_COUNTS = ("lorem", "javascript", "policy", "c4_sentences", "c4_chars", "markers")
"""What :func:`page` writes, in order."""

_MARKERS = np.array(
    sorted(
        int.from_bytes(text.encode("ascii"), "little")
        for text in "<s> </s> <unk> <pad> <bos> <eos> <mask> [CLS] [SEP] [PAD] [UNK] [MASK]".split()
    ),
    dtype=np.uint64,
)
"""Short markers as little-endian numbers; none is longer than 8 bytes."""
_LONGEST_MARKER = 40
_8 = np.uint64(8)
_ZERO = np.uint64(0)
_BLOCK = 64
_brackets = bytes_in(_BLOCK, (60, 60), (91, 91))


@inner
def _next_bracket(data: Any, at: Any) -> Any:  # pragma: no cover - compiled
    """Return where the next < or [ is from a place on, or the end of the text."""
    n = len(data)
    while at + _BLOCK <= n:
        found = _brackets(data, at)
        if found != _ZERO:
            return at + trailing_zeros(found)
        at += _BLOCK
    while at < n and data[np.uint64(at)] != 60 and data[np.uint64(at)] != 91:
        at += 1
    return at


@inner
def _markers(data: Any) -> Any:  # pragma: no cover - compiled
    """Count the markers of tokenizers that stand in the text."""
    found = opened = 0
    packed = np.uint64(0)
    size = 0  # bytes of the piece since the last opening bracket; 0 outside
    i, n = np.int64(-1), len(data)
    while True:
        i += 1
        if size == 0:
            i = _next_bracket(data, i)
        if i >= n:
            break
        byte = data[np.uint64(i)]
        if byte == 60 or byte == 91:
            size, opened, packed = 1, byte, np.uint64(byte)
            continue
        if size == 0:
            continue
        size += 1
        if byte <= 32 or size > _LONGEST_MARKER:
            size = 0
            continue
        if size <= 8:
            packed |= np.uint64(byte) << (_8 * np.uint64(size - 1))
        if byte == 62 or byte == 93:
            # 7C is "|": <|...|> with something inside
            if opened == 60 and byte == 62 and size > 4 and data[i - 1] == 124 and data[i - size + 2] == 124:
                found += 1
            elif size <= 8:
                for marker in _MARKERS:
                    found += marker == packed
            size = 0
    return found


@inner
def page(
    data: Any,
    total: Any,
    line_stop: Any,
    line_word: Any,
    line_chars: Any,
    line_sentences: Any,
    numbers: Any,
    marks: Any,
    word_total: Any,
    every: Any,
    longest_word: Any,
    brackets: Any,
    out: Any,
) -> None:  # pragma: no cover - compiled
    """Write what ``PAGE_COUNTS`` names.

    ``every`` are the marks of all words together, ``brackets`` is 0 where the text has no < or [.
    """
    out[:] = 0.0
    look, measured = every & _NEEDED != 0, longest_word > MAX_WORD_CHARS
    for k in range(total):
        first, after = line_word[k], line_word[k + 1]
        script = policy = long = False
        for w in range(first, after if measured else first):
            long |= word_total[w + 1] - word_total[w] > MAX_WORD_CHARS
        for w in range(first, after if look else first):
            here = marks[numbers[w]]
            if here & _LAST == 0:
                continue
            before = marks[numbers[w - 1]] if w > first else 0
            earlier = marks[numbers[w - 2]] if w > first + 1 else 0
            script |= here & MARK_JAVASCRIPT != 0
            out[0] += here & MARK_IPSUM != 0 and before & MARK_LOREM != 0
            # "privacy policy", "cookie policy", "use(s) cookies", "use of cookies", "terms of use"
            policy |= here & MARK_POLICY != 0 and before & (MARK_PRIVACY | MARK_COOKIE) != 0
            policy |= here & MARK_COOKIES != 0 and before & (MARK_USE | MARK_USES) != 0
            policy |= here & MARK_COOKIES != 0 and before & MARK_OF != 0 and earlier & MARK_USE != 0
            policy |= here & MARK_USING != 0 and before & MARK_OF != 0 and earlier & MARK_TERMS != 0
        out[1] += script
        out[2] += policy
        if after - first < MIN_LINE_WORDS or script or policy or long:
            continue
        stop = line_stop[k]
        last = data[stop - 1]
        dots = data[stop - 2] == 46 and data[stop - 3] == 46
        if last == 63 or last == 33 or last == 34 or (last == 46 and not dots):
            out[3] += line_sentences[k + 1] - line_sentences[k]
            out[4] += line_chars[k]
    if brackets:
        out[5] = _markers(data)
