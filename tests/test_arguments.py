"""Every public call refuses what is not what it must be: one line, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import cleanfeed
from cleanfeed import (
    Checkpoints,
    Curriculum,
    CurriculumSampler,
    FlattenCollator,
    PadCollator,
    Policy,
    Quarantine,
    TrainingGuard,
)
from cleanfeed.arguments import wrong
from cleanfeed.errors import CleanfeedError, ResumeError, TrainingError
from cleanfeed.training.steps import Step
from tests.training.world import QUIET, make_curriculum

HASH = "ab" * 16


class World(NamedTuple):
    """What the calls of the table need."""

    curriculum: Curriculum
    folder: Path
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    store: Quarantine

    def sampler(self, **settings: Any) -> CurriculumSampler:
        return CurriculumSampler(self.curriculum, **{"global_batch": 8, **settings})

    def guard(self, **settings: Any) -> TrainingGuard:
        return TrainingGuard(self.sampler(), self.folder / "run", **{"policy": QUIET, **settings})

    def step(self) -> Step:
        """Return a step of eight rows in one micro-batch."""
        guard = self.guard()
        loader = DataLoader(self.curriculum, batch_sampler=guard.sampler, collate_fn=PadCollator(pad_id=0))
        steps = guard.steps(loader)
        step = next(steps)
        vars(step)["kept"] = steps  # a loop that is let go of is left
        next(iter(step))
        return step

    def observed(self) -> Step:
        step = self.step()
        step.observe(1.0)
        return step


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("arguments")
    model = torch.nn.Linear(1, 1)
    store = Quarantine(folder / "store.duckdb")
    store.add([HASH], "seen before")
    curriculum = Curriculum(make_curriculum(folder / "data", documents=16))
    return World(curriculum, folder, model, torch.optim.SGD(model.parameters(), lr=0.1), store)


def nothing(path: Path) -> None:
    """A save or a load."""


Call = Callable[[World], object]
CALLS: dict[str, Call] = {
    "Curriculum(path=): got None, expected a path": lambda w: Curriculum(None),  # type: ignore[arg-type]
    "Curriculum(path=): got '', expected a path": lambda w: Curriculum(""),
    "Curriculum(cache_bytes=): got '1', expected a whole number": lambda w: Curriculum(
        w.folder,
        cache_bytes="1",  # type: ignore[arg-type]
    ),
    "Curriculum(decode_ahead=): got 'no', expected True or False": lambda w: Curriculum(
        w.folder,
        decode_ahead="no",  # type: ignore[arg-type]
    ),
    "epochs": lambda w: w.sampler(epochs=-5),
    "global_batch": lambda w: w.sampler(global_batch="8"),
    "micro_batch": lambda w: w.sampler(micro_batch=2.5),
    "seed": lambda w: w.sampler(seed="x"),
    "lanes": lambda w: w.sampler(lanes="x"),
    "schedule": lambda w: w.sampler(schedule=3),
    "batch_tokens": lambda w: CurriculumSampler(w.curriculum, batch_tokens="x"),  # type: ignore[arg-type]
    "not a curriculum": lambda w: CurriculumSampler("out", global_batch=8),  # type: ignore[arg-type]
    "CurriculumSampler(rank=): got '0'": lambda w: w.sampler(rank="0", world_size="1"),
    "no such rank: rank, world_size: got 3 of 2": lambda w: w.sampler(rank=3, world_size=2),
    "CurriculumSampler(drop_last=): got 'x', expected True or False": lambda w: w.sampler(drop_last="x"),
    "CurriculumSampler(drop_last=): got None": lambda w: w.sampler(drop_last=None),
    "commit(slot=): got 'x', expected a whole number": lambda w: w.sampler().commit("x"),  # type: ignore[arg-type]
    "skip(first=): got 'a'": lambda w: w.sampler().skip("a", "b"),  # type: ignore[arg-type]
    "skip(first=): got None": lambda w: w.sampler().skip(None, None),  # type: ignore[arg-type]
    "unskip(first=): got 'a'": lambda w: w.sampler().unskip("a", "b"),  # type: ignore[arg-type]
    "unskip(last=): got 2, expected a whole number of at least 5": lambda w: w.sampler().unskip(5, 2),
    "quarantine(hashes=): got 'abab": lambda w: w.sampler().quarantine(HASH),
    "quarantine(hashes=): got 3, expected a list of sample hashes": lambda w: w.sampler().quarantine(3),  # type: ignore[arg-type]
    "not a sample hash": lambda w: w.sampler().quarantine(["zz"]),
    "release(hashes=): got 3": lambda w: w.sampler().release(3),  # type: ignore[arg-type]
    "slots_of(hashes=)": lambda w: w.sampler().slots_of(HASH),
    "got 3, expected 32 hex digits": lambda w: w.sampler().locate(3),  # type: ignore[arg-type]
    "sampler(slot=): got 'x'": lambda w: w.sampler().batch_hash("x"),  # type: ignore[arg-type]
    "no such slot: slot: got -1": lambda w: w.sampler().epoch_of(-1),
    "PadCollator(pad_id=): got 'x', expected a whole number": lambda w: PadCollator("x"),  # type: ignore[arg-type]
    "PadCollator(pad_id=): got None": lambda w: PadCollator(None),  # type: ignore[arg-type]
    "PadCollator(tokenizer=): got 3": lambda w: PadCollator(0, tokenizer=3),
    "/nope": lambda w: PadCollator(0, tokenizer=Path("/nope")),
    "PadCollator(max_length=): got 2.5": lambda w: PadCollator(0, max_length=2.5),  # type: ignore[arg-type]
    "PadCollator(to_multiple_of=): got 'x'": lambda w: PadCollator(0, to_multiple_of="x"),  # type: ignore[arg-type]
    "unknown pad_to": lambda w: PadCollator(0, pad_to=3),  # type: ignore[arg-type]
    "collator(batch=): got 3, expected a list of samples": lambda w: PadCollator(0)(3),  # type: ignore[arg-type]
    "collator(batch=): got 7, expected samples with": lambda w: PadCollator(0)([7]),  # type: ignore[list-item]
    "FlattenCollator(pad_id=): got 'x'": lambda w: FlattenCollator("x"),  # type: ignore[arg-type]
    "collator(batch=): got 8": lambda w: FlattenCollator(0)([8]),  # type: ignore[list-item]
    "Checkpoints(save=): got None": lambda w: Checkpoints(None, None),  # type: ignore[arg-type]
    "Checkpoints(load=): got 'b', expected a function of a path": lambda w: Checkpoints(nothing, "b"),  # type: ignore[arg-type]
    "Checkpoints.of(model, optimizer)": lambda w: Checkpoints(w.model, w.optimizer),  # type: ignore[arg-type]
    "Checkpoints(finite=): got 3": lambda w: Checkpoints(nothing, nothing, finite=3),  # type: ignore[arg-type]
    "Checkpoints(every=): got 0": lambda w: Checkpoints(nothing, nothing, every=0),
    "Checkpoints(keep=): got 'x'": lambda w: Checkpoints(nothing, nothing, keep="x"),  # type: ignore[arg-type]
    "Checkpoints(at_start=): got 'x'": lambda w: Checkpoints(nothing, nothing, at_start="x"),  # type: ignore[arg-type]
    "Checkpoints(digests=): got 1": lambda w: Checkpoints(nothing, nothing, digests=1),  # type: ignore[arg-type]
    "Model and optimizer are in each other's place.": lambda w: Checkpoints.of(w.optimizer, w.model),  # type: ignore[arg-type]
    "Checkpoints.of(optimizer=): got None": lambda w: Checkpoints.of(w.model, None),  # type: ignore[arg-type]
    "no load_state_dict: scheduler": lambda w: Checkpoints.of(w.model, w.optimizer, 3),
    "no load_state_dict: scaler": lambda w: Checkpoints.of(w.model, w.optimizer, None, 3),
    "Checkpoints.of(extra=): got 3": lambda w: Checkpoints.of(w.model, w.optimizer, extra=3),  # type: ignore[arg-type]
    "none of them called scheduler": lambda w: Checkpoints.of(
        w.model, w.optimizer, extra={"scheduler": w.optimizer}
    ),
    "Checkpoints.of(evry=): got 3, expected one of the settings": lambda w: Checkpoints.of(
        w.model, w.optimizer, evry=3
    ),
    "wrong argument of TrainingGuard: sampler: got NoneType": lambda w: TrainingGuard(None, "run"),  # type: ignore[arg-type]
    "TrainingGuard(run_dir=): got None, expected a path": lambda w: TrainingGuard(w.sampler(), None),  # type: ignore[arg-type]
    "wrong argument of TrainingGuard: checkpoints": lambda w: w.guard(checkpoints=nothing),
    "wrong argument of TrainingGuard: policy": lambda w: w.guard(policy={}),
    "TrainingGuard(resume=): got 'no', expected True or False": lambda w: w.guard(resume="no"),
    "TrainingGuard(fsync=): got 1": lambda w: w.guard(fsync=1),
    "TrainingGuard(optimizer=): got 3": lambda w: w.guard(optimizer=3),
    "TrainingGuard(optimizer=): got a value of type Linear": lambda w: w.guard(optimizer=w.model),
    "TrainingGuard(scaler=): got 3": lambda w: w.guard(scaler=3),
    "TrainingGuard(on_alert=): got 3": lambda w: w.guard(on_alert=3),
    "an alert has no address: on_alert: got 4": lambda w: w.guard(on_alert=[4]),
    "TrainingGuard(quarantine=): got 3": lambda w: w.guard(quarantine=3),
    "guard.steps(loader=): got None": lambda w: next(w.guard().steps(None)),  # type: ignore[arg-type]
    "a batch does not say which samples it holds": lambda w: next(w.guard().steps([1, 2])),
    "step.observe(loss=): got 'x', expected a number or a tensor of one": lambda w: w.step().observe("x"),
    "step.observe(loss=): got None": lambda w: w.step().observe(None),
    "step.observe(loss=): got True": lambda w: w.step().observe(True),
    "step.observe(loss=): got [1.0]": lambda w: w.step().observe([1.0]),
    "this one has shape [3] and type torch.float32": lambda w: w.step().observe(torch.ones(3)),
    "torch.complex64": lambda w: w.step().observe(torch.ones((), dtype=torch.complex64)),
    "per_sample_loss is not one loss a row": lambda w: w.step().observe(1.0, "x"),  # type: ignore[arg-type]
    "step.accept(grad_norm=): got 'x'": lambda w: w.observed().accept("x"),
    "step.accept(grad_norm=): got a value of type Tensor": lambda w: w.observed().accept(torch.ones(2)),
    "step.accept(val_loss=): got None": lambda w: w.observed().accept(1.0, val_loss=None),
    "step.accept(val_loss=): got 'x'": lambda w: w.observed().accept(1.0, val_loss="x"),
    "grace: got 'x', expected a whole number": lambda w: Policy(grace="x"),  # type: ignore[arg-type]
    "z_act: got nan": lambda w: Policy(z_act=float("nan")),
    "actions: got 'record', expected a tuple": lambda w: Policy(actions="record"),  # type: ignore[arg-type]
    "actions: got 3": lambda w: Policy(actions=3),  # type: ignore[arg-type]
    "actions: got ([],)": lambda w: Policy(actions=([],)),  # type: ignore[arg-type]
    "rollback: got 3": lambda w: Policy(rollback=3),  # type: ignore[arg-type]
    "lr_factors: got ('x',)": lambda w: Policy(lr_factors=("x",)),  # type: ignore[arg-type]
    "ratio: got 3, expected Ratio": lambda w: Policy(ratio=3),  # type: ignore[arg-type]
    "layer_ratio: got 'x'": lambda w: Policy(layer_ratio="x"),  # type: ignore[arg-type]
    "from_dict: got 3": lambda w: Policy.from_dict(3),  # type: ignore[arg-type]
    "ratio.factor: got 'x'": lambda w: Policy.from_dict({"ratio": {"factor": "x"}}),
    "Quarantine(path=): got None": lambda w: Quarantine(None),  # type: ignore[arg-type]
    "Quarantine(patience=): got -1, expected a number of seconds": lambda w: Quarantine("q", patience=-1),
    "Quarantine(patience=): got 'x'": lambda w: Quarantine("q", patience="x"),  # type: ignore[arg-type]
    "Quarantine(on_note=): got 3": lambda w: Quarantine("q", on_note=3),  # type: ignore[arg-type]
    "hashes(state=): got 'zz', expected one of suspected, quarantined, released": lambda w: Quarantine(
        "/nope"
    ).hashes("zz"),  # type: ignore[arg-type]
    "no such table": lambda w: w.store.rows("zz"),
    "add or release(hashes=): got 'abab": lambda w: w.store.add(HASH, "x"),
    "add or release(hashes=): got 3": lambda w: w.store.add(3, "x"),  # type: ignore[arg-type]
    "not a hash: HASH: got 5": lambda w: w.store.add([5], "x"),  # type: ignore[list-item]
    "not a hash: HASH: got b'": lambda w: w.store.add([b"1" * 16], "x"),  # type: ignore[list-item]
    "reason=): got None, expected a text": lambda w: w.store.add([HASH], None),  # type: ignore[arg-type]
    "no reason given": lambda w: w.store.release([HASH], ""),
    "by=): got 3": lambda w: w.store.add([HASH], "x", by=3),  # type: ignore[arg-type]
    "add(places=): got 3": lambda w: w.store.add([HASH], "x", places=3),  # type: ignore[arg-type]
    "add(places=): got ('a',)": lambda w: w.store.add([HASH], "x", places={HASH: ("a",)}),  # type: ignore[dict-item]
    "export(out=): got 3": lambda w: w.store.export(3),  # type: ignore[arg-type]
    "cannot tell the format": lambda w: w.store.export("x.csv"),
    "skip_ranges(run=): got 3": lambda w: w.store.skip_ranges(3),  # type: ignore[arg-type]
    "record(incident=): got 3": lambda w: w.store.record(3),  # type: ignore[arg-type]
    "rebuild(runs=): got 'x', expected a list of run directories": lambda w: w.store.rebuild("x"),
    "rebuild(runs=): got 3": lambda w: w.store.rebuild([3]),  # type: ignore[list-item]
}
"""Part of the message, and the call it belongs to."""


@pytest.mark.parametrize("said", CALLS)
def test_a_wrong_argument_is_one_line_that_names_it(world: World, said: str) -> None:
    with pytest.raises(CleanfeedError) as caught:
        CALLS[said](world)
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert message.endswith(".")
    assert caught.value.exit_code == 2 or isinstance(caught.value, TrainingError)
    assert world.store.hashes() == [HASH]


def changed(state: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return {**state, **parts}


@pytest.mark.parametrize("parts", [{"committed": "x"}, {"skipped": 3}, {"quarantined": 3}, {"epochs": None}])
def test_a_state_of_a_sampler_with_a_wrong_part_changes_nothing(world: World, parts: dict[str, Any]) -> None:
    sampler = world.sampler()
    sampler.skip(1, 1)
    before = sampler.state_dict()
    for state in (changed(before, **parts), 3, None, {}):
        with pytest.raises(ResumeError, match="not a state of a sampler"):
            sampler.load_state_dict(state)  # type: ignore[arg-type]
    assert sampler.state_dict() == before


@pytest.mark.parametrize("parts", [{"step": "x"}, {"watch": 3}, {"watch": {}}, {"healthy_since": None}])
def test_a_state_of_a_guard_with_a_wrong_part_changes_nothing(world: World, parts: dict[str, Any]) -> None:
    guard = world.guard()
    before = guard.state_dict()
    for state in (changed(before, **parts), 3, {}, {"format": 1}):
        with pytest.raises(TrainingError, match="not a state of a guard: load_state_dict"):
            guard.load_state_dict(state)  # type: ignore[arg-type]
    assert guard.state_dict() == before


def test_numbers_of_numpy_are_numbers(world: World) -> None:
    step = world.step()
    step.observe(np.float32(1.0))
    assert step.accept(np.float64(1.0), val_loss=np.int64(2), update_norm=torch.tensor(3.0).numpy())
    assert world.sampler(global_batch=np.int64(8), seed=np.int32(1)).global_batch == 8


def test_every_public_name_is_in_the_table() -> None:
    tried = " ".join(CALLS)
    names = set(cleanfeed.__all__) - {"__version__", "TrainingHalted"}
    classes = {"Policy": "grace", "CurriculumSampler": "CurriculumSampler("}
    assert [name for name in sorted(names) if classes.get(name, name) not in tried] == []


def test_a_long_or_odd_value_is_named_by_its_type() -> None:
    assert str(wrong("f", "x", "y" * 99, "less")) == (
        "wrong argument: f(x=): got a value of type str, expected less."
    )
