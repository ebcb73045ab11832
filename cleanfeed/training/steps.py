"""The micro-batches of one optimizer step go in, losses and gradient norm are told, and one decision comes out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from cleanfeed.errors import TrainingError, one_line
from cleanfeed.training.expected import Due
from cleanfeed.training.numbers import Numbers, number, numbers, told
from cleanfeed.training.shares import Shares


class Decider(Protocol):
    """What a step asks of the guard."""

    def decide(
        self,
        step: Step,
        losses: list[float],
        grad_norm: float | None,
        extra: dict[str, float],
        samples: list[float],
    ) -> bool:
        """Return whether the optimizer may step."""

    def commit(self, step: Step) -> None:
        """Record the step."""


class Step:
    """One optimizer step: iterate over its micro-batches, tell their losses, ask, commit.

    Attributes:
        number: Number of the step, from 1.
        slot: Index of its global batch in the schedule.
        due: What the slot holds.
        losses: Mean loss of each micro-batch told so far; a tensor on a device stays there until the decision.
        per_sample: Losses of the rows of each, where told.
        accepted: The decision; None before `accept`.
    """

    def __init__(
        self,
        guard: Decider,
        number: int,
        due: Due,
        batches: Sequence[Any],
        ids: Sequence[npt.NDArray[np.int64]],
        shares: Shares,
    ) -> None:
        self.number, self.due, self.slot = number, due, due.slot
        self.batches, self.ids, self.shares = batches, ids, shares
        self.accepted: bool | None = None
        self.committed = False
        self.losses: list[Any] = []
        self.per_sample: list[torch.Tensor | None] = []
        self.lr: float | None = None
        self.numbers: Numbers | None = None
        self.metrics: dict[str, float] = {}
        self._guard = guard
        self._at = 0

    def __len__(self) -> int:
        """Return the number of micro-batches on this rank."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        """Yield the micro-batches; beginning again before `accept` forgets what was told of them."""
        if self.accepted is None:
            self.losses, self.per_sample = [], []
        for place, batch in enumerate(self.batches):
            self._at = place
            yield batch

    @property
    def weight(self) -> float:
        """What the mean loss of the present micro-batch is multiplied by before ``backward``.

        ``world_size x its label tokens / label tokens of the global batch``: the sum over micro-batches, averaged over
        ranks as DistributedDataParallel does, is the mean over all label tokens. See docs/training.md.
        """
        return self.shares.weights[self._at]

    def observe(self, loss: Any, per_sample_loss: torch.Tensor | None = None) -> None:
        """Tell the mean loss of the present micro-batch, not weighed.

        Args:
            loss: A number or a tensor of one element, in nats; one on a device is read when `accept` is called.
            per_sample_loss: Loss of each row, shape [rows]; with it an incident names the samples behind it.

        Raises:
            TrainingError: A loss of this micro-batch was told before, or there are not as many as rows.
            MisuseError: The loss is neither a number nor a tensor of one.
        """
        loss = told("step.observe", "loss", loss)
        if len(self.losses) != self._at:
            raise TrainingError(
                one_line(
                    "losses and micro-batches do not match",
                    f"step {self.number}",
                    f"{len(self.losses) + 1} losses at micro-batch {self._at + 1}",
                    "one call of step.observe for each micro-batch",
                )
            )
        if per_sample_loss is not None:
            per_sample_loss = self._per_row(per_sample_loss)
        self.losses.append(loss)
        self.per_sample.append(per_sample_loss)

    def _per_row(self, losses: Any) -> torch.Tensor:
        """Return the losses of the rows of the present micro-batch; refuse those of any other shape."""
        rows = len(self.ids[self._at])
        shape = list(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        if shape != [rows]:
            raise TrainingError(
                one_line(
                    "per_sample_loss is not one loss a row",
                    f"step {self.number}, micro-batch {self._at + 1}",
                    str(shape),
                    f"a tensor of shape [{rows}]",
                    "Take the mean over each row's label tokens.",
                )
            )
        detached: torch.Tensor = losses.detach()
        return detached

    def accept(self, grad_norm: Any = None, **metrics: Any) -> bool:
        """Return whether ``optimizer.step()`` may be called; the same answer on every rank, which must all ask.

        Args:
            grad_norm: Norm of all gradients before clipping, as ``clip_grad_norm_`` returns it.
            metrics: Further numbers; they are written to the ledger, and detectors read ``val_loss``, ``layer_ratio``,
                ``update_norm``, ``activation_mean``, ``activation_kurtosis`` and ``loss_scale``.

        Raises:
            TrainingError: A loss is missing, or it was asked before.
            MisuseError: The norm or a metric is neither a number nor a tensor of one.
        """
        if grad_norm is not None:
            grad_norm = told("step.accept", "grad_norm", grad_norm)
        metrics = {name: told("step.accept", name, value) for name, value in metrics.items()}
        if self.accepted is not None or len(self.losses) != len(self.batches):
            got = "asked twice" if self.accepted is not None else f"{len(self.losses)} losses"
            raise TrainingError(
                one_line(
                    "a step can be decided once, after every loss",
                    f"step {self.number}",
                    got,
                    f"{len(self.batches)} calls of step.observe and one of step.accept",
                )
            )
        self.metrics = {name: number(value) for name, value in metrics.items()}
        values = self.losses if grad_norm is None else [*self.losses, grad_norm]
        losses, rows = numbers(values, [one for one in self.per_sample if one is not None])
        norm = None if grad_norm is None else losses.pop()
        self.accepted = self._guard.decide(self, losses, norm, self.metrics, self._of_samples(rows))
        return self.accepted

    def _of_samples(self, rows: Sequence[float]) -> list[float]:
        """Return the losses of the rows that are samples and have label tokens: others have a loss of 0, or none."""
        if not rows:
            return []
        pairs = zip(self.ids, self.per_sample, strict=True)
        ids = [row for rows_of, one in pairs if one is not None for row in rows_of.tolist()]
        return [loss for row, loss in zip(ids, rows, strict=True) if row >= 0 and 0.0 < loss < math.inf]

    def commit(self) -> None:
        """Say that the step is done: its line is on file when this returns.

        Raises:
            TrainingError: It was not decided, or is committed already.
            TrainingHalted: The policy stops training here.
        """
        if self.accepted is None or self.committed:
            got = "not decided" if self.accepted is None else "committed before"
            raise TrainingError(
                one_line(
                    "a step is committed once, after step.accept",
                    f"step {self.number}",
                    got,
                    "one call of each",
                )
            )
        self.committed = True
        self._guard.commit(self)
