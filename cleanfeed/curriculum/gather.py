"""Places in memory go in; what lies there comes out in one array, each at its place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import Kernel, copy_bytes

Int64 = npt.NDArray[np.int64]


@Kernel
def scatter(addresses: Int64, sizes: Int64, out: npt.NDArray[np.uint8], places: Int64) -> None:
    """Copy ``sizes[i]`` bytes from each of some addresses, which must be good, to ``out`` from ``places[i]`` on."""
    for number in range(len(addresses)):
        copy_bytes(addresses[number], sizes[number], out, places[number])


def offsets_of(lengths: Int64) -> Int64:
    """Return the offsets between values of these lengths, shape [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
