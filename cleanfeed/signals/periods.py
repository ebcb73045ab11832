"""Bytes of a text go in; how far they repeat themselves comes out: counts of a greedy parse and of periodic runs.

One pass keeps the last position of every 8-byte word in a small hash table. The nearest earlier copy of the word at a
position gives both the next step of a Lempel-Ziv parse and, where copies follow each other without a gap, the
period of a run. Nothing is compared twice, so the pass is linear whatever the text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import Kernel, at_least_64, inner, leading_zeros, load_8, trailing_zeros

TABLE_BITS = 15
MAX_PERIOD = 8192
MIN_REPEATS = 3
MIN_RUN = 32
"""Shortest run in bytes: ordinary prose has none of this length."""
MIN_COPY = 8.0
"""Shortest copy the parse names, in characters."""
MAX_RULER = 128
"""A run of punctuation and spaces up to this many characters is layout (a ruler, dot leaders) and is not counted."""
BLOCK = 64
"""Positions looked up at once: the bits of a number tell which of them have an earlier copy."""
_NONE = np.uint64(0)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_EVERY_16TH = np.uint64(0x0001000100010001)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_POSITIONS_END = 2**31 - 2**20

_SPACE, _MARK, _TEXT = 0, 1, 2


def _unit_classes() -> npt.NDArray[np.uint8]:
    """Tell spaces from ASCII punctuation from everything else, for each byte."""
    classes = np.full(256, _TEXT, np.uint8)
    for code in range(128):
        if not chr(code).isalnum():
            classes[code] = _SPACE if chr(code).isspace() else _MARK
    return classes


_UNIT = _unit_classes()


PERIOD_COUNTS = (
    "copied_bytes",
    "copies",
    "periodic_chars",
    "periodic_longest",
    "periodic_repeats",
    "periodic_period",
)
"""What the kernel writes."""
_SEEN_AT = (1 << TABLE_BITS) + 1
_EQUAL_AT = _SEEN_AT + BLOCK
_RUNS_AT = _EQUAL_AT + BLOCK
"""Scratch is one array, since each costs compile time: the hash table, the position at which the next document
starts, the earlier copy of each position of a block and whether it is one, then start and end of each run found,
ascending and apart."""


def make_period_scratch(max_bytes: int) -> npt.NDArray[np.int32]:
    """Return scratch for documents of up to ``max_bytes`` bytes; results never depend on what it held before."""
    scratch = np.full(_RUNS_AT + 2 * (max_bytes // MIN_RUN + 2), -1, np.int32)
    scratch[_SEEN_AT - 1] = 0
    return scratch


@inner
def _extend(data: Any, at: int, distance: int) -> int:
    """Return the first position from ``at`` on where the text differs from ``distance`` bytes earlier."""
    n = len(data)
    while at + 8 <= n:
        differ = load_8(data, at) ^ load_8(data, at - distance)
        if differ:
            # how many bytes are equal, told from the lowest bit that differs: a loop over them would be a guess
            return at + int(trailing_zeros(differ) >> 3)
        at += 8
    while at < n and data[at] == data[at - distance]:
        at += 1
    return at


@inner
def _unparsed(parsed: int) -> Any:
    """Return the positions of a block to look at, given how far the parse has come in it.

    Inside a copy every 16th position is enough to notice that the copied text is itself periodic.
    """
    skipped = min(max(parsed, 0), BLOCK)
    return _EVERY_16TH | _ALL << np.uint64(skipped >> 1) << np.uint64(skipped - (skipped >> 1))


@inner
def _is_layout(data: Any, start: int, stop: int, period: int) -> bool:
    """Tell whether a run is white space alone, or short and without a letter or digit."""
    marks, wide = False, False
    for i in range(start, start + period):
        byte = data[i]
        kind = _UNIT[byte]
        # U+2000..2FFF (dashes, dots, box drawing) and U+3000..303F are marks too; their last bytes follow the lead
        if kind == 2:
            lead = i
            while lead > 0 and (data[lead] & 0xC0) == 0x80:
                lead -= 1
            if not (
                data[lead] == 0xE2 or (data[lead] == 0xE3 and lead + 1 < len(data) and data[lead + 1] == 0x80)
            ):
                return False
            wide = True
        marks = marks or kind != 0
    return not marks or stop - start <= (3 * MAX_RULER if wide else MAX_RULER)


@inner
def _chars(data: Any, start: int, stop: int) -> int:
    """Count code points that begin in a stretch."""
    count = 0
    for i in range(start, stop):
        count += (data[i] & 0xC0) != 0x80
    return count


@inner
def _add_run(scratch: Any, end: int, start: int, stop: int) -> int:
    """Add a stretch to the list of separate ones, joining those it touches; return the new end of the list."""
    while end > _RUNS_AT and scratch[end - 2] >= start:
        end -= 2
        stop = max(stop, scratch[end + 1])
    if end > _RUNS_AT and scratch[end - 1] >= start:
        scratch[end - 1] = max(stop, scratch[end - 1])
        return end
    scratch[end] = start
    scratch[end + 1] = stop
    return end + 2


@inner
def _run_around(data: Any, at: int, period: int) -> tuple[int, int]:
    """Return the longest stretch around ``at`` that repeats with a period, which holds from ``at`` for 8 bytes."""
    stop = _extend(data, at + 8, period)
    start = at - period
    while start >= 8:
        differ = load_8(data, start - 8) ^ load_8(data, start - 8 + period)
        if differ:
            return start - (leading_zeros(differ) >> 3), stop
        start -= 8
    while start > 0 and data[start - 1] == data[start - 1 + period]:
        start -= 1
    return start, stop


@Kernel
def scan_periods(data: Any, offsets: Any, chars: Any, scratch: Any, out: Any) -> int:
    """Measure documents, given as UTF-8, each into a row of ``out`` in the order of ``PERIOD_COUNTS``.

    Args:
        data: The bytes.
        offsets: Where the documents start and stop in them, shape [documents + 1].
        chars: Their code points.
        scratch: Of :func:`make_period_scratch`, for the longest.
        out: Where the numbers go, shape [documents, counts].

    Returns:
        How many separate stretches of periodic text the last one has; :func:`period_runs` reads them from ``scratch``.
    """
    found = np.int64(0)
    for d in range(len(offsets) - 1):
        found = _scan(data[offsets[d] : offsets[d + 1]], chars[d], scratch, out[d])
    return int(found)


@inner
def _scan(data: Any, n_chars: Any, scratch: Any, out: Any) -> Any:
    """Do what :func:`scan_periods` does for one document."""
    n = len(data)
    # positions count on from document to document, so that the table need not be cleared for each
    base = np.int64(scratch[_SEEN_AT - 1])
    if base + n >= _POSITIONS_END:
        for slot_at in range(_SEEN_AT):
            scratch[slot_at] = -1
        base = np.int64(0)
    scratch[_SEEN_AT - 1] = base + n
    shift = np.uint64(64 - TABLE_BITS)
    wide = n / max(n_chars, 1)
    # in characters, so that scripts of two and three bytes a character read like others
    least = int(MIN_COPY * wide)
    # typed: a literal 0 would have the functions below compiled once more for it
    zero = np.int64(0)
    list_end = np.int64(_RUNS_AT)
    parsed = copied = copies = run_end = best_start = best_end = best_period = repeats = zero
    failed_period, failed_end, work = 0, 0, 8 * n + 4096
    # The table is read and written for a block ahead of the parse, without a question to the processor: a wrong guess
    # then costs only what the parse has begun, not the way through the table as well.
    # Each step is a loop of its own, of which the compiler makes vectors.
    first, hits = zero - BLOCK, _NONE
    start_32, nothing = np.int32(base), np.int32(0)
    while True:
        while hits == _NONE:
            first += BLOCK
            if first >= n - 7:
                break
            size = min(BLOCK, n - 7 - first)
            for k in range(size):
                slot = load_8(data, first + k) * _MULTIPLIER >> shift
                scratch[np.uint64(_SEEN_AT + k)] = scratch[slot]
                scratch[slot] = base + first + k
            hits = at_least_64(scratch, _SEEN_AT, base) & _ALL >> np.uint64(BLOCK - size)
            for k in range(BLOCK):
                at = np.uint64(_SEEN_AT + k)
                scratch[at] = max(scratch[at] - start_32, nothing)
            for k in range(size):
                seen = np.int64(scratch[np.uint64(_SEEN_AT + k)])
                scratch[np.uint64(_EQUAL_AT + k)] = load_8(data, seen) == load_8(data, first + k)
            hits &= at_least_64(scratch, _EQUAL_AT, 1)
            hits &= _unparsed(parsed - first)
        if hits == _NONE:
            break
        i = first + trailing_zeros(hits)
        hits &= hits - np.uint64(1)
        seen = np.int64(scratch[_SEEN_AT + i - first])
        period = i - seen
        if i >= parsed:
            stop = _extend(data, i + 8, period)
            if stop - i >= least:
                copied += stop - i
                copies += 1
                parsed = stop
                hits &= _unparsed(parsed - first)
        else:
            ahead = i + max(period, 8)
            if ahead + 8 > n or load_8(data, ahead) != load_8(data, ahead - period):
                continue
            stop = ahead + 8
        # a run is a copy that overlaps what it is copied from
        if stop - i < period or period > MAX_PERIOD or i < run_end or work < 0:
            continue
        if period == failed_period and i < failed_end:
            continue
        start, stop = _run_around(data, i, period)
        # the budget keeps texts built against this search linear; real text never comes near it
        work -= stop - start
        if stop - start < max(MIN_REPEATS * period, MIN_RUN):
            failed_period, failed_end = period, stop - 7
            continue
        run_end = stop - 7
        if _is_layout(data, start, stop, period):
            continue
        list_end = _add_run(scratch, list_end, start, stop)
        repeats = max(repeats, (stop - start) // period)
        if stop - start > best_end - best_start:
            best_start, best_end, best_period = start, stop, period
    covered = 0
    for k in range(_RUNS_AT, list_end, 2):
        covered += _chars(data, np.int64(scratch[k]), np.int64(scratch[k + 1]))
    out[0] = copied
    out[1] = copies
    out[2] = covered
    out[3] = _chars(data, best_start, best_end)
    out[4] = repeats
    out[5] = _chars(data, best_start, best_start + best_period)
    return (list_end - _RUNS_AT) // 2


def period_runs(scratch: npt.NDArray[np.int32], found: int) -> list[tuple[int, int]]:
    """Return start and end in bytes of the ``found`` stretches that :func:`scan_periods` left in ``scratch``."""
    pairs = scratch[_RUNS_AT : _RUNS_AT + 2 * found].reshape(-1, 2)
    return [(int(start), int(stop)) for start, stop in pairs]
