"""A key and a size n go in; a permutation of 0 … n-1 that takes no memory, and its inverse, come out.

A generalised Feistel network over the rectangle a × b, a = ⌈√n⌉, b = ⌈n/a⌉, with SplitMix64's finaliser as its round
function; what falls outside 0 … n-1 walks on until it falls inside. Integers of 64 bits only, so that every machine
and every version of every library gives the same numbers. Frozen: see docs/order.md, and the vectors in the tests.

Sources: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002); Steele, Lea and Flood, "Fast Splittable
Pseudorandom Number Generators" (2014), whose constants these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

ROUNDS = 6
LARGEST = 1 << 62
"""Sizes stay below this, so that no sum of two places overflows."""

GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_GOLDEN_64 = np.uint64(GOLDEN)
_FIRST_64, _SECOND_64 = np.uint64(_FIRST), np.uint64(_SECOND)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mixed(value: int) -> int:
    """Return SplitMix64's finaliser of a number, both in [0, 2**64)."""
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def mixed_all(values: UInt64) -> UInt64:
    """Return SplitMix64's finaliser of each number."""
    values = (values ^ (values >> _S30)) * _FIRST_64
    values = (values ^ (values >> _S27)) * _SECOND_64
    mixed_up: UInt64 = values ^ (values >> _S31)
    return mixed_up


def key_of(*parts: int) -> int:
    """Return the 64-bit key of a sequence of numbers in [0, 2**64)."""
    key = 0
    for part in parts:
        key = mixed(((key ^ part) + GOLDEN) & _MASK)
    return key


def keys_of(prefix: Sequence[int], last: Int64) -> UInt64:
    """Return ``key_of(*prefix, x)`` for each x of ``last``, shape [n]."""
    start = np.uint64(key_of(*prefix))
    return mixed_all((start ^ last.astype(np.uint64)) + _GOLDEN_64)


def sides(n: int) -> tuple[int, int]:
    """Return the sides a and b of the rectangle for size n: a = ⌈√n⌉, b = ⌈n/a⌉."""
    a = isqrt(n - 1) + 1
    return a, -(-n // a)


def permuted(x: int, n: int, key: int) -> int:
    """Return where the permutation of 0 … n-1 with this key takes x."""
    return int(permuted_all(np.array([x], dtype=np.int64), n, key)[0])


def permuted_all(x: Int64, n: int, key: int | UInt64) -> Int64:
    """Return where the permutation takes each x.

    Args:
        x: Places in [0, n), shape [m].
        n: Size, from 1 to 2**62.
        key: One key, or one for each place, shape [m].
    """
    return _walked(x, n, key, _forward)


def restored_all(y: Int64, n: int, key: int | UInt64) -> Int64:
    """Return for each y the x that the permutation takes there; arguments as for `permuted_all`."""
    return _walked(y, n, key, _backward)


def _round_keys(key: int | UInt64) -> list[UInt64]:
    start = np.asarray(key, dtype=np.uint64)
    steps = np.array([(i * GOLDEN) & _MASK for i in range(1, ROUNDS + 1)], dtype=np.uint64)
    # Row i holds the (i+1)-th output of SplitMix64 seeded with the key.
    return list(mixed_all(steps.reshape(-1, *([1] * start.ndim)) + start))


def _forward(x: UInt64, a: np.uint64, b: np.uint64, keys: Sequence[UInt64]) -> UInt64:
    left, right = x // b, x % b
    for i in range(0, ROUNDS, 2):
        left = (left + mixed_all(right + keys[i]) % a) % a
        right = (right + mixed_all(left + keys[i + 1]) % b) % b
    return left * b + right


def _backward(x: UInt64, a: np.uint64, b: np.uint64, keys: Sequence[UInt64]) -> UInt64:
    left, right = x // b, x % b
    for i in range(ROUNDS - 2, -1, -2):
        right = (right + b - mixed_all(left + keys[i + 1]) % b) % b
        left = (left + a - mixed_all(right + keys[i]) % a) % a
    return left * b + right


def _walked(x: Int64, n: int, key: int | UInt64, once: Callable[..., UInt64]) -> Int64:
    if not 1 <= n <= LARGEST:
        raise ValueError(f"a permutation needs a size from 1 to 2**62, got {n}")
    a, b = (np.uint64(side) for side in sides(n))
    keys = _round_keys(key)
    places = once(x.astype(np.uint64), a, b, keys)
    outside = np.flatnonzero(places >= n)
    while len(outside):
        there = [own[outside] if own.ndim else own for own in keys]
        moved = once(places[outside], a, b, there)
        places[outside] = moved
        outside = outside[moved >= n]
    return places.astype(np.int64)
