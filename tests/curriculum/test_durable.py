"""What is written is there as it was given, whatever the size of the pieces it is written in."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from cleanfeed.curriculum import durable


def test_a_large_file_is_written_in_pieces_and_holds_all_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Watched(durable._InPieces):
        def write(self, data: Any) -> int:
            sizes.append(super().write(data))
            return sizes[-1]

    monkeypatch.setattr(durable, "_InPieces", Watched)
    monkeypatch.setattr(durable, "WRITE_BYTES", 7)
    given = [b"ab", b"", bytes(range(40)), array("i", range(5)), b"c"]
    with durable.in_pieces(tmp_path / "file") as file:
        for data in given:
            assert file.write(data) == memoryview(data).nbytes
    assert (tmp_path / "file").read_bytes() == b"".join(bytes(data) for data in given)
    assert max(sizes) == 7
    assert sum(sizes) == sum(memoryview(data).nbytes for data in given)
