"""What the ledger says was trained is what the model saw, and a run goes on exactly where it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from cleanfeed import Curriculum, CurriculumSampler, PadCollator, TrainingGuard
from cleanfeed.errors import BusyError, MisuseError, ResumeError, TrainingError
from cleanfeed.feed.identity import batch_hash
from cleanfeed.runs.audit import audit
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_attempts, read_ledger, surviving
from cleanfeed.training.steps import Step

from .world import QUIET, Seen, make_curriculum, train


def seen_hash(hashes: list[str]) -> str:
    rows = np.frombuffer(bytes.fromhex("".join(hashes)), dtype=np.uint8).reshape(-1, 16)
    return batch_hash(rows)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("workers", "prefetch", "micro", "persistent"),
    [
        (0, None, 8, False),
        (0, None, 2, False),
        (2, 1, 2, False),
        (2, 4, 8, True),
        (4, 1, 8, False),
        (4, 4, 2, True),
    ],
)
def test_the_ledger_is_what_the_model_saw(
    clean: Path, tmp_path: Path, workers: int, prefetch: int | None, micro: int, persistent: bool
) -> None:
    options = {"prefetch_factor": prefetch, "persistent_workers": persistent} if workers else {}
    seen = train(clean, tmp_path, workers=workers, micro=micro, loader=options)
    lines = list(read_ledger(RunDir(tmp_path)))
    assert [line.step for line in lines] == list(range(1, 41))
    for line in lines:
        assert line.batch_hash == seen_hash(seen.hashes[line.attempt, line.step])
        assert (line.samples, line.accepted, line.finite) == (8, True, True)
    found = audit(RunDir(tmp_path))
    assert (found.problems, found.samples, found.epochs[0].trained) == ([], 320, 320)
    assert found.tokens == sum(Curriculum(clean).columns(range(320), ["n_tokens"])["n_tokens"].to_pylist())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_in_pieces_is_the_run_in_one_go_bit_for_bit(clean: Path, tmp_path: Path, workers: int) -> None:
    torch.manual_seed(5)
    whole = train(clean, tmp_path / "whole", micro=4, dropout=0.2, workers=workers)
    torch.manual_seed(5)
    for stop in (13, 27, 30, 40):  # once right after a checkpoint
        piece = train(clean, tmp_path / "pieces", micro=4, dropout=0.2, workers=workers, steps=stop)
    run = RunDir(tmp_path / "pieces")
    assert [(start.why, start.after_step, start.checkpoint_step) for start in read_attempts(run)] == [
        ("start", 0, None),
        ("resume", 10, 10),
        ("resume", 20, 20),
        ("resume", 30, 30),
    ]
    lines = surviving(run)
    assert [line.step for line in lines] == list(range(1, 41))
    assert [line.batch_hash for line in lines] == [
        line.batch_hash for line in surviving(RunDir(tmp_path / "whole"))
    ]
    assert piece.weights[4, 40] == whole.weights[1, 40]
    assert audit(run).problems == []
    assert audit(run).undone == 3 + 7


def test_a_finished_run_started_again_trains_nothing(clean: Path, tmp_path: Path) -> None:
    first = train(clean, tmp_path, batch=32)
    again = train(clean, tmp_path, batch=32)
    assert (len(first.hashes), len(again.hashes), again.guard.step) == (10, 0, 10)
    assert audit(RunDir(tmp_path)).epochs[0].trained == 320


def test_resume_false_begins_anew_and_undoes_what_was_done(clean: Path, tmp_path: Path) -> None:
    train(clean, tmp_path, batch=32, steps=5)
    train(clean, tmp_path, batch=32, resume=False)
    run = RunDir(tmp_path)
    assert [(line.attempt, line.step) for line in surviving(run)] == [(2, step) for step in range(1, 11)]
    assert audit(run).problems == []


def test_without_checkpoints_the_guard_records(clean: Path, tmp_path: Path) -> None:
    train(clean, tmp_path, batch=32, checkpoints=False)
    assert len(surviving(RunDir(tmp_path))) == 10
    assert not RunDir(tmp_path).checkpoints.exists()


def test_another_curriculum_or_another_order_is_refused(clean: Path, tmp_path: Path) -> None:
    train(clean, tmp_path / "run", batch=32, steps=2)
    other = make_curriculum(tmp_path / "other", documents=64)
    with pytest.raises(MisuseError, match="trained on another curriculum"):
        train(other, tmp_path / "run", batch=32)
    with pytest.raises(ResumeError, match="global_batch"):
        train(clean, tmp_path / "run", batch=16)


def test_a_loader_that_delivers_other_samples_is_an_error(clean: Path, tmp_path: Path) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=8, micro_batch=4)
    loader = DataLoader(data, batch_size=4, collate_fn=PadCollator(pad_id=0), shuffle=False, drop_last=True)
    order = [index for batch in sampler for index in batch]
    guard = TrainingGuard(sampler, tmp_path / "run", policy=QUIET)
    assert order[:8] != list(range(8))
    with pytest.raises(TrainingError, match=r"other samples than the sampler says: slot 0, rank 0, row 1"):
        next(guard.steps(loader))
    guard.close()
    ended = TrainingGuard(sampler, tmp_path / "ended", policy=QUIET)
    with pytest.raises(TrainingError, match="the loader ended early"):
        next(ended.steps([]))
    ended.close()
    nameless = TrainingGuard(sampler, tmp_path / "nameless", policy=QUIET)
    with pytest.raises(TrainingError, match="does not say which samples it holds"):
        next(nameless.steps([{"input_ids": torch.zeros(4, 2)}]))
    nameless.close()


def test_wrong_arguments_are_named(clean: Path, tmp_path: Path) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=8)
    (tmp_path / "file").touch()
    for arguments, message in (
        ((data, tmp_path / "run"), "sampler: got Curriculum, expected a CurriculumSampler"),
        ((sampler, tmp_path / "run", "dir"), "checkpoints: got str, expected a Checkpoints or None"),
        ((sampler, tmp_path / "run", None, {}), "policy: got dict, expected a Policy or None"),
        (
            (sampler, tmp_path / "file"),
            "not a run directory: .*file: got a file, expected a folder, or none yet",
        ),
    ):
        with pytest.raises(MisuseError, match=message):
            TrainingGuard(*arguments)


def test_a_loader_over_another_curriculum_is_refused(clean: Path, tmp_path: Path) -> None:
    other = Curriculum(make_curriculum(tmp_path / "other", documents=64))
    sampler = CurriculumSampler(Curriculum(clean), global_batch=8, micro_batch=4)
    guard = TrainingGuard(sampler, tmp_path / "run", policy=QUIET)
    loader = DataLoader(other, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))
    with pytest.raises(MisuseError, match="another curriculum than the sampler orders: "):
        next(guard.steps(loader))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("told", "got"),
    [
        (torch.ones(3), r"\[3\]"),
        (torch.ones(4, 7), r"\[4, 7\]"),
        (torch.tensor(1.0), r"\[\]"),
        ([1.0] * 4, "list"),
    ],
)
def test_losses_that_are_not_one_a_row_are_refused_at_once(
    clean: Path, tmp_path: Path, told: object, got: str
) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=8, micro_batch=4)
    guard = TrainingGuard(sampler, tmp_path, policy=QUIET)
    step = next(guard.steps(DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))))
    next(iter(step))
    with pytest.raises(
        TrainingError, match=rf"step 1, micro-batch 1: got {got}, expected a tensor of shape \[4\]"
    ):
        step.observe(2.0, told)  # type: ignore[arg-type]
    guard.close()


def test_a_step_must_be_told_decided_and_committed_in_order(clean: Path, tmp_path: Path) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=8, micro_batch=4)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))
    guard = TrainingGuard(sampler, tmp_path, policy=QUIET)
    steps = guard.steps(loader)
    step = next(steps)
    assert len(step) == 2
    with pytest.raises(TrainingError, match=r"got 0 losses, expected 2 calls of step\.observe"):
        step.accept()
    with pytest.raises(TrainingError, match="not decided"):
        step.commit()
    for _ in step:
        step.observe(2.0)
        with pytest.raises(TrainingError, match="losses and micro-batches do not match"):
            step.observe(2.0)
    assert step.accept()
    with pytest.raises(TrainingError, match="asked twice"):
        step.accept()
    with pytest.raises(TrainingError, match="a step was not committed: step 1"):
        next(steps)
    step.commit()
    with pytest.raises(TrainingError, match="committed before"):
        step.commit()
    guard.close()


def test_a_step_can_be_looked_at_again_between_its_decision_and_its_commit(
    clean: Path, tmp_path: Path
) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=8, micro_batch=4)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))
    guard = TrainingGuard(sampler, tmp_path, policy=QUIET)
    step = next(guard.steps(loader))
    for _ in step:
        step.observe(2.0, torch.full((4,), 2.0))
    assert step.accept()
    assert [len(batch["sample_ids"]) for batch in step] == [4, 4]
    step.commit()
    guard.close()


HOLDER = """
import sys
from pathlib import Path
from cleanfeed.runs.layout import RunDir
from cleanfeed.training.startup import Hold
hold = Hold(RunDir(Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_cannot_train_in_one_run_directory(clean: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        where = f"another process trains in the run directory: {tmp_path}: got process {other.pid} on "
        with pytest.raises(BusyError, match=where):
            train(clean, tmp_path)
        other.communicate()
    assert len(train(clean, tmp_path, batch=32).hashes) == 10


def test_a_guard_made_after_an_exception_in_the_loop_goes_on_where_the_last_checkpoint_is(
    clean: Path, tmp_path: Path
) -> None:
    def fails(_: Seen, step: Step) -> None:
        if step.number == 25:
            raise MemoryError

    with pytest.raises(MemoryError) as caught:  # the traceback keeps the first guard's loop alive
        train(clean, tmp_path, before_step=fails)
    seen = train(clean, tmp_path)
    assert min(seen.hashes) == (2, 21)
    assert caught.type is MemoryError
    assert audit(RunDir(tmp_path)).problems == []


def test_a_loop_that_is_left_and_entered_again_goes_on_with_the_weights_it_has(
    clean: Path, tmp_path: Path
) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=32)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))
    guard = TrainingGuard(sampler, tmp_path, policy=QUIET)
    numbers = []
    for limit in (4, 7, 99):
        for step in guard.steps(loader):
            for _ in step:
                step.observe(2.0)
            step.accept()
            step.commit()
            numbers.append(step.number)
            if step.number == limit:
                break
    assert numbers == list(range(1, 11))
    assert [start.after_step for start in read_attempts(RunDir(tmp_path))] == [0, 4, 7]
    assert audit(RunDir(tmp_path)).problems == []


def test_weights_make_the_gradient_that_of_the_token_mean_whatever_the_accumulation(
    clean: Path, tmp_path: Path
) -> None:
    one = train(clean, tmp_path / "1", batch=8, micro=8, steps=10)
    four = train(clean, tmp_path / "4", batch=8, micro=2, steps=10)
    for name, tensor in one.model.state_dict().items():
        torch.testing.assert_close(four.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-4)
    lines = [[line.loss for line in surviving(RunDir(tmp_path / name))] for name in ("1", "4")]
    assert lines[0] == pytest.approx(lines[1], rel=1e-4)


def test_the_learning_rate_and_other_metrics_are_in_the_ledger(clean: Path, tmp_path: Path) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=64)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))
    guard = TrainingGuard(sampler, tmp_path, policy=QUIET, optimizer=lambda: 0.25)
    for step in guard.steps(loader):
        for _ in step:
            step.observe(torch.tensor(2.0))
        step.accept(torch.tensor(0.5), val_loss=3.0, odd=float("nan"))
        step.commit()
    guard.close()
    lines = list(read_ledger(RunDir(tmp_path)))
    assert {(line.lr, line.loss, line.grad_norm) for line in lines} == {(0.25, 2.0, 0.5)}
    assert lines[0].metrics == {"val_loss": 3.0, "odd": None}


def test_a_guards_own_state_can_be_kept_with_weights_saved_by_other_means(
    clean: Path, tmp_path: Path
) -> None:
    first = train(clean, tmp_path, batch=32, steps=4, checkpoints=False)
    state = json.loads(json.dumps(first.guard.state_dict()))
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=32)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))
    guard = TrainingGuard(sampler, tmp_path, policy=QUIET)
    guard.load_state_dict(state)
    step = next(guard.steps(loader))
    assert (step.number, step.slot, guard.attempt) == (5, 4, 2)
    guard.close()
    assert [line.step for line in surviving(RunDir(tmp_path))] == [1, 2, 3, 4]
    with pytest.raises(TrainingError, match="not a state of a guard"):
        guard.load_state_dict({})
