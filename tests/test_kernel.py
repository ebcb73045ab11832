"""Compiled code is called with what Python has, kept on disk, and its instructions do what their names say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanfeed import kernel, kernel_cache
from cleanfeed.kernel import (
    Kernel,
    copy_bytes,
    inner,
    leading_zeros,
    load_8,
    prefetch,
    trailing_zeros,
)

ONE = np.ones(1, np.int64)


@Kernel
def _measured(data: Any, at: Any, out: Any) -> None:
    word = load_8(data, at)
    out[0], out[1], out[2] = word, leading_zeros(word), trailing_zeros(word)


@pytest.mark.parametrize(
    ("head", "zeros"),
    [(b"\x01", (63, 0)), (b"\0\0\x80", (40, 23)), (b"\0\0\0\0\0\0\0\xff", (0, 56)), (b"", (64, 64))],
)
@pytest.mark.parametrize("at", [0, 3])
def test_eight_bytes_are_one_number_with_the_first_byte_lowest(head: bytes, zeros: tuple[int, int], at: int):
    data = np.frombuffer(b"\x07" * at + head.ljust(8, b"\0") + b"\x07", np.uint8)
    out = np.zeros(3, np.uint64)
    _measured(data, at, out)
    assert out.tolist() == [int.from_bytes(head, "little"), *zeros]


@Kernel
def _copied(address: Any, size: Any, out: Any, at: Any) -> None:
    copy_bytes(address, size, out, at)


def test_bytes_are_copied_from_an_address_to_a_place_and_nowhere_else():
    data, out = np.arange(9, dtype=np.uint8), np.full(9, 99, dtype=np.uint8)
    _copied(data.ctypes.data + 2, 3, out, 5)
    assert out.tolist() == [99] * 5 + [2, 3, 4] + [99]


@Kernel
def _fetched(numbers: Any, at: Any) -> int:
    prefetch(numbers, np.uint64(at))
    return numbers[at]


def test_what_is_fetched_stays_as_it_is():
    numbers = np.arange(9)
    assert [_fetched(numbers, at) for at in range(9)] == numbers.tolist() == [*range(9)]


@inner
def _scaled(number: Any, factor: Any) -> Any:
    return number * factor


@Kernel
def _weighed(table: Any, both: Any, factor: Any, empty: Any) -> int:
    marks, (shares, words) = both
    total = 0
    for row in range(table.shape[0]):
        for column in range(table.shape[1]):
            total += _scaled(table[row, column], factor)
        marks[row] = not marks[row]
        shares[row] /= 2
        words[row] += np.uint64(1)
    return total + len(empty)


@Kernel
def _weighed_twice(table: Any, both: Any, factor: Any, empty: Any) -> int:
    return _weighed(table, both, factor, empty) + _weighed(table, both, factor, empty)


@pytest.mark.parametrize("factor", [-3, True, np.int32(7), np.bool_(False)])
def test_a_kernel_takes_numbers_arrays_and_tuples_of_them_and_changes_arrays_in_place(factor: Any):
    table = np.array([[1, -2, 3], [4, 5, 2**31 - 1]], np.int32)
    marks, shares = np.array([True, False]), np.array([0.5, np.nan])
    words = np.array([2**64 - 2, 0], np.uint64)
    empty = np.zeros(0, np.uint8)
    assert _weighed(table, (marks, (shares, words)), factor, empty) == int(factor) * int(
        table.sum(dtype=np.int64)
    )
    assert marks.tolist() == [False, True]
    assert np.array_equal(shares, [0.25, np.nan], equal_nan=True)
    assert words.tolist() == [2**64 - 1, 1]
    # Compiled code calls it as well, and Python goes on calling it.
    assert _weighed_twice(table, (marks, (shares, words)), factor, empty) == 2 * _weighed(
        table, (marks, (shares, words)), factor, empty
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.arange(6)[::2], "not contiguous"),
        (np.ones((2, 2)).T[:1], "not contiguous"),
        (1.5, "float"),
        ([1], "list"),
        (None, "NoneType"),
        (np.array(1), "ndarray"),
    ],
)
def test_what_compiled_code_could_not_read_is_refused(value: Any, words: str):
    with pytest.raises(TypeError, match=words):
        _fetched(value, 0)


@Kernel
def _divided(numbers: Any, by: Any) -> int:
    if by == 0:
        raise ZeroDivisionError
    return numbers[0] // by


def test_an_error_in_compiled_code_is_one_in_python():
    assert _divided(ONE * 7, 2) == 3
    with pytest.raises(RuntimeError, match=r"an error in the kernel .*_divided"):
        _divided(ONE * 7, 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the code of kernels goes, with nothing in it."""
    monkeypatch.setattr(kernel_cache, "cache_folder", lambda package: tmp_path)
    return tmp_path


def _plus_one(numbers: Any) -> int:
    return numbers[0] + 1


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of arguments that something was compiled for."""
    found: list[str] = []
    compiled = kernel.compiled

    def noted(function: Any, kinds: str, *, returns: bool) -> tuple[str, bytes]:
        found.append(kinds)
        return compiled(function, kinds, returns=returns)

    monkeypatch.setattr(kernel, "compiled", noted)
    return found


def test_a_kernel_is_compiled_once_for_each_kind_of_arguments(folder: Path, compilations: list[str]):
    for _ in range(2):
        again = Kernel(_plus_one)
        assert [again(ONE), again(ONE), again(ONE.astype(np.int32))] == [2, 2, 2]
        assert again.kinds == ["<i4:1", "<i8:1"]
    assert compilations == ["<i8:1", "<i4:1"]
    assert len(list(folder.iterdir())) == 2


def test_code_that_is_damaged_is_compiled_again(folder: Path, compilations: list[str]):
    assert Kernel(_plus_one)(ONE) == 2
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
        file.write_bytes(damaged)
        assert Kernel(_plus_one)(ONE) == 2
        assert Kernel(_plus_one)(ONE) == 2
    assert len(compilations) == 4


def test_code_of_an_earlier_version_is_not_used_and_makes_room(
    folder: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
):
    assert Kernel(_plus_one)(ONE) == 2
    before = set(folder.iterdir())
    for version in range(kernel_cache.KEPT_VERSIONS):
        assert before <= set(folder.iterdir())
        monkeypatch.setattr(kernel, "fingerprint", lambda *parts, version=version: version)
        assert Kernel(_plus_one)(ONE) == 2
        assert len(compilations) == version + 2
    assert len(list(folder.iterdir())) == kernel_cache.KEPT_VERSIONS
    assert before.isdisjoint(folder.iterdir())


def test_a_kernel_works_where_there_is_no_room_to_keep_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert Kernel(_plus_one)(ONE) == 2
    assert list(folder.iterdir()) == []


CALLING = """
import sys
from cleanfeed.curriculum.gather import scatter
import numpy as np

data, out, one = np.arange(4, dtype=np.uint8), np.zeros(2, np.uint8), np.ones(1, np.int64)
scatter(one * data.ctypes.data + 1, one * 2, out, one - 1)
print(out.tolist(), [name for name in ("numba", "llvmlite") if name in sys.modules])
"""


def test_what_is_on_disk_is_called_without_the_compiler():
    for expected in (None, "[1, 2] ['llvmlite']\n"):
        done = subprocess.run([sys.executable, "-c", CALLING], capture_output=True, text=True, check=True)
        assert expected in (None, done.stdout)


TWO = """
import sys
from pathlib import Path
import numpy as np
from cleanfeed import kernel_code
from cleanfeed.kernel import Kernel

kernel_code.cache_folder = lambda package: Path(sys.argv[1])
one = np.ones(1, np.int64)
for name in sys.argv[2:]:
    scope = {"__name__": "cleanfeed.anywhere"}
    exec(f"def {name}(numbers: object) -> int: return numbers[0] + {name[1:]}", scope)
    print(Kernel(scope[name])(one))
"""


def test_code_that_different_processes_compiled_is_never_mixed_up(tmp_path: Path):
    for names in (["_4"], ["_7"], ["_4", "_7"]):
        done = subprocess.run(
            [sys.executable, "-c", TWO, str(tmp_path), *names], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [str(1 + int(name[1:])) for name in names]
