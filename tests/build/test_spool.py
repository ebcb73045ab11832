"""What is spooled reaches the disk in small pieces, and is read back as it was."""

from pathlib import Path

import pyarrow as pa
import pytest

from cleanfeed.build.spool import Spool, spool_writer
from cleanfeed.curriculum import durable

SCHEMA = pa.schema([pa.field("text", pa.large_string()), pa.field("row", pa.int64())])
TABLE = pa.table(
    {"text": ["", "\u00e9" * 40, "x", "longer than a piece"], "row": [0, 1, 2, 3]}, schema=SCHEMA
)


def written(path: Path) -> bytes:
    with spool_writer(path, SCHEMA) as writer:
        writer.write_table(TABLE)
    return path.read_bytes()


def test_a_spool_is_the_same_whatever_the_size_of_the_pieces_it_is_written_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, sizes = written(tmp_path / "whole.arrow"), []

    class Watched(durable._InPieces):
        def write(self, data: memoryview) -> int:
            sizes.append(super().write(data))
            return sizes[-1]

    monkeypatch.setattr(durable, "_InPieces", Watched)
    monkeypatch.setattr(durable, "WRITE_BYTES", 7)
    assert written(tmp_path / "pieces.arrow") == whole
    assert (max(sizes), sum(sizes)) == (7, len(whole))
    assert pa.Table.from_batches(Spool.open(tmp_path / "pieces.arrow").batches) == TABLE
