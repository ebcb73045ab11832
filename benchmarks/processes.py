"""Runs a command as a whole process: a command line goes in, its wall time and peak memory come out."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

INTERVAL = 0.02
MIB = 2**20
TICKS = os.sysconf("SC_CLK_TCK")
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


@dataclass
class Run:
    """What is known of a command after it ended."""

    seconds: float
    processor_seconds: float
    """Of the command and all its descendants, to the last look before each ended."""
    output: str
    peaks: list[int] = field(default_factory=list)
    """Peak resident bytes of each process of the command, largest first, mapped files included."""

    @property
    def peak_mib(self) -> float:
        """Peak of the largest process in MiB."""
        return max(self.peaks, default=0) / MIB


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def _tree(pid: int) -> list[int]:
    pids, todo = [], [pid]
    while todo:
        current = todo.pop()
        pids.append(current)
        try:
            todo += _children(current)
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
    return pids


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _used(pid: int) -> float:
    # The name of the program stands in brackets and may hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class _Watch(threading.Thread):
    """Reads memory and processor time of a process and its descendants until told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peaks: dict[int, int] = {}
        self.used: dict[int, float] = {}
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(INTERVAL):
            for pid in _tree(self.pid):
                try:
                    self.peaks[pid] = max(self.peaks.get(pid, 0), _peak(pid))
                    self.used[pid] = _used(pid)
                except (FileNotFoundError, ProcessLookupError):
                    continue


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Run:
    """Run the command to its end; a failing one ends the benchmark with what it wrote to stderr.

    It keeps the bytecode of what it imports, as an installed package has it, even where this process must not.
    """
    kept = {name: value for name, value in (env or os.environ).items() if name != NO_BYTECODE}
    start = time.perf_counter()
    process = subprocess.Popen(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=kept,
        cwd=cwd,
    )
    watch = _Watch(process.pid)
    watch.start()
    output, errors = process.communicate()
    seconds = time.perf_counter() - start
    watch.done.set()
    watch.join()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{errors[-4000:]}")
    return Run(seconds, sum(watch.used.values()), output, sorted(watch.peaks.values(), reverse=True))
