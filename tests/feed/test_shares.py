"""Sizes that do not fit each other are refused in one line that says which would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from cleanfeed import CurriculumSampler
from cleanfeed.errors import MisuseError
from cleanfeed.feed.catalog import Catalog
from cleanfeed.feed.shares import divisors

from .builds import catalog_of_sizes


class OnlyCatalog:
    """What the sampler needs of a curriculum until hashes are asked for."""

    def __init__(self, *sizes: tuple[int, int]) -> None:
        self.catalog: Catalog = catalog_of_sizes(*sizes)


def sampler(global_batch: Any = None, micro_batch: Any = None, **options: Any) -> CurriculumSampler:
    curriculum: Any = OnlyCatalog((500, 7), (300, 5), (200, 3))
    return CurriculumSampler(curriculum, global_batch, micro_batch, **options)


@pytest.mark.parametrize(
    ("batch", "lanes"), [(1, 1), (2, 2), (12, 4), (48, 16), (64, 64), (128, 64), (96, 32), (77, 1)]
)
def test_default_lanes_are_the_largest_power_of_two_up_to_64_that_divides_the_batch(
    batch: int, lanes: int
) -> None:
    assert sampler(batch).lanes == lanes


@pytest.mark.parametrize(
    ("tokens", "lanes"), [(32, 1), (95, 2), (32 * 8, 8), (32 * 63, 32), (32 * 64, 64), (32 * 200, 64)]
)
def test_default_lanes_of_tokens_have_room_for_the_longest_samples(tokens: int, lanes: int) -> None:
    assert sampler(batch_tokens=tokens, drop_last=False).lanes == lanes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no size of a slot: global_batch, batch_tokens: got neither, expected exactly one."),
        (
            {"global_batch": 8, "batch_tokens": 64},
            "no size of a slot: global_batch, batch_tokens: got both, expected exactly one.",
        ),
        (
            {"global_batch": 0},
            "not a number that will do: global_batch: got 0, expected an integer from 1 to 1099511627776.",
        ),
        (
            {"global_batch": 8.0},
            "not a number that will do: global_batch: got 8.0, expected an integer from 1 to 1099511627776.",
        ),
        (
            {"global_batch": True},
            "not a number that will do: global_batch: got True, expected an integer from 1 to 1099511627776.",
        ),
        (
            {"global_batch": 8, "seed": -1},
            "not a number that will do: seed: got -1, expected an integer from 0 to 18446744073709551615.",
        ),
        (
            {"global_batch": 8, "epochs": 0},
            "not a number that will do: epochs: got 0, expected an integer from 1 to 1048576.",
        ),
        (
            {"global_batch": 64, "lanes": 12},
            "lanes do not divide the global batch: lanes: got 12, expected a divisor of global_batch 64, "
            "such as 4, 8, 16.",
        ),
        (
            {"global_batch": 48, "world_size": 3, "rank": 0},
            "ranks do not share the lanes evenly: lanes: got 16, expected a multiple of world_size 3, such as "
            "6, 12, 24. Lanes are part of the order: choose them for every number of ranks the run may have.",
        ),
        (
            {"global_batch": 64, "world_size": 6, "rank": 0},
            "ranks do not share the global batch evenly: global_batch: got 64, expected a multiple of "
            "world_size 6, such as 60, 66.",
        ),
        (
            {"global_batch": 64, "micro_batch": 12, "world_size": 2, "rank": 0},
            "micro-batches do not fill a rank's share: micro_batch: got 12, expected a divisor of 32 "
            "(64 rows over 2 ranks), such as 4, 8, 16.",
        ),
        (
            {"global_batch": 64, "micro_batch": 0},
            "not a number that will do: micro_batch: got 0, expected an integer from 1 to 1099511627776.",
        ),
        (
            {"global_batch": 2000},
            "the whole run does not fill one slot: global_batch: got 2000 with 1000 samples in all. "
            "Use a smaller one, more epochs or drop_last=False.",
        ),
        (
            {"batch_tokens": 100, "lanes": 4},
            "a slot has no room for one row of each lane: batch_tokens: got 100, expected at least 128: "
            "4 lanes of a sample of 32, the longest of a stage.",
        ),
        (
            {"batch_tokens": 200, "world_size": 8, "rank": 0},
            "a slot has no room for one row of each rank: batch_tokens: got 200, expected at least 256: "
            "a sample of 32 for each of 8 ranks.",
        ),
        (
            {"batch_tokens": 320, "world_size": 3, "rank": 0},
            "ranks do not share the lanes evenly: lanes: got 8, expected a multiple of world_size 3, such as "
            "3, 6, 9. Lanes are part of the order: choose them for every number of ranks the run may have.",
        ),
        (
            {"batch_tokens": 256, "micro_batch": 3},
            "micro-batches do not fill a rank's share: micro_batch: got 3, expected a divisor of 8 "
            "(8 rows over 1 ranks), such as 1, 2, 4.",
        ),
        (
            {"batch_tokens": 256, "micro_tokens": 31},
            "a micro-batch has no room for a sample: micro_tokens: got 31, expected at least 32, "
            "room for one sample.",
        ),
        (
            {"global_batch": 8, "micro_tokens": 31},
            "micro_tokens has no meaning here: micro_tokens: expected with batch_tokens, and without micro_batch.",
        ),
        (
            {"global_batch": 8, "rank": 1},
            "half of a place among ranks: rank, world_size: got only rank, expected both or neither.",
        ),
        (
            {"global_batch": 8, "rank": 2, "world_size": 2},
            "no such rank: rank, world_size: got 2 of 2, expected 0 to world_size - 1.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MisuseError) as caught:
        sampler(**options)
    assert str(caught.value) == message


def test_numpy_integers_are_integers_and_the_state_holds_plain_ones() -> None:
    made = sampler(np.int64(8), np.int32(2), seed=np.uint64(2**64 - 1), epochs=np.int64(2))
    state = made.state_dict()
    assert {type(state[name]) for name in ("global_batch", "seed", "epochs", "lanes")} == {int}
    assert made.micro_batch == 2


def test_the_place_among_ranks_is_torchrun_s_until_the_process_group_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    made = sampler(8)
    assert (made.rank, made.world_size) == (1, 4)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    made = sampler(8)
    assert (made.rank, made.world_size) == (0, 2)
    assert (sampler(8, rank=0, world_size=1).world_size) == 1


def test_divisors() -> None:
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert divisors(1) == [1]
