"""A checkpoint that has its name is whole; only one that can be trusted is gone back to; the safe ones are kept."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cleanfeed import Checkpoints
from cleanfeed.errors import CheckpointError, MisuseError
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import begin_attempt, read_attempts
from cleanfeed.runs.records import Attempt
from cleanfeed.training import checkpoint_files as files
from cleanfeed.training.agreement import Agreement
from cleanfeed.training.checkpoints import CheckpointRing
from cleanfeed.training.model_state import ModelState

from .ranks import run_ranks
from .world import Seen, train


class Value:
    """A state of one number, saved by the user's own functions."""

    def __init__(self) -> None:
        self.value = 0

    def save(self, path: Path) -> None:
        (path / "value.json").write_text(json.dumps(self.value))

    def load(self, path: Path) -> None:
        self.value = json.loads((path / "value.json").read_text())


def begin(run: RunDir, attempt: int, after_step: int = 0, why: str = "start") -> None:
    begin_attempt(
        run,
        Attempt(
            attempt=attempt,
            started_at=0.0,
            after_step=after_step,
            checkpoint_step=None,
            why=why,  # type: ignore[arg-type]
            incident=None,
            curriculum="",
            digest="",
            sampler={},
        ),
    )


def ring(folder: Path, state: Any = None, **settings: Any) -> CheckpointRing:
    run = RunDir(folder)
    if not run.attempt_start(1).exists():
        begin(run, 1)
    state = state or Value()
    return CheckpointRing(run, Checkpoints(save=state.save, load=state.load, **settings), Agreement())


def test_what_was_saved_comes_back_with_the_guards_state_and_every_random_state(tmp_path: Path) -> None:
    state = Value()
    one = ring(tmp_path, state)
    state.value = 7
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    one.save(10, 1, {"step": 10})
    expected = (random.random(), np.random.rand(), float(torch.rand(())))
    state.value = 8
    assert one.load(10) == {"step": 10}
    assert state.value == 7
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected
    assert one.newest() == (10, [])


def test_a_save_that_fails_leaves_nothing_that_looks_like_a_checkpoint(tmp_path: Path) -> None:
    class Full(Value):
        def save(self, path: Path) -> None:
            (path / "half").write_text("half")
            raise OSError(28, "No space left on device")

    one = ring(tmp_path, Full())
    with pytest.raises(CheckpointError, match=r"could not be saved: .* on rank 0: got OSError: .*No space"):
        one.save(10, 1, {})
    assert one.run.checkpoint_steps() == []
    assert one.newest() == (None, [])
    files.clean(one.run)
    assert list(one.run.checkpoints.iterdir()) == []


class OneFile(Value):
    """Takes its path for that of a file."""

    def save(self, path: Path) -> None:
        torch.save(self.value, path)

    def load(self, path: Path) -> None:
        self.value = torch.load(path, weights_only=True)


class Plain(OneFile):
    """The same without torch."""

    def save(self, path: Path) -> None:
        path.write_text(str(self.value))

    def load(self, path: Path) -> None:
        self.value = int(path.read_text())


@pytest.mark.parametrize("kind", [OneFile, Plain])
def test_functions_that_take_their_path_for_a_file_serve_as_well(tmp_path: Path, kind: type[Value]) -> None:
    state = kind()
    one = ring(tmp_path, state)
    state.value = 3
    one.save(10, 1, {})
    state.value = 4
    one.load(10)
    assert state.value == 3
    assert one.newest() == (10, [])


def test_an_error_of_the_users_function_is_told_as_it_is(tmp_path: Path) -> None:
    class Fails(Value):
        def save(self, path: Path) -> None:
            raise RuntimeError("out of memory")

    with pytest.raises(CheckpointError, match="got RuntimeError: out of memory"):
        ring(tmp_path, Fails()).save(10, 1, {})


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda path: (path / "value.json").write_text("8"), "the checkpoint is damaged"),
        (lambda path: (path / "value.json").write_text("88"), "got 2 bytes, expected 1 bytes"),
        (lambda path: (path / "value.json").unlink(), "got no such file"),
        (lambda path: (path / files.RECORD).unlink(), "the checkpoint is not complete"),
        (lambda path: (path / files.RECORD).write_text("{"), "the checkpoint cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_message(tmp_path: Path, harm: Any, words: str) -> None:
    one = ring(tmp_path)
    one.save(10, 1, {})
    harm(one.save(20, 1, {}))
    step, why = one.newest()
    assert step == 10
    assert words in why[0]
    assert "step-00000020" in why[0]


def test_a_checkpoint_with_weights_that_are_not_finite_is_never_used(tmp_path: Path) -> None:
    state = Value()
    run = RunDir(tmp_path)
    begin(run, 1)
    finite = [True]
    one = CheckpointRing(
        run, Checkpoints(save=state.save, load=state.load, finite=lambda: finite[0]), Agreement()
    )
    one.save(10, 1, {})
    finite[0] = False
    one.save(20, 1, {})
    assert one.newest() == (10, ["step 20 holds weights or moments that are not finite"])
    one.tidy(500, 1, 0, 10)
    assert [files.find(run, step).safe for step in (10, 20)] == [True, False]


def test_the_built_in_one_finds_nan_in_weights_and_in_moments() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = ModelState(model, optimizer)
    assert state.finite()
    optimizer.state[model.weight]["exp_avg_sq"][0, 0] = float("inf")
    assert not state.finite()
    optimizer.state[model.weight]["exp_avg_sq"][0, 0] = 0.0
    with torch.no_grad():
        model.bias[0] = float("nan")
    assert not state.finite()


def test_steps_that_were_rolled_back_are_not_gone_on_from(tmp_path: Path) -> None:
    one = ring(tmp_path)
    for step in (10, 20, 30):
        one.save(step, 1, {})
    begin(one.run, 2, after_step=10, why="rollback")
    assert len(read_attempts(one.run)) == 2
    assert one.newest() == (
        10,
        ["step 30 belongs to steps that were rolled back", "step 20 belongs to steps that were rolled back"],
    )
    one.save(20, 2, {})
    assert one.newest()[0] == 20
    one.tidy(20, 2, 0, 100)
    assert one.run.checkpoint_steps() == [10, 20]


def test_safe_is_said_in_hindsight_and_the_safe_ones_outlive_the_others(tmp_path: Path) -> None:
    one = ring(tmp_path, keep=2, keep_safe=2)
    for step in range(0, 60, 10):
        one.save(step, 1, {})
        one.tidy(step, 1, healthy_since=0, promote_after=20)
    assert one.run.checkpoint_steps() == [20, 30, 40, 50]
    assert [files.find(one.run, step).safe for step in (20, 30, 40, 50)] == [True, True, False, False]
    # From step 51 on nothing is healthy: however long it goes on, the two safe ones stay.
    for step in range(60, 200, 10):
        one.save(step, 1, {})
        one.tidy(step, 1, healthy_since=step, promote_after=20)
    assert one.run.checkpoint_steps() == [20, 30, 180, 190]


def test_the_one_to_go_back_to_is_the_newest_safe_one_far_enough_before_the_onset(tmp_path: Path) -> None:
    one = ring(tmp_path, keep=9, keep_safe=9)
    for step in range(0, 60, 10):
        one.save(step, 1, {})
    one.tidy(50, 1, healthy_since=0, promote_after=20)  # 0 to 30 are safe
    assert one.before(onset=49, margin=5)[:2] == (30, 4)
    assert one.before(onset=49, margin=25)[:2] == (20, 3)
    assert one.before(onset=49, margin=5, depth=2)[0] == 20
    assert one.before(onset=49, margin=5, depth=9)[0] == 0
    step, _, why = one.before(onset=45, margin=5)
    assert why[0] == (
        "step 30 is the newest safe one at least 5 steps before the onset: healthy steps had followed it"
    )
    assert "step 50 was saved at or after the onset" in why
    assert step == 30
    assert one.before(onset=5, margin=10)[0] == 0


def test_where_an_onset_is_dated_back_beyond_all_of_them_the_oldest_safe_one_serves(tmp_path: Path) -> None:
    """Three spikes in a hundred steps are dated to the first: that is no reason to stop a run."""
    one = ring(tmp_path, keep=9, keep_safe=9)
    for step in (20, 30, 40):
        one.save(step, 1, {})
    late = [f"step {step} was saved at or after the onset" for step in (40, 30, 20)]
    assert one.before(onset=15, margin=5) == (None, 0, late)
    one.tidy(40, 1, healthy_since=0, promote_after=10)
    reason = "step 20 is the oldest safe one; no usable one was saved before the onset"
    assert one.before(onset=15, margin=5) == (20, 1, [reason, *late])


def test_one_as_old_as_an_onset_can_lie_back_is_always_kept(tmp_path: Path) -> None:
    one = ring(tmp_path, keep=1, keep_safe=1)
    for step in range(0, 400, 10):
        one.save(step, 1, {})
        one.tidy(step, 1, healthy_since=0, promote_after=20, reach=100)
        kept = one.run.checkpoint_steps()
        assert step < 100 or any(step - 200 <= each <= step - 100 for each in kept)
        assert len(kept) <= 4


def test_one_is_not_called_safe_while_an_incident_may_still_come_of_the_steps_before_it(
    tmp_path: Path,
) -> None:
    one = ring(tmp_path, keep=9)
    for step in (10, 20, 30):
        one.save(step, 1, {})
    one.tidy(60, 1, healthy_since=0, promote_after=20, doubt=20)
    assert [files.find(one.run, step).safe for step in (10, 20, 30)] == [True, False, False]
    one.tidy(60, 1, healthy_since=0, promote_after=20)
    assert [files.find(one.run, step).safe for step in (20, 30)] == [True, True]


def test_a_damaged_one_gives_way_to_the_next_and_older_ones_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ring(tmp_path, keep=9)
    for step in range(0, 50, 10):
        one.save(step, 1, {})
    (one.run.checkpoint(40) / "value.json").write_text("8")
    read: list[int] = []
    verify = files.verify

    def note(found: files.Found, *, digests: bool = True) -> None:
        read.append(found.step)
        verify(found, digests=digests)

    monkeypatch.setattr(files, "verify", note)
    assert one.count(onset=49, margin=5) == 5
    step, count, why = one.before(onset=49, margin=5)
    assert (step, count, read) == (30, 4, [40, 30])
    assert why[0].startswith("step 30 is the newest usable one at least 5 steps before the onset")
    assert "the checkpoint is damaged" in why[1]
    assert one.before(onset=49, margin=5)[0] == 30  # to go back to it, right after it was chosen
    assert read == [40, 30, 40]


def test_where_none_is_safe_yet_a_usable_one_serves(tmp_path: Path) -> None:
    one = ring(tmp_path)
    for step in (0, 10, 20):
        one.save(step, 1, {})
    assert one.before(onset=21, margin=5)[:2] == (10, 2)
    assert one.before(onset=21, margin=50)[:2] == (0, 1)


def test_a_checkpoint_of_a_step_saved_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    state = Value()
    one = ring(tmp_path, state)
    for state.value in (1, 2):
        one.save(10, 1, {})
    state.value = 0
    one.load(10)
    assert state.value == 2
    assert [path.name for path in one.run.checkpoints.iterdir()] == ["step-00000010"]


def test_killed_while_replacing_the_old_one_gets_its_name_back(tmp_path: Path) -> None:
    one = ring(tmp_path)
    path = one.save(10, 1, {})
    path.rename(path.with_name(path.name + files.REPLACED))
    (one.run.checkpoints / ("step-00000010" + files.UNFINISHED)).mkdir()
    files.clean(one.run)
    assert one.newest() == (10, [])
    assert len(list(one.run.checkpoints.iterdir())) == 1


def test_settings_out_of_range_are_refused() -> None:
    for name in ("every", "keep", "keep_safe"):
        with pytest.raises(
            MisuseError, match=rf"Checkpoints\({name}=\): got 0, expected a whole number of at least 1"
        ):
            Checkpoints(save=print, load=print, **{name: 0})


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)


def go(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> list[float]:
    found = []
    for step in range(steps):
        data = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("before", [0, 5])
def test_model_optimizer_and_scheduler_come_back_bit_for_bit_also_before_the_first_step(
    tmp_path: Path, before: int
) -> None:
    model, optimizer, scheduler = parts()
    state = ModelState(model, optimizer, scheduler)
    go(model, optimizer, scheduler, before)
    state.save(tmp_path)
    expected = go(model, optimizer, scheduler, 5)
    state.load(tmp_path)
    assert go(model, optimizer, scheduler, 5) == expected


def test_other_parts_than_were_saved_are_refused(tmp_path: Path) -> None:
    model, optimizer, scheduler = parts()
    ModelState(model, optimizer, scheduler).save(tmp_path)
    with pytest.raises(CheckpointError, match="got scheduler, expected none"):
        ModelState(model, optimizer).load(tmp_path)
    with pytest.raises(CheckpointError, match="has no load_state_dict: odd"):
        ModelState(model, optimizer, extra={"odd": object()})
    with pytest.raises(CheckpointError, match=r"was not saved by Checkpoints\.of"):
        ModelState(model, optimizer).load(tmp_path / "nothing")


def sharded(rank: int, folder: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, optimizer, scheduler = parts()
    model = torch.nn.Sequential(model[0], model[2])
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    state = ModelState(model, optimizer, scheduler)
    go(model, optimizer, scheduler, 3)
    state.save(folder)
    torch.distributed.barrier()
    expected = go(model, optimizer, scheduler, 3)
    state.load(folder)
    assert go(model, optimizer, scheduler, 3) == expected
    assert state.finite()


def test_a_sharded_model_is_saved_by_all_ranks_and_loaded_by_one(tmp_path: Path) -> None:
    run_ranks(sharded, 2, tmp_path)
    model, _, _ = parts()
    model = torch.nn.Sequential(model[0], model[2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    ModelState(model, optimizer, scheduler).load(tmp_path)
    assert scheduler.last_epoch == 3
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}


def test_what_a_kill_left_of_a_mark_is_removed(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    own = run.checkpoint(5) / "cleanfeed"
    own.mkdir(parents=True)
    for name in ("checkpoint.json", "safe.json", "safe.json.unfinished"):
        (own / name).touch()
    files.clean(run)
    assert sorted(path.name for path in own.iterdir()) == ["checkpoint.json", "safe.json"]


def test_a_run_passes_over_a_damaged_checkpoint_and_tells_of_it(clean: Path, tmp_path: Path) -> None:
    train(clean, tmp_path, steps=25)
    run = RunDir(tmp_path)
    (run.checkpoint(20) / "state.pt").write_bytes(b"")
    alerts: list[dict[str, Any]] = []
    seen = train(clean, tmp_path, steps=26, on_alert=alerts.append)
    assert min(seen.hashes) == (2, 11)
    assert [(alert["event"], "step-00000020" in alert["message"]) for alert in alerts] == [
        ("checkpoint", True)
    ]


def test_with_no_checkpoint_left_whole_a_run_refuses_to_begin_anew_by_itself(
    clean: Path, tmp_path: Path
) -> None:
    train(clean, tmp_path, steps=15)
    for path in RunDir(tmp_path).checkpoints.glob("*/state.pt"):
        os.truncate(path, 5)
    with pytest.raises(
        CheckpointError, match=r"none of the checkpoints can be used.*begin anew with resume=False"
    ):
        train(clean, tmp_path)
    seen: Seen = train(clean, tmp_path, resume=False, steps=3)
    assert list(seen.hashes) == [(2, 1), (2, 2), (2, 3)]
