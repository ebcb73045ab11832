"""What is spooled lies in the file as it was, and reaches the disk in small pieces."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cleanfeed.build import spool
from cleanfeed.build.spool import Spool, spool_writer

SCHEMA = pa.schema([pa.field("text", pa.large_string()), pa.field("row", pa.int64())])
TABLE = pa.table(
    {"text": ["", "é" * 40, "x", "a longer one than a piece"], "row": [0, 1, 2, 3]}, schema=SCHEMA
)


def written(path: Path) -> bytes:
    with spool_writer(path, SCHEMA) as writer:
        writer.write_table(TABLE)
    return path.read_bytes()


def test_a_spool_is_written_in_pieces_and_is_the_same_whatever_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(tmp_path / "whole.arrow")
    sizes: list[int] = []

    class Watched(spool._InPieces):
        def write(self, data: Any) -> int:
            sizes.append(super().write(data))
            return sizes[-1]

    monkeypatch.setattr(spool, "_InPieces", Watched)
    monkeypatch.setattr(spool, "WRITE_BYTES", 7)
    assert written(tmp_path / "pieces.arrow") == whole
    assert sum(sizes) == len(whole)
    assert max(sizes) == 7
    assert pa.Table.from_batches(Spool.open(tmp_path / "pieces.arrow").batches) == TABLE
