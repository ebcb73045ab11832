"""The instructions for compiled code do what their names say."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from cleanfeed.signals.kernel import leading_zeros, load_8, trailing_zeros


@njit
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
