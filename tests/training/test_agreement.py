"""Every rank sees the same numbers, whatever each of them holds."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pytest

from cleanfeed.errors import TrainingError
from cleanfeed.training.agreement import Agreement

from .ranks import run_ranks


def test_one_process_agrees_with_itself_without_a_process_group() -> None:
    agreement = Agreement()
    assert (agreement.rank, agreement.world_size) == (0, 1)
    assert agreement.table([1.0, 2.0]).tolist() == [[1.0, 2.0]]
    assert agreement.total([1.0, 2.0]) == [1.0, 2.0]
    assert agreement.on_first(lambda: "x") == "x"
    assert agreement.all(3) == [3]
    agreement.raise_first(None, "saving")
    with pytest.raises(ValueError, match="mine"):
        agreement.raise_first(ValueError("mine"), "saving")


def fails() -> None:
    raise OSError("only rank 0 tried")


class Unsendable(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def fails_unsendably() -> None:
    raise Unsendable


def shares(rank: int, folder: Path) -> None:
    agreement = Agreement()
    table = agreement.table([0.1 * (rank + 1), 1e300, rank, math.nan if rank else math.inf])
    np.save(folder / f"{rank}.npy", table)
    world = agreement.world_size
    assert agreement.total([0.1, {0: 1e16, 1: -1e16}.get(rank, 0.0)]) == [
        math.fsum([0.1] * world),
        0.0,
    ]
    assert agreement.on_first(lambda: {"rank": rank}) == {"rank": 0}
    with pytest.raises(OSError, match="only rank 0 tried"):
        agreement.on_first(fails if rank == 0 else lambda: None)
    with pytest.raises(TrainingError, match="the first rank failed: rank 0: got Unsendable: holds a lock"):
        agreement.on_first(fails_unsendably)
    assert agreement.all(rank) == list(range(agreement.world_size))
    with pytest.raises((ValueError, TrainingError)) as caught:
        agreement.raise_first(ValueError("no room") if rank == 1 else None, "saving")
    expected = "no room" if rank == 1 else "saving failed on another rank: rank 1: got ValueError: no room."
    assert str(caught.value) == expected


@pytest.mark.parametrize("world", [2, 4])
def test_the_table_is_the_same_on_every_rank_and_exact(tmp_path: Path, world: int) -> None:
    run_ranks(shares, world, tmp_path)
    expected = [[0.1 * (rank + 1), 1e300, float(rank)] for rank in range(world)]
    for rank in range(world):
        table = np.load(tmp_path / f"{rank}.npy")
        assert table[:, :3].tolist() == expected
        assert math.isinf(table[0, 3])
        assert np.isnan(table[1:, 3]).all()
