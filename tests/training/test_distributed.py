"""All ranks take one decision, see what the ledger says, and a run goes on with more of them or fewer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cleanfeed import Curriculum, CurriculumSampler
from cleanfeed.errors import TrainingError, TrainingHalted
from cleanfeed.feed.identity import batch_hash
from cleanfeed.runs.audit import audit
from cleanfeed.runs.incident_files import read_incidents
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_attempts, read_ledger, surviving
from cleanfeed.training.steps import Step

from .ranks import run_ranks
from .test_rollback import POLICY, ROLL
from .world import QUIET, Seen, make_curriculum, train

STEPS, SLOT = 100, 70


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_curriculum(tmp_path_factory.mktemp("ranks"), documents=8 * STEPS)


def keep(folder: Path, rank: int, seen: Seen) -> None:
    """Leave what a rank saw where the test can read it."""
    told = {
        "hashes": {f"{attempt}/{step}": rows for (attempt, step), rows in seen.hashes.items()},
        "accepted": {f"{attempt}/{step}": yes for (attempt, step), yes in seen.accepted.items()},
        "weights": {f"{attempt}/{step}": found for (attempt, step), found in seen.weights.items()},
    }
    (folder / f"seen-{rank}.json").write_text(json.dumps(told))


def kept(folder: Path, world: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(world)]


def check_ledger(data: Path, folder: Path, world: int) -> None:
    """The rows that all ranks saw, put in slot order, have the hash in the ledger."""
    ranks = kept(folder, world)
    sampler = CurriculumSampler(Curriculum(data), global_batch=8, rank=0, world_size=world)
    for line in read_ledger(RunDir(folder / "run")):
        key = f"{line.attempt}/{line.step}"
        if key not in ranks[0]["hashes"]:
            continue
        saw = [iter(rank["hashes"][key]) for rank in ranks]
        owner = {}
        for rank in range(world):
            owner.update({abs(int(row)): rank for row in sampler.rank_rows(line.slot, rank)})
        order = [abs(int(row)) for row in sampler.slot_rows(line.slot)]
        rows = [next(saw[owner[row]]) for row in order]
        assert (
            batch_hash(np.frombuffer(bytes.fromhex("".join(rows)), np.uint8).reshape(-1, 16))
            == line.batch_hash
        )


def plain(rank: int, folder: Path, data: str, steps: int | None = None, workers: int = 0) -> None:
    keep(folder, rank, train(data, folder / "run", batch=8, micro=2, lanes=4, steps=steps, workers=workers))


@pytest.mark.parametrize(("world", "workers"), [(2, 2), (4, 0)])
def test_what_all_ranks_saw_is_what_the_ledger_says(
    data: Path, tmp_path: Path, world: int, workers: int
) -> None:
    run_ranks(plain, world, tmp_path, str(data), 25, workers)
    run = RunDir(tmp_path / "run")
    assert [line.samples for line in surviving(run)] == [8] * 25
    check_ledger(data, tmp_path, world)
    weights = [rank["weights"]["1/25"] for rank in kept(tmp_path, world)]
    assert len(set(weights)) == 1
    assert audit(run).problems == []
    # The weights of micro-batches make it the same training on any number of ranks.
    alone = train(data, tmp_path / "alone", batch=8, micro=2, lanes=4, steps=25)
    losses = [line.loss for line in surviving(run)]
    assert losses == pytest.approx([line.loss for line in surviving(RunDir(tmp_path / "alone"))], rel=1e-3)
    assert len(alone.hashes) == 25


def test_a_run_goes_on_with_fewer_ranks_and_then_one(data: Path, tmp_path: Path) -> None:
    for world, steps in ((4, 14), (2, 27)):
        run_ranks(plain, world, tmp_path, str(data), steps)
    seen = train(data, tmp_path / "run", batch=8, micro=2, lanes=4)
    run = RunDir(tmp_path / "run")
    assert [(one.world_size, one.after_step) for one in read_attempts(run)] == [(4, 0), (2, 10), (1, 20)]
    assert [line.slot for line in surviving(run)] == list(range(STEPS))
    found = audit(run)
    assert (found.problems, found.samples, found.epochs[0].trained) == ([], 8 * STEPS, 8 * STEPS)
    whole = train(data, tmp_path / "whole", batch=8, micro=2, lanes=4)
    assert [line.batch_hash for line in surviving(run)] == [
        line.batch_hash for line in surviving(RunDir(tmp_path / "whole"))
    ]
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(seen.model.state_dict()[name], tensor, rtol=0.05, atol=0.05)


def test_a_run_goes_on_with_more_ranks(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path / "run", batch=8, micro=2, lanes=4, steps=15)
    run_ranks(plain, 2, tmp_path, str(data), 22)
    run = RunDir(tmp_path / "run")
    assert [(one.world_size, one.after_step) for one in read_attempts(run)] == [(1, 0), (2, 10)]
    assert [line.slot for line in surviving(run)] == list(range(22))
    assert audit(run).problems == []


def one_nan(rank: int, folder: Path, data: str) -> None:
    def nan(seen: Seen, step: Step, loss: torch.Tensor) -> torch.Tensor:
        return loss * float("nan") if (rank, step.slot) == (1, 30) else loss

    seen = train(data, folder / "run", batch=8, micro=4, lanes=4, policy=POLICY, on_loss=nan, steps=45)
    keep(folder, rank, seen)
    assert not any(torch.isnan(value).any() for value in seen.model.state_dict().values())
    moments = [value for state in seen.optimizer.state.values() for value in state.values()]
    assert not any(torch.isnan(value).any() for value in moments)


def test_a_nan_on_one_rank_is_everyones_and_touches_no_weights(data: Path, tmp_path: Path) -> None:
    run_ranks(one_nan, 2, tmp_path, str(data))
    ranks = kept(tmp_path, 2)
    for rank in ranks:
        assert [key for key, yes in rank["accepted"].items() if not yes] == ["1/31"]
        assert rank["weights"]["1/31"] == rank["weights"]["1/30"]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    (incident,) = read_incidents(RunDir(tmp_path / "run"))
    assert (incident.rule, incident.detail["ranks"]) == ("nonfinite", [1])
    assert audit(RunDir(tmp_path / "run")).problems == []


def poisoned(rank: int, folder: Path, data: str, bad: list[int]) -> None:
    seen = train(data, folder / "run", batch=8, micro=2, lanes=4, policy=ROLL, poisoned=bad, per_sample=True)
    keep(folder, rank, seen)


def test_all_ranks_roll_back_together_and_name_the_samples_of_any_rank(data: Path, tmp_path: Path) -> None:
    sampler = CurriculumSampler(Curriculum(data), global_batch=8, lanes=4)
    bad = sampler.slot_rows(SLOT)[2:5].tolist()
    run_ranks(poisoned, 2, tmp_path, str(data), bad)
    run = RunDir(tmp_path / "run")
    (incident,) = read_incidents(run)
    assert (incident.action, incident.outcome, incident.checkpoint_step) == ("rollback", "helped", 60)
    table = Curriculum(data).columns(bad, ["sample_hash"])
    assert {sample.sample_hash for sample in incident.samples} == {
        one.hex() for one in table["sample_hash"].to_pylist()
    }
    ranks = kept(tmp_path, 2)
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["weights"]["2/70"] == ranks[0]["weights"]["1/70"]
    assert [line.slot for line in surviving(run)] == list(range(STEPS))
    assert audit(run).problems == []


def halting(rank: int, folder: Path, data: str) -> None:
    def nan(seen: Seen, step: Step, loss: torch.Tensor) -> torch.Tensor:
        return loss * float("nan") if (rank, step.slot) == (1, 12) else loss

    policy = dataclasses.replace(QUIET, actions=("record", "halt"))
    with pytest.raises(TrainingHalted) as caught:
        train(data, folder / "run", batch=8, micro=4, lanes=4, policy=policy, on_loss=nan)
    assert caught.value.incident == 1


def test_all_ranks_stop_together_with_the_number_of_the_incident(data: Path, tmp_path: Path) -> None:
    run_ranks(halting, 2, tmp_path, str(data))
    names = {path.name for path in (RunDir(tmp_path / "run").incident(1) / "state").iterdir()}
    assert {"batch-0000.pt", "batch-0001.pt"} < names


def bad_loader(rank: int, folder: Path, data: str) -> None:
    def fails(seen: Seen, step: Step) -> None:
        if (rank, step.number) == (1, 5):
            due = seen.guard._expected.of(5)
            seen.guard._expected.of = lambda slot: dataclasses.replace(due, ids=due.ids + 1)  # type: ignore[method-assign]

    with pytest.raises(TrainingError) as caught:
        train(data, folder / "run", batch=8, micro=4, lanes=4, before_step=fails)
    message = str(caught.value)
    assert ("loading a batch failed on another rank: rank 1" in message) == (rank == 0)
    assert "other samples than the sampler says" in message


def test_a_loader_that_fails_on_one_rank_stops_all(data: Path, tmp_path: Path) -> None:
    run_ranks(bad_loader, 2, tmp_path, str(data))


def full_disk(rank: int, folder: Path, data: str) -> None:
    from cleanfeed.errors import CleanfeedError, LedgerError
    from cleanfeed.runs.ledger import LedgerWriter

    def fails(self: LedgerWriter, line: Any) -> None:
        raise LedgerError("cannot write the ledger: here.")

    def break_it(seen: Seen, step: Step) -> None:
        if (rank, step.number) == (0, 5):
            LedgerWriter.write = fails  # type: ignore[method-assign]

    with pytest.raises(CleanfeedError) as caught:
        train(data, folder / "run", batch=8, micro=4, lanes=4, before_step=break_it)
    assert "cannot write the ledger" in str(caught.value)


def test_a_ledger_that_cannot_be_written_stops_all_ranks(data: Path, tmp_path: Path) -> None:
    run_ranks(full_disk, 2, tmp_path, str(data))
    assert [line.step for line in read_ledger(RunDir(tmp_path / "run"))] == [1, 2, 3, 4]
