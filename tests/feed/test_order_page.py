"""docs/order.md gives the numbers that the code gives."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import cleanfeed
from cleanfeed.feed.order import ORDER_VERSION, StageOrder
from cleanfeed.feed.permutation import key_of, permuted
from cleanfeed.feed.token_schedule import TokenSchedule

from .builds import catalog_of_sizes

PAGE = (Path(cleanfeed.__file__).parents[1] / "docs/order.md").read_text("utf-8")


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split()]


def test_the_version_is_the_one_of_the_page() -> None:
    assert re.findall(r"order version (\d+)", PAGE) == [str(ORDER_VERSION)]


def test_the_stage_of_23_rows() -> None:
    order = StageOrder(number=1, samples=23, group_rows=3, lanes=2, seed=9)
    rows = dict(re.findall(r"^\| (\d) \| ([\d ]+) \|$", PAGE, re.MULTILINE))
    assert set(rows) == {"0", "1", "2"}
    for epoch, listed in rows.items():
        assert order.rows(int(epoch), np.arange(23, dtype=np.int64)).tolist() == numbers(listed)


def test_the_vectors_of_the_permutation() -> None:
    keys = re.findall(r"`key\(([\d, ]+)\)` is 0x([0-9A-F]+)", PAGE)
    assert [f"{key_of(*map(int, parts.split(','))):X}" for parts, _ in keys] == [value for _, value in keys]
    small = re.findall(r"^\| (\d+) \| key\(7, \1\) \| ([\d ]+) \|$", PAGE, re.MULTILINE)
    large = re.findall(r"^\| (\d+) \| key\(1\) \| ([\d ]+) \|$", PAGE, re.MULTILINE)
    assert (len(keys), len(small), len(large)) == (2, 2, 2)
    for size, listed in small:
        n = int(size)
        assert [permuted(x, n, key_of(7, n)) for x in range(n)] == numbers(listed)
    for size, listed in large:
        n = int(size)
        assert [permuted(x, n, key_of(1)) for x in (0, 1, 2, n // 2, n - 1)] == numbers(listed)


def test_the_run_by_tokens() -> None:
    schedule = TokenSchedule(catalog_of_sizes((6, 4), (3, 9), (2, 1)), 32, seed=5, epochs=2)
    listed = [
        numbers(slot)
        for line in re.findall(r"^epoch \d:  ([\d |]+)$", PAGE, re.MULTILINE)
        for slot in line.split("|")
    ]
    assert [schedule.rows(slot).tolist() for slot in range(schedule.n_slots)] == listed
