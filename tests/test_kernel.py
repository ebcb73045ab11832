"""The instructions for compiled code do what their names say."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.caching import FunctionCache

from cleanfeed.kernel import copy_bytes, kept, leading_zeros, load_8, prefetch, trailing_zeros


@kept
def _measured(data, at):
    word = load_8(data, at)
    return word, leading_zeros(word), trailing_zeros(word)


@pytest.mark.parametrize(
    ("head", "zeros"),
    [(b"\x01", (63, 0)), (b"\0\0\x80", (40, 23)), (b"\0\0\0\0\0\0\0\xff", (0, 56)), (b"", (64, 64))],
)
@pytest.mark.parametrize("at", [0, 3])
def test_eight_bytes_are_one_number_with_the_first_byte_lowest(head, zeros, at):
    data = np.frombuffer(b"\x07" * at + head.ljust(8, b"\0") + b"\x07", np.uint8)
    word = int.from_bytes(head, "little")
    assert _measured(data, at) == (word, *zeros)


@kept
def _copied(address, size, out, at):
    copy_bytes(address, size, out, at)


def test_bytes_are_copied_from_an_address_to_a_place_and_nowhere_else():
    data, out = np.arange(9, dtype=np.uint8), np.full(9, 99, dtype=np.uint8)
    _copied(data.ctypes.data + 2, 3, out, 5)
    assert out.tolist() == [99] * 5 + [2, 3, 4] + [99]


@kept
def _fetched(numbers, at):
    prefetch(numbers, at)
    return numbers[at]


def test_what_is_fetched_stays_as_it_is():
    numbers = np.arange(9)
    assert [_fetched(numbers, np.uint64(at)) for at in range(9)] == numbers.tolist() == [*range(9)]


def test_a_kernel_works_where_there_is_no_room_to_keep_it(monkeypatch: pytest.MonkeyPatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FunctionCache, "save_overload", full)
    assert kept(lambda number: number + 1)(2) == 3
