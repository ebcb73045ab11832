"""What a signal is: one measured number of a text, declared once with its meaning and its limits."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct


class Signal(Struct, frozen=True):
    """The declaration of one measured number."""

    name: str
    """Column name in ``signals/``, the name rules use."""
    type: Literal["int", "float"]
    """``int`` becomes int64 in Parquet, ``float`` float64."""
    low: float
    """Smallest value it can take."""
    high: float
    """Largest value it can take; ``math.inf`` where there is none."""
    meaning: str
    """One sentence: what is counted over what, with units."""
    empty: float | None
    """Value on the empty text; None where it is null there."""
    null_when: str
    """When the signal does not apply and is null; empty where it always applies."""
    source: str
    """Paper, code or formula it follows; ``cleanfeed`` where it is our own."""
    needs_tokenizer: bool = False
    needs_corpus: bool = False
    """Whether it is measured against the whole corpus, after all documents were read."""


def count(
    name: str, meaning: str, *, null_when: str = "", source: str = "cleanfeed", high: float = math.inf
) -> Signal:
    """Declare a whole number that is 0 on the empty text."""
    return Signal(name, "int", 0.0, high, meaning, 0.0, null_when, source)


def share(name: str, meaning: str, *, null_when: str, source: str = "cleanfeed") -> Signal:
    """Declare a part of a whole, from 0 to 1, that is null on the empty text."""
    return Signal(name, "float", 0.0, 1.0, meaning, None, null_when, source)
