"""The lines of a view go in; counts of lines by how they look and of those seen before come out."""

from __future__ import annotations

from typing import Any

import numpy as np

from cleanfeed.kernel import inner
from cleanfeed.signals.reading import BREAK, BULLETED, COLON_ENDS, ELLIPSIS_ENDS, ENDS

SHORT_LINE = 30
"""Characters of a short line, as in FineWeb."""

LINE_COUNTS = (
    "line_chars",
    "longest_line",
    "short_lines",
    "bullet_lines",
    "ellipsis_lines",
    "terminal_lines",
    "colon_lines",
    "paragraphs",
    "dup_lines",
    "dup_line_chars",
    "dup_template_chars",
    "dup_paras",
    "dup_para_chars",
)
"""What :func:`lines` writes, in order."""

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_20 = np.uint64(20)
_32 = np.uint64(32)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SEED = np.uint64(0x2545F4914F6CDD1D)


@inner
def _repeated(table: Any, hashes: Any, sizes: Any, total: Any) -> Any:  # pragma: no cover - compiled
    """Count the entries whose hash was there before, and sum up their sizes."""
    size = 16
    while 2 * size < 3 * total:
        size *= 2
    mask = np.uint64(size - 1)
    table[:size] = _ZERO
    copies = chars = 0
    for k in range(total):
        key = hashes[k] | _ONE
        slot = (key >> _20) & mask
        while table[slot] != key and table[slot] != _ZERO:
            slot = (slot + _ONE) & mask
        if table[slot] == key:
            copies += 1
            chars += sizes[k]
        table[slot] = key
    return copies, chars


@inner
def lines(
    total: Any, chars: Any, bits: Any, hashes: Any, templates: Any, table: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """Write what ``LINE_COUNTS`` names; the arrays of the lines are used up."""
    length = longest = short = bullets = ellipses = ends = colons = 0
    for k in range(total):
        length += chars[k]
        longest = max(longest, chars[k])
        short += chars[k] <= SHORT_LINE
        bullets += bits[k] & BULLETED != 0
        ellipses += bits[k] & ELLIPSIS_ENDS != 0
        ends += bits[k] & ENDS != 0
        colons += bits[k] & COLON_ENDS != 0
    out[0], out[1], out[2], out[3] = length, longest, short, bullets
    out[4], out[5], out[6] = ellipses, ends, colons
    out[8], out[9] = _repeated(table, hashes, chars, total)
    _, out[10] = _repeated(table, templates, chars, total)
    # Paragraphs take the place of their lines.
    last = -1
    for k in range(total):
        if bits[k] & BREAK or last < 0:
            last += 1
            h = (_SEED ^ hashes[k]) * _MIX
            hashes[last] = h ^ (h >> _32)
            chars[last] = chars[k]
        else:
            h = (hashes[last] ^ hashes[k]) * _MIX
            hashes[last] = h ^ (h >> _32)
            chars[last] += chars[k]
    out[7] = last + 1
    out[11], out[12] = _repeated(table, hashes, chars, last + 1)
