"""An incident on file is whole or not there, and what is written is read back."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from cleanfeed.errors import CleanfeedError
from cleanfeed.runs.incident_files import (
    EXCERPT_CHARS,
    next_incident_number,
    read_incident,
    read_incidents,
    read_suspects,
    suspect_rows,
    write_incident,
)
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.records import Suspect
from tests.quarantine.incidents import incident

ROWS = pa.table(
    {
        "sample_hash": pa.array([bytes(16), bytes(15) + b"\1"], pa.binary(16)),
        "doc_id": ["a", "b"],
        "text": pa.array(["short", "long " * 1000], pa.large_string()),
    }
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    found = incident(1)
    assert write_incident(run, found, suspect_rows(ROWS, {"step": [5, 5]})) == tmp_path / "incidents" / "0001"
    assert read_incident(run, 1) == found
    suspects = read_suspects(run, 1)
    assert suspects is not None
    assert suspects.column_names == [
        "sample_hash",
        "doc_id",
        "attempt",
        "step",
        "slot",
        "score",
        "loss",
        "excerpt",
    ]
    assert suspects["step"].to_pylist() == [5, 5]
    assert suspects["slot"].to_pylist() == [None, None]


def test_a_later_answer_leaves_the_rows_of_the_samples_it_does_not_name(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_incident(run, incident(1), suspect_rows(ROWS, {"step": [5, 5]}))
    write_incident(run, incident(1), suspect_rows(ROWS.slice(1), {"step": [6]}))
    suspects = read_suspects(run, 1)
    assert suspects is not None
    assert suspects.select(["doc_id", "step"]).to_pylist() == [
        {"doc_id": "b", "step": 6},
        {"doc_id": "a", "step": 5},
    ]
    (tmp_path / "incidents/0001/suspects.parquet").write_bytes(b"damaged")
    write_incident(run, incident(1), suspect_rows(ROWS, {}))
    again = read_suspects(run, 1)
    assert again is not None
    assert again["doc_id"].to_pylist() == ["a", "b"]


def test_excerpts_are_short_and_take_the_place_of_the_text() -> None:
    short = suspect_rows(ROWS, {})
    assert short["excerpt"].to_pylist() == ["short", ("long " * 1000)[:EXCERPT_CHARS]]
    assert "text" not in short.column_names


def test_token_ids_are_decoded_for_the_excerpt() -> None:
    rows = pa.table({"input_ids": pa.array([[1, 2], [3]], pa.list_(pa.int32()))})
    decoded = suspect_rows(rows, {}, decode=lambda ids: "-".join(map(str, ids)))
    assert decoded["excerpt"].to_pylist() == ["1-2", "3"]
    assert suspect_rows(rows, {})["excerpt"].to_pylist() == [None, None]


def test_a_field_of_the_users_does_not_hide_ours() -> None:
    rows = ROWS.append_column("step", pa.array(["mine", "mine"]))
    assert suspect_rows(rows, {"step": [1, 2]})["step"].to_pylist() == [1, 2]


def test_a_column_that_is_not_of_suspects_is_refused() -> None:
    with pytest.raises(ValueError, match="no such column of suspects: lr"):
        suspect_rows(ROWS, {"lr": [1, 2]})


def test_an_update_replaces_the_incident_and_keeps_the_suspects(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_incident(run, incident(1), suspect_rows(ROWS, {}))
    write_incident(run, incident(1, outcome="helped"))
    assert read_incident(run, 1).outcome == "helped"
    suspects = read_suspects(run, 1)
    assert suspects is not None
    assert suspects.num_rows == 2


def test_numbers_that_json_cannot_hold_become_null(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_incident(run, incident(1, detail={"value": math.nan, "limit": math.inf, "z": 3.5}))
    assert read_incident(run, 1).detail == {"value": None, "limit": None, "z": 3.5}


def test_a_score_that_is_not_finite_leaves_the_incident_readable(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    scores = [math.inf, math.nan, 2.0]
    write_incident(run, incident(1, suspects=[Suspect(1, 5, 0, 4, "ab" * 16, score) for score in scores]))
    assert [one.score for one in read_incident(run, 1).suspects] == [1e9, 0.0, 2.0]


def test_leftovers_of_a_kill_are_not_read_and_give_way(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    leftover = tmp_path / "incidents" / "0001.unfinished"
    leftover.mkdir(parents=True)
    (leftover / "incident.json").write_text("{")
    assert run.incident_numbers() == []
    assert next_incident_number(run) == 1
    write_incident(run, incident(1))
    assert [path.name for path in run.incidents.iterdir()] == ["0001"]
    (run.incident(1) / "incident.json.unfinished").write_text("{")
    write_incident(run, incident(1, outcome="halted"))
    assert [path.name for path in run.incident(1).iterdir()] == ["incident.json"]
    assert next_incident_number(run) == 2


def test_an_incident_that_cannot_be_read_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for number in (1, 2, 3):
        write_incident(run, incident(number))
    (run.incident(1) / "incident.json").write_text('{"format": 1')
    (run.incident(3) / "incident.json").write_bytes(
        (run.incident(3) / "incident.json").read_bytes().replace(b'"format": 1', b'"format": 9')
    )
    said: list[str] = []
    assert [one.incident_id for one in read_incidents(run, said.append)] == [2]
    assert [line.split(":")[0] for line in said] == ["not an incident", "an incident of a later format"]
    with pytest.raises(CleanfeedError, match="not an incident"):
        read_incidents(run)


def test_an_incident_that_is_not_there_is_named(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_incident(run, incident(2))
    with pytest.raises(CleanfeedError, match=r"no such incident: .*: got number 7, expected one of: 2\."):
        read_incident(run, 7)


def test_damaged_suspects_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    path = write_incident(run, incident(1), suspect_rows(ROWS, {})) / "suspects.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CleanfeedError, match=r"cannot read the suspects: .*suspects\.parquet"):
        read_suspects(run, 1)
    assert read_suspects(run, 2) is None


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_incident(run, incident(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        for number in (1, 2):
            with pytest.raises(OSError, match="File too large"):
                write_incident(run, incident(number, outcome="helped"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert read_incident(run, 1).outcome == "open"
    assert sorted(path.name for path in run.incidents.iterdir()) == ["0001"]


WRITER = """
import sys
from pathlib import Path
from cleanfeed.runs.incident_files import write_incident
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.records import Suspect
from tests.quarantine.incidents import incident
print("begun", flush=True)
for turn in range(10**6):
    write_incident(RunDir(Path(sys.argv[1])), incident(1 + turn % 3, outcome=("open", "helped")[turn % 2]))
    print(turn, flush=True)
"""


def test_an_incident_is_whole_whenever_the_writer_is_killed(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    for kill_after in (0, 2, 5):
        folder = tmp_path / str(kill_after)
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True, cwd=root
        )
        assert process.stdout is not None
        for _ in range(kill_after + 1):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        process.stdout.close()
        process.wait()
        done = kill_after + len([line for line in rest if line])
        numbers = [one.incident_id for one in read_incidents(RunDir(folder))]
        assert len(numbers) in {min(done, 3), min(done + 1, 3)}
