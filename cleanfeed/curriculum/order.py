"""Samples' hashes and places in the input go in; 64-bit keys come out whose order is the shuffle of a stage."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BUCKET_BITS = 12
"""Keys are counted by their first 12 bits when a stage is cut into files."""


def mix(values: UInt64) -> UInt64:
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood 2014, as in ``java.util.SplittableRandom``)."""
    z: UInt64 = values.copy()
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def shuffle_keys(
    sample_hashes: npt.NDArray[np.uint8],
    seed: int,
    file_index: npt.NDArray[np.int64],
    source_row: npt.NDArray[np.int64],
    part: npt.NDArray[np.int32],
) -> UInt64:
    """Return the shuffle key of each sample.

    The key is a keyed hash of what the sample holds and where it came from: equal samples do not end up side by
    side, and nothing but the inputs and the seed decides the order.

    Args:
        sample_hashes: Shape [samples, 16].
        seed: ``curriculum.seed`` of the pipeline.
        file_index: Position of the sample's file in the sorted inputs.
        source_row: 0-based record number in its file.
        part: Part of its document.
    """
    halves = np.ascontiguousarray(sample_hashes).view("<u8").reshape(-1, 2)
    # An array, since numpy warns of overflow for scalars and not for arrays.
    keys = mix(np.full(len(halves), seed, dtype=np.uint64) + GOLDEN)
    for column in (halves[:, 0], halves[:, 1], file_index, source_row, part):
        keys = mix((keys ^ column.astype(np.uint64)) + GOLDEN)
    return keys


def buckets(keys: UInt64) -> npt.NDArray[np.int64]:
    """Return the first ``BUCKET_BITS`` bits of each key."""
    return cast("npt.NDArray[np.int64]", (keys >> np.uint64(64 - BUCKET_BITS)).astype(np.int64))
