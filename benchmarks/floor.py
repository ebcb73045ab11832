"""The floor of a build: a JSONL file goes in, the same rows as zstd Parquet come out, by pyarrow alone.

``python floor.py IN.jsonl OUT.parquet table`` reads the whole file and then writes it; ``stream`` goes
batch by batch.
"""

from __future__ import annotations

import sys

import pyarrow.json
import pyarrow.parquet

BLOCK = 64 * 2**20


def whole(source: str, target: str) -> None:
    table = pyarrow.json.read_json(source, read_options=pyarrow.json.ReadOptions(block_size=BLOCK))
    pyarrow.parquet.write_table(table, target, compression="zstd")


def stream(source: str, target: str) -> None:
    reader = pyarrow.json.open_json(source, read_options=pyarrow.json.ReadOptions(block_size=BLOCK // 4))
    with pyarrow.parquet.ParquetWriter(target, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)


if __name__ == "__main__":
    {"table": whole, "stream": stream}[sys.argv[3]](sys.argv[1], sys.argv[2])
