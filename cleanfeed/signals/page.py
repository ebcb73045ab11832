"""Lines and marked words of a view go in; the page signs of C4 come out: phrases, braces, lines it would keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from cleanfeed.kernel import inner
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
    STOP_WORDS,
)

MIN_LINE_WORDS = 5
MAX_WORD_CHARS = 1000
_PHRASES = -1 << len(STOP_WORDS)
"""All marks but the stop words."""

_CLOSING = MARK_JAVASCRIPT | MARK_IPSUM | MARK_POLICY | MARK_COOKIES | MARK_TERMS
"""Without one of these there is no phrase."""

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


@inner
def _markers(data: Any) -> Any:  # pragma: no cover - compiled
    """Count the markers of tokenizers that stand in the text."""
    found = opened = 0
    packed = np.uint64(0)
    size = 0  # bytes of the piece since the last opening bracket; 0 outside
    i, n = -1, len(data)
    while True:
        i += 1
        while size == 0 and i < n and data[np.uint64(i)] != 60 and data[np.uint64(i)] != 91:
            i += 1
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
    look = every & _CLOSING != 0 or longest_word > MAX_WORD_CHARS
    for k in range(total):
        first, after = line_word[k], line_word[k + 1]
        script = policy = long = False
        here = before = earlier = 0
        for w in range(first, after if look else first):
            earlier, before = before, here
            here = marks[numbers[w]] & _PHRASES
            if word_total[w + 1] - word_total[w] > MAX_WORD_CHARS:
                long = True
            if here == 0:
                continue
            if here & MARK_JAVASCRIPT:
                script = True
            if here & MARK_IPSUM and before & MARK_LOREM:
                out[0] += 1
            # "privacy policy", "cookie policy", "use(s) cookies", "use of cookies", "terms of use"
            if (
                (here & MARK_POLICY and before & (MARK_PRIVACY | MARK_COOKIE))
                or (here & MARK_COOKIES and before & (MARK_USE | MARK_USES))
                or (here & MARK_COOKIES and before & MARK_OF and earlier & MARK_USE)
                or (here & MARK_USING and before & MARK_OF and earlier & MARK_TERMS)
            ):
                policy = True
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
