"""Nothing goes in; every signal there is comes out, declared once, in column order. Loads no compiled code."""

from __future__ import annotations

from functools import lru_cache

from cleanfeed.signals.blobs_signals import BLOB_SIGNALS
from cleanfeed.signals.characters_signals import CHARACTER_SIGNALS
from cleanfeed.signals.corpus_signals import CORPUS_SIGNALS, READER_SIGNALS
from cleanfeed.signals.lines_signals import LINE_SIGNALS
from cleanfeed.signals.mojibake_signals import MOJIBAKE_SIGNALS
from cleanfeed.signals.page_signals import PAGE_SIGNALS
from cleanfeed.signals.periods_signals import PERIOD_SIGNALS
from cleanfeed.signals.repetition_signals import REPETITION_SIGNALS
from cleanfeed.signals.signal import Signal
from cleanfeed.signals.tokens_signals import TOKEN_SIGNALS
from cleanfeed.signals.words_signals import WORD_SIGNALS

VIEW_SIGNALS: tuple[Signal, ...] = (
    *CHARACTER_SIGNALS,
    *WORD_SIGNALS,
    *LINE_SIGNALS,
    *PAGE_SIGNALS,
    *REPETITION_SIGNALS,
)
"""Measured on the decoded view of a document."""

BYTE_SIGNALS: tuple[Signal, ...] = (*PERIOD_SIGNALS, *BLOB_SIGNALS, *MOJIBAKE_SIGNALS)
"""Measured on the bytes of a document."""

TEXT_SIGNALS: tuple[Signal, ...] = (*VIEW_SIGNALS, *BYTE_SIGNALS)
"""Everything that needs no tokenizer, in the order of the rows :mod:`cleanfeed.signals.measure` fills."""

SIGNALS: tuple[Signal, ...] = (*TEXT_SIGNALS, *READER_SIGNALS, *TOKEN_SIGNALS, *CORPUS_SIGNALS)
"""All signals, in column order."""


@lru_cache(maxsize=1)
def by_name() -> dict[str, Signal]:
    """Return the signals by their names."""
    return {signal.name: signal for signal in SIGNALS}
