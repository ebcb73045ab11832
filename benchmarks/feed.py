"""Measures the feed: a finished curriculum goes in; batches a second beside the limit and other loaders come out.

``python benchmarks/feed.py CURRICULUM`` (a folder that ``cleanfeed build`` wrote with a tokenizer; by default one is
made once from the prepared text, at least 50 M tokens). Every loader gives out all samples once, stage after stage,
shuffled inside each stage, in batches of equally many rows, in this process (``num_workers=0``), padded by the same
collator:

- *limit*: the same batches, in the same order, from one array in memory;
- *cleanfeed*: ``Curriculum(decoded=...)``, which maps row groups that were decoded before, and ``CurriculumSampler``;
  as the others read what was prepared for them, the targets are judged by it;
- *cleanfeed, from Parquet*: the same without anything prepared;
- *datasets*: a Hugging Face dataset, Arrow on disk, each stage shuffled;
- *litdata*: optimized chunks on disk, each stage shuffled; run by the Python that ``CLEANFEED_LITDATA_PYTHON`` names.

The loaders take turns, a whole epoch each, cleanfeed's with an empty cache; a ratio is the median over the rounds.
Straight from Parquet cleanfeed decodes ahead in a thread, which pays where there is a second free processor; what the
main thread alone uses by the processor is given beside the clock: on a busy machine it says what a free one would show.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from prepare import prepare
from torch.utils.data import DataLoader, Dataset

from cleanfeed import Curriculum, CurriculumSampler, PadCollator
from cleanfeed.feed.pages import Files
from cleanfeed.feed.rows import Rows
from cleanfeed.feed.samples import Samples

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
LITDATA = "CLEANFEED_LITDATA_PYTHON"
GLOBAL_BATCH = 64
OURS, PARQUET = "cleanfeed", "cleanfeed, from Parquet"
TARGETS = {"limit": 0.7, "datasets": 4.0, "litdata": 2.0}
"""Least ratio of batches a second to each of these loaders."""
GROWTH_BATCHES = 100_000
SETTLED_BATCHES = 20_000
"""After so many batches the cache has reached its bound, and memory should not grow any more."""

Epoch = Callable[[], Iterable[Any]]


def real_curriculum(source: Path) -> Path:
    """Return a curriculum of at least 50 M tokens of real text, built when it is not there yet."""
    data = prepare(source, 300)
    out = data.large.parent / "curriculum"
    if not (out / "manifest.json").exists():
        command = [sys.executable, "-m", "cleanfeed", "build", str(data.large), "--out", str(out)]
        subprocess.run(
            [*command, "--tokenizer", str(data.tokenizer)], check=True, stdout=sys.stderr, cwd=REPOSITORY
        )
    return out


class InMemory(Dataset[Any]):
    """All samples in one array: what a dataset that never has to read or decode could reach."""

    def __init__(self, curriculum: Curriculum) -> None:
        self.catalog = curriculum.catalog
        files = Files(self.catalog, "input_ids")
        parts = [files.ragged(self.catalog.row_group(number)) for number in range(self.catalog.groups)]
        self.ids = np.concatenate([part.values for part in parts])
        lengths = np.concatenate([np.diff(np.asarray(part.bounds)) for part in parts])
        self.bounds = np.concatenate([[0], np.cumsum(lengths)])
        self.rows = Rows.cut(self.ids, self.bounds[:-1], lengths)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitems__(self, rows: list[int]) -> Samples:
        numbers = np.array(rows)
        taken = Rows(self.rows.spans.take(numbers, axis=1), self.rows.held)
        return Samples(numbers, taken.spans[1], np.zeros_like(numbers), taken)

    def stages(self) -> Iterator[tuple[int, int]]:
        """Yield the first row of each stage that has samples, and the row after its last."""
        for stage in self.catalog.stages:
            if stage.samples:
                yield stage.first_row, stage.first_row + stage.samples


def loader_of(dataset: Any, rows: int, collate: PadCollator, workers: int = 0) -> DataLoader[Any]:
    sampler = CurriculumSampler(dataset, global_batch=GLOBAL_BATCH, micro_batch=rows)
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, num_workers=workers)


def datasets_epoch(memory: InMemory, folder: Path, rows: int, collate: PadCollator) -> Epoch:
    """Return an epoch of Hugging Face datasets, written to disk when it is not there yet."""
    import datasets
    import pyarrow as pa

    datasets.disable_progress_bars()
    if not folder.exists():
        bounds = pa.array(memory.bounds, pa.int64())
        ids = pa.LargeListArray.from_arrays(bounds, pa.array(memory.ids)).cast(pa.list_(pa.int32()))
        datasets.Dataset(pa.table({"input_ids": ids})).save_to_disk(folder)
    whole = datasets.load_from_disk(str(folder)).with_format("numpy")
    stages = [whole.select(range(first, last)) for first, last in memory.stages()]

    def epoch() -> Iterator[Any]:
        shuffled = datasets.concatenate_datasets([stage.shuffle(seed=1) for stage in stages])
        return iter(DataLoader(shuffled, batch_size=rows, drop_last=True, collate_fn=collate))

    return epoch


def timed(epoch: Iterable[Any]) -> dict[str, float]:
    """Return batches a second of one epoch, its padded tokens, and what the main thread used by the processor."""
    start, used, batches, tokens = time.perf_counter(), time.thread_time(), 0, 0
    for batch in epoch:
        batches += 1
        tokens += batch["input_ids"].numel()
    seconds, used = time.perf_counter() - start, time.thread_time() - used
    return {"rate": batches / seconds, "batches": batches, "padded": tokens, "processor": batches / used}


class LitData:
    """An epoch of litdata in an environment of its own, which times itself."""

    def __init__(self, memory: InMemory, folder: Path, rows: int) -> None:
        self.python = os.environ.get(LITDATA)
        folder.mkdir(exist_ok=True)
        if self.python and not (folder / "ids.npy").exists():
            np.save(folder / "stages.npy", np.array(list(memory.stages())))
            np.save(folder / "bounds.npy", np.array(memory.bounds))
            np.save(folder / "ids.npy", memory.ids)
        self.command = [str(self.python), str(HERE / "feed_litdata.py"), str(folder), str(rows)]

    def timed(self) -> dict[str, float]:
        """Return what :func:`timed` returns, measured over there."""
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(self.command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def resident() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(path: str, rows: int) -> dict[str, float]:
    """Return how much memory grows between 20,000 and 100,000 batches, over as many epochs as that takes."""
    curriculum = Curriculum(path)
    epochs = 1 + GROWTH_BATCHES * rows // len(curriculum)
    sampler = CurriculumSampler(curriculum, global_batch=GLOBAL_BATCH, micro_batch=rows, epochs=epochs)
    batches = iter(DataLoader(curriculum, batch_sampler=sampler, collate_fn=PadCollator(0)))  # type: ignore[arg-type]
    memory = []
    for number in range(GROWTH_BATCHES):
        next(batches)
        if (number + 1) * rows % GLOBAL_BATCH == 0:
            sampler.commit()
        if number + 1 in (SETTLED_BATCHES, GROWTH_BATCHES // 2, GROWTH_BATCHES):
            memory.append(resident())
    return {"settled": memory[0], "half": memory[1], "end": memory[2], "growth": memory[2] - memory[0]}


def measure(path: Path, rows: int, rounds: int, others: bool, workers: int) -> dict[str, Any]:
    """Return rates of all loaders, a whole epoch each in turn, and the medians of the ratios."""
    curriculum, collate = Curriculum(path), PadCollator(0)
    memory = InMemory(curriculum)
    beside = path.parent / "feed"
    beside.mkdir(exist_ok=True)
    bare = list(CurriculumSampler(memory, global_batch=GLOBAL_BATCH, micro_batch=rows))
    decoded = beside / "decoded"
    begin = time.perf_counter()
    decoded_bytes = Curriculum(path, decoded=decoded).decode()
    decoding = time.perf_counter() - begin
    loaders: dict[str, Callable[[], dict[str, float]]] = {
        "limit": lambda: timed(loader_of(memory, rows, collate, workers)),
        "collator alone": lambda: timed(collate(memory.__getitems__(batch)) for batch in bare),
        OURS: lambda: timed(loader_of(Curriculum(path, decoded=decoded), rows, collate, workers)),
        PARQUET: lambda: timed(loader_of(Curriculum(path), rows, collate, workers)),
    }
    if others and not workers:
        epoch = datasets_epoch(memory, beside / "arrow", rows, collate)
        loaders["datasets"] = lambda: timed(epoch())
        litdata = LitData(memory, beside / "litdata", rows)
        if litdata.python:
            loaders["litdata"] = litdata.timed
    taken = [{name: one() for name, one in loaders.items()} for _ in range(rounds)]

    def ratios(ours: str, kind: str = "rate") -> dict[str, float]:
        return {
            name: statistics.median(turn[ours][kind] / turn[name][kind] for turn in taken) for name in loaders
        }

    reached = ratios(OURS)
    return {
        "rows": rows,
        "tokens": len(memory.ids),
        "samples": len(memory),
        "decoded": {"bytes": decoded_bytes, "seconds, or to check what was there": decoding},
        "rates": {name: statistics.median(turn[name]["rate"] for turn in taken) for name in loaders},
        "padded": {name: taken[0][name]["padded"] / taken[0][name]["batches"] for name in loaders},
        "ratios": reached,
        "met": {name: reached[name] >= least for name, least in TARGETS.items() if name in reached},
        "ratios from Parquet": ratios(PARQUET),
        "ratios by processor time": ratios(OURS, "processor"),
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("curriculum", nargs="?", type=Path)
    parser.add_argument("--text", type=Path, default=REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 64], help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--workers", type=int, default=0, help="of the loaders, which then are cleanfeed's alone"
    )
    parser.add_argument("--alone", action="store_true", help="leave out the other loaders")
    parser.add_argument("--growth", action="store_true", help="only memory over 100,000 batches")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.curriculum or real_curriculum(options.text)
    if options.growth:
        print(json.dumps(growth(str(path), options.rows[0]), indent=1))
        return 0
    found = [measure(path, rows, options.rounds, not options.alone, options.workers) for rows in options.rows]
    command = [sys.executable, __file__, str(path), "--growth"]
    memory = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(json.dumps({"load": os.getloadavg(), "loaders": found, "memory": json.loads(memory)}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
