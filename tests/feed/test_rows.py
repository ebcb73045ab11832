"""Rows know where ids lie, and never outlive them."""

import copy
import gc
import pickle

import numpy as np
import pytest

from cleanfeed.feed.dataset import Curriculum
from cleanfeed.feed.rows import NO_TOKENS, Rows


def lists(rows: Rows) -> list[list[int]]:
    return [rows.copy(number).tolist() for number in range(len(rows))]


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
def test_rows_are_parts_of_an_array(kind: type):
    rows = Rows.cut(np.arange(10, dtype=kind), np.array([7, 0, 5]), np.array([3, 2, 0]))
    assert lists(rows) == [[7, 8, 9], [0, 1], []]
    assert rows.copy(0).dtype == np.int32
    assert lists(rows.clipped(2)) == [[7, 8], [0, 1], []]
    assert lists(rows) == [[7, 8, 9], [0, 1], []]


def test_rows_hold_what_they_lie_in():
    rows = Rows.of([np.arange(100_000, dtype=np.int32), NO_TOKENS])
    gc.collect()
    np.full(100_002, -1, dtype=np.int32)  # what was free is written over
    assert lists(rows) == [list(range(100_000)), []]


@pytest.mark.filterwarnings("ignore:the row groups of one batch do not fit:RuntimeWarning")
def test_a_batch_outlives_the_row_groups_it_came_from(curriculum: Curriculum):
    small = Curriculum(curriculum.catalog.path, cache_bytes=0, decode_ahead=False)
    last = len(small) - 1
    batch = small.__getitems__([0, last])
    for row in range(0, last, 7):
        small[row]
    assert [item["input_ids"].tolist() for item in batch] == [
        curriculum[row]["input_ids"].tolist() for row in (0, last)
    ]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_ids_of_its_own(curriculum: Curriculum, again):
    batch = curriculum.__getitems__([3, ~4, 5])
    assert batch.tokens is not None
    other = again(batch.tokens)
    assert not set(other.spans[0].tolist()) & set(batch.tokens.spans[0].tolist())
    assert lists(other) == lists(batch.tokens)
