"""Declarations of the signals about tokens, in the order the kernel in :mod:`cleanfeed.signals.tokens` writes."""

from __future__ import annotations

import math

from cleanfeed.signals.signal import Signal

_NONE = "without a tokenizer, or when the text was rejected before it was tokenised"
_NO_TOKEN = f"{_NONE}, or when there is no token"
_OLMO = "OLMo and dolma, search for periodic sequences of token ids"


def _count(name: str, meaning: str, source: str = "cleanfeed") -> Signal:
    return Signal(name, "int", 0.0, math.inf, meaning, 0.0, _NONE, source, needs_tokenizer=True)


def _share(name: str, meaning: str, null_when: str) -> Signal:
    return Signal(name, "float", 0.0, 1.0, meaning, None, null_when, "cleanfeed", needs_tokenizer=True)


TOKEN_SIGNALS: tuple[Signal, ...] = (
    _count("tokens", "Tokens, without the end-of-text token."),
    Signal(
        "chars_per_token", "float", 0.0, math.inf, "Characters over tokens.", None, _NO_TOKEN,
        "StarCoder data (bigcode-project), characters a token", needs_tokenizer=True,
    ),
    _share(
        "byte_fallback_share",
        "Share of tokens that stand for no whole character: bytes above 7F and pieces with part of a character.",
        _NO_TOKEN,
    ),
    _share(
        "unk_share",
        "Share of tokens that are the tokenizer's unknown token.",
        f"{_NO_TOKEN}, or when the tokenizer has no unknown token",
    ),
    _share(
        "distinct_token_ratio",
        "Different tokens over tokens.",
        f"{_NONE}, or when there are fewer than 20 tokens",
    ),
    _count("longest_token_run", "Longest run of one token."),
    _count(
        "token_periods",
        "Most repeats of a unit of 1 to 13 tokens that follows itself at least 3 times; 0 where none does.",
        _OLMO,
    ),
    _share(
        "token_period_share",
        "Share of tokens in stretches of 16 tokens or more in which a unit of 1 to 13 tokens follows itself at least "
        "3 times.",
        _NO_TOKEN,
    ),
)  # fmt: skip
"""Measured on the ids of a document."""
