"""What the guard adds to a step where several gloo ranks train: the bare loop, and the same loop under guard.

The ranks run on this machine. With more ranks than processors the figure is mostly waiting for a turn, in both loops.
Prints one JSON object.

    python benchmarks/ranks.py [--ranks 2 4] [--steps 400]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.guard import in_turn, loss_of, parts, steps_of
from cleanfeed import Policy, TrainingGuard
from tests.training.world import make_curriculum

BATCH, MICRO = 8, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = make_curriculum(Path(folder) / "data", documents=2048)
        found = {world: measure(str(data), Path(folder), world, options.steps) for world in options.ranks}
    print(json.dumps({"steps": options.steps, "load": os.getloadavg(), "ranks": found}, indent=2))


def measure(data: str, folder: Path, world: int, steps: int) -> dict[str, float]:
    """Return the median step of rank 0 in milliseconds, bare and guarded, and what the guard adds."""
    where = folder / f"ranks-{world}"
    where.mkdir()
    mp.spawn(_rank, args=(world, data, str(where), steps), nprocs=world)
    told = json.loads((where / "times.json").read_text())
    return {**told, "guard_adds_ms": round(told["guarded_ms"] - told["bare_ms"], 3)}


def _rank(rank: int, world: int, data: str, folder: str, steps: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    loops = {"bare": _bare(data, steps), "guarded": _guarded(data, Path(folder), steps)}
    clock = in_turn(loops)["clock"]
    if rank == 0:
        told = {f"{name}_ms": round(value / 1e3, 3) for name, value in clock.items()}
        (Path(folder) / "times.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def _model(data: str, steps: int) -> tuple[Any, Any, Any, Any]:
    sampler, loader, model, optimizer = parts(data, BATCH, MICRO, steps)
    return sampler, loader, torch.nn.parallel.DistributedDataParallel(model), optimizer


def _bare(data: str, steps: int) -> Iterator[None]:
    """The loop without a guard: gradients are shared after each micro-batch, as they are in the other."""
    sampler, loader, model, optimizer = _model(data, steps)
    batches = iter(loader)
    for step in range(steps):
        count = sampler.micro_batches(step)
        for _ in range(count):
            loss = loss_of(model, next(batches)) / count
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        float(loss.detach()), float(norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        sampler.commit()
        yield


def _guarded(data: str, run: Path, steps: int) -> Iterator[None]:
    """The same loop in the form the guard expects."""
    sampler, loader, model, optimizer = _model(data, steps)
    guard = TrainingGuard(sampler, run, policy=Policy(grace=10**9))
    yield from steps_of(guard, loader, model, optimizer, steps)


if __name__ == "__main__":
    main()
