"""Declarations of Gopher's repetition signals, in column order."""

from __future__ import annotations

from cleanfeed.signals.signal import Signal, share
from cleanfeed.signals.words_signals import FEW_WORDS

_TABLE = "Gopher (Rae et al. 2021), table A1"

REPETITION_SIGNALS: tuple[Signal, ...] = (
    *(
        share(
            f"top_{length}gram_chars",
            f"Characters of words under the most frequent run of {length} words that occurs at least twice (ties: more "
            "characters, then the earlier), each counted once, over characters of words; 0 where no run repeats.",
            null_when=FEW_WORDS,
            source=_TABLE,
        )
        for length in range(2, 5)
    ),
    *(
        share(
            f"dup_{length}gram_chars",
            f"Characters of words under runs of {length} words that occurred before (all copies but the first), each "
            "counted once, over characters of words.",
            null_when=FEW_WORDS,
            source=_TABLE + "; all copies but the first, as in datatrove",
        )
        for length in range(5, 11)
    ),
)
