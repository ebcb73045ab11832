"""Compiled code writes exactly the rows it is told to, for ids of either size, whatever stood there before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.feed.collators import FlattenCollator, PadCollator
from cleanfeed.feed.fills import fill_flat, fill_padded
from cleanfeed.feed.rows import Rows

PAD = 99
STALE = 7
ROWS = st.lists(st.lists(st.integers(0, 2**16 - 1), max_size=70), min_size=1, max_size=5)


@st.composite
def placed(draw: st.DrawFn) -> tuple[list[list[int]], Rows]:
    """Give ids, and the rows of them, each in memory of its own or all in one array, of two bytes an id or of four."""
    values = draw(ROWS)
    kinds = [draw(st.sampled_from((np.uint16, np.int32))) for _ in values]
    arrays = [np.array([STALE, *ids, STALE], dtype=kind) for ids, kind in zip(values, kinds, strict=True)]
    parts = [Rows.cut(array, np.array([1]), np.array([len(array) - 2])) for array in arrays]
    return values, Rows(np.concatenate([part.spans for part in parts], axis=1), arrays)


@given(placed(), st.integers(0, 20))
def test_a_padded_row_is_its_ids_then_padding(given_rows: tuple[list[list[int]], Rows], more: int):
    values, rows = given_rows
    width = max(1, *map(len, values)) + more
    block = np.full((3, len(values), width), STALE, dtype=np.int64)
    fill_padded(block, rows.spans, PAD)
    for row, ids in enumerate(values):
        rest = width - len(ids)
        assert block[:, row].tolist() == [
            ids + [PAD] * rest,
            ids + [-100] * rest,
            [1] * (len(ids) or 1) + [0] * (rest if ids else rest - 1),
        ]


@given(placed(), st.lists(st.integers(0, 20), min_size=5, max_size=5))
def test_a_laid_row_is_its_ids_then_padding(given_rows: tuple[list[list[int]], Rows], more: list[int]):
    values, rows = given_rows
    lengths = [max(1, len(ids) + rest) for ids, rest in zip(values, more, strict=False)]
    bounds = np.array([0, *np.cumsum(lengths)])
    block = np.full((3, int(bounds[-1])), STALE, dtype=np.int64)
    fill_flat(block, bounds, rows.spans, PAD)
    for ids, start, length in zip(values, bounds.tolist(), lengths, strict=False):
        rest = length - len(ids)
        assert block[:, start : start + length].tolist() == [
            ids + [PAD] * rest,
            [-100, *(ids + [-100] * rest)[1:]],
            list(range(length)),
        ]


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
