"""Progress goes to stderr, as bars on a terminal and as lines everywhere else."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.console import Console

from cleanfeed.cli.progress import COMPILING, progress


def run(console: Console) -> str:
    clock = itertools.count(0.0, 4.0)  # four seconds pass at each look
    with progress(console, lambda: next(clock)) as watcher:
        watcher.compiling()
        watcher.phase("measure", 200_000_000, "bytes")
        watcher.advance(20_000_000)
        watcher.advance(30_000_000)
        watcher.advance(150_000_000)
        watcher.note("a.jsonl\x1b[2J is damaged")
        watcher.phase("write", 3, "files")
        watcher.advance(3)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_log_file_gets_one_line_a_phase_and_no_control_codes() -> None:
    assert run(Console(file=io.StringIO(), width=120)).splitlines() == [
        COMPILING,
        "measure: 25 % of 200 MB, 6.2 MB/s, 24.0 s left",
        r"a.jsonl\x1b[2J is damaged",
        "measure: 200 MB in 16.0 s, 12.5 MB/s",
        "write: 3 files in 8.0 s, 0.4 files/s",
    ]


def test_a_terminal_gets_bars_with_rate_and_time() -> None:
    shown = run(Console(file=io.StringIO(), width=120, force_terminal=True))
    assert "measure" in shown
    assert "200 MB of 200 MB" in shown
    assert "MB/s" in shown
    assert "3 files of 3 files" in shown
    assert COMPILING in shown


def test_progress_stops_when_the_build_fails() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with pytest.raises(ValueError, match="broken"), progress(console):
        raise ValueError("broken")
    assert console._live_stack == []


def test_an_unknown_total_shows_what_is_done() -> None:
    console = Console(file=io.StringIO(), width=120)
    with progress(console) as watcher:
        watcher.phase("measure", 0, "bytes")
        watcher.advance(5_000_000)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().startswith("measure: 5.0 MB in ")


def test_a_phase_that_fails_is_not_said_to_be_done() -> None:
    console = Console(file=io.StringIO(), width=120)

    def fail() -> None:
        with progress(console) as watcher:
            watcher.phase("measure", 10, "bytes")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""
