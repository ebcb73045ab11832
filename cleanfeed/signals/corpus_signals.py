"""Declarations of what the reader counts and of what is measured against the whole corpus."""

from __future__ import annotations

import math

from cleanfeed.signals.signal import Signal

READER_SIGNALS: tuple[Signal, ...] = (
    Signal(
        name="lone_surrogates",
        type="int",
        low=0,
        high=math.inf,
        meaning="Halves of surrogate pairs in the JSON source, each replaced by U+FFFD in the text.",
        empty=0.0,
        null_when="",
        source="cleanfeed",
    ),
)
"""Counted while a record is read; the text alone does not show them any more."""

CORPUS_SIGNALS: tuple[Signal, ...] = (
    Signal(
        name="rare_token_share",
        type="float",
        low=0.0,
        high=1.0,
        meaning="Share of tokens that at most max(1, documents / 10,000) documents of the corpus hold.",
        empty=None,
        null_when="without tokens, or when fewer than 1,000 documents of the corpus were tokenised.",
        source="cleanfeed",
        needs_tokenizer=True,
        needs_corpus=True,
    ),
)
"""Measured once all documents were counted."""
