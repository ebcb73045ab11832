"""Builds of large inputs go in; the peak memory of all their processes together, and their rate, come out.

``python benchmarks/memory.py [TEXT] [--scratch DIR] [--workers N] [--cases long:5e9 long:10e9 tiny:5e6 tiny:10e6]``.
The input is made from real text for the time of the build: ``long`` is so many bytes in rows of 1 MB, ``tiny`` so many
rows of 50 bytes. Memory is the sum over all processes of the command of their proportional set size (PSS, in which a
page that n processes share counts 1/n for each), twenty times a second; beside it the part that is no file (anonymous
pages). Pages of mapped files count in the first figure, though the system takes them back when it needs them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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


def _session(leader: int) -> Iterator[int]:
    for name in (path.name for path in Path("/proc").iterdir()):
        if name.isdigit():
            try:
                if os.getsid(int(name)) == leader:
                    yield int(name)
            except OSError:
                continue


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


def peak_of(command: list[str]) -> tuple[float, int, int]:
    """Run a command; return its seconds and the peaks of all its processes together, in all and anonymous."""
    started = time.monotonic()
    peak = anonymous = 0
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            sizes = [_set_sizes(pid) for pid in _session(process.pid)]
            peak = max(peak, sum(size for size, _ in sizes))
            anonymous = max(anonymous, sum(size for _, size in sizes))
            time.sleep(INTERVAL)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return time.monotonic() - started, peak, anonymous


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
            seconds, peak, anonymous = peak_of(command)
            counts = json.loads((folder / "out" / "manifest.json").read_text())["counts"]
        finally:
            shutil.rmtree(folder)
        print(
            f"{case}: {size / 1e9:.2f} GB, {counts['read']:,} documents in {seconds:.0f} s: "
            f"{size / 1e6 / seconds:.1f} MB/s, {counts['read'] / seconds:,.0f} documents/s; all processes together "
            f"{peak / MIB:,.0f} MiB (PSS), {anonymous / MIB:,.0f} MiB of it anonymous",
            flush=True,
        )
        failed |= peak > LIMIT_MIB * MIB
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
