"""The order of docs/order.md written down again from the page alone, in plain Python, one position at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import isqrt

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def key(*parts: int) -> int:
    k = 0
    for part in parts:
        k = mix((k ^ part) + GOLDEN & MASK)
    return k


def pi(x: int, n: int, k: int) -> int:
    a = isqrt(n - 1) + 1
    b = -(-n // a)
    round_key = [mix(k + i * GOLDEN & MASK) for i in range(1, 7)]
    while True:
        left, right = divmod(x, b)
        for i in (0, 2, 4):
            left = (left + mix(right + round_key[i] & MASK) % a) % a
            right = (right + mix(left + round_key[i + 1] & MASK) % b) % b
        x = left * b + right
        if x < n:
            return x


def stage_row(i: int, stage: int, samples: int, group_rows: int, lanes: int, seed: int, epoch: int) -> int:
    full = samples // group_rows
    if i < full // lanes * lanes * group_rows:
        w, j = divmod(i, lanes * group_rows)
        group, row = w * lanes + j % lanes, j // lanes
    else:
        group, row = divmod(i, group_rows)
    if epoch > 0:
        if group < full:
            group = pi(group, full, key(seed, epoch, stage, 1))
        size = group_rows if group < full else samples % group_rows
        row = pi(row, size, key(seed, epoch, stage, 2, group))
    return group * group_rows + row


def line(
    sizes: Sequence[tuple[int, int]], lanes: int, seed: int, epochs: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (epoch, stage, position in the stage, row number) of each position of the line of a sequential run."""
    for epoch in range(epochs):
        first = 0
        for stage, (samples, group_rows) in enumerate(sizes):
            for i in range(samples):
                yield epoch, stage, i, first + stage_row(i, stage, samples, group_rows, lanes, seed, epoch)
            first += samples


def slots(
    sizes: Sequence[tuple[int, int]], batch: int, lanes: int, seed: int, epochs: int
) -> list[tuple[list[int], list[int]]]:
    """Return rows and lanes of each full slot."""
    places = list(line(sizes, lanes, seed, epochs))
    result = []
    for first in range(0, len(places) - batch + 1, batch):
        part = places[first : first + batch]
        if len({place[:2] for place in part}) == 1:
            dealt = [place[2] % lanes for place in part]
        else:
            dealt = [index % lanes for index in range(batch)]
        result.append(([place[3] for place in part], dealt))
    return result


def cycled(sizes: Sequence[int], lanes: int, cycles: int) -> list[tuple[int, int]]:
    """Return (stage, position) of an epoch of ``cycle:C``."""
    result = []
    for c in range(cycles):
        for stage, n in enumerate(sizes):
            first, end = (lanes * (n // lanes * at // cycles) for at in (c, c + 1))
            result += [(stage, i) for i in range(first, n if c == cycles - 1 else end)]
    return result


def blended(sizes: Sequence[int], lanes: int, percent: int) -> list[tuple[int, int]]:
    """Return (stage, position) of an epoch of ``blend:P``."""
    stages = [stage for stage, n in enumerate(sizes) if n]
    given = dict.fromkeys(stages, 0)
    result: list[tuple[int, int]] = []

    def take(stage: int, count: int) -> None:
        result.extend((stage, i) for i in range(given[stage], given[stage] + count))
        given[stage] += count

    for here, after in zip_longest(stages, stages[1:]):
        n = sizes[here]
        m = 0 if after is None else min(n * percent // 100, sizes[after] // 2) // lanes // 16
        if m and after is not None:
            take(here, n // lanes * lanes - 16 * m * lanes - given[here])
            for v in (1, 3, 5, 7):
                for t in range(8 * m):
                    take(after if (t + 1) * v // 8 > t * v // 8 else here, lanes)
        take(here, n - given[here])
    return result


def token_slots(
    sizes: Sequence[tuple[int, int]],
    longest: Sequence[int],
    tokens: int,
    lanes: int,
    seed: int,
    epochs: int,
    percent: int,
) -> list[list[int]]:
    """Return the rows of the full slots of a ``blend:P`` run by tokens; 0 % is sequential."""
    rows_of = [tokens // one // lanes * lanes for one in longest]
    firsts = [sum(n for n, _ in sizes[:stage]) for stage in range(len(sizes))]
    result = []
    for epoch in range(epochs):
        begun = [epoch * n // b for (n, _), b in zip(sizes, rows_of, strict=True)]
        ended = [(epoch + 1) * n // b for (n, _), b in zip(sizes, rows_of, strict=True)]
        for stage, index in blended([b - a for a, b in zip(begun, ended, strict=True)], 1, percent):
            (n, group_rows), b = sizes[stage], rows_of[stage]
            h = begun[stage] + index
            places = [divmod(place, n) for place in range(h * b, h * b + b)]
            result.append(
                [firsts[stage] + stage_row(i, stage, n, group_rows, lanes, seed, e) for e, i in places]
            )
    return result
