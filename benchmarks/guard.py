"""What the guard costs a step: the same batches through a bare loop, and through ledger, detectors and all.

The model is a trivial one and the batches are small, so the ratio is far above that of any real training; the figure to
hold against a real step is the absolute one. Prints one JSON object.

    python benchmarks/guard.py [--steps 2000] [--batch 8] [--micro 8]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[1]))

from cleanfeed import Curriculum, CurriculumSampler, PadCollator, Policy, TrainingGuard
from tests.training.world import VOCABULARY, make_curriculum


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--micro", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = make_curriculum(Path(folder) / "data", documents=2048)
        print(
            json.dumps(
                measure(str(data), Path(folder), options.steps, options.batch, options.micro), indent=2
            )
        )


def measure(data: str, folder: Path, steps: int, batch: int, micro: int) -> dict[str, Any]:
    """Return medians in microseconds a step, and ratios to the bare loop."""
    quiet = Policy(grace=10**9)
    times = in_turn(
        {
            "bare": bare(data, steps, batch, micro),
            "ledger": guarded(data, folder / "ledger", steps, batch, micro, quiet, watched=False),
            "all": guarded(data, folder / "all", steps, batch, micro, quiet, watched=True),
        }
    )
    result: dict[str, Any] = {
        "steps": steps,
        "samples_a_step": batch,
        "micro_batches_a_step": batch // micro,
        "load": os.getloadavg(),
    }
    for kind, found in times.items():
        base = found["bare"]
        result[kind] = {
            "median_us": {name: round(value, 1) for name, value in found.items()},
            "overhead_us": {name: round(value - base, 1) for name, value in found.items() if name != "bare"},
            "ratio": {name: round(value / base, 3) for name, value in found.items() if name != "bare"},
        }
    return result


def in_turn(loops: dict[str, Iterator[None]]) -> dict[str, dict[str, float]]:
    """Return the median time of a step of each loop, in microseconds: of the clock, and of the processor.

    The loops take a step in turn, so that whatever else the machine does strikes them alike.
    """
    clock: dict[str, list[float]] = {name: [] for name in loops}
    processor: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        next(loop)
    while True:
        for name, loop in loops.items():
            began, used = time.perf_counter(), time.thread_time()
            if next(loop, True):
                return {
                    kind: {
                        one: statistics.median(told[len(told) // 10 :]) * 1e6 for one, told in found.items()
                    }
                    for kind, found in (("clock", clock), ("processor", processor))
                }
            clock[name].append(time.perf_counter() - began)
            processor[name].append(time.thread_time() - used)


def parts(data: str, batch: int, micro: int, steps: int) -> tuple[Any, Any, Any, Any]:
    curriculum = Curriculum(data)
    epochs = -(-steps * batch // len(curriculum)) + 1
    sampler = CurriculumSampler(curriculum, global_batch=batch, micro_batch=micro, epochs=epochs)
    loader = DataLoader(curriculum, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))
    model = torch.nn.Embedding(VOCABULARY, VOCABULARY)
    return sampler, loader, model, torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(batch["input_ids"][:, :-1])
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, VOCABULARY), batch["labels"][:, 1:].reshape(-1)
    )


def bare(data: str, steps: int, batch: int, micro: int) -> Iterator[None]:
    """The loop without a guard; it reads the loss of each step, as any loop that logs it does."""
    sampler, loader, model, optimizer = parts(data, batch, micro, steps)
    batches = iter(loader)
    for _ in range(steps):
        for _ in range(batch // micro):
            loss = loss_of(model, next(batches)) / (batch // micro)
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        float(loss.detach()), float(norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        sampler.commit()
        yield


def guarded(
    data: str, run: Path, steps: int, batch: int, micro: int, policy: Policy, *, watched: bool
) -> Iterator[None]:
    """The loop in the form the guard expects."""
    sampler, loader, model, optimizer = parts(data, batch, micro, steps)
    guard = TrainingGuard(sampler, run, policy=policy)
    if not watched:
        silence(guard)
    yield from steps_of(guard, loader, model, optimizer, steps)


def steps_of(guard: TrainingGuard, loader: Any, model: Any, optimizer: Any, steps: int) -> Iterator[None]:
    """Train so many steps under a guard."""
    for step in guard.steps(loader):
        for one in step:
            loss = loss_of(model, one)
            (loss * step.weight).backward()
            step.observe(loss)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step.accept(norm):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step.commit()
        yield
        if step.number == steps:
            break


def silence(guard: TrainingGuard) -> None:
    """Take the detectors out, to see what the rest costs."""
    from cleanfeed.training.metrics import Metrics, Verdict

    def calm(metrics: Metrics) -> Verdict:
        return Verdict(metrics.step, "healthy", accept=True)

    update: Callable[[Metrics], Verdict] = calm
    guard.watch.update = update  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
