"""Declarations of the signals about periods, in the order the kernel in :mod:`cleanfeed.signals.periods` writes."""

from __future__ import annotations

import math

from cleanfeed.signals.signal import Signal, count, share

_RUN = (
    "a stretch of at least 32 bytes in which one unit of up to 8,192 bytes follows itself at least 3 times; white "
    "space alone and rulers of up to 128 marks are layout and not counted"
)

PERIOD_SIGNALS: tuple[Signal, ...] = (
    Signal(
        "lz_ratio", "float", 0.0, math.inf,
        "Compressibility: size of a greedy parse into new characters (1 each) and copies of at least 8 characters from "
        "earlier in the text (4 each), over characters.",
        None, "there are fewer than 200 characters", "cleanfeed, after Lempel and Ziv (1977)",
    ),
    share("periodic_share", f"Share of characters in periodic runs: {_RUN}.", null_when="the text is empty"),
    count("periodic_longest", "Characters of the longest periodic run."),
    count("periodic_repeats", "Most repeats of the unit of any periodic run."),
    count("periodic_period", "Characters of the unit of the longest periodic run; 0 where there is none."),
)  # fmt: skip
