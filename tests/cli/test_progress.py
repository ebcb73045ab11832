"""Progress goes to stderr, as bars on a terminal and as lines everywhere else."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cleanfeed.cli.progress import COMPILING, progress


def run(console: Console) -> str:
    with progress(console) as watcher:
        watcher.compiling()
        watcher.phase("measure", 200_000_000, "bytes")
        watcher.advance(50_000_000)
        watcher.advance(150_000_000)
        watcher.note("a.jsonl\x1b[2J is damaged")
        watcher.phase("write", 3, "files")
        watcher.advance(3)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_log_file_gets_one_line_a_phase_and_no_control_codes() -> None:
    lines = run(Console(file=io.StringIO(), width=120)).splitlines()
    assert lines[0] == COMPILING
    assert lines[1].startswith("measure: 25 % of 200 MB, ")
    assert lines[1].endswith(" left")
    assert lines[2] == r"a.jsonl\x1b[2J is damaged"
    assert lines[3].startswith("measure: 200 MB in ")
    assert lines[3].endswith(" MB/s")
    assert lines[4].startswith("write: 3 files in ")
    assert len(lines) == 5


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
