"""Other processes: one that holds the store, one that is killed, several that write; and a disk without room."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cleanfeed.curriculum.exclusions import read_exclusions
from cleanfeed.errors import BusyError, MisuseError
from cleanfeed.quarantine.store import Quarantine
from cleanfeed.runs.incident_files import write_incident
from cleanfeed.runs.layout import RunDir
from tests.quarantine.incidents import A, B, C, incident, sample

ROOT = Path(__file__).parents[2]
HOLD = "import duckdb, sys; found = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
LOCK = (
    "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); "
    "print('held', flush=True); sys.stdin.read()"
)
WRITE = """
import sys
from pathlib import Path
from cleanfeed.quarantine.store import Quarantine
from cleanfeed.runs.incident_files import write_incident
from cleanfeed.runs.layout import RunDir
from tests.quarantine.incidents import incident, sample
run, store, first = Path(sys.argv[1]), Quarantine(sys.argv[2], patience=120.0), int(sys.argv[3])
sys.stdin.read()
for number in range(1, 4):
    one = incident(number, [sample(f"{first + number:032x}")])
    write_incident(RunDir(run), one)
    assert store.record(one, run)
"""


@contextmanager
def held(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a file for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def recorded(run: Path) -> Quarantine:
    write_incident(RunDir(run), incident(1, [sample(A)]))
    store = Quarantine(run, patience=0.0)
    assert store.record(incident(1))
    return store


@pytest.mark.parametrize(
    ("code", "name"), [(HOLD, "quarantine.duckdb"), (LOCK, "quarantine.decisions.jsonl")]
)
def test_a_store_that_is_held_stops_nobody_and_catches_up(tmp_path: Path, code: str, name: str) -> None:
    recorded(tmp_path)
    notes: list[str] = []
    store = Quarantine(tmp_path, patience=0.0, on_note=notes.append)
    with held(code, tmp_path / name) as process:
        write_incident(RunDir(tmp_path), incident(2, [sample(B)]))
        assert not store.record(incident(2))
        assert notes[-1].startswith("incident 2 is on file, but not in the store")
        assert f"the store is in use: {tmp_path / name}: got process {process.pid} (python" in notes[-1]
        assert store.hashes() == [A, B]
        with pytest.raises(BusyError, match=f"got process {process.pid} "):
            store.add([C], "bad")
    assert store.record(incident(2))
    assert store.hashes() == ([A, B, C] if code == HOLD else [A, B])


def test_a_decision_made_while_the_store_is_held_is_kept(tmp_path: Path) -> None:
    store = recorded(tmp_path)
    with held(HOLD, store.path):
        kept = r"What was decided is kept in .*quarantine\.decisions\.jsonl and enters the store with the next write\."
        with pytest.raises(BusyError, match=kept):
            store.release([A], "fine")
        assert store.hashes() == []
    assert store.hashes() == []
    assert store.rebuild() == {"incidents": 1, "decisions": 1}


def test_a_writer_waits_for_a_store_that_is_held_for_a_while(tmp_path: Path) -> None:
    recorded(tmp_path)
    write_incident(RunDir(tmp_path), incident(2, [sample(B)]))
    store = Quarantine(tmp_path, patience=120.0)
    outcome: list[bool] = []
    writer = threading.Thread(target=lambda: outcome.append(store.record(incident(2))))
    with held(HOLD, store.path):
        writer.start()
    writer.join()
    assert outcome == [True]
    assert store.hashes() == [A, B]


def test_a_reader_does_not_keep_a_writer_out_for_long(tmp_path: Path) -> None:
    store = recorded(tmp_path)
    with store.reading() as connection:
        assert connection.execute("SELECT count(*) FROM samples").fetchall() == [(1,)]
    write_incident(RunDir(tmp_path), incident(2, [sample(B)]))
    assert store.record(incident(2))


def test_runs_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    store = tmp_path / "shared.duckdb"
    runs = [tmp_path / name for name in ("a", "b")]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, str(run), str(store), str(100 * at)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for at, run in enumerate(runs)
    ]
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    found = Quarantine(store)
    assert found.hashes() == [f"{100 * at + number:032x}" for at in range(2) for number in range(1, 4)]
    assert [row["run"] for row in found.rows("incidents")] == ["a"] * 3 + ["b"] * 3


def test_a_full_disk_is_said_and_the_next_write_catches_up(tmp_path: Path) -> None:
    recorded(tmp_path)
    write_incident(RunDir(tmp_path), incident(2, [sample(B)]))
    notes: list[str] = []
    store = Quarantine(tmp_path, patience=0.0, on_note=notes.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        assert not store.record(incident(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert "cannot write the store" in notes[0]
    assert store.hashes() == [A, B]
    assert store.record(incident(2))
    notes.clear()
    assert store.hashes() == [A, B]
    assert notes == []


def test_a_kill_between_any_two_effects_loses_nothing() -> None:
    """Every 61st of some 800 effects; each 9th was tried once, with the same result."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.quarantine.kills", "61"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["scene"] for line in lines if line["died"] is None] == [
        "first_incident",
        "next_incident",
        "changed_incident",
        "by_hand",
        "rebuilding",
    ]
    assert {line["died"] for line in lines} == {9, None}
    finished = {line["scene"]: line for line in lines if line["died"] is None}
    for line in lines:
        assert line["seen"] == line["files"]
        assert line["notes"] == []
        if line["files"]:
            assert (line["seen_then"], line["unfinished"]) == (line["files"], [])
            assert line["samples"] == line["samples_then"]
        if line["files"] == finished[line["scene"]]["files"] and line["scene"] in (
            "first_incident",
            "next_incident",
        ):
            assert line["samples"] == finished[line["scene"]]["samples"]


def test_a_build_says_that_a_store_is_held(tmp_path: Path) -> None:
    store = recorded(tmp_path)
    with held(HOLD, store.path) as process:
        said = rf"the store is in use: --exclude .*\(PID {process.pid}\)"
        with pytest.raises(MisuseError, match=said):
            read_exclusions([str(store.path)])
    assert len(read_exclusions([str(store.path)])) == 1
