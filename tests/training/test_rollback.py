"""A spike is answered, what was to blame is left out, and everything else is trained as if nothing had happened."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

from cleanfeed import Curriculum, CurriculumSampler, Policy, Quarantine
from cleanfeed.errors import TrainingHalted
from cleanfeed.runs.audit import audit
from cleanfeed.runs.incident_files import read_incident, read_incidents, read_suspects, write_incident
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_attempts, read_ledger, surviving
from cleanfeed.runs.records import SkipRange
from cleanfeed.training.steps import Step

from .world import Poisoned, Seen, losses, make_curriculum, train, weights_of

POLICY = Policy(grace=20, window=32, margin=5, promote_after=10, pre=2, recover_within=40, merge_gap=4)
ROLL = dataclasses.replace(POLICY, actions=("record", "rollback", "lower_lr", "halt"))
SLOT, STEPS = 70, 100


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_curriculum(tmp_path_factory.mktemp("spikes"), documents=8 * STEPS)


@pytest.fixture(scope="module")
def bad(data: Path) -> list[int]:
    """Three rows of slot 70."""
    return CurriculumSampler(Curriculum(data), global_batch=8).slot_rows(SLOT)[2:5].tolist()


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Batch hash of each slot in a run without exclusions."""
    run = tmp_path_factory.mktemp("undisturbed")
    train(data, run)
    return [line.batch_hash for line in surviving(RunDir(run))]


def hashes_of(data: Path, rows: list[int]) -> list[str]:
    return sorted(
        one.hex() for one in Curriculum(data).columns(rows, ["sample_hash"])["sample_hash"].to_pylist()
    )


def check_others(run: RunDir, undisturbed: list[str], but: set[int]) -> None:
    """Every slot but these was trained bit for bit as in the run without exclusions."""
    lines = {line.slot: line.batch_hash for line in surviving(run) if line.accepted}
    assert {slot: found for slot, found in lines.items() if slot not in but} == {
        slot: found for slot, found in enumerate(undisturbed) if slot not in but
    }
    assert audit(run).problems == []


def test_a_spike_seen_in_time_is_skipped_and_named_and_the_weights_are_unharmed(
    data: Path, bad: list[int], undisturbed: list[str], tmp_path: Path
) -> None:
    seen = train(data, tmp_path, policy=POLICY, poisoned=bad, per_sample=True)
    run = RunDir(tmp_path)
    (incident,) = read_incidents(run)
    assert (incident.onset_step, incident.trip_step, incident.action, incident.outcome) == (
        SLOT + 1,
        SLOT + 1,
        "skip_step",
        "helped",
    )
    assert incident.suspects[0].slot == SLOT
    assert sorted(sample.sample_hash for sample in incident.samples) == hashes_of(data, bad)
    assert {sample.state for sample in incident.samples} == {"quarantined"}
    assert seen.weights[1, SLOT + 1] == seen.weights[1, SLOT]
    assert not seen.accepted[1, SLOT + 1]
    line = list(read_ledger(run))[SLOT]
    assert (line.slot, line.accepted, line.finite) == (SLOT, False, True)
    assert Quarantine(run.store).hashes("quarantined") == hashes_of(data, bad)
    excerpts = read_suspects(run, 1)
    assert excerpts is not None
    assert excerpts["excerpt"][0].as_py()
    check_others(run, undisturbed, {SLOT})


def test_without_losses_of_single_samples_the_batch_that_stands_out_is_quarantined(
    data: Path, bad: list[int], undisturbed: list[str], tmp_path: Path
) -> None:
    train(data, tmp_path, policy=POLICY, poisoned=bad)
    run = RunDir(tmp_path)
    (incident,) = read_incidents(run)
    assert len(incident.samples) == 8
    assert set(hashes_of(data, bad)) < {sample.sample_hash for sample in incident.samples}
    check_others(run, undisturbed, {SLOT})


@pytest.mark.parametrize("per_sample", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_rollback_goes_on_without_the_suspects_and_all_else_is_bit_identical(
    data: Path, bad: list[int], undisturbed: list[str], tmp_path: Path, per_sample: bool, workers: int
) -> None:
    options = {"persistent_workers": per_sample} if workers else {}
    seen = train(
        data,
        tmp_path,
        policy=ROLL,
        poisoned=bad,
        per_sample=per_sample,
        workers=workers,
        loader=options,
        dropout=0.1,
    )
    run = RunDir(tmp_path)
    (incident,) = read_incidents(run)
    assert (incident.action, incident.outcome, incident.checkpoint_step) == ("rollback", "helped", 60)
    assert (incident.steps_lost, incident.onset_step) == (11, SLOT + 1)
    assert [(start.why, start.after_step, start.incident) for start in read_attempts(run)] == [
        ("start", 0, None),
        ("rollback", 60, 1),
    ]
    assert not run.resume_plan.exists()
    # The steps between the checkpoint and the spike come out the same a second time.
    for number in range(61, SLOT + 1):
        assert seen.weights[2, number] == seen.weights[1, number]
        assert seen.hashes[2, number] == seen.hashes[1, number]
    lines = surviving(run)
    if per_sample:
        assert [line.slot for line in lines] == list(range(STEPS))
        assert lines[SLOT].samples == 5
    else:
        assert [line.slot for line in lines] == [slot for slot in range(STEPS) if slot != SLOT]
    check_others(run, undisturbed, {SLOT})
    found = audit(run)
    assert found.undone == 11
    # The checkpoint saved after the damage is gone, and saving went on once all was well.
    assert run.checkpoint_steps()[-1] == len(lines)


def test_a_rollback_across_processes_leaves_code_75_and_a_plan_that_the_next_start_follows(
    data: Path, bad: list[int], undisturbed: list[str], tmp_path: Path
) -> None:
    policy = dataclasses.replace(ROLL, rollback="exit")
    with pytest.raises(SystemExit) as caught:
        train(data, tmp_path, policy=policy, poisoned=bad, per_sample=True)
    assert caught.value.code == 75
    run = RunDir(tmp_path)
    plan = json.loads(run.resume_plan.read_bytes())
    assert (plan["incident"], plan["attempt"], plan["checkpoint_step"]) == (1, 1, 60)
    train(data, tmp_path, policy=policy, poisoned=bad, per_sample=True)
    assert not run.resume_plan.exists()
    assert [(start.why, start.after_step) for start in read_attempts(run)] == [("start", 0), ("rollback", 60)]
    assert read_incident(run, 1).outcome == "helped"
    check_others(run, undisturbed, {SLOT})


def test_nan_is_answered_in_the_grace_and_followed_by_no_skipped_step(
    data: Path, undisturbed: list[str], tmp_path: Path
) -> None:
    def nan(seen: Seen, step: Step, loss: torch.Tensor) -> torch.Tensor:
        return loss * float("nan") if step.slot == 5 else loss

    seen = train(data, tmp_path, policy=POLICY, on_loss=nan)
    run = RunDir(tmp_path)
    lines = list(read_ledger(run))
    assert [line.step for line in lines if not line.accepted] == [6]
    assert (lines[5].finite, lines[5].loss, lines[5].grad_norm) == (False, None, None)
    assert read_incident(run, 1).rule == "nonfinite"
    assert seen.weights[1, 6] == seen.weights[1, 5]
    check_others(run, undisturbed, {5})


def test_damage_to_the_state_ends_with_nothing_quarantined(data: Path, tmp_path: Path) -> None:
    done: list[int] = []

    def harm(seen: Seen, step: Step) -> None:
        if step.number == SLOT and not done:
            done.append(step.number)
            with torch.no_grad():
                for parameter in seen.model.parameters():
                    parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))

    train(data, tmp_path, policy=POLICY, before_step=harm, per_sample=True)
    run = RunDir(tmp_path)
    incidents = read_incidents(run)
    assert incidents
    assert incidents[-1].outcome == "state_not_data"
    assert Quarantine(run.store).hashes("quarantined") == []
    assert [line.slot for line in surviving(run)] == list(range(STEPS))
    assert audit(run).problems == []
    assert audit(run).epochs[0].trained + audit(run).epochs[0].not_accepted == 8 * STEPS


def test_a_learning_rate_fifty_times_too_high_for_some_steps_is_no_fault_of_the_data(
    data: Path, tmp_path: Path
) -> None:
    def harm(seen: Seen, step: Step) -> None:
        high = seen.guard.attempt == 1 and SLOT <= step.number < SLOT + 5
        seen.optimizer.param_groups[0]["lr"] = 2.5 if high else 0.05

    train(data, tmp_path, policy=POLICY, before_step=harm, per_sample=True)
    run = RunDir(tmp_path)
    assert read_incidents(run)
    assert Quarantine(run.store).hashes("quarantined") == []
    assert audit(run).problems == []


def test_a_spike_that_follows_the_weights_and_not_the_data_is_no_ones_fault(
    data: Path, tmp_path: Path
) -> None:
    """The same place spikes again without the suspects: they are released, the rate is lowered, then training stops."""

    def spike(seen: Seen, step: Step, loss: torch.Tensor) -> torch.Tensor:
        return loss + 4.0 if SLOT <= step.slot < SLOT + 3 else loss

    with pytest.raises(TrainingHalted) as caught:
        train(data, tmp_path, policy=ROLL, on_loss=spike)
    run = RunDir(tmp_path)
    incidents = read_incidents(run)
    assert caught.value.incident == incidents[-1].incident_id
    assert incidents[-1].action == "halt"
    assert {incident.outcome for incident in incidents[:-1]} <= {"did_not_help", "state_not_data"}
    assert "lower_lr" in {incident.action for incident in incidents}
    states = {sample.state for incident in incidents for sample in incident.samples}
    assert "quarantined" not in states
    folder = run.incident(incidents[-1].incident_id) / "state"
    assert {path.name for path in folder.iterdir()} == {"state.pt", "rest.pt", "batch-0000.pt"}
    batch = torch.load(folder / "batch-0000.pt", weights_only=True)
    assert batch[0]["input_ids"].shape[0] == 8
    assert audit(run).problems == []
    lowered = [line.lr for line in read_ledger(run) if line.lr is not None and line.lr < 0.049]
    assert lowered


def test_with_every_checkpoint_bad_training_stops_and_says_so(
    data: Path, bad: list[int], tmp_path: Path
) -> None:
    def damage(seen: Seen, step: Step) -> None:
        if step.number == SLOT + 1:
            for path in RunDir(tmp_path).checkpoints.glob("*/state.pt"):
                path.write_bytes(b"damaged")

    with pytest.raises(TrainingHalted, match="there is no safe checkpoint to go back to") as caught:
        train(data, tmp_path, policy=ROLL, poisoned=bad, before_step=damage)
    assert caught.value.incident == 1
    assert read_incident(RunDir(tmp_path), 1).outcome == "halted"


def test_no_checkpoint_is_written_while_an_incident_is_open(
    data: Path, bad: list[int], tmp_path: Path
) -> None:
    found: dict[int, Any] = {}

    def look(seen: Seen, step: Step) -> None:
        found[step.number] = RunDir(tmp_path).checkpoint_steps()[-1]

    train(data, tmp_path, policy=dataclasses.replace(POLICY, merge_gap=12), poisoned=bad, before_step=look)
    assert found[SLOT + 2] == 70
    assert found[SLOT + 12] == 70  # 80 was due and is written late
    assert 80 not in RunDir(tmp_path).checkpoint_steps()
    assert found[90] == SLOT + 1 + 13


def test_what_a_rollback_does_not_undo_holds_in_a_new_process_and_for_other_epochs(
    data: Path, bad: list[int], tmp_path: Path
) -> None:
    train(data, tmp_path, policy=POLICY, poisoned=bad, per_sample=True, epochs=2, steps=SLOT + 5)
    seen = train(data, tmp_path, policy=POLICY, poisoned=bad, per_sample=True, epochs=2)
    run = RunDir(tmp_path)
    assert seen.guard.sampler.exclusions.rows.tolist() == sorted(bad)
    assert len(read_incidents(run)) == 1
    found = audit(run)
    assert found.problems == []
    assert [(one.trained, one.blanked) for one in found.epochs] == [(8 * STEPS - 3, 3)] * 2


def test_a_sample_released_by_hand_is_trained_again(data: Path, bad: list[int], tmp_path: Path) -> None:
    train(data, tmp_path, policy=POLICY, poisoned=bad, per_sample=True, epochs=2, steps=SLOT + 7)
    Quarantine(RunDir(tmp_path).store).release(hashes_of(data, bad), "looked at them")
    seen = train(data, tmp_path, policy=POLICY, epochs=2)
    assert seen.guard.sampler.exclusions.rows.tolist() == []
    found = audit(RunDir(tmp_path))
    assert (found.problems, found.epochs[1].trained) == ([], 8 * STEPS)


def test_a_store_that_several_runs_share_excludes_in_all_of_them(
    data: Path, bad: list[int], tmp_path: Path
) -> None:
    store = tmp_path / "shared.duckdb"
    train(data, tmp_path / "a", policy=POLICY, poisoned=bad, per_sample=True, quarantine=store)
    train(data, tmp_path / "b", policy=POLICY, poisoned=bad, per_sample=True, quarantine=store)
    assert read_incidents(RunDir(tmp_path / "b")) == []
    found = audit(RunDir(tmp_path / "b"))
    assert (found.problems, found.epochs[0].blanked) == ([], 3)


def test_a_budget_of_excluded_data_that_is_used_up_stops_training(data: Path, tmp_path: Path) -> None:
    """Never less than four global batches: the fifth batch in need of exclusion is one too many."""

    def nan(seen: Seen, step: Step, loss: torch.Tensor) -> torch.Tensor:
        return loss * float("nan") if step.slot % 15 == 14 else loss

    with pytest.raises(TrainingHalted, match="no more samples may be excluded"):
        train(data, tmp_path, policy=POLICY, on_loss=nan)
    run = RunDir(tmp_path)
    assert [incident.action for incident in read_incidents(run)] == ["skip_step"] * 4 + ["halt"]
    assert audit(run).problems == []


LOCKED = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_store_locked_by_another_process_stops_nothing_and_catches_up(
    data: Path, bad: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleanfeed.quarantine.store.PATIENCE", 0.1)
    monkeypatch.setattr(Quarantine.__init__, "__kwdefaults__", {"patience": 0.1, "on_note": None})
    run = RunDir(tmp_path)
    Quarantine(run.store).add(["ab" * 16], "to have a store")
    with subprocess.Popen(
        [sys.executable, "-c", LOCKED, str(run.store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        alerts: list[dict[str, Any]] = []
        train(data, tmp_path, policy=POLICY, poisoned=bad, per_sample=True, on_alert=alerts.append)
        other.communicate()
    assert "store" in {alert["event"] for alert in alerts}
    assert read_incident(run, 1).outcome == "helped"
    train(data, tmp_path, policy=POLICY)
    assert set(hashes_of(data, bad)) < set(Quarantine(run.store).hashes("quarantined"))


def test_data_that_are_used_up_by_exclusions_end_the_run(data: Path, tmp_path: Path) -> None:
    sampler = CurriculumSampler(Curriculum(data), global_batch=8)

    def skip(seen: Seen, step: Step) -> None:
        if step.number == 20:
            seen.guard.sampler.skip(30, sampler.n_slots - 1)

    seen = train(data, tmp_path, policy=POLICY, before_step=skip)
    assert seen.guard.step == 30
    found = audit(RunDir(tmp_path))
    assert (found.problems, found.epochs[0].trained) == ([], 240)


def enter_again(seen: Seen, batches: DataLoader[Any]) -> None:
    """Take up a loop that was left, with the guard, model and optimizer it had."""
    for step in seen.guard.steps(batches):
        for one in step:
            mean, rows = losses(seen.model(one["input_ids"]), one["labels"])
            (mean * step.weight).backward()
            step.observe(mean, rows)
        if step.accept(torch.nn.utils.clip_grad_norm_(seen.model.parameters(), 1.0)):
            seen.optimizer.step()
        seen.optimizer.zero_grad(set_to_none=True)
        step.commit()


def test_a_loop_left_when_a_rollback_is_due_rolls_back_when_it_is_entered_again(
    data: Path, bad: list[int], tmp_path: Path
) -> None:
    straight = train(data, tmp_path / "straight", policy=ROLL, poisoned=bad, per_sample=True)
    left = train(data, tmp_path / "left", policy=ROLL, poisoned=bad, per_sample=True, steps=SLOT + 1)
    run = RunDir(tmp_path / "left")
    assert run.resume_plan.exists()
    source = Curriculum(data)
    enter_again(left, DataLoader(source, batch_sampler=left.guard.sampler, collate_fn=Poisoned(bad)))
    assert [(start.why, start.after_step) for start in read_attempts(run)] == [("start", 0), ("rollback", 60)]
    assert weights_of(left.model) == weights_of(straight.model)
    assert not run.resume_plan.exists()


def test_a_loop_entered_again_after_a_halt_goes_back_before_the_damage(
    data: Path, bad: list[int], tmp_path: Path
) -> None:
    policy = dataclasses.replace(POLICY, actions=("record", "halt"))
    kept: list[Seen] = []
    with pytest.raises(TrainingHalted):
        train(data, tmp_path, policy=policy, poisoned=bad, before_step=lambda seen, _: kept.append(seen))
    source = Curriculum(data)
    batches = DataLoader(source, batch_sampler=kept[0].guard.sampler, collate_fn=Poisoned([]))
    enter_again(kept[0], batches)
    starts = read_attempts(RunDir(tmp_path))
    assert [(start.why, start.after_step) for start in starts] == [("start", 0), ("rollback", 60)]


def test_begun_anew_a_run_keeps_its_quarantine_and_nothing_else_of_before(
    data: Path, bad: list[int], tmp_path: Path
) -> None:
    def spike(seen: Seen, step: Step, loss: torch.Tensor) -> torch.Tensor:
        return loss + 4.0 if seen.guard.attempt < 4 and SLOT <= step.slot < SLOT + 3 else loss

    once = dataclasses.replace(ROLL, max_rollbacks=1)
    with pytest.raises(TrainingHalted, match="1 rollback is used up"):
        train(data, tmp_path, policy=once, on_loss=spike)
    run = RunDir(tmp_path)
    last = read_incidents(run)[-1]
    lowered = {**last.actions[-1], "action": "lower_lr", "lr_factor": 0.1}
    write_incident(run, msgspec.structs.replace(last, actions=[*last.actions, lowered], outcome="open"))
    train(data, tmp_path, policy=once, poisoned=bad, per_sample=True, resume=False, steps=SLOT + 5)
    seen = train(data, tmp_path, policy=once, poisoned=bad, per_sample=True)
    lines = [line for line in read_ledger(run) if line.attempt >= read_attempts(run)[-1].attempt - 2]
    assert {line.lr for line in lines} == {0.05}
    assert [one.action for one in read_incidents(run)][-1] == "rollback"
    assert read_incidents(run)[-1].outcome == "helped"
    assert sorted(seen.guard.sampler.exclusions.rows.tolist()) == sorted(bad)
    assert run.checkpoint_steps()[-1] == len(surviving(run))
    assert audit(run).problems == []


def test_a_run_of_fewer_epochs_goes_on_where_slots_of_a_later_one_were_skipped(
    data: Path, bad: list[int], tmp_path: Path
) -> None:
    train(data, tmp_path, policy=ROLL, poisoned=bad, per_sample=False, epochs=2, steps=SLOT + 5)
    run = RunDir(tmp_path)
    first = read_incidents(run)[0]
    beyond = [SkipRange(1, 1, STEPS + 20, STEPS + 21), SkipRange(1, 0, STEPS - 2, STEPS + 1)]
    write_incident(run, msgspec.structs.replace(first, skip_ranges=[*first.skip_ranges, *beyond]))
    seen = train(data, tmp_path, policy=ROLL, per_sample=False, epochs=1)
    assert seen.guard.sampler.exclusions.ranges[-1] == (STEPS - 2, STEPS - 1)


def test_decisions_by_hand_hold_where_the_store_itself_cannot_be_read(
    data: Path, bad: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path)
    train(data, tmp_path, steps=2)
    Quarantine(run.store).add(hashes_of(data, bad), "looked at them")
    with duckdb.connect(str(run.store)) as store:
        store.execute("UPDATE store SET format = 99")
    seen = train(data, tmp_path, steps=4)
    assert seen.guard.sampler.exclusions.rows.tolist() == sorted(bad)
    assert "the store cannot be read, and the files beside it are in force" in caplog.text
