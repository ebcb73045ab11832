"""Flat values and ranges in them go in; the ranges, each at its place, come out in one array."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]


@numba.njit(nogil=True, cache=True)
def scatter(values: Values, starts: Int64, lengths: Int64, out: Values, places: Int64) -> None:
    """Copy each range ``[starts[i], starts[i] + lengths[i])`` of ``values`` to ``out`` from ``places[i]`` on."""
    for number in range(len(starts)):
        length = lengths[number]
        # On slices the loop needs no check for negative indices and becomes a copy of whole vectors.
        source = values[starts[number] : starts[number] + length]
        target = out[places[number] : places[number] + length]
        for step in range(length):
            target[step] = source[step]


def offsets_of(lengths: Int64) -> Int64:
    """Return the offsets between values of these lengths, shape [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
