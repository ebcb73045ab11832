"""Declarations of the signals about encoded data, in the order the kernel in :mod:`cleanfeed.signals.blobs` writes."""

from __future__ import annotations

from cleanfeed.signals.signal import Signal, count, share

_EMPTY = "the text is empty"

BLOB_SIGNALS: tuple[Signal, ...] = (
    share(
        "blob_share",
        "Share of characters in encoded data: the five kinds below, and unbroken runs of letters and digits no word "
        "has (40 characters or more with digits mixed in, or 200 or more with at least 17 different ones).",
        null_when=_EMPTY,
    ),
    share(
        "base64_share",
        "Share of characters in base64 and base64url of 32 characters or more, over line ends, outside data URIs.",
        null_when=_EMPTY,
    ),
    share(
        "hex_share",
        "Share of characters in unbroken hexadecimal of 32 digits or more that is not of a hash's length.",
        null_when=_EMPTY,
    ),
    share(
        "hex_dump_share",
        "Share of characters in rows of hexadecimal bytes or 16-bit words, with their addresses.",
        null_when=_EMPTY,
    ),
    share("data_uri_share", "Share of characters in base64 data URIs.", null_when=_EMPTY),
    share(
        "id_share",
        "Share of characters in UUIDs and in hashes (32, 40, 48, 56, 64, 96 or 128 hexadecimal digits).",
        null_when=_EMPTY,
    ),
    count("longest_blob", "Characters of the longest piece of encoded data, over line ends."),
)
