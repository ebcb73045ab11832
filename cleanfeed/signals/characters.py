"""The counts of a view go in; signals about characters come out: shares, hidden and broken ones, entropies, scripts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from cleanfeed.signals.tables import (
    BIDI,
    CONTROL,
    DIGIT,
    FORMAT,
    LETTER,
    MARK,
    OVERRIDE,
    PRIVATE,
    PUNCT,
    REPLACEMENT,
    SCRIPT_SHIFT,
    SCRIPTS,
    SPACE,
    SYMBOL,
    UNASSIGNED,
    UPPER,
    Tables,
)
from cleanfeed.signals.view import (
    BYTES,
    CHARS,
    INVISIBLE,
    LONGEST_CHAR_RUN,
    RULER_CHARS,
    STACKED_MARKS,
    TAG_CHARS,
    View,
)

MIN_ENTROPY = 64
"""With fewer bytes or letters an entropy says how short the text is, not how it is made."""
MAX_SPACELESS = 0.3
"""With a larger share of letters from scripts without spaces, measures of words mean nothing."""

_SCRIPT_COUNT = len(SCRIPTS)
_SPACELESS_SCRIPT = SCRIPTS.index("spaceless")


@njit(nogil=True, cache=True)
def _entropy(counts: Any, total: int) -> float:  # pragma: no cover - compiled
    """Return the bits a symbol needs on average; the counts sum up to ``total``, which is above 0."""
    weighted = 0.0
    for count in counts:
        if count > 0:
            weighted += count * math.log2(count)
    return max(0.0, math.log2(total) - weighted / total)


@njit(nogil=True, cache=True)
def characters(tables: Tables, view: View, out: Any) -> bool:  # pragma: no cover - compiled
    """Write the signals in the order of their declarations; say whether measures of words apply."""
    flags, counts = tables.flags, view.counts
    space = letters = marked = digits = punct = symbols = upper = control = replaced = private = 0
    unassigned = formats = overrides = bidi = 0
    out[27:] = 0.0
    for k in range(len(flags)):
        count = view.classes[k]
        if count == 0:
            continue
        bits = flags[k]
        if bits & SPACE:
            space += count
        if bits & (LETTER | MARK):
            marked += count
            script = bits >> SCRIPT_SHIFT
            if script > 0:
                out[26 + script] += count
        if bits & LETTER:
            letters += count
        if bits & UPPER:
            upper += count
        if bits & DIGIT:
            digits += count
        if bits & PUNCT:
            punct += count
        if bits & SYMBOL:
            symbols += count
        if bits & CONTROL:
            control += count
        if bits & REPLACEMENT:
            replaced += count
        if bits & PRIVATE:
            private += count
        if bits & UNASSIGNED:
            unassigned += count
        if bits & FORMAT:
            formats += count
        if bits & OVERRIDE:
            overrides += count
        if bits & BIDI:
            bidi += count
    chars = counts[CHARS]
    solid = chars - space
    whole = float(solid) if solid else math.nan
    out[0] = chars
    out[1] = counts[BYTES]
    out[2] = solid - formats - control
    out[3] = marked / whole
    out[4] = digits / whole
    out[5] = punct / whole
    out[6] = symbols / whole
    out[7] = space / chars if chars else math.nan
    out[8] = upper / letters if letters else math.nan
    out[9] = control
    out[10] = replaced
    out[11] = replaced / whole
    out[12] = private / whole
    out[13] = unassigned / whole
    out[14] = (private + unassigned) / whole
    out[15] = counts[INVISIBLE]
    out[16] = counts[INVISIBLE] / whole
    out[17] = overrides
    out[18] = bidi
    out[19] = counts[TAG_CHARS]
    out[20] = counts[STACKED_MARKS] / whole
    out[21] = counts[LONGEST_CHAR_RUN]
    out[22] = counts[RULER_CHARS] / whole
    out[23] = _entropy(view.bytes, counts[BYTES]) if counts[BYTES] >= MIN_ENTROPY else math.nan
    out[24] = out[25] = math.nan
    if letters >= MIN_ENTROPY:
        for code in range(65, 91):
            view.letters[code + 32] += view.bytes[code] + view.bytes[code + 32]
        out[24] = _entropy(view.letters, letters)
        out[25] = np.sum(view.letters > 0)
    out[26] = control / whole
    scripted = 0.0
    for k in range(_SCRIPT_COUNT):
        scripted += out[27 + k]
    for k in range(_SCRIPT_COUNT):
        out[27 + k] = out[27 + k] / scripted if scripted else math.nan
    return not out[27 + _SPACELESS_SCRIPT] > MAX_SPACELESS
