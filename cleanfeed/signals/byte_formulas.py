"""Counts over the bytes of many documents go in, one array each; signals come out, with NaN where a signal is null."""

from __future__ import annotations

from cleanfeed.signals.formulas import Column, Counts, only, over

MIN_LZ_CHARS = 200
"""Shorter texts have nothing to copy from."""
COPY_COST = 4.0
"""What a copy is taken to cost, in characters: a distance and a length."""


def byte_columns(c: Counts) -> dict[str, Column]:
    """Return the signals about periods, encoded data and mojibake, in the order of their declarations.

    Args:
        c: What the kernels wrote, with ``chars`` and ``bytes``.
    """
    chars = c["chars"]
    # New bytes over bytes is new characters over characters, as near as matters.
    parsed = over(c["bytes"] - c["copied_bytes"], c["bytes"]) + COPY_COST * over(c["copies"], chars)
    kinds = ("base64", "hex", "hex_dump", "data_uri", "id")
    blobs = sum((c[f"{kind}_chars"] for kind in kinds), start=c["other_blob_chars"])
    return {
        "lz_ratio": only(parsed, chars >= MIN_LZ_CHARS),
        "periodic_share": over(c["periodic_chars"], chars),
        "periodic_longest": c["periodic_longest"],
        "periodic_repeats": c["periodic_repeats"],
        "periodic_period": c["periodic_period"],
        "blob_share": over(blobs, chars),
        **{f"{kind}_share": over(c[f"{kind}_chars"], chars) for kind in kinds},
        "longest_blob": c["longest_blob"],
        "mojibake_share": over(c["mojibake_chars"], chars),
    }
