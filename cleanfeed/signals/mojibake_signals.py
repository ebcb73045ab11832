"""Declaration of the signal the kernel in :mod:`cleanfeed.signals.mojibake` writes."""

from __future__ import annotations

from cleanfeed.signals.signal import Signal, share

MOJIBAKE_SIGNALS: tuple[Signal, ...] = (
    share(
        "mojibake_share",
        "Share of characters in sequences that are UTF-8 read as Windows-1252, Latin-1 or Windows-1251, and that "
        "healthy text does not have.",
        null_when="the text is empty",
    ),
)
