"""Row numbers and row groups go in; the places of the rows, and the block of a batch filled from there, come out.

The compiled code of the feed. A batch costs three short calls, and its ids are read once for all that is written: ids,
labels and mask or positions. On 8 rows of 2,300 ids it takes half the time of numpy, which needs some calls for each
row and as many passes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, njit, types
from numba.extending import intrinsic

from cleanfeed.feed.rows import Ids
from cleanfeed.kernel import kept
from cleanfeed.kernel_cache import ensure_cache

IGNORED = -100
"""Label that losses leave out: ``ignore_index`` of torch's cross entropy."""

Int64 = npt.NDArray[np.int64]


def _pointer_to(kind: Any) -> Any:
    """Make an instruction that takes an address for that of numbers of a kind."""

    def pointer(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), emit

    return intrinsic(pointer)


_short_ids, _long_ids = _pointer_to(types.uint16), _pointer_to(types.int32)
_inner = njit(nogil=True)


def _place(ids: Ids, bounds: npt.NDArray[np.int32], place: Int64) -> None:
    """Note where a row group lies: the address of its ids, bytes of an id, and the address of its bounds.

    Raises:
        ValueError: A row does not lie inside the ids.
    """
    last = 0
    for bound in bounds:
        if not last <= bound <= len(ids):
            raise ValueError("rows outside of their ids")
        last = bound
    place[0], place[1], place[2] = ids.ctypes.data, ids.itemsize, bounds.ctypes.data


def _groups(rows: Int64, stages: Int64, found: Int64) -> None:
    """Find the row group of each row, its number in it, and the longest sample of its stage, shape [3, rows].

    ``stages`` has the first row of each stage that is not empty, ascending, the rows of its row groups, the number of
    its first row group, and its longest sample: shape [stages, 4].
    """
    stage = 0
    for at in range(len(rows)):
        row = rows[at]
        while row < stages[stage, 0]:
            stage -= 1
        while stage + 1 < len(stages) and row >= stages[stage + 1, 0]:
            stage += 1
        inside, group_rows = row - stages[stage, 0], stages[stage, 1]
        found[0, at], found[1, at] = stages[stage, 2] + inside // group_rows, inside % group_rows
        found[2, at] = stages[stage, 3]


def _spans(numbers: Int64, places: Int64, spans: Int64) -> None:
    """Find where rows lie that have these numbers in row groups at these places, as :class:`Rows` says it."""
    for row in range(len(numbers)):
        ids, size, bounds = (
            places[row, 0],
            places[row, 1],
            carray(_long_ids(places[row, 2]), numbers[row] + 2),
        )
        start, stop = bounds[numbers[row]], bounds[numbers[row] + 1]
        spans[0, row], spans[1, row], spans[2, row] = ids + size * start, stop - start, size


def _pad_row(input_ids: Int64, labels: Int64, mask: Int64, ids: Ids, pad_id: int) -> None:
    for place in range(len(ids)):
        token = np.int64(ids[place])
        input_ids[place], labels[place], mask[place] = token, token, 1
    for place in range(len(ids), len(mask)):
        input_ids[place], labels[place], mask[place] = pad_id, IGNORED, 0
    if len(ids) == 0:
        # A row that is masked everywhere makes a softmax NaN.
        mask[0] = 1


def _lay_row(input_ids: Int64, labels: Int64, positions: Int64, ids: Ids, pad_id: int) -> None:
    for place in range(len(ids)):
        token = np.int64(ids[place])
        input_ids[place], labels[place], positions[place] = token, token, place
    for place in range(len(ids), len(positions)):
        input_ids[place], labels[place], positions[place] = pad_id, IGNORED, place
    # What stands before the first token belongs to another row.
    labels[0] = IGNORED


_pad_row, _lay_row = _inner(_pad_row), _inner(_lay_row)


def _pad(block: Int64, spans: Int64, pad_id: int) -> None:
    """Fill ids, labels and mask, together of shape [3, rows, width], with rows of at most ``width`` ids."""
    for row in range(spans.shape[1]):
        address, length = spans[0, row], spans[1, row]
        input_ids, labels, mask = block[0, row], block[1, row], block[2, row]
        if spans[2, row] == 2:
            _pad_row(input_ids, labels, mask, carray(_short_ids(address), length), pad_id)
        else:
            _pad_row(input_ids, labels, mask, carray(_long_ids(address), length), pad_id)


def _lay(block: Int64, bounds: Int64, spans: Int64, pad_id: int) -> None:
    """Fill ids, labels and positions, together of shape [3, total]; row i goes from ``bounds[i]`` to the next."""
    for row in range(spans.shape[1]):
        address, length = spans[0, row], spans[1, row]
        there = block[:, bounds[row] : bounds[row + 1]]
        if spans[2, row] == 2:
            _lay_row(there[0], there[1], there[2], carray(_short_ids(address), length), pad_id)
        else:
            _lay_row(there[0], there[1], there[2], carray(_long_ids(address), length), pad_id)


def _compiled(function: Any, *calls: tuple[Any, ...], nogil: bool = False) -> Any:
    """Compile for arguments of some types now, or take what is kept on disk, so that no batch waits for it."""
    return kept(function, *(types.void(*arguments) for arguments in calls), nogil=nogil)


ensure_cache(Path(__file__).parent)
_LINE, _TABLE, _BLOCK = (types.Array(types.int64, n, "C") for n in (1, 2, 3))
_SHORT, _LONG = (types.Array(kind, 1, "C", readonly=True) for kind in (types.uint16, types.int32))
_note_place = _compiled(_place, (_SHORT, _LONG, _LINE), (_LONG, _LONG, _LINE))
find_groups = _compiled(_groups, (_LINE, _TABLE, _TABLE))
find_spans = _compiled(_spans, (_LINE, types.Array(types.int64, 2, "C", readonly=True), _TABLE))
# Only these take long enough for another thread to have a turn.
fill_padded = _compiled(_pad, (_BLOCK, _TABLE, types.int64), nogil=True)
fill_flat = _compiled(_lay, (_TABLE, _LINE, _TABLE, types.int64), nogil=True)


def place_of(ids: Ids | memoryview, bounds: memoryview) -> bytes:
    """Return where a row group lies in memory, as :func:`find_spans` takes it: three int64.

    Args:
        ids: All its ids.
        bounds: Where each row starts in them and the last one ends, int32.

    Raises:
        ValueError: A row does not lie inside the ids, which nobody would notice later.
    """
    place = np.empty(3, dtype=np.int64)
    _note_place(ids, np.frombuffer(bounds, dtype=np.int32), place)
    return place.tobytes()
