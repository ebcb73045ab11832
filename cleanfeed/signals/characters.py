"""Counts of character classes go in; counts by property and script come out, and entropies."""

from __future__ import annotations

import math
from typing import Any

from cleanfeed.kernel import inner
from cleanfeed.signals.tables import FLAGS_AT, SCRIPT_SHIFT, SCRIPTS

PROPERTIES = (
    "space",
    "letters",
    "marks",
    "numbers",
    "punct",
    "symbols",
    "upper",
    "cjk",
    "uncut",
    "terminals",
    "wide",
    "closers",
    "colons",
    "ellipses",
    "bullet_marks",
    "stacking",
    "formats",
    "joiners",
    "zero_width",
    "tags",
    "variations",
    "overrides",
    "bidi",
    "control",
    "private",
    "unassigned",
    "replacements",
    "digits",
)
"""Names for the bits of a class, from bit 0 on."""

CHARACTER_COUNTS = (
    *PROPERTIES,
    "no_script",
    *(f"script_{name}" for name in SCRIPTS),
    "byte_bits",
    "letter_bits",
    "distinct_letters",
    "hashes",
    "braces",
)
"""What :func:`characters` writes, in order."""

_SCRIPTS = len(PROPERTIES)
_ENTROPIES = _SCRIPTS + 1 + len(SCRIPTS)


@inner
def _entropy(counts: Any) -> Any:  # pragma: no cover - compiled
    """Return the bits a symbol needs on average, and how many symbols there are."""
    total = distinct = 0
    weighted = 0.0
    for count in counts:
        if count > 0:
            weighted += count * math.log2(count)
            total += count
            distinct += 1
    if total == 0:
        return 0.0, 0
    return max(0.0, math.log2(total) - weighted / total), distinct


@inner
def characters(
    table: Any, seen: Any, classes: Any, letters: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """Write what ``CHARACTER_COUNTS`` names; adds the letters of ASCII to ``letters``."""
    out[:] = 0.0
    for kind in range(256):
        count = classes[kind]
        if count:
            flags = table[FLAGS_AT + kind]
            for bit in range(_SCRIPTS):
                out[bit] += count * (flags >> bit & 1)
            out[_SCRIPTS + (flags >> SCRIPT_SHIFT)] += count
    for code in range(65, 91):
        letters[code + 32] += seen[code] + seen[code + 32]
    out[_ENTROPIES], _ = _entropy(seen)
    out[_ENTROPIES + 1], out[_ENTROPIES + 2] = _entropy(letters)
    out[_ENTROPIES + 3] = seen[35]
    out[_ENTROPIES + 4] = seen[123]
