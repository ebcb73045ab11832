"""Measures the sampler on a curriculum of 10⁹ samples that exists in its manifest only: seconds, bytes, memory.

``python benchmarks/feed_scale.py [--samples N] [--folder DIR] [--json]``. The manifest is as ``cleanfeed build``
writes it; the Parquet files are empty files of the right names and sizes, since nothing of them is read. Time and
memory are those of a fresh process that has imported torch and cleanfeed before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cleanfeed.build.finished import curriculum_digest, manifest_digest

SAMPLES = 10**9
GROUP_ROWS, FILE_GROUPS = 524, 64
"""Samples in a row group at 500 tokens each, and row groups in a file, as a build has them."""
STAGES = 9
EMPTY = 4096
"""Bytes of each file that stands for one of the curriculum."""

TARGETS: dict[str, tuple[str, float]] = {
    "construction": ("s", 1.0),
    "pickle": ("bytes", 10_000),
    "memory": ("MiB", 50.0),
    "state_dict": ("ms", 1.0),
    "resume": ("ms", 50.0),
}


def write_synthetic(folder: Path, samples: int) -> Path:
    """Write a build of so many samples whose files hold nothing."""
    stages: list[dict[str, Any]] = []
    files: list[dict[str, Any]] = []
    for index in range(STAGES):
        rows = samples // STAGES + (index < samples % STAGES)
        name, step = f"stage{index}", GROUP_ROWS * FILE_GROUPS
        home = folder / f"curriculum/{index:02d}-{name}"
        home.mkdir(parents=True)
        names = []
        for number, first in enumerate(range(0, rows, step)):
            path = home / f"part-{number:05d}.parquet"
            with path.open("wb") as file:
                file.truncate(EMPTY)
            names.append(path.relative_to(folder).as_posix())
            digest = f"{index:08x}{number:024x}"
            files.append(
                {"path": names[-1], "rows": min(step, rows - first), "bytes": EMPTY, "digest": digest}
            )
        stages.append(
            {
                "index": index,
                "name": name,
                "band": f"band{index % 3}",
                "tier": f"tier{index // 3}",
                "samples": rows,
            }
            | {"row_group_samples": GROUP_ROWS, "files": names}
        )
    bands = [{"name": f"band{i}", "max_tokens": 1024 << i, "max_chars": 4096 << i} for i in range(3)]
    manifest: dict[str, Any] = {
        "format_version": 1,
        "request": "",
        "pipeline": {"curriculum": {"bands": bands, "file_row_groups": FILE_GROUPS}},
        "counts": {},
        "inputs": [],
        "tokenizer": {"digest": "0" * 32, "vocab_size": 1 << 20, "end_of_text_id": 0},
        "stages": stages,
        "files": files,
        "digest": curriculum_digest(stages, files),
    }
    manifest["manifest_digest"] = manifest_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2))
    return folder


def measure(folder: str) -> dict[str, float]:
    """Return what a sampler costs over a build; run in a process of its own."""
    from cleanfeed import Curriculum, CurriculumSampler

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, busy = time.perf_counter(), time.process_time()
    curriculum = Curriculum(folder)
    sampler = CurriculumSampler(curriculum, 1024, 16, seed=1, epochs=3, rank=3, world_size=8)
    construction, busy = time.perf_counter() - begin, time.process_time() - busy
    # A rank's first micro-batch in the middle of the third epoch, where both permutations are at work.
    state = sampler.state_dict() | {"committed": sampler.n_slots * 5 // 6}

    def resume() -> None:
        fresh = CurriculumSampler(curriculum, 1024, 16, seed=1, epochs=3, rank=5, world_size=8)
        fresh.load_state_dict(json.loads(json.dumps(state)))
        next(iter(fresh))

    resumed = milliseconds(resume, 5)
    taken = milliseconds(lambda: sampler.state_dict(), 200)
    slots = milliseconds(lambda: [sampler.rank_rows(slot) for slot in range(0, sampler.n_slots, 40_000)], 3)
    batches = iter(sampler)
    begin = time.perf_counter()
    for _ in range(8_000):
        next(batches)
    issued = 8_000 / (time.perf_counter() - begin)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "construction": construction,
        "construction, processor time": busy,
        "pickle": len(pickle.dumps((curriculum, sampler))),
        "memory": (after - before) / 1024,
        "state_dict": taken,
        "resume": resumed,
        "micro-batches issued a second": issued,
        "one slot anywhere": slots / len(range(0, sampler.n_slots, 40_000)),
    }


def milliseconds(call: Callable[[], object], times: int) -> float:
    """Return the median time of a call."""
    spent = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begin)
    return 1000 * statistics.median(spent)


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Print the figures and return them: name, unit, reached, at_most, met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--folder", type=Path, help="where the files may lie; a temporary folder by default")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        write_synthetic(Path(folder), options.samples)
        command = [sys.executable, __file__, "--measure", folder]
        reached = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    units = {
        "construction, processor time": "s",
        "micro-batches issued a second": "/s",
        "one slot anywhere": "ms",
    }
    figures = []
    for name, value in reached.items():
        unit, at_most = TARGETS.get(name, (units.get(name, ""), None))
        met = None if at_most is None else value <= at_most
        figures.append(
            {"name": name, "unit": unit, "reached": round(value, 3), "at_most": at_most, "met": met}
        )
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"{options.samples:,} samples; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        for figure in figures:
            target = (
                ""
                if figure["met"] is None
                else f"≤ {figure['at_most']:g}: {'met' if figure['met'] else 'missed'}"
            )
            print(f"{figure['name']:<32}{figure['reached']:>12,.3f} {figure['unit']:<6}{target}")
    return figures


if __name__ == "__main__":
    main()
