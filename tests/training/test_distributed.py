"""All ranks take one decision, see what the ledger says, and a run goes on with more of them or fewer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from cleanfeed import Curriculum, CurriculumSampler, TrainingGuard
from cleanfeed.errors import CleanfeedError, MisuseError, TrainingError, TrainingHalted
from cleanfeed.feed.identity import batch_hash
from cleanfeed.runs.audit import audit
from cleanfeed.runs.incident_files import read_incidents
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import LedgerWriter, read_attempts, read_ledger, surviving
from cleanfeed.training import startup
from cleanfeed.training.checkpoints import CheckpointRing
from cleanfeed.training.expected import Expected
from cleanfeed.training.steps import Step

from . import world as of_training
from .ranks import run_ranks
from .test_rollback import POLICY, ROLL
from .world import QUIET, VOCABULARY, Poisoned, Seen, make_curriculum, train

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
            expected = seen.guard._delivery._expected
            due = expected.of(5)
            expected.of = lambda slot: dataclasses.replace(due, ids=due.ids + 1)  # type: ignore[method-assign]

    with pytest.raises(TrainingError) as caught:
        train(data, folder / "run", batch=8, micro=4, lanes=4, before_step=fails)
    message = str(caught.value)
    assert ("loading a batch failed on another rank: rank 1" in message) == (rank == 0)
    assert "other samples than the sampler says" in message


def test_a_loader_that_fails_on_one_rank_stops_all_once_its_batch_is_due(data: Path, tmp_path: Path) -> None:
    run_ranks(bad_loader, 2, tmp_path, str(data))
    assert [line.step for line in read_ledger(RunDir(tmp_path / "run"))] == [1, 2, 3, 4, 5]


def counted(rank: int, folder: Path, data: str) -> None:
    gather, called = torch.distributed.all_gather, []

    def counts(*arguments: Any, **settings: Any) -> Any:
        called.append(1)
        return gather(*arguments, **settings)

    torch.distributed.all_gather = counts
    train(data, folder / "run", batch=8, micro=2, lanes=4, every=10, steps=25)
    # One a step, and one before the first step of the run and the first one after each checkpoint.
    assert len(called) == 25 + 3


def test_a_step_of_several_ranks_costs_one_collective(data: Path, tmp_path: Path) -> None:
    run_ranks(counted, 2, tmp_path, str(data))


class Dicey(Poisoned):
    """Puts a word drawn at random into each row, in the process of the loop."""

    def __call__(self, batch: Any) -> dict[str, Any]:
        found = super().__call__(batch)
        found["input_ids"][:, 0] = torch.randint(1, VOCABULARY, (len(found["input_ids"]),))
        return found


def dicey(rank: int, folder: Path, data: str) -> None:
    of_training.Poisoned = Dicey  # type: ignore[misc]
    torch.manual_seed(rank)
    whole = train(data, folder / "whole", batch=8, micro=2, lanes=4, steps=25)
    torch.manual_seed(rank)
    train(data, folder / "pieces", batch=8, micro=2, lanes=4, steps=14)
    torch.manual_seed(99)
    piece = train(data, folder / "pieces", batch=8, micro=2, lanes=4, steps=25)
    assert piece.weights[2, 25] == whole.weights[1, 25]


def test_what_a_collator_draws_at_random_is_the_same_after_a_resume(data: Path, tmp_path: Path) -> None:
    run_ranks(dicey, 2, tmp_path, str(data))


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


def fails(error: Exception) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def alone(rank: int, folder: Path, data: str) -> None:
    """Let one rank fail in each place where no other waits for it at that moment; both stop, and say why."""
    places: dict[str, tuple[int, int, Any, str, str]] = {
        "hashes": (0, 4, Expected, "of", "a file of the curriculum is damaged"),
        "line": (0, 4, LedgerWriter, "write", "cannot write the ledger"),
        "last line": (0, 10, LedgerWriter, "write", "cannot write the ledger"),
        "what is left out": (0, 4, LedgerWriter, "change", "cannot write the ledger"),
        "sync": (0, 4, LedgerWriter, "sync", "cannot write the ledger"),
        "old checkpoints": (0, 4, CheckpointRing, "tidy", "old checkpoints cannot be marked"),
        "loader": (0, 1, DataLoader, "__iter__", "no process for a worker"),
        "quarantine": (1, 4, CurriculumSampler, "quarantine", "a file of the curriculum is damaged"),
        "taken over": (0, 4, None, "", "another guard of this process took over"),
    }
    for name, (victim, at, owner, method, message) in places.items():
        run = folder / name
        with pytest.MonkeyPatch.context() as patch:

            def harm(
                seen: Seen, step: Step, place: Any = places[name], run: Path = run, patch: Any = patch
            ) -> None:
                victim, at, owner, method, message = place
                if step.number == 5 and method == "change":
                    seen.guard.sampler.skip(7, 7)
                if (rank, step.number) != (victim, at):
                    return
                if owner is None:
                    startup.Hold(RunDir(run))
                else:
                    error = OSError(28, "full") if method == "tidy" else CleanfeedError(f"{message}: here.")
                    patch.setattr(owner, method, fails(error))

            def nan(seen: Seen, step: Step, loss: torch.Tensor, name: str = name) -> torch.Tensor:
                return loss * float("nan") if name == "quarantine" and step.number == 5 else loss

            if at == 1 and rank == victim:
                patch.setattr(owner, method, fails(OSError(11, message)))
            with pytest.raises((CleanfeedError, OSError), match=message):
                train(
                    data,
                    run,
                    batch=80,
                    micro=20,
                    lanes=4,
                    every=2,
                    policy=POLICY,
                    before_step=harm,
                    on_loss=nan,
                )


def test_where_one_rank_alone_cannot_go_on_all_ranks_stop_and_say_why(data: Path, tmp_path: Path) -> None:
    run_ranks(alone, 2, tmp_path, str(data))


def misdealt(rank: int, folder: Path, data: str) -> None:
    for number, (place, world) in enumerate(((0, 1), (0, 2))):
        sampler = CurriculumSampler(Curriculum(data), global_batch=8, rank=place, world_size=world)
        guard = TrainingGuard(sampler, folder / f"run-{number}", policy=QUIET)
        with pytest.raises(CleanfeedError) as caught:
            next(guard.steps([]))
        assert "the sampler deals to other ranks than those that train: CurriculumSampler: got rank" in str(
            caught.value
        )
        assert isinstance(caught.value, MisuseError) == ((place, world) != (rank, 2))
        assert not (folder / f"run-{number}").exists()


def test_a_sampler_of_other_ranks_is_refused_on_all_of_them(data: Path, tmp_path: Path) -> None:
    run_ranks(misdealt, 2, tmp_path, str(data))
