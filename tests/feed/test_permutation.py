"""π is a permutation of any size, the same on every machine, and as good as a random one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.feed.permutation import (
    LARGEST,
    key_of,
    keys_of,
    mixed,
    permuted,
    permuted_all,
    restored_all,
    sides,
)

from . import reference

KEYS = st.integers(0, 2**64 - 1)
Int64 = npt.NDArray[np.int64]


def chi_square(counts: npt.NDArray[np.int64]) -> float:
    """Return χ² against equal shares, as standard deviations from what is expected."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def all_of(n: int, key: int) -> Int64:
    return permuted_all(np.arange(n, dtype=np.int64), n, key)


def test_golden_vectors_of_the_mixing_function_and_of_keys() -> None:
    assert [mixed(0), mixed(1), mixed(2**64 - 1)] == [0, 0x5692161D100B05E5, 0xB4D055FCF2CBBD7B]
    assert key_of(0) == 0xE220A8397B1DCDAF
    assert key_of(1, 2, 3) == 0xD0734750FDE362B3
    assert key_of(2**64 - 1, 0) == 0x5DC20AA7B2A27137


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [0]),
        (2, [1, 0]),
        (3, [0, 2, 1]),
        (10, [8, 5, 7, 0, 2, 9, 6, 1, 4, 3]),
        (16, [0, 11, 9, 8, 5, 15, 3, 2, 12, 10, 6, 13, 7, 4, 14, 1]),
        (17, [16, 11, 8, 10, 12, 14, 1, 7, 15, 4, 13, 6, 5, 3, 9, 0, 2]),
    ],
)
def test_golden_vectors_of_small_sizes(n: int, expected: list[int]) -> None:
    assert all_of(n, key_of(7, n)).tolist() == expected


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1000, [789, 833, 333, 592, 896]),
        (10**6, [555611, 241486, 422429, 396504, 700052]),
        (10**9, [176781032, 669032191, 82011023, 215584354, 793994873]),
        (2**32, [440452819, 1937579495, 3060914038, 2986073828, 180806844]),
        (2**40 + 1, [121646252370, 798700965667, 987636663552, 29186896892, 771033869184]),
        (
            2**62,
            [
                1465048675422237748,
                2336641333501901732,
                4457345175135993286,
                2361345164376237637,
                243709880624901656,
            ],
        ),
    ],
)
def test_golden_vectors_of_large_sizes(n: int, expected: list[int]) -> None:
    assert [permuted(x, n, key_of(1)) for x in (0, 1, 2, n // 2, n - 1)] == expected


@given(st.integers(1, 300), KEYS)
def test_every_place_is_taken_once(n: int, key: int) -> None:
    assert sorted(all_of(n, key).tolist()) == list(range(n))


@given(st.integers(1, LARGEST), st.data(), KEYS)
def test_the_inverse_leads_back(n: int, data: st.DataObject, key: int) -> None:
    x = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=5)), dtype=np.int64)
    y = permuted_all(x, n, key)
    assert ((y >= 0) & (y < n)).all()
    assert restored_all(y, n, key).tolist() == x.tolist()


@given(st.integers(1, LARGEST), st.data(), KEYS)
def test_it_is_what_the_specification_says(n: int, data: st.DataObject, key: int) -> None:
    x = data.draw(st.integers(0, n - 1))
    assert permuted(x, n, key) == reference.pi(x, n, key)


@given(st.integers(1, 10**6), st.lists(st.integers(0, 2**62), min_size=1, max_size=5))
def test_a_key_for_each_place_is_the_same_as_one_call_for_each(n: int, last: list[int]) -> None:
    keys = keys_of((5, 6), np.array(last, dtype=np.int64))
    assert keys.tolist() == [key_of(5, 6, one) for one in last]
    x = np.arange(len(last), dtype=np.int64) % n
    singly = [permuted(int(one), n, int(own)) for one, own in zip(x, keys, strict=True)]
    assert permuted_all(x, n, keys).tolist() == singly


def test_few_places_lie_outside_so_that_walks_stay_short() -> None:
    for n in (1, 2, 3, 5, 1000, 10**9, 2**30 + 1, 10**12):
        a, b = sides(n)
        assert n <= a * b < n + a


def test_a_size_that_cannot_be_is_refused() -> None:
    for n in (0, LARGEST + 1):
        with pytest.raises(ValueError, match="from 1 to 2"):
            permuted(0, n, 1)


def spread_over_keys(x: int, n: int) -> Int64:
    keys = keys_of((n,), np.arange(20_000, dtype=np.int64))
    return np.bincount(permuted_all(np.full(len(keys), x, dtype=np.int64), n, keys), minlength=n)


@pytest.mark.parametrize("n", [12, 16, 20, 50, 1000])
def test_over_many_keys_an_element_goes_everywhere_equally_often(n: int) -> None:
    for x in range(0, n, -(-n // 12)):
        assert abs(chi_square(spread_over_keys(x, n))) < 5


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
def test_of_a_handful_of_elements_none_is_favoured_by_more_than_a_tenth(n: int) -> None:
    # Six rounds on a rectangle of six fields leave a bias of 6 % at n = 5, the worst of all sizes.
    for x in range(n):
        counts = spread_over_keys(x, n)
        assert np.abs(counts * n / counts.sum() - 1).max() < 0.1


@pytest.mark.parametrize("n", [2**16, 2**24, 2**30, 2**30 + 1, 10**9, 10**12])
def test_successive_places_are_spread_over_residues_strata_and_parity(n: int) -> None:
    # The shipped permutations of two well-known loaders fail here: parity constant, or chi-square in the thousands.
    for key in (1, 2):
        x = np.arange(8192, dtype=np.int64) + n // 3
        y = permuted_all(x, n, key_of(key))
        assert abs(chi_square(np.bincount(y % 64, minlength=64))) < 5
        assert abs(chi_square(np.bincount(y * 64 // n, minlength=64))) < 5
        parity = [int(value).bit_count() & 1 for value in y]
        assert abs(np.mean(parity) - 0.5) < 0.03
        assert abs(chi_square(np.bincount((np.diff(y) % n) * 64 // n, minlength=64))) < 5


@pytest.mark.parametrize("bits", [8, 16, 24, 30, 40])
def test_each_bit_of_place_and_key_flips_each_bit_of_the_result_half_the_time(bits: int) -> None:
    n, count = 1 << bits, 4000
    generator = np.random.default_rng(bits)
    x = generator.integers(0, n, count, dtype=np.int64)
    keys = keys_of((bits,), np.arange(count, dtype=np.int64))
    before = permuted_all(x, n, keys)
    powers = np.arange(bits)
    for bit in range(bits):
        flipped = before ^ permuted_all(x ^ (1 << bit), n, keys)
        share = (flipped[:, None] >> powers & 1).mean(axis=0)
        assert np.abs(share - 0.5).max() < 0.05, bit
    for bit in range(0, 64, 7):
        flipped = before ^ permuted_all(x, n, keys ^ np.uint64(1 << bit))
        share = (flipped[:, None] >> powers & 1).mean(axis=0)
        assert np.abs(share - 0.5).max() < 0.05, bit


@pytest.mark.parametrize("n", [100, 1000, 5000])
def test_fixed_points_ascents_inversions_and_cycles_are_those_of_a_random_permutation(n: int) -> None:
    trials = 60
    ours = np.array([figures(all_of(n, key_of(n, trial))) for trial in range(trials)])
    generator = np.random.default_rng(n)
    true = np.array([figures(generator.permutation(n)) for _ in range(trials)])
    spread = np.sqrt((ours.var(axis=0) + true.var(axis=0)) / trials)
    assert (np.abs(ours.mean(axis=0) - true.mean(axis=0)) < 4.5 * spread).all()


def figures(order: Int64) -> tuple[float, float, float, float]:
    n = len(order)
    fixed = int((order == np.arange(n)).sum())
    ascents = int((np.diff(order) > 0).sum())
    some = order[: min(n, 500)]
    inversions = int((some[:, None] > some[None, :])[np.triu_indices(len(some), 1)].sum())
    seen, cycles = np.zeros(n, dtype=np.bool_), 0
    for start in range(n):
        if not seen[start]:
            cycles += 1
            while not seen[start]:
                seen[start] = True
                start = int(order[start])
    return fixed, ascents, inversions, cycles
