"""A ledger that does not reach the checkpoint, and a start from nothing, are said aloud and stay on record."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cleanfeed.quarantine.report import make_report
from cleanfeed.runs.audit import audit
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_attempts, surviving

from .world import train


def resumed(data: Path, run: Path, **settings: Any) -> list[tuple[str, str]]:
    """Train on and return what was said, with its kind."""
    told: list[dict[str, Any]] = []
    train(data, run, batch=16, every=5, on_alert=told.append, **settings)
    return [(alert["event"], alert["message"]) for alert in told]


@pytest.fixture
def run(clean: Path, tmp_path: Path) -> RunDir:
    """A run that was left after step 12, with checkpoints of steps 0, 5 and 10."""
    train(clean, tmp_path, batch=16, every=5, steps=12)
    return RunDir(tmp_path)


def test_a_ledger_cut_behind_the_checkpoint_is_said_and_the_gap_stays_on_record(
    clean: Path, run: RunDir
) -> None:
    lines = run.attempt_lines(1)
    lines.write_bytes(b"".join(lines.read_bytes().splitlines(keepends=True)[:7]))
    [(event, message)] = resumed(clean, run.root)
    assert event == "ledger"
    assert message == (
        f"the ledger has no line of steps 8 to 10, which checkpoint 10 holds: {run.ledger}. Training goes on from the "
        "checkpoint, but no audit can prove what these steps trained. Put the files back beside the new ones if there "
        "is a copy, or begin anew with resume=False."
    )
    assert [(one.attempt, one.after_step) for one in read_attempts(run)] == [(1, 0), (2, 10)]
    found = audit(run)
    assert (found.gaps, found.problem_count) == ([(8, 10)], 1)
    assert (found.epochs[0].trained, found.epochs[0].unproved) == (16 * 17, 16 * 3)
    assert any("no line of steps 8 to 10" in note for note in make_report(run).notes)


def test_a_ledger_that_is_gone_is_named_and_training_goes_on_from_the_checkpoint(
    clean: Path, run: RunDir, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = tmp_path_factory.mktemp("copy") / "ledger"
    shutil.move(run.ledger, kept)
    [(event, message)] = resumed(clean, run.root)
    assert event == "ledger"
    assert message.startswith("the ledger is gone, and checkpoint 10 holds steps 1 to 10: ")
    assert [(one.attempt, one.after_step) for one in read_attempts(run)] == [(2, 10)]
    assert audit(run).gaps == [(1, 10)]
    assert any("no line of steps 1 to 10" in note for note in make_report(run).notes)
    # The copy is put back beside what was written since, and nothing is missing any more.
    for path in kept.iterdir():
        shutil.copy(path, run.ledger)
    assert audit(run).problems == []
    assert make_report(run).notes == []
    assert [line.step for line in surviving(run)] == list(range(1, 21))


def test_a_start_from_nothing_is_said_aloud(clean: Path, run: RunDir) -> None:
    shutil.rmtree(run.checkpoints)
    assert resumed(clean, run.root, steps=6) == [
        (
            "checkpoint",
            f"training begins anew at step 1: there is no checkpoint in {run.checkpoints}. "
            "The 12 steps in the ledger count as undone.",
        )
    ]
    assert resumed(clean, run.root, steps=1, checkpoints=False) == [
        (
            "checkpoint",
            "training begins anew at step 1: the guard was given no checkpoints. "
            "The 6 steps in the ledger count as undone.",
        )
    ]


def test_what_is_usual_is_not_said(clean: Path, run: RunDir) -> None:
    assert resumed(clean, run.root, steps=15) == []
    assert resumed(clean, run.root, steps=18, resume=False) == []
