"""Compiled code writes exactly the row it is told to, for ids of either size, whatever stood there before."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.feed.collators import FlattenCollator, PadCollator
from cleanfeed.feed.fills import lay_row, pad_row

PAD = 99
STALE = 7
KINDS = pytest.mark.parametrize("kind", [np.uint16, np.int32])
IDS = st.lists(st.integers(0, 2**16 - 1), max_size=70)


def ids_of(values: list[int], kind: type, *, writeable: bool) -> np.ndarray[Any, Any]:
    ids = np.array(values, dtype=kind)
    ids.flags.writeable = writeable
    return ids


@KINDS
@given(IDS, st.integers(0, 20), st.integers(0, 2), st.booleans())
def test_a_padded_row_is_ids_then_padding_and_its_neighbours_stay(
    kind: type, values: list[int], more: int, row: int, writeable: bool
):
    width = max(1, len(values) + more)
    block = np.full((3, 3, width), STALE, dtype=np.int64)
    pad_row(block, row, ids_of(values, kind, writeable=writeable), PAD)
    rest = width - len(values)
    assert block[:, row].tolist() == [
        values + [PAD] * rest,
        values + [-100] * rest,
        [1] * len(values) + [0] * rest if values else [1] + [0] * (width - 1),
    ]
    assert (np.delete(block, row, axis=1) == STALE).all()


@KINDS
@given(IDS, st.integers(0, 20), st.integers(0, 5), st.booleans())
def test_a_laid_row_is_ids_then_padding_and_its_neighbours_stay(
    kind: type, values: list[int], more: int, start: int, writeable: bool
):
    length = max(1, len(values) + more)
    block = np.full((3, start + length + 4), STALE, dtype=np.int64)
    lay_row(block, start, start + length, ids_of(values, kind, writeable=writeable), PAD)
    rest = length - len(values)
    assert block[:, start : start + length].tolist() == [
        values + [PAD] * rest,
        [-100, *(values + [-100] * rest)[1:]],
        list(range(length)),
    ]
    assert (block[:, :start] == STALE).all()
    assert (block[:, start + length :] == STALE).all()


@pytest.mark.parametrize("collate", [PadCollator(PAD), FlattenCollator(PAD)], ids=["pad", "flatten"])
def test_ids_of_any_layout_are_taken(collate: PadCollator | FlattenCollator):
    wanted = [5, 6, 7]
    strided = np.array([5, 0, 6, 0, 7], dtype=np.int32)[::2]
    unaligned = np.frombuffer(b"\0" + np.array(wanted, dtype=np.int32).tobytes(), np.int32, offset=1)
    swapped = np.array(wanted, dtype=">i8")
    assert not unaligned.flags.aligned
    plain = collate([{"input_ids": wanted}])
    for ids in (strided, unaligned, swapped):
        assert collate([{"input_ids": ids}])["input_ids"].tolist() == plain["input_ids"].tolist()
