"""The ledger holds every committed step, whatever happened to the process, and says which of them count."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cleanfeed.errors import LedgerError
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import (
    LedgerWriter,
    begin_attempt,
    next_attempt,
    read_attempts,
    read_changes,
    read_ledger,
    read_lines,
    survives,
    surviving,
)
from cleanfeed.runs.records import Attempt, ExclusionChange, LedgerLine


def start(attempt: int, after_step: int = 0) -> Attempt:
    return Attempt(
        attempt=attempt,
        started_at=1.0,
        after_step=after_step,
        checkpoint_step=after_step or None,
        why="start",
        incident=None,
        curriculum="out",
        digest="d",
        sampler={"seed": 0},
    )


def line(attempt: int, step: int, slot: int | None = None) -> LedgerLine:
    return LedgerLine(
        attempt=attempt,
        step=step,
        epoch=0,
        slot=step - 1 if slot is None else slot,
        stage=0,
        batch_hash="ab" * 16,
        samples=4,
        tokens=40,
        loss=2.5,
        worst_micro_loss=2.75,
        grad_norm=None,
        lr=1e-3,
        time=1.5,
    )


def write(run: RunDir, attempt: int, steps: range, after_step: int = 0) -> None:
    begin_attempt(run, start(attempt, after_step))
    with LedgerWriter(run, attempt) as ledger:
        for step in steps:
            ledger.write(line(attempt, step))


def test_what_is_written_is_read_back_as_it_was(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, range(1, 4))
    assert list(read_ledger(run)) == [line(1, step) for step in (1, 2, 3)]
    assert read_attempts(run) == [start(1)]
    assert next_attempt(run) == 2


def test_a_line_is_on_file_when_write_returns(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    begin_attempt(run, start(1))
    ledger = LedgerWriter(run, 1)
    for step in (1, 2):
        ledger.write(line(1, step))
        assert [found.step for found in read_ledger(run)][-1] == step
    ledger.close()
    ledger.close()


def test_a_torn_last_line_is_left_out_and_any_other_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, range(1, 4))
    path = run.attempt_lines(1)
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1])):
        path.write_bytes(whole[:-cut])
        assert [found.step for found in read_ledger(run)] == [1, 2]
    path.write_bytes(whole.replace(b'"step":2', b'"step":"x"'))
    with pytest.raises(LedgerError, match=r"attempt-0001\.jsonl:2: got Expected `int`"):
        list(read_ledger(run))


def test_lines_that_a_rollback_or_a_resume_undid_do_not_survive(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, range(1, 11))
    write(run, 2, range(6, 9), after_step=5)  # a rollback to 5
    write(run, 3, range(8, 13), after_step=7)  # a resume from 7
    write(run, 4, range(4, 6), after_step=3)  # a rollback to 3 undoes all of 2 and 3
    assert [(found.attempt, found.step) for found in surviving(run)] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (4, 4),
        (4, 5),
    ]
    starts = read_attempts(run)
    assert [survives(starts, *where) for where in ((1, 3), (1, 4), (2, 6), (3, 8), (4, 4))] == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_an_attempt_that_wrote_no_line_still_counts_as_one(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, range(1, 4))
    begin_attempt(run, start(2, after_step=1))
    assert next_attempt(run) == 3
    assert [found.step for found in surviving(run)] == [1]


def test_a_number_is_never_used_twice(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, range(1, 2))
    with pytest.raises(LedgerError, match="the attempt has begun before"):
        begin_attempt(run, start(1))
    with pytest.raises(LedgerError, match="cannot write the ledger"):
        LedgerWriter(run, 1)


def test_lines_without_a_record_of_their_start_are_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, range(1, 2))
    run.attempt_start(1).unlink()
    with pytest.raises(LedgerError, match="an attempt has lines and no record"):
        surviving(run)
    run.attempt_start(1).write_text("{")
    with pytest.raises(LedgerError, match="cannot read how an attempt began"):
        surviving(run)


def test_changes_of_exclusions_stand_beside_the_lines(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    begin_attempt(run, start(1))
    changes = [
        ExclusionChange(after_step=3, incident=1, quarantined=["aa" * 16], skipped=[(3, 4)]),
        ExclusionChange(after_step=9, incident=1, released=["aa" * 16]),
    ]
    with LedgerWriter(run, 1) as ledger:
        for change in changes:
            ledger.change(change)
    assert read_changes(run, 1) == changes
    assert read_changes(run, 2) == []
    assert run.attempts() == [1]


class Small(msgspec.Struct):
    step: int
    loss: float | None


def test_a_reader_may_name_only_the_fields_it_needs(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, range(1, 3))
    assert list(read_ledger(run, Small)) == [Small(1, 2.5), Small(2, 2.5)]
    with pytest.raises(LedgerError, match="cannot read the ledger"):
        read_lines(run.attempt_lines(2), Small)


FULL = """
import resource, signal, sys
from pathlib import Path
from cleanfeed.errors import LedgerError
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import LedgerWriter, begin_attempt
from tests.runs.test_ledger import line, start

run = RunDir(Path(sys.argv[1]))
begin_attempt(run, start(1))
ledger = LedgerWriter(run, 1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    for step in range(1, 100):
        ledger.write(line(1, step))
except LedgerError as error:
    print(step, error)
"""


def test_on_a_full_disk_the_file_ends_with_a_whole_line_and_the_error_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    step, _, message = done.stdout.strip().partition(" ")
    run = RunDir(tmp_path)
    assert run.attempt_lines(1).read_bytes().endswith(b"}\n")
    assert [found.step for found in read_ledger(run)] == list(range(1, int(step)))
    assert message.startswith(f"cannot write the ledger: {run.attempt_lines(1)}: got ")


KILLED = """
import os, signal, sys
from pathlib import Path
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import LedgerWriter, begin_attempt
from tests.runs.test_ledger import line, start

run = RunDir(Path(sys.argv[1]))
begin_attempt(run, start(1))
ledger = LedgerWriter(run, 1)
for step in range(1, 8):
    ledger.write(line(1, step))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_committed_step_survives_kill_9(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert [found.step for found in read_ledger(RunDir(tmp_path))] == list(range(1, 8))
