"""Valid UTF-8 bytes go in; how many code points they are, where the nth begins and where to cut come out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import inner

Bytes = npt.NDArray[np.uint8]

BLOCK = 128


@inner
def code_points(data: Bytes, start: int, stop: int) -> int:
    """Return how many code points begin in ``data[start:stop]``."""
    count = 0
    for place in range(start, stop):
        count += (data[place] & 0xC0) != 0x80
    return count


@inner
def after_code_points(data: Bytes, start: int, stop: int, wanted: int) -> int:
    """Return the byte after ``wanted`` code points from ``start``, at most ``stop``."""
    left, begin = wanted, start
    # A block at a time while all of it is wanted: of a count without questions the compiler makes vectors.
    while begin + BLOCK <= stop:
        found = 0
        for place in range(begin, begin + BLOCK):
            found += (data[place] & 0xC0) != 0x80
        if found > left:
            break
        left -= found
        begin += BLOCK
    for place in range(begin, stop):
        if (data[place] & 0xC0) != 0x80:
            if left == 0:
                return place
            left -= 1
    return stop


@inner
def last_cut(data: Bytes, low: int, high: int) -> int:
    """Return the last place in ``[low, high]`` where a line starts, else a space is, else a code point starts.

    A line starts after U+000A. ``low`` is at least 1; without any such place, ``high``.
    """
    space = character = -1
    for place in range(high, low - 1, -1):
        if data[place - 1] == 0x0A:
            return place
        if space < 0 and data[place] == 0x20:
            space = place
        elif character < 0 and (data[place] & 0xC0) != 0x80:
            character = place
    if space >= 0:
        return space
    return character if character >= 0 else high
