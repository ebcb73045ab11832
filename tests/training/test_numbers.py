"""The numbers of a step over all ranks: the ends of a batch whose samples are spread over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cleanfeed.training.agreement import Agreement
from cleanfeed.training.numbers import combine, numbers


class Ranks:
    """Stands in for an agreement of several ranks: the rows of the others are given."""

    def __init__(self, others: list[list[float]]) -> None:
        self.world_size = 1 + len(others)
        self.others = others

    def table(self, row: Any) -> Any:
        rows = [row]
        for samples in self.others:
            grown: list[Any] = []
            combine(_Catch(grown), [1.0], [1], None, {}, samples)  # type: ignore[arg-type]
            rows += grown
        return np.array(rows)


class _Catch(Ranks):
    def __init__(self, into: list[Any]) -> None:
        super().__init__([[]])
        self.into = into

    def table(self, row: Any) -> Any:
        self.into.append(row)
        return np.array([row, row])


SAMPLES = [3.0, 1.0, 9.0, 2.0, 5.0, 4.0]
ENDS = {
    "sample_high_1": 9.0,
    "sample_high_2": 5.0,
    "sample_high_3": 4.0,
    "sample_low_1": 1.0,
    "sample_low_2": 2.0,
}


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_the_ends_of_a_batch_are_the_same_however_it_is_spread_over_ranks(cut: int) -> None:
    alone = combine(Agreement(), [1.0], [1], None, {}, SAMPLES)
    spread = combine(Ranks([SAMPLES[cut:], []]), [1.0], [1], None, {}, SAMPLES[:cut])  # type: ignore[arg-type]
    assert alone.samples == spread.samples == ENDS


def test_the_kth_sample_is_told_only_of_at_least_twice_as_many() -> None:
    assert set(combine(Agreement(), [1.0], [1], None, {}, SAMPLES[:3]).samples) == {
        "sample_high_1",
        "sample_low_1",
    }
    assert combine(Agreement(), [1.0], [1], None, {}, []).samples == {}


def test_losses_of_samples_are_read_beside_those_of_micro_batches() -> None:
    values = [torch.tensor(2.0), 3.0]
    assert numbers(values, [torch.tensor([1.0, 4.0]), torch.tensor([5.0])]) == ([2.0, 3.0], [1.0, 4.0, 5.0])
