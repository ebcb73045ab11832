"""Every committed step goes in; when something breaks, the steps around it and their samples' losses come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cleanfeed.runs.records import LedgerLine
from cleanfeed.training.agreement import Agreement
from cleanfeed.training.policy import Policy

BEFORE = 64
"""Healthy steps that are remembered before the earliest suspect, to compare with."""

NOBODY: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)

Losses = dict[int, dict[int, float]]
"""Loss of each sample by step and row number."""


@dataclass(frozen=True, slots=True)
class Remembered:
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
        self._steps: deque[Remembered] = deque(maxlen=policy.recover_within + policy.pre + 2 * BEFORE)

    def add(
        self, line: LedgerLine, ids: Sequence[npt.NDArray[np.int64]], losses: Sequence[torch.Tensor | None]
    ) -> None:
        """Remember a step.

        Args:
            line: Its ledger line.
            ids: `sample_ids` of each micro-batch of this rank.
            losses: Losses of the rows of each, where told.
        """
        told = [(rows, loss) for rows, loss in zip(ids, losses, strict=False) if loss is not None]
        if not told:
            self._steps.append(Remembered(line, NOBODY, ()))
            return
        rows = np.concatenate([rows for rows, _ in told])
        self._steps.append(Remembered(line, rows, tuple(loss.reshape(-1) for _, loss in told)))

    def forget_after(self, step: int) -> None:
        """Forget the steps that a rollback undoes."""
        while self._steps and self._steps[-1].line.step > step:
            self._steps.pop()

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


def usual_losses(losses: Mapping[int, Mapping[int, float]], before: int) -> list[float]:
    """Return what samples lost in the steps before one."""
    return [value for step, told in losses.items() if step < before for value in told.values()]
