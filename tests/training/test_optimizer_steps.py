"""The optimizer steps once for each step that is accepted, and nowhere else; a real gradient scaler is followed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from cleanfeed import Checkpoints, Curriculum, CurriculumSampler, PadCollator, TrainingGuard
from cleanfeed.errors import TrainingError
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_ledger
from cleanfeed.training.learning_rate import LearningRate
from cleanfeed.training.steps import Step

from .world import QUIET

ONCE = "Call optimizer.step() once, between step.accept(...) that returned True and step.commit()."


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(2, 1)


@pytest.fixture
def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.5)


def steps(clean: Path, run: Path, **settings: Any) -> Iterator[Step]:
    """Yield steps whose losses are told, each ready to be decided."""
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=32)
    guard = TrainingGuard(sampler, run, policy=QUIET, **settings)
    for step in guard.steps(DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))):
        for _ in step:
            step.observe(2.0)
        yield step


def test_a_second_step_is_refused_before_it_is_taken(
    clean: Path, tmp_path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    other = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    for step in steps(clean, tmp_path):
        assert step.accept(1.0)
        optimizer.step(), other.step()  # several optimizers step once each
        step.commit()
        if step.number == 2:
            break
    run = steps(clean, tmp_path)  # kept: a loop that is let go of is left
    step = next(run)
    assert step.accept(1.0)
    optimizer.step()
    with pytest.raises(TrainingError) as caught:
        optimizer.step()
    assert str(caught.value) == f"the optimizer steps twice in one step: AdamW. {ONCE}"


def test_a_loop_that_an_error_left_open_has_no_say_in_the_next_one(
    clean: Path, tmp_path: Path, optimizer: torch.optim.Optimizer
) -> None:
    left = steps(clean, tmp_path / "left", optimizer=optimizer)
    assert next(left).accept(1.0)
    for step in steps(clean, tmp_path / "next", optimizer=optimizer):
        assert step.accept(1.0)
        optimizer.step()
        step.commit()
        if step.number == 3:
            break
    assert [line.accepted for line in read_ledger(RunDir(tmp_path / "next"))] == [True] * 3


def test_a_known_optimizer_may_not_step_before_the_step_is_accepted_nor_after_it_is_committed(
    clean: Path, tmp_path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    other = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    checkpoints = Checkpoints.of(
        model, optimizer, every=1
    )  # saves after each step: that is none of the loop's
    run = steps(clean, tmp_path, checkpoints=checkpoints)
    step = next(run)
    other.step()  # another optimizer is none of the guard's business
    with pytest.raises(TrainingError) as caught:
        optimizer.step()
    assert str(caught.value) == f"the optimizer steps where no step was accepted: AdamW. {ONCE}"
    assert step.accept(1.0)
    optimizer.step()
    step.commit()
    with pytest.raises(TrainingError, match="the optimizer steps where no step was accepted: AdamW"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()  # as torch makes the state of an optimizer: a rate of 0 changes nothing
    run.close()  # type: ignore[attr-defined]


def test_an_optimizer_that_steps_before_it_asks_is_told_so_even_where_nobody_named_it(
    clean: Path, tmp_path: Path, optimizer: torch.optim.Optimizer
) -> None:
    run = steps(clean, tmp_path)  # kept: a loop that is let go of is left
    step = next(run)
    optimizer.step()
    assert step.accept(1.0)
    with pytest.raises(TrainingError) as caught:
        step.commit()
    assert str(caught.value) == f"the optimizer stepped before the step was accepted: AdamW. {ONCE}"


def test_a_refused_step_may_not_be_taken_even_where_nobody_named_the_optimizer(
    clean: Path, tmp_path: Path, optimizer: torch.optim.Optimizer
) -> None:
    run = steps(clean, tmp_path)  # kept: a loop that is let go of is left
    step = next(run)
    step.losses[0] = float("nan")
    assert not step.accept(1.0)
    with pytest.raises(TrainingError, match="the optimizer steps although the step was not accepted: AdamW"):
        optimizer.step()


def test_an_accepted_step_that_nobody_took_is_not_called_trained(
    clean: Path, tmp_path: Path, optimizer: torch.optim.Optimizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "cleanfeed.training"):
        for step in steps(clean, tmp_path, optimizer=optimizer):
            assert step.accept(1.0)
            if step.number not in (2, 3):
                optimizer.step()
            step.commit()
            if step.number == 4:
                break
    assert [line.accepted for line in read_ledger(RunDir(tmp_path))] == [True, False, False, True]
    assert [record.message for record in caplog.records if "no optimizer stepped" in record.message] == [
        "step 2 was accepted and no optimizer stepped: the ledger calls such steps not accepted. Call "
        "optimizer.step() once for each step that is accepted, or give the guard the scaler that left it out."
    ]


class Wrapper(torch.optim.Optimizer):
    """Steps another optimizer, as the wrappers of some trainers do; torch never hooked its own step."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_a_wrapper_that_never_tells_of_its_steps_is_believed(
    clean: Path, tmp_path: Path, optimizer: torch.optim.Optimizer
) -> None:
    wrapped = Wrapper(optimizer)
    for step in steps(clean, tmp_path, optimizer=wrapped):
        assert step.accept(1.0)
        wrapped.step()
        step.commit()
        if step.number == 2:
            break
    assert [line.accepted for line in read_ledger(RunDir(tmp_path))] == [True, True]


def test_a_real_scaler_that_overflows_is_a_step_not_taken_and_no_incident(
    clean: Path, tmp_path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    checkpoints = Checkpoints.of(model, optimizer, scaler=scaler, every=100)
    weights, scales = [], []
    for step in steps(clean, tmp_path, checkpoints=checkpoints):
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        if step.number in (2, 4):
            model.weight.grad[0, 0] = float("inf")
        if step.number != 4:  # at step 4 nobody unscales before the question, so the norm shows nothing
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        accepted = step.accept(norm if step.number != 4 else None)
        assert accepted == (step.number != 2)
        if accepted:
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        weights.append(model.weight.detach().clone())
        scales.append(scaler.get_scale())
        step.commit()
    lines = list(read_ledger(RunDir(tmp_path)))
    assert [line.step for line in lines if not line.accepted] == [2, 4]
    assert [line.step for line in lines if not line.finite] == [2]
    assert [line.metrics["loss_scale"] for line in lines[:5]] == [1024.0, 1024.0, 512.0, 512.0, 256.0]
    assert scales[:5] == [1024.0, 512.0, 512.0, 256.0, 256.0]
    assert [step for step in range(1, 10) if weights[step].equal(weights[step - 1])] == [1, 3]
    assert RunDir(tmp_path).incident_numbers() == []
    # The scale is part of the checkpoint: the finished run taken up again has it.
    scaler.load_state_dict({**scaler.state_dict(), "scale": 1.0})
    assert list(steps(clean, tmp_path, checkpoints=checkpoints)) == []
    assert scaler.get_scale() == scales[-1]


class Around(torch.optim.Optimizer):
    """Steps an optimizer inside its own step, on the same parameter groups or on others, as SAM and Lookahead do."""

    def __init__(self, inner: torch.optim.Optimizer, own: list[dict[str, Any]] | None = None) -> None:
        super().__init__([torch.nn.Parameter(torch.zeros(1))], {"lr": 7.0})
        self.inner = inner
        self.param_groups = inner.param_groups if own is None else own

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


@pytest.mark.parametrize("same", [True, False])
def test_a_lowered_rate_is_lowered_once_and_put_back_whichever_optimizer_steps_inside_another(
    same: bool,
) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    inner = torch.optim.SGD([weight], lr=1.0)
    around = Around(inner, None if same else [{"params": [], "lr": 3.0}])
    rates = LearningRate(None)
    rates.factor = 0.5
    rates.attach()
    for number in range(1, 4):
        weight.grad = torch.ones(1)
        rates.expect(True)
        around.step()
        rates.done()
        assert weight.item() == -0.5 * number
        assert [group["lr"] for one in (inner, around) for group in one.param_groups] == [
            1.0,
            1.0 if same else 3.0,
        ]
    rates.detach()


def test_a_step_that_fails_leaves_the_scheduled_rate() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    rates = LearningRate(None)
    rates.factor = 0.5
    rates.attach()
    rates.expect(True)

    def fails() -> float:
        raise MemoryError

    with pytest.raises(MemoryError):
        optimizer.step(fails)
    weight.grad = torch.ones(1)
    rates.expect(True)
    optimizer.step()
    rates.detach()
    assert (weight.item(), optimizer.param_groups[0]["lr"]) == (-0.5, 1.0)


def test_the_rate_a_function_returns_is_recorded_as_it_is_taken() -> None:
    rates = LearningRate(lambda: 0.25)
    rates.factor = 0.5
    assert rates.now == 0.125
