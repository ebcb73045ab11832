"""A number of documents goes in; time, memory and disk of grouping as many made-up signatures come out.

``python group_duplicates.py DOCUMENTS [KIND]``. Of KIND ``mixed`` a tenth are exact copies, a tenth near-copies and the
rest alone; ``crowded`` is the worst case for keys: all share one band, and no two are alike; ``same`` are all alike.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cleanfeed.curriculum.clusters import warm_up_clusters
from cleanfeed.curriculum.duplicates import find_duplicates
from cleanfeed.settings import DuplicateSettings
from cleanfeed.signals.minhash import signature_array, warm_up_minhash

SETTINGS = DuplicateSettings(method="near")
HASHES = SETTINGS.bands * SETTINGS.rows
BATCH = 100_000
MIB = 1 << 20


def batch(start: int, rows: int, kind: str) -> pa.RecordBatch:
    chance = np.random.default_rng(start)
    signatures = chance.integers(0, 1 << 32, (rows, HASHES), dtype=np.uint32)
    texts = np.arange(start, start + rows, dtype=np.int64)
    tenth = rows // 10
    if kind == "mixed":
        texts[-tenth:], signatures[-tenth:] = texts[:tenth], signatures[:tenth]
        signatures[-2 * tenth : -tenth, : HASHES * 3 // 4] = signatures[:tenth, : HASHES * 3 // 4]
    elif kind == "crowded":
        signatures[:, : SETTINGS.rows] = 7
    else:
        signatures[:] = np.arange(HASHES)
    hashes = np.zeros((rows, 2), np.int64)
    hashes[:, 0] = texts
    return pa.record_batch(
        {
            "position": pa.array(np.arange(start, start + rows)),
            "content_hash": pa.Array.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(hashes)]),
            "quality": pa.array(chance.random(rows, dtype=np.float32)),
            "signature": signature_array(signatures, np.ones(rows, np.bool_)),
        }
    )


def disk_of(folder: Path, stop: threading.Event, peak: list[int]) -> None:
    while not stop.wait(0.2):
        # Files of the database come and go while they are looked at.
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.exists()]
        peak[0] = max(peak[0], sum(sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("documents", type=int)
    parser.add_argument("kind", nargs="?", choices=("mixed", "crowded", "same"), default="mixed")
    parser.add_argument("--memory-limit", type=int, default=512, help="MiB")
    given = parser.parse_args()
    warm_up_minhash()
    warm_up_clusters()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [folder / f"{start}.parquet" for start in range(0, given.documents, BATCH)]
        for number, path in enumerate(paths):
            rows = batch(number * BATCH, min(BATCH, given.documents - number * BATCH), given.kind)
            pq.write_table(pa.Table.from_batches([rows]), path)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        stop, peak, scratch = threading.Event(), [0], folder / "scratch"
        watcher = threading.Thread(target=disk_of, args=(scratch, stop, peak))
        watcher.start()
        start = time.perf_counter()
        counts = find_duplicates(
            paths,
            folder / "out.parquet",
            SETTINGS,
            scratch=scratch,
            memory_limit=given.memory_limit * MIB,
        )
        seconds = time.perf_counter() - start
        stop.set()
        watcher.join()
    found = {
        "documents": counts.documents,
        "exact": counts.exact,
        "near": counts.near,
        "seconds": round(seconds, 1),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "mib_before": round(before),
        "disk_bytes_a_document": round(peak[0] / given.documents),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
