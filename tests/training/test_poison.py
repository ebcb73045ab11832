"""Poison of many kinds at random places: found, named, left out, and the training ends like a clean one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from cleanfeed import Curriculum, CurriculumSampler, PadCollator
from cleanfeed.runs.audit import audit
from cleanfeed.runs.incident_files import read_incidents
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import surviving

from .test_rollback import POLICY, ROLL
from .world import KINDS, Tiny, losses, make_curriculum, train

SEEDS = int(os.environ.get("CLEANFEED_POISON", "1"))
"""Random places for each kind of poison: 20 for the whole proof."""
STEPS = 120
UNNAMED = ("end marks",)
"""Seen wherever they come, but hardly harder for the model than healthy text: often the batch is blamed whole."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_curriculum(tmp_path_factory.mktemp("poison"), documents=8 * STEPS)


def judged(model: Tiny, held_out: dict[str, torch.Tensor]) -> float:
    with torch.no_grad():
        return float(losses(model(held_out["input_ids"]), held_out["labels"])[0])


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    data = Curriculum(make_curriculum(tmp_path_factory.mktemp("held_out"), documents=64))
    return PadCollator(pad_id=0)(data.__getitems__(range(64)))


@pytest.fixture(scope="module")
def clean_run(
    data: Path, held_out: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[str], float]:
    """Batch hash of each slot, and the loss on held-out text, of a run without poison."""
    run = tmp_path_factory.mktemp("clean-run")
    seen = train(data, run)
    return [line.batch_hash for line in surviving(RunDir(run))], judged(seen.model, held_out)


@pytest.mark.parametrize("kind", KINDS)
def test_poison_is_found_named_and_left_out_and_training_ends_like_a_clean_one(
    data: Path,
    held_out: dict[str, torch.Tensor],
    clean_run: tuple[list[str], float],
    tmp_path: Path,
    kind: str,
) -> None:
    hashes, clean_loss = clean_run
    sampler = CurriculumSampler(Curriculum(data), global_batch=8)
    right = named = 0
    for seed in range(SEEDS):
        dice = random.Random(f"{kind} {seed}")
        slot, policy = dice.randrange(60, STEPS - 15), dice.choice((POLICY, ROLL))
        bad = dice.sample(sampler.slot_rows(slot).tolist(), 3)
        seen = train(data, tmp_path / str(seed), policy=policy, poisoned=bad, kind=kind, per_sample=True)
        run = RunDir(tmp_path / str(seed))
        incidents = read_incidents(run)
        assert incidents, f"{kind}, seed {seed}: nothing was found"
        assert slot in {suspect.slot for incident in incidents for suspect in incident.suspects}
        table = Curriculum(data).columns(bad, ["sample_hash"])
        wanted = {one.hex() for one in table["sample_hash"].to_pylist()}
        got = {
            sample.sample_hash
            for incident in incidents
            for sample in incident.samples
            if sample.state == "quarantined"
        }
        right += len(got & wanted)
        named += len(got | wanted)
        lines = surviving(run)
        assert [line.batch_hash for line in lines if line.slot != slot] == hashes[:slot] + hashes[slot + 1 :]
        assert audit(run).problems == []
        assert judged(seen.model, held_out) == pytest.approx(clean_loss, rel=0.01)
    assert kind in UNNAMED or right / named >= 0.95
