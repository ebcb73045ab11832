"""Valid UTF-8 bytes go in; how many code points they are, and where the nth begins, come out."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@numba.njit(nogil=True, cache=True)
def code_points(data: Bytes, start: int, stop: int) -> int:
    """Return how many code points begin in ``data[start:stop]``."""
    count = 0
    for place in range(start, stop):
        count += (data[place] & 0xC0) != 0x80
    return count


@numba.njit(nogil=True, cache=True)
def after_code_points(data: Bytes, start: int, stop: int, wanted: int) -> int:
    """Return the byte after ``wanted`` code points from ``start``, at most ``stop``."""
    left = wanted
    for place in range(start, stop):
        if (data[place] & 0xC0) != 0x80:
            if left == 0:
                return place
            left -= 1
    return stop
