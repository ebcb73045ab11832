"""What an incident costs and leaves out: the right checkpoint, read once; the budget; all that is quarantined."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cleanfeed import Curriculum, CurriculumSampler, Policy, Quarantine
from cleanfeed.quarantine.timeline import fired_of
from cleanfeed.runs.incident_files import read_incidents, read_suspects, write_incident
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import newest_surviving, read_attempts, surviving
from cleanfeed.training import checkpoint_files as files
from cleanfeed.training.desk import IncidentDesk
from cleanfeed.training.steps import Step

from .test_outcomes import incident
from .world import Seen, make_curriculum, train

POLICY = Policy(grace=20, window=32, margin=5, promote_after=10, pre=2, recover_within=40, merge_gap=4)
ROLL = dataclasses.replace(POLICY, actions=("record", "rollback", "lower_lr", "halt"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_curriculum(tmp_path_factory.mktemp("desk"), documents=800)


def rows_of(data: Path, *slots: int) -> list[int]:
    sampler = CurriculumSampler(Curriculum(data), global_batch=8)
    return [row for slot in slots for row in sampler.slot_rows(slot).tolist()]


def nan_at(slot: int) -> Any:
    def nan(seen: Seen, step: Step, loss: torch.Tensor) -> torch.Tensor:
        return loss * float("nan") if step.slot == slot else loss

    return nan


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps of the checkpoints whose files were read again."""
    found: list[int] = []
    verify = files.verify

    def note(one: files.Found, *, digests: bool = True) -> None:
        found.append(one.step)
        verify(one, digests=digests)

    monkeypatch.setattr(files, "verify", note)
    return found


def test_with_every_unlike_promote_after_a_checkpoint_is_safe_before_the_next_one_is_saved(
    data: Path, tmp_path: Path, read: list[int]
) -> None:
    """45 healthy steps followed the checkpoint of step 50; the one of step 0 was saved, and called safe, before it."""
    policy = dataclasses.replace(ROLL, rollback="exit")
    bad = rows_of(data, 95)[2:5]
    with pytest.raises(SystemExit):
        train(data, tmp_path, policy=policy, poisoned=bad, per_sample=True, every=50)
    run = RunDir(tmp_path)
    (found,) = read_incidents(run)
    assert (found.onset_step, found.checkpoint_step, found.steps_lost) == (96, 50, 46)
    assert found.checkpoint_why.startswith(
        "step 50 is the newest safe one at least 5 steps before the onset: healthy steps had followed it"
    )
    assert read == [50]
    train(data, tmp_path, policy=policy, poisoned=bad, per_sample=True, every=50, steps=97)
    assert [(start.why, start.after_step) for start in read_attempts(run)] == [("start", 0), ("rollback", 50)]
    assert read == [50, 50]
    # What the evidence is filled with, of a run whose steps were undone in part.
    lines = surviving(run)
    for most in (0, 1, 50, 200):
        for step in (0, 49, 51, 97):
            expected = [line for line in lines if line.step <= step][-most:] if most else []
            assert newest_surviving(run, step, most) == expected


def test_a_skipped_step_reads_no_checkpoint_and_a_rollback_one(
    data: Path, tmp_path: Path, read: list[int]
) -> None:
    bad = rows_of(data, 40)[2:5]
    train(data, tmp_path / "skip", policy=POLICY, poisoned=bad, per_sample=True, steps=46)
    assert [one.action for one in read_incidents(RunDir(tmp_path / "skip"))] == ["skip_step"]
    assert read == []
    train(data, tmp_path / "roll", policy=ROLL, poisoned=bad, per_sample=True, steps=46)
    (found,) = read_incidents(RunDir(tmp_path / "roll"))
    assert (found.action, found.checkpoint_step, read) == ("rollback", 30, [30])


def test_after_a_restart_the_batch_that_stands_out_is_found_and_z_is_that_of_the_rule(
    data: Path, tmp_path: Path
) -> None:
    """The steps before the restart are in the ledger, so the suspects are compared with them."""
    bad = rows_of(data, 70)
    train(data, tmp_path, policy=POLICY, poisoned=bad, every=69, steps=69)
    train(data, tmp_path, policy=POLICY, poisoned=bad, every=69, steps=76)
    (found,) = read_incidents(RunDir(tmp_path))
    leading = found.suspects[0]
    assert leading.slot == 70
    assert leading.evidence["loss_z"] is not None
    assert leading.evidence["loss_z"] > 6.0
    assert sorted(line.step for line in found.metrics)[0] < 69
    assert fired_of(found).z == found.detail["z"] == found.detail["trips"][0]["z"]
    assert found.detail["z_of_step"].keys() >= {"loss", "grad_norm"}


def test_everything_that_is_quarantined_is_listed_and_only_excerpts_are_capped(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleanfeed.training.blame.MOST_ROWS", 4)
    seen = train(data, tmp_path, policy=POLICY, on_loss=nan_at(30), steps=40)
    assert seen.guard.sampler.exclusions.rows.tolist() == sorted(rows_of(data, 30))
    run = RunDir(tmp_path)
    (found,) = read_incidents(run)
    assert [sample.state for sample in found.samples] == ["quarantined"] * 8
    excerpts = read_suspects(run, 1)
    assert excerpts is not None
    assert excerpts["sample_hash"].to_pylist() == [
        bytes.fromhex(one.sample_hash) for one in found.samples[:4]
    ]


# ---- the budget ----------------------------------------------------------------------------------------------------


def test_what_a_person_quarantined_does_not_use_up_the_budget_of_the_run(data: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    hashes = Curriculum(data).columns(list(range(700, 740)), ["sample_hash"])["sample_hash"].to_pylist()
    Quarantine(run.store).add([one.hex() for one in hashes], "by hand")
    train(data, tmp_path, policy=POLICY, on_loss=nan_at(30), steps=40)
    assert [(one.action, one.outcome) for one in read_incidents(run)] == [("skip_step", "helped")]


def test_a_batch_that_is_rolled_back_counts_once(data: Path, tmp_path: Path) -> None:
    """The budget is four global batches of 8."""
    policy = dataclasses.replace(ROLL, max_rollbacks=9, elsewhere_within=0)
    seen = train(data, tmp_path, policy=policy, poisoned=rows_of(data, 30, 50, 70), steps=85)
    assert [one.action for one in read_incidents(RunDir(tmp_path))] == ["rollback"] * 3
    assert seen.guard.sampler.exclusions.samples() == 24


def test_slots_that_are_left_out_unseen_end_where_the_budget_does(data: Path, tmp_path: Path) -> None:
    policy = dataclasses.replace(ROLL, skip_batches=20)
    seen = train(data, tmp_path, policy=policy, poisoned=rows_of(data, 50), steps=62)
    (found,) = read_incidents(RunDir(tmp_path))
    assert found.actions[0]["why"].endswith("; 3 of 19 slots ahead: no more samples may be excluded")
    assert [(one.first_slot, one.last_slot) for one in found.skip_ranges] == [(50, 53)]
    assert seen.guard.sampler.exclusions.samples() == 32


# ---- what a kill has left ------------------------------------------------------------------------------------------


def test_an_incident_that_was_moved_away_stops_no_start_though_a_later_one_rules_on_it(
    tmp_path: Path,
) -> None:
    run = RunDir(tmp_path)
    later = incident(2, 300, "lower_lr", outcome="state_not_data")
    ruling = {"incident_id": 1, "outcome": "did_not_help", "why": "it came back", "release": True}
    later.actions[0]["rulings"] = [ruling]
    write_incident(run, later)
    alerts = SimpleNamespace(send=lambda *_, **__: None)
    guard: Any = SimpleNamespace(run=run, policy=POLICY, step=0, alerts=alerts)
    desk = IncidentDesk(guard, run.store)
    desk.heal(same_weights=False)
    assert [one.incident_id for one in desk.incidents] == [2]
