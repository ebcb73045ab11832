"""The numbers of the steps around an incident go in; the batches and samples behind it, most suspect first, come out.

A batch is suspect from ``pre`` steps before the onset to the trip. Its score is the largest of its evidence, each in
robust scales: own loss, worst micro-batch, log grad norm, and the static signals of its documents where the caller
gives them. Leading signals move first, so of two equal scores the earlier batch is ranked first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cleanfeed.runs.records import LedgerLine, Suspect
from cleanfeed.training.baselines import GAUSSIAN
from cleanfeed.training.policy import Policy
from cleanfeed.training.running import deviation_of, median_of

CAP = 1000.0
"""Evidence counts up to here; a number that is not finite counts as much."""
AFTER_ONSET = 0.5
"""How far the evidence of a batch counts once the optimizer took an outlying step: the state is sick by then. NaN
and Inf after one count no more than that step does."""
CULPRIT_Z = 5.0
"""Scales above the samples before from which a sample stands out."""
TOGETHER_Z = 2.0
"""Scales from which a sample stands out that a detector has pointed at with others."""
FLOOR = 0.05
"""Least scale of per-sample losses, as a share of their median and in nats."""
HEALTHY_Z = 2.0
"""Scales within which the median of the other samples must lie, for the weights to be sound."""


@dataclass(frozen=True, slots=True)
class Level:
    """Median and scale of healthy steps."""

    median: float
    scale: float

    def z(self, value: float | None) -> float | None:
        """Return how far above the median a value lies, in scales, up to `CAP`; None where there is none."""
        return None if value is None else min(CAP, (value - self.median) / self.scale)


@dataclass(frozen=True, slots=True)
class Culprits:
    """Which samples of a batch stand out."""

    rows: tuple[int, ...] = ()
    """Their indices in the batch, the worst first."""
    z: Mapping[int, float] = field(default_factory=dict)
    """How far each row lies above what is usual, in scales."""
    uniform: bool = False
    """The other samples are off as well, or there are none: the state, or every sample, is to blame."""


def level_of(values: Iterable[float | None], floor: float = 0.0, share: float = 0.0) -> Level | None:
    """Return median and scale of the finite values; None where there are fewer than four.

    Args:
        values: Numbers of healthy steps.
        floor: Least scale in their unit.
        share: Least scale as a share of the median.
    """
    ordered = sorted(value for value in values if value is not None and math.isfinite(value))
    if len(ordered) < 4:
        return None
    median = median_of(ordered)
    scale = max(GAUSSIAN * deviation_of(ordered, median), floor, share * abs(median), 1e-12)
    return Level(median, scale)


def rank(
    lines: Sequence[LedgerLine],
    onset_step: int,
    trip_step: int,
    policy: Policy,
    static: Mapping[int, float] | None = None,
) -> list[Suspect]:
    """Return the suspect batches of an incident, the most suspect first.

    Args:
        lines: Ledger lines around the incident, ascending, of one attempt; those before the first suspect are the
            healthy ones it is compared with (64 are plenty), those of the suspects' stage where there are enough.
        onset_step: First step of the incident.
        trip_step: Step at which the rule fired.
        policy: Steps before the onset that are suspects as well, and the floors of the scales.
        static: Evidence from the build for a slot, in scales: see `cleanfeed.training.static_signals`.

    Returns:
        One `Suspect` a step from ``onset_step - pre`` to ``trip_step`` that has a line, with ``loss_z``,
        ``worst_micro_z``, ``grad_z`` and ``signals`` as evidence (null where unknown).
    """
    first = onset_step - policy.pre
    chosen = [line for line in lines if first <= line.step <= trip_step]
    if not chosen:
        return []
    before = [line for line in lines if line.step < first and line.accepted and line.finite]
    alike = [line for line in before if line.stage == chosen[-1].stage]
    levels = _Levels(alike if len(alike) >= 8 else before, policy)
    found: list[Suspect] = []
    broken: float | None = None
    for line in chosen:
        evidence = levels.evidence(line, None if static is None else static.get(line.slot))
        strongest = max((z for key, z in evidence.items() if key != "signals" and z is not None), default=0.0)
        own = strongest
        if broken is not None:
            own = AFTER_ONSET * (strongest if line.finite else min(strongest, broken))
        score = max(own, evidence["signals"] or 0.0, 0.0)
        # A step that was not taken leaves the weights as they were, so the next batch is judged like the first.
        if broken is None and strongest >= policy.z_observe and line.accepted:
            broken = strongest
        found.append(
            Suspect(
                attempt=line.attempt,
                step=line.step,
                epoch=line.epoch,
                slot=line.slot,
                batch_hash=line.batch_hash,
                score=score,
                evidence=evidence,
            )
        )
    return sorted(found, key=lambda suspect: (-suspect.score, suspect.step))


def stands_out(suspects: Sequence[Suspect], policy: Policy) -> bool:
    """Return whether one batch is evidence against the data: an outlier, and clear of the other suspects.

    Args:
        suspects: What `rank` returned.
        policy: Where an outlier begins.
    """
    raw = [max((z for z in s.evidence.values() if z is not None), default=0.0) for s in suspects]
    if not raw or raw[0] < policy.z_observe:
        return False
    usual = median_of(sorted(raw[1:])) if raw[1:] else 0.0
    return raw[0] >= 2.0 * usual and sum(z >= policy.z_observe for z in raw) <= 3


def culprits(
    losses: Sequence[float],
    usual: Sequence[float] = (),
    limit: float = CULPRIT_Z,
    *,
    highest: int = 0,
    lowest: int = 0,
) -> Culprits:
    """Return the samples of a batch whose own loss stands out.

    A sample stands out ``limit`` scales above the median of healthy samples before; without enough of them, above that
    of its own batch. Of the ``highest`` and ``lowest`` ones a detector has pointed at, `TOGETHER_Z` scales are enough,
    on either side. A loss that is not finite always stands out, unless all are. The other samples must be as
    healthy as those before: where they are not, or where there are none, ``uniform`` says that a sick state looks
    the same.

    Args:
        losses: Mean loss of each sample in nats; pad rows, which have none, are left out by the caller.
        usual: Losses of samples of healthy batches of the same context.
        limit: Scales from which a sample stands out.
        highest: How many of the highest losses are higher together than they ever are.
        lowest: How many of the lowest are lower.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        return Culprits((), {}, bool(losses))
    past = level_of(usual, floor=FLOOR, share=FLOOR)
    level = past if past is not None else level_of(finite, floor=FLOOR, share=FLOOR)
    z = {row: _z_of(loss, level) for row, loss in enumerate(losses)}
    ordered = sorted(z, key=lambda row: (-z[row], row))
    together = {row for row in ordered[:highest] if z[row] >= TOGETHER_Z}
    together |= {row for row in ordered[len(ordered) - lowest :] if z[row] <= -TOGETHER_Z}
    rows = [row for row in ordered if z[row] >= limit or row in together]
    others = sorted(z[row] for row in ordered if row not in set(rows))
    uniform = past is not None and (not others or median_of(others) >= HEALTHY_Z)
    rows.sort(key=lambda row: (-abs(z[row]), row))
    return Culprits(tuple(rows), z, uniform)


def _z_of(loss: float, level: Level | None) -> float:
    if not math.isfinite(loss):
        return CAP
    return (level.z(loss) or 0.0) if level is not None else 0.0


class _Levels:
    """What loss, worst micro-batch and log grad norm were on the healthy steps before."""

    def __init__(self, lines: Sequence[LedgerLine], policy: Policy) -> None:
        self.loss = level_of((line.loss for line in lines), share=policy.loss_floor)
        self.worst = level_of((line.worst_micro_loss for line in lines), share=policy.loss_floor)
        self.norm = level_of((_log(line.grad_norm) for line in lines), floor=policy.grad_floor)

    def evidence(self, line: LedgerLine, static: float | None) -> dict[str, float | None]:
        found: dict[str, float | None] = {
            "loss_z": self.loss.z(line.loss) if self.loss else None,
            "worst_micro_z": self.worst.z(line.worst_micro_loss) if self.worst else None,
            "grad_z": self.norm.z(_log(line.grad_norm)) if self.norm else None,
            "signals": static,
        }
        if not line.finite:
            found["loss_z" if line.loss is None else "grad_z"] = CAP
        return found


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and value > 0.0 and math.isfinite(value) else None
