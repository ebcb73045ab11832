"""Whatever is done to the bytes of the input, a build ends, and every record is accounted for."""

import json
import os
import random
from pathlib import Path

import duckdb
import pytest

from cleanfeed.build.verify import verify

from .conftest import TOKENIZER, Build, prose

RECORDS = int(os.environ.get("CLEANFEED_MUTATIONS", "3000"))
"""Mutated records in a run; more, by hand, with the variable."""

PIECES = (
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\n",
    b"\\ud83d",
    b"\\u0000",
    "\u2028\u0085\u200b\u202e\ufffd\ue000\U000e0041".encode(),
    "e\u0301".encode() * 40,
    "ก็ปลาวาฬ".encode(),
    "Ã¤Ã¶Ã¼ Ð´Ð¾Ð¼".encode(),
    b'"',
    b"}{",
    b"<|endoftext|>",
    b"g4ODg4OD" * 50,
    b"deadbeef" * 40,
    b" " * 3000,
    b"-" * 500,
    b"[" * 300,
    b'"text": null, "text": 7, ',
    b"9" * 400,
)


def mutated(dice: random.Random, line: bytes) -> bytes:
    """Return a line with one to four things done to it."""
    for _ in range(dice.randint(1, 4)):
        start, stop = sorted(dice.choices(range(len(line) + 1), k=2))
        kind = dice.randrange(6)
        if kind == 0:
            line = line[:start] + dice.choice(PIECES) + line[start:]
        elif kind == 1:
            line = line[:start] + line[stop:]
        elif kind == 2:
            line = line[:stop] + line[start:stop] * dice.randint(1, 4) + line[stop:]
        elif kind == 3 and line:
            place = min(start, len(line) - 1)
            line = line[:place] + bytes([dice.randrange(256)]) + line[place + 1 :]
        elif kind == 4:
            line = line[stop:] + line[:stop]
        else:
            line = line[:start] + dice.randbytes(dice.randint(1, 30)) + line[start:]
    return line


@pytest.mark.parametrize("tokenizer", [None, TOKENIZER])
@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_records_never_end_a_build_and_their_counts_add_up(
    tmp_path: Path, run: Build, seed: int, tokenizer: str | None
):
    dice = random.Random(seed)
    lines = [
        json.dumps({"id": n, "text": prose(n, sentences=dice.randint(0, 6))}).encode() for n in range(50)
    ]
    data = b"\n".join(mutated(dice, dice.choice(lines)) for _ in range(RECORDS)) + b"\n"
    (tmp_path / "in.jsonl").write_bytes(data)
    manifest = run(tmp_path / "in.jsonl", tokenizer=tokenizer, sets=["duplicates.method=near"]).manifest
    records = sum(1 for line in data.split(b"\n") if line.strip(b" \t\r\n"))
    counts = manifest["counts"]
    assert counts["read"] == records
    assert counts["read"] == sum(counts[name] for name in ("kept", "rejected", "duplicate", "unreadable"))
    with duckdb.connect() as store:
        pattern = str(tmp_path / "out" / "signals" / "*.parquet")
        rows = store.execute("SELECT source_row FROM read_parquet(?)", [pattern]).fetchall()
        pattern = str(tmp_path / "out" / "unreadable" / "*.parquet")
        lost = store.execute("SELECT line - 1 FROM read_parquet(?)", [pattern]).fetchall()
    numbers = [number for (number,) in rows + lost]
    assert sorted(numbers) == [n for n, line in enumerate(data.split(b"\n")) if line.strip(b" \t\r\n")]
    verify(str(tmp_path / "out"))
