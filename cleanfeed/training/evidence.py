"""Every committed step goes in; when something breaks, the steps around it and their samples' losses come out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from cleanfeed.runs.records import LedgerLine
from cleanfeed.training.agreement import Agreement
from cleanfeed.training.policy import Policy

BEFORE = 64
"""Healthy steps that are remembered before the earliest suspect, to compare with."""

USUAL = 128
"""Samples that say what a sample usually loses: in a run whose loss falls fast, older ones would say something else."""

NOBODY: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)

Losses = dict[int, dict[int, float]]
"""Loss of each sample by step and row number."""


class Remembered(msgspec.Struct, frozen=True):
    """One committed step."""

    line: LedgerLine
    ids: npt.NDArray[np.int64]
    """Row numbers of this rank's samples whose losses are known."""
    losses: tuple[torch.Tensor, ...]
    """Their losses, on whatever device they were told."""


class Evidence:
    """The last steps of a run, and what each sample of them lost where the loop says so.

    Args:
        policy: How far back an onset can lie.
    """

    def __init__(self, policy: Policy) -> None:
        self.size = policy.recover_within + policy.pre + 2 * BEFORE
        """Steps that are remembered."""
        self._steps: deque[Remembered] = deque(maxlen=self.size)

    def add(
        self, line: LedgerLine, ids: Sequence[npt.NDArray[np.int64]], losses: Sequence[torch.Tensor | None]
    ) -> None:
        """Remember a step.

        Args:
            line: Its ledger line.
            ids: `sample_ids` of each micro-batch of this rank.
            losses: Losses of the rows of each, where told.
        """
        told = [(rows, loss) for rows, loss in zip(ids, losses, strict=True) if loss is not None]
        if not told:
            self._steps.append(Remembered(line, NOBODY, ()))
            return
        rows = np.concatenate([rows for rows, _ in told])
        self._steps.append(Remembered(line, rows, tuple(loss.reshape(-1) for _, loss in told)))

    def forget_after(self, step: int) -> None:
        """Forget the steps that a rollback undoes."""
        while self._steps and self._steps[-1].line.step > step:
            self._steps.pop()

    def fill(self, lines: Sequence[LedgerLine]) -> None:
        """Remember steps of the ledger before those that are remembered; what their samples lost nobody knows any more.

        Args:
            lines: Surviving lines, ascending.
        """
        first = self._steps[0].line.step if self._steps else math.inf
        earlier = [line for line in lines if line.step < first]
        for line in earlier[::-1][: self.size - len(self._steps)]:
            self._steps.appendleft(Remembered(line, NOBODY, ()))

    def lines(self, first: int, last: int) -> list[LedgerLine]:
        """Return the lines of the steps from ``first`` to ``last``, ascending, as far as they are remembered."""
        return [one.line for one in self._steps if first <= one.line.step <= last]

    def gather(self, agreement: Agreement, first: int, last: int) -> Losses:
        """Return the losses of the samples of some steps, of all ranks; a collective."""
        mine: Losses = {}
        for one in self._steps:
            if first <= one.line.step <= last and len(one.ids):
                values = torch.cat([loss.float() for loss in one.losses]).tolist()
                pairs = zip(one.ids.tolist(), values, strict=True)
                mine[one.line.step] = {row: value for row, value in pairs if row >= 0}
        merged: Losses = {}
        for part in agreement.all(mine):
            for step, losses in part.items():
                merged.setdefault(step, {}).update(losses)
        return merged


def usual_losses(
    losses: Mapping[int, Mapping[int, float]],
    lines: Sequence[LedgerLine],
    suspect: LedgerLine | None,
    onset: int,
) -> list[float]:
    """Return what samples lost in the last steps before an onset: at least `USUAL` of them, where there are so many.

    Args:
        losses: Losses of samples by step.
        lines: Ledger lines of the steps.
        suspect: Line of the batch they are compared with: steps of its stage are taken, where these are enough.
        onset: First step of the incident.
    """
    healthy = [
        line
        for line in lines
        if line.step < onset and line.accepted and line.finite and losses.get(line.step)
    ]
    alike = [line for line in healthy if suspect is None or line.stage == suspect.stage]
    for chosen in (alike, healthy):
        found: list[float] = []
        for line in reversed(chosen):
            found += losses[line.step].values()
            if len(found) >= USUAL:
                return found
    return found
