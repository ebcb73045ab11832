"""An incident is answered, goes on and ends by itself: what is open beside it is neither ended nor cleared with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from cleanfeed import Checkpoints, Curriculum, CurriculumSampler, PadCollator, Policy, TrainingGuard
from cleanfeed.runs.incident_files import read_incidents
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_attempts, read_ledger
from cleanfeed.training.steps import Step

from .world import Seen, Tiny, losses, make_curriculum, train

POLICY = Policy(grace=20, window=32, margin=5, promote_after=10, pre=2, recover_within=40, merge_gap=4)
ROLL = dataclasses.replace(POLICY, actions=("record", "rollback", "lower_lr", "halt"))
OnLoss = Callable[[Seen, Step, torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_curriculum(tmp_path_factory.mktemp("endings"), documents=800)


def nan_where(sick: Callable[[Seen, int], bool]) -> OnLoss:
    return lambda seen, step, loss: loss * float("nan") if sick(seen, step.slot) else loss


def enter_twice(data: Path, run: Path, on_loss: OnLoss, *, leave_at: int, until: int = 62) -> Seen:
    """Train with one guard whose loop is left after one step and entered again."""
    curriculum = Curriculum(data)
    sampler = CurriculumSampler(curriculum, global_batch=8)
    loader = DataLoader(curriculum, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    guard = TrainingGuard(sampler, run, Checkpoints.of(model, optimizer, every=10), POLICY)
    seen = Seen(guard, model, optimizer)
    for last in (leave_at, until):
        for step in guard.steps(loader):
            for batch in step:
                mean, _ = losses(model(batch["input_ids"]), batch["labels"])
                mean = on_loss(seen, step, mean)
                (mean * step.weight).backward()
                step.observe(mean)
            if step.accept(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step.commit()
            if step.number >= last:
                break
    return seen


def told(run: Path) -> list[tuple[int, int, str, str]]:
    """Return number, trip, last action and outcome of each incident."""
    return [(one.incident_id, one.trip_step, one.action, one.outcome) for one in read_incidents(RunDir(run))]


def test_of_two_incidents_merge_gap_plus_one_steps_apart_the_first_is_judged_and_the_second_goes_on(
    data: Path, tmp_path: Path
) -> None:
    def sick(seen: Seen, slot: int) -> bool:
        return seen.guard.attempt == 1 and (slot == 30 or slot >= 30 + POLICY.merge_gap + 1)

    train(data, tmp_path, policy=POLICY, on_loss=nan_where(sick), steps=60)
    run = RunDir(tmp_path)
    assert told(tmp_path) == [(1, 31, "skip_step", "helped"), (2, 40, "rollback", "state_not_data")]
    assert [line.step for line in read_ledger(run) if not line.accepted] == [31, 36, 37, 38, 39, 40]
    assert [start.why for start in read_attempts(run)] == ["start", "rollback"]


def test_a_loop_that_is_left_in_an_incident_and_entered_again_answers_it_where_it_stood(
    data: Path, tmp_path: Path
) -> None:
    """The weights and the watch are those of before, so the incident goes on and ends as if nothing had been."""

    def sick(seen: Seen, slot: int) -> bool:
        return seen.guard.attempt <= 2 and slot >= 30

    seen = enter_twice(data, tmp_path, nan_where(sick), leave_at=32)
    assert told(tmp_path) == [(1, 35, "rollback", "state_not_data")]
    assert seen.guard.step == 62


def test_an_incident_that_ends_with_a_new_level_is_judged_and_saving_goes_on(
    data: Path, tmp_path: Path
) -> None:
    recorder = dataclasses.replace(POLICY, actions=("record",))
    train(data, tmp_path, policy=recorder, on_loss=lambda _, step, loss: loss + 4.0 * (step.slot >= 50))
    run = RunDir(tmp_path)
    (incident,) = read_incidents(run)
    assert (incident.outcome, incident.outcome_why) == (
        "state_not_data",
        "the new level has become the baseline",
    )
    assert run.checkpoint_steps()[-3:] == [80, 90, 100]


def test_a_loss_that_settles_lower_clears_nobody_who_was_named(data: Path, tmp_path: Path) -> None:
    bad = CurriculumSampler(Curriculum(data), global_batch=8).slot_rows(70)[2:5].tolist()
    probation = dataclasses.replace(ROLL, promote_after=25)

    def lower(seen: Seen, step: Step, loss: torch.Tensor) -> torch.Tensor:
        return loss - 1.5 if seen.guard.attempt == 2 and step.slot >= 72 else loss

    train(data, tmp_path, policy=probation, poisoned=bad, per_sample=True, on_loss=lower)
    (incident,) = read_incidents(RunDir(tmp_path))
    assert (incident.action, incident.outcome) == ("rollback", "helped")
    assert {sample.state for sample in incident.samples} == {"quarantined"}


def test_the_end_of_one_incident_says_nothing_of_a_rollback_on_probation(data: Path, tmp_path: Path) -> None:
    """The second incident ends with a new level while the first is judged by the slots after its place."""
    bad = CurriculumSampler(Curriculum(data), global_batch=8).slot_rows(30)[2:5].tolist()
    patient = dataclasses.replace(
        POLICY, promote_after=60, grace=20, actions=("record", "rollback"), max_rollbacks=1, margin=0
    )

    def higher(seen: Seen, step: Step, loss: torch.Tensor) -> torch.Tensor:
        return loss + 4.0 if seen.guard.attempt == 2 and step.slot >= 50 else loss

    train(data, tmp_path, policy=patient, poisoned=bad, per_sample=True, on_loss=higher)
    first, second = read_incidents(RunDir(tmp_path))
    assert (second.action, second.outcome) == ("record", "state_not_data")
    assert (first.action, first.outcome) == ("rollback", "helped")
    assert {sample.state for sample in first.samples} == {"quarantined"}
