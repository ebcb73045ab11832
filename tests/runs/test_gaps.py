"""What no line of the ledger stands for is known from the ends of its files and from the checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cleanfeed.errors import LedgerError
from cleanfeed.runs.gaps import (
    TAIL_BYTES,
    last_step,
    last_surviving_step,
    missing_steps,
    newest_saved,
    say_steps,
)
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_attempts

from .test_ledger import write


def save(run: RunDir, step: int, attempt: int) -> None:
    path = run.checkpoint_record(step)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"step": step, "attempt": attempt, "guard": {}}))


def test_a_whole_ledger_has_no_gap_and_steps_that_were_undone_are_none(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, range(1, 11))
    write(run, 2, range(6, 9), after_step=5)
    write(run, 3, range(4, 9), after_step=3)
    starts = read_attempts(run)
    assert missing_steps(run, starts) == missing_steps(run, starts, 8) == []
    assert missing_steps(run, starts, 10) == [(9, 10)]
    assert last_surviving_step(run, starts) == 8


def test_files_that_were_cut_or_removed_are_gaps(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, range(1, 4))
    write(run, 2, range(6, 9), after_step=5)
    write(run, 3, range(9, 12), after_step=8)
    assert missing_steps(run, read_attempts(run)) == [(4, 5)]
    run.attempt_start(1).unlink(), run.attempt_lines(1).unlink()
    assert missing_steps(run, read_attempts(run), 20) == [(1, 5), (12, 20)]
    run.attempt_lines(3).unlink()
    assert missing_steps(run, read_attempts(run)) == [(1, 5)]
    assert missing_steps(run, [], 20) == [(1, 20)]


def test_the_newest_checkpoint_is_one_that_no_later_attempt_undid(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 2, range(6, 9), after_step=5)
    save(run, 5, 1), save(run, 8, 1), save(run, 7, 2)
    (run.checkpoint(9) / "cleanfeed").mkdir(parents=True)  # not complete
    newest = newest_saved(run, read_attempts(run))
    assert newest is not None
    assert (newest.step, newest.attempt) == (7, 2)


def test_the_last_line_is_found_whatever_its_length_and_a_torn_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "attempt-0001.jsonl"
    assert last_step(path) is None
    path.write_text('{"step": 1')
    assert last_step(path) is None
    path.write_text('{"step": 1}\n{"step": 2, "metrics": "' + "x" * 3 * TAIL_BYTES + '"}\n{"step": 3')
    assert last_step(path) == 2
    path.write_text('{"step": 1}\n{"step": \n')
    with pytest.raises(LedgerError, match=r"a line of the ledger cannot be read: .*attempt-0001.jsonl"):
        last_step(path)


def test_steps_are_said_in_words() -> None:
    assert say_steps([(3, 3)]) == "step 3"
    assert say_steps([(3, 4)]) == "steps 3 to 4"
    assert say_steps([(1, 1), (1000, 2000)]) == "steps 1 and 1,000 to 2,000"
