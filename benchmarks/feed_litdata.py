"""One epoch of litdata: arrays of ids go in; batches a second come out as JSON.

``python feed_litdata.py FOLDER ROWS``, run by a Python that has litdata, torch and numba. FOLDER holds ``ids.npy``,
``bounds.npy`` and ``stages.npy``; chunks are written beside them when they are not there yet.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from itertools import chain, pairwise
from pathlib import Path

import litdata
import numpy as np
import torch
from litdata.streaming.writer import BinaryWriter

from cleanfeed.feed.collators import PadCollator


def write_stage(folder: Path, ids: np.ndarray, bounds: np.ndarray) -> None:
    """Write samples as litdata keeps them: a dict of one tensor each, in chunks of 64 MB."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    writer = BinaryWriter(str(partial), chunk_bytes=1 << 26)
    for number, (start, stop) in enumerate(pairwise(bounds)):
        writer[number] = {"input_ids": torch.from_numpy(np.array(ids[start:stop]))}
    writer.done()
    writer.merge()
    partial.rename(folder)


def main(folder: Path, rows: int) -> None:
    """Write what is missing, then time one epoch."""
    torch.set_num_threads(1)
    stages = np.load(folder / "stages.npy").tolist()
    bounds, ids = np.load(folder / "bounds.npy"), np.load(folder / "ids.npy", mmap_mode="r")
    collate = PadCollator(0)
    loaders = []
    for number, (first, last) in enumerate(stages):
        chunks = folder / f"stage-{number}"
        if not chunks.exists():
            write_stage(chunks, ids, bounds[first : last + 1])
        dataset = litdata.StreamingDataset(str(chunks), shuffle=True, seed=1, drop_last=False)
        loaders.append(
            litdata.StreamingDataLoader(
                dataset, batch_size=rows, num_workers=0, collate_fn=collate, drop_last=True
            )
        )
    start, used, batches, tokens = time.perf_counter(), time.thread_time(), 0, 0
    for batch in chain.from_iterable(loaders):
        batches += 1
        tokens += batch["input_ids"].numel()
    seconds, used = time.perf_counter() - start, time.thread_time() - used
    found = {"rate": batches / seconds, "batches": batches, "padded": tokens, "processor": batches / used}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
