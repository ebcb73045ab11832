"""Healthy synthetic steps go in; how many incidents the default policy opens on them comes out, by kind of noise.

``python benchmarks/false_alarms.py [--steps N] [--seeds K] [--kind NAME]``. Every kind drifts: the loss falls like a
power of the step and wanders, the gradient norm grows threefold, both noises slowly widen and narrow by a half, and
every 100,000 steps a new stage begins at another level. The losses of the samples of a batch stray from its mean with
noise of the same kind. ``student-t…`` is heavy-tailed, loss and norm apart; ``correlated`` Gaussian with a correlation
of 0.5; ``autocorrelated`` Student-t(5) with 0.5 from step to step; ``stages`` Student-t(4) with a new stage every 500
steps, each at another level with a half to twice the noise; ``joint-t4`` the worst case, Student-t(4) whose extremes
come in loss and norm at once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

from cleanfeed.training.metrics import SAMPLE_HIGH, SAMPLE_LOW, Metrics
from cleanfeed.training.policy import Policy
from cleanfeed.training.watch import Watch

CHUNK = 50_000
STAGE = 100_000
SHORT_STAGE = 500
SAMPLES = 16
"""Samples of a batch."""
SAMPLE_NOISE = 0.12
"""Scale of the noise of a sample's loss, as a share of the loss."""
EASIEST = 0.1
"""Least loss of a sample, as a share of the loss: documents that are known by heart."""
LOSS_NOISE = 0.015
"""Scale of the loss's noise as a share of the loss."""
NORM_NOISE = 0.25
"""Scale of the log grad norm's noise."""
WANDER = 1.0
"""A random walk's standard deviation over 1,000 steps, in scales of the noise, pulled back over 10,000 steps."""


def student(rng: np.random.Generator, degrees: float, shape: tuple[int, int]) -> np.ndarray:
    return rng.standard_t(degrees, shape)


def noise(kind: str, rng: np.random.Generator, steps: int) -> np.ndarray:
    """Return steps x (loss, log norm) of the kind's noise, of scale about 1."""
    shape = (steps, 2)
    if kind == "gaussian":
        return rng.standard_normal(shape)
    if kind.startswith("student-t"):
        return student(rng, float(kind.removeprefix("student-t")), shape)
    if kind == "stages":
        return student(rng, 4.0, shape)
    if kind == "autocorrelated":
        return autocorrelated(rng, steps, 0.5)
    if kind == "correlated":
        common = rng.standard_normal((steps, 1))
        return 0.7 * common + 0.714 * rng.standard_normal(shape)
    if kind == "joint-t4":  # one chi-square for both: extreme losses and norms come together
        normal = rng.standard_normal(shape) @ np.array([[1.0, 0.5], [0.0, 0.866]])
        return normal / np.sqrt(rng.chisquare(4.0, (steps, 1)) / 4.0)
    raise SystemExit(f"unknown kind: {kind}: expected one of {', '.join(KINDS)}")


def autocorrelated(rng: np.random.Generator, steps: int, share: float) -> np.ndarray:
    fresh = rng.standard_t(5.0, (steps, 2)) * np.sqrt(1.0 - share**2)
    for row in range(1, steps):
        fresh[row] += share * fresh[row - 1]
    return fresh


KINDS = ("gaussian", "student-t4", "student-t3", "correlated", "autocorrelated", "joint-t4", "stages")


def healthy(kind: str, steps: int, seed: int) -> Iterator[Metrics]:
    """Yield the metrics of a run in which nothing is wrong."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    wander = np.zeros(2)
    for begin in range(0, steps, CHUNK):
        size = min(CHUNK, steps - begin)
        step = np.arange(begin, begin + size)
        stage = step // (SHORT_STAGE if kind == "stages" else STAGE)
        wide = 2.0 ** ((stage * 5 % 9) / 4.0 - 1.0) if kind == "stages" else np.ones(size)
        raw = noise(kind, rng, size) * (wide * (1.0 + 0.5 * np.sin(step / 7_000.0)))[:, None]
        walk = walked(rng, wander, size)
        wander = walk[-1]
        level = (1.9 + 9.0 * (1.0 + step / 50.0) ** -0.6) * (1.0 + 0.1 * (stage * 7 % 5))
        loss = level * (1.0 + LOSS_NOISE * (raw[:, 0] + walk[:, 0]))
        norm = np.exp(NORM_NOISE * (raw[:, 1] + walk[:, 1]) + np.log(3.0) * step / steps + 0.2 * (stage % 3))
        micro = (
            np.abs(noise(kind, rng, size)[:, 0]) * 2.0
        )  # how far the worst micro-batch lies above the mean
        ends = samples(kind, rng, loss, wide)
        for row in range(size):
            worst = float(loss[row] + level[row] * LOSS_NOISE * micro[row])
            extra = dict(zip((*SAMPLE_HIGH, *SAMPLE_LOW), ends[row], strict=True))
            yield Metrics(
                begin + row + 1, float(loss[row]), float(norm[row]), str(stage[row]), worst, extra=extra
            )


def samples(kind: str, rng: np.random.Generator, loss: np.ndarray, wide: np.ndarray) -> list[list[float]]:
    """Return the three highest and the two lowest losses of a batch's samples, for each step."""
    own = "student-t4" if kind == "joint-t4" else kind  # there loss and norm are joint; samples are as ever
    raw = noise(own, rng, len(loss) * SAMPLES // 2).reshape(len(loss), SAMPLES)
    losses = loss[:, None] * np.maximum(EASIEST, 1.0 + SAMPLE_NOISE * wide[:, None] * raw)
    losses.sort(axis=1)
    return np.concatenate([losses[:, :-4:-1], losses[:, :2]], axis=1).tolist()


def walked(rng: np.random.Generator, start: np.ndarray, steps: int) -> np.ndarray:
    fresh = rng.standard_normal((steps, 2)) * WANDER / np.sqrt(1_000.0)
    out = np.empty_like(fresh)
    at = start
    for row in range(steps):
        at = at * (1.0 - 1e-4) + fresh[row]
        out[row] = at
    return out


def measure(kind: str, steps: int, seed: int) -> tuple[int, int, dict[str, int], float]:
    """Return observations, incidents, incidents by rule, and microseconds a step."""
    watch = Watch(Policy())
    observations, incidents, rules, spent, before = 0, 0, dict[str, int](), 0.0, "healthy"
    for metrics in healthy(kind, steps, seed):
        begun = time.thread_time()
        verdict = watch.update(metrics)
        spent += time.thread_time() - begun
        observations += verdict.state == "observing" and before == "healthy"
        before = verdict.state
        if verdict.opened and verdict.lead is not None:
            incidents += 1
            rules[verdict.lead.rule] = rules.get(verdict.lead.rule, 0) + 1
    return observations, incidents, rules, spent * 1e6 / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=KINDS)
    options = parser.parse_args()
    print(
        "| noise | steps | observations | incidents | per 10^6 steps | us a step |\n|---|---|---|---|---|---|"
    )
    for kind in options.kind or KINDS:
        total, seen, by_rule, spent = 0, 0, dict[str, int](), 0.0
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            observations, incidents, rules, cost = measure(kind, options.steps, seed)
            total, seen, spent = total + incidents, seen + observations, spent + cost / options.seeds
            for rule, count in rules.items():
                by_rule[rule] = by_rule.get(rule, 0) + count
        steps = options.steps * options.seeds
        shown = ", ".join(f"{rule} {count}" for rule, count in sorted(by_rule.items()))
        rate = total / steps * 1e6
        print(f"| {kind} | {steps:,} | {seen:,} | {total} {shown} | {rate:.2g} | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
