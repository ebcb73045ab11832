"""An audit proves which samples were trained, and names what a ledger has wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cleanfeed.cli.main import main
from cleanfeed.errors import LedgerError, MisuseError
from cleanfeed.runs.audit import audit
from cleanfeed.runs.layout import RunDir
from tests.training.world import make_curriculum, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A curriculum of 64 samples, and a run of two epochs and two attempts on it with one sample left out."""
    folder = tmp_path_factory.mktemp("audit")
    data = make_curriculum(folder / "data", documents=64)

    def leave_out(seen: Any, step: Any) -> None:
        if step.number == 1 and seen.guard.attempt == 1:
            seen.guard.sampler.quarantine(seen.guard.sampler.sample_hashes(9)[:1])

    train(data, folder / "run", epochs=2, every=5, steps=7, before_step=leave_out)
    train(data, folder / "run", epochs=2, every=5)
    return data, folder / "run"


@pytest.fixture
def run(trained: tuple[Path, Path], tmp_path: Path) -> RunDir:
    """A copy of the run to change."""
    shutil.copytree(trained[1], tmp_path / "run")
    return RunDir(tmp_path / "run")


def test_an_honest_ledger_is_proved(trained: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = audit(RunDir(trained[1]))
    assert found.problems == []
    assert (found.attempts, found.steps, found.undone, found.samples) == (2, 16, 2, 126)
    assert [(one.trained, one.blanked, one.left) for one in found.epochs] == [(63, 1, 0), (63, 1, 0)]
    assert main(["ledger", "audit", str(trained[1])]) == 0
    assert "Proved: each sample once an epoch" in capsys.readouterr().out
    assert main(["ledger", "audit", str(trained[1]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proved"] is True


def change(run: RunDir, attempt: int, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    path = run.attempt_lines(attempt)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    edit(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda lines: lines[3].update(batch_hash="00" * 16), "the ledger says 00000000"),
        (lambda lines: lines[3].update(slot=9), "slot 9 was trained where slot 8 was due"),
        (lambda lines: lines[3].update(samples=7), "the ledger says 7 of epoch"),
        (lambda lines: lines[3].update(epoch=5), "the ledger says 8 of epoch 5"),
        (lambda lines: lines[3].update(slot=999), "there is no slot 999"),
    ],
)
def test_a_line_that_was_changed_is_named(run: RunDir, edit: Any, words: str) -> None:
    change(run, 2, edit)
    found = audit(run)
    assert any("attempt 2, step 9" in problem and words in problem for problem in found.problems)


def test_a_line_that_is_missing_is_an_error_that_names_it(run: RunDir) -> None:
    change(run, 2, lambda lines: lines.pop(3))
    with pytest.raises(LedgerError, match=r"steps do not follow each other: .*attempt-0002.jsonl:4"):
        audit(run)


def test_lines_that_should_have_survived_and_are_gone_are_missed(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    change(run, 1, lambda lines: lines.__delitem__(slice(3, None)))
    found = audit(run)
    assert found.problems == [
        "the ledger has no line of steps 4 to 5: attempt 2 goes on after step 5 at slot 5, what they trained is "
        "unproved"
    ]
    assert found.gaps == [(4, 5)]
    assert [(one.trained, one.unproved, one.skipped, one.left) for one in found.epochs] == [
        (47, 16, 0, 0),
        (63, 0, 0, 0),
    ]
    assert main(["ledger", "audit", str(run.root)]) == 1
    printed = capsys.readouterr().out
    assert "wrong: the ledger has no line of steps 4 to 5" in printed
    assert "unproved" in printed.splitlines()[1]


def test_a_checkpoint_ahead_of_the_ledger_is_a_gap(run: RunDir) -> None:
    change(run, 2, lambda lines: lines.__delitem__(slice(3, None)))
    found = audit(run)
    assert found.problems == [
        "the ledger has no line of steps 9 to 16: checkpoint 16 holds them, what they trained is unproved"
    ]


def test_a_ledger_that_is_gone_is_named_and_not_taken_for_another_folder(run: RunDir) -> None:
    shutil.rmtree(run.ledger)
    with pytest.raises(LedgerError, match=r"the ledger is gone: .*got checkpoint 16 and no attempt"):
        audit(run)


def test_samples_that_drop_last_leaves_out_are_not_still_to_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_curriculum(tmp_path / "data", documents=20)
    train(data, tmp_path / "run", checkpoints=False, steps=1)
    found = audit(RunDir(tmp_path / "run")).epochs[0]
    assert (found.trained, found.left, found.dropped) == (8, 8, 4)
    assert main(["ledger", "audit", str(tmp_path / "run")]) == 0
    table = capsys.readouterr().out.splitlines()[1:3]
    assert table[0].split("  ")[-1].strip() == "left out by drop_last"
    assert table[1].split() == ["0", "8", "0", "0", "0", "8", "4"]


def test_a_sample_trained_twice_is_named(run: RunDir) -> None:
    def repeat(lines: list[dict[str, Any]]) -> None:
        lines[4].update({name: lines[3][name] for name in ("slot", "batch_hash", "samples", "epoch")})

    change(run, 2, repeat)
    assert any("was taken by an earlier surviving step" in problem for problem in audit(run).problems)


def test_another_curriculum_and_a_folder_without_a_ledger_are_refused(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    other = make_curriculum(tmp_path / "other", documents=16)
    with pytest.raises(MisuseError, match="not the curriculum of this run"):
        audit(RunDir(trained[1]), str(other))
    with pytest.raises(MisuseError, match="no ledger"):
        audit(RunDir(tmp_path))
