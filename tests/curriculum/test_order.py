"""The shuffle is a frozen function: golden keys, and nothing but the sample, its place and the seed counts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.curriculum.order import buckets, mix, shuffle_keys


def keys(hashes: list[bytes], seed: int = 0, **places: list[int]) -> list[int]:
    count = len(hashes)
    column = {
        name: np.array(places.get(name, [0] * count), dtype=np.int64) for name in ("file", "row", "part")
    }
    data = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, 16)
    return shuffle_keys(data, seed, column["file"], column["row"], column["part"].astype(np.int32)).tolist()


def test_mix_is_the_finaliser_of_splitmix64():
    # The first outputs of SplitMix64 seeded with 0 are the finaliser at multiples of the golden gamma.
    gamma = 0x9E3779B97F4A7C15
    states = np.array([gamma, (2 * gamma) % 2**64, (3 * gamma) % 2**64], dtype=np.uint64)
    assert mix(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_keys_are_frozen():
    assert keys([bytes(range(16)), bytes(16)], seed=7, file=[1, 2], row=[3, 4], part=[0, 1]) == [
        5536313964068959990,
        4744129497033206666,
    ]


@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**62))
def test_equal_samples_at_different_places_or_seeds_get_different_keys(sample: bytes, seed: int):
    many = keys([sample] * 4, seed, file=[0, 1, 0, 0], row=[0, 0, 1, 0], part=[0, 0, 0, 1])
    assert len({*many, *keys([sample], seed + 1)}) == 5


def test_keys_spread_evenly_over_buckets():
    rows = np.arange(1 << 16, dtype=np.int64)
    same = np.zeros((len(rows), 16), dtype=np.uint8)
    zeros = np.zeros(len(rows), dtype=np.int64)
    spread = np.bincount(buckets(shuffle_keys(same, 0, zeros, rows, zeros.astype(np.int32))), minlength=4096)
    # Chi-square with 4,095 degrees of freedom: mean 4,095, standard deviation 90.
    assert abs(((spread - 16) ** 2 / 16).sum() - 4095) < 5 * 90
