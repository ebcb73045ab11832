"""Builds of large inputs go in; the peak memory of all their processes together, and their rate, come out.

``python benchmarks/memory.py [TEXT] [--scratch DIR] [--workers N] [--cases long:5e9 long:10e9 tiny:5e6 tiny:10e6]``.
The input is made from real text for the time of the build: ``long`` is so many bytes in rows of 1 MB, ``tiny`` so many
rows of 50 bytes. Memory is the sum over all processes of the command of their proportional set size (PSS, in which a
page that n processes share counts 1/n for each), twenty times a second; beside it the part that is no file (anonymous
pages). Pages of mapped files count in the first figure, though the system takes them back when it needs them. The peak
of each phase is given with the share of the command itself, the largest of its processes and how many there were.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prepare import read_texts
from processes import MIB

INTERVAL = 0.05
LONG_ROW, TINY_ROW = 1_000_000, 50
LIMIT_MIB = 2048


def long_rows(texts: list[str]) -> Iterator[bytes]:
    """Yield records of 1 MB without end, no two the same."""
    whole = "\n".join(texts)
    parts = [
        json.dumps(whole[start : start + LONG_ROW], ensure_ascii=False).encode()[1:]
        for start in range(0, len(whole) - LONG_ROW, LONG_ROW)
    ]
    for number in itertools.count():
        yield b'{"text":"%d ' % number + parts[number % len(parts)] + b"}\n"


def tiny_rows(texts: list[str]) -> Iterator[bytes]:
    """Yield records of 50 bytes of text without end, no two the same."""
    whole = " ".join(" ".join(texts).split())[: 4 << 20]
    parts = [json.dumps(whole[start : start + 41]).encode()[1:] for start in range(0, len(whole) - 41, 41)]
    for number in itertools.count():
        yield b'{"text":"%08d ' % number + parts[number % len(parts)] + b"}\n"


def write(path: Path, kind: str, most: int, texts: list[str]) -> int:
    """Write ``most`` bytes of long rows, or ``most`` tiny rows; return the bytes of the file."""
    written = rows = 0
    with path.open("wb", buffering=1 << 22) as file:
        for row in long_rows(texts) if kind == "long" else tiny_rows(texts):
            if (written if kind == "long" else rows) >= most:
                return written
            file.write(row)
            written, rows = written + len(row), rows + 1
    return written


def _family(leader: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name of the program, in brackets, may hold anything.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [leader]
    for pid in found:
        yield pid
        found += children.get(pid, ())


def _set_sizes(pid: int) -> tuple[int, int]:
    """Return the proportional set size of a process and its anonymous part, in bytes."""
    found = {"Pss:": 0, "Pss_Anon:": 0}
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, value = line.split()[:2]
            if name in found:
                found[name] = int(value) * 1024
    except OSError:
        pass
    return found["Pss:"], found["Pss_Anon:"]


@dataclass(slots=True)
class Peak:
    """Memory of a build in bytes where its processes together took most of it."""

    total: int = 0
    command: int = 0
    """Of the process that hands out the work."""
    largest: int = 0
    """Of the largest of the others."""
    processes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.total / MIB:,.0f} MiB (command {self.command / MIB:,.0f}, largest of {self.processes - 1} others "
            f"{self.largest / MIB:,.0f})"
        )


def phase_of(out: Path) -> str:
    """Return what a build is at, by what it has begun to write."""
    work = out / ".work"
    marks = {
        "write": out / "curriculum",
        "settle": out / "signals",
        "group": work / "grouping",
        "candidates": work / "candidates-00000.parquet",
    }
    return next((phase for phase, mark in marks.items() if mark.exists()), "measure")


def peaks_of(command: list[str], out: Path) -> tuple[float, dict[str, Peak], int]:
    """Run a build; return its seconds, the peak of each phase, and the most its processes had without files."""
    started = time.monotonic()
    peaks: dict[str, Peak] = {}
    anonymous = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            sizes = {pid: _set_sizes(pid) for pid in _family(process.pid)}
            others = [size for pid, (size, _) in sizes.items() if pid != process.pid]
            own, _ = sizes.get(process.pid, (0, 0))
            found = Peak(own + sum(others), own, max(others, default=0), len(sizes))
            phase = phase_of(out)
            peaks[phase] = max(peaks.get(phase, Peak()), found, key=lambda peak: peak.total)
            anonymous = max(anonymous, sum(size for _, size in sizes.values()))
            time.sleep(INTERVAL)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return time.monotonic() - started, peaks, anonymous


def main() -> int:
    """Measure each case and print a line for it; return 1 where one needs more than 2 GiB."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", default="../shared/data", help="anything cleanfeed build reads")
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer")
    parser.add_argument("--cases", nargs="+", default=["long:5e9", "long:10e9", "tiny:5e6", "tiny:10e6"])
    given = parser.parse_args()
    texts = read_texts(Path(given.text), 40_000_000)
    failed = False
    for case in given.cases:
        kind, _, most = case.partition(":")
        folder = Path(tempfile.mkdtemp(prefix="cleanfeed-memory-", dir=given.scratch))
        try:
            size = write(folder / "in.jsonl", kind, int(float(most)), texts)
            command = [sys.executable, "-m", "cleanfeed", "build", str(folder / "in.jsonl")]
            command += ["--out", str(folder / "out"), "--workers", str(given.workers)]
            command += ["--tokenizer", given.tokenizer] if given.tokenizer else []
            seconds, peaks, anonymous = peaks_of(command, folder / "out")
            counts = json.loads((folder / "out" / "manifest.json").read_text())["counts"]
        finally:
            shutil.rmtree(folder)
        peak = max(found.total for found in peaks.values())
        print(
            f"{case}: {size / 1e9:.2f} GB, {counts['read']:,} documents in {seconds:.0f} s: "
            f"{size / 1e6 / seconds:.1f} MB/s, {counts['read'] / seconds:,.0f} documents/s; all processes together "
            f"{peak / MIB:,.0f} MiB (PSS), {anonymous / MIB:,.0f} MiB of it anonymous",
            *(f"  {phase}: {found}" for phase, found in peaks.items()),
            sep="\n",
            flush=True,
        )
        failed |= peak > LIMIT_MIB * MIB
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
