"""What each rank saw of a step goes in; the numbers the decision rests on, the same on every rank, come out.

One all-reduce a step. A value that is not finite is never added to another: it is counted instead, so that a NaN on one
rank makes the step non-finite for all and spoils nobody's mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cleanfeed.training.agreement import Agreement

EXTRAS = ("val_loss", "layer_ratio", "update_norm", "activation_mean", "activation_kurtosis", "loss_scale")
"""Metrics that detectors read: where ranks give different values, that of the lowest rank which gives one counts."""
_FAILED, _SICK_LOSS, _SICK_GRAD, _OVERFLOW, _LOSS, _LABELS, _WORST, _HAS_WORST, _GRAD, _HAS_GRAD = range(10)
_FIXED = 10


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one step over all ranks."""

    loss: float
    """Mean over all label tokens, NaN where any rank's is not finite."""
    worst_micro_loss: float | None
    grad_norm: float | None
    """Largest of any rank; None where no rank gave one; NaN where any rank's is not finite."""
    finite: bool
    """Loss and gradient norm are finite on every rank."""
    sick_ranks: tuple[int, ...]
    """Ranks whose loss is not finite; where all are, those whose gradient norm is not."""
    overflow: bool
    """The scaled gradients of half precision overflowed while the loss is finite: a scaler settles that way."""
    failed: bool
    """A rank cannot go on."""
    extra: Mapping[str, float]


def combine(
    agreement: Agreement,
    losses: Sequence[float],
    labels: Sequence[int],
    grad_norm: float | None,
    extra: Mapping[str, float],
    *,
    scaled: bool = False,
    failed: bool = False,
) -> Numbers:
    """Return the numbers of a step; a collective of all ranks.

    Args:
        agreement: Of the ranks.
        losses: Mean loss of each micro-batch of this rank.
        labels: Their label tokens; a micro-batch without any has no loss, whatever it says.
        grad_norm: As this rank has it.
        extra: Further metrics of this rank.
        scaled: A gradient scaler is at work, so a gradient norm that is not finite is its business.
        failed: This rank cannot go on.
    """
    told = [(loss, count) for loss, count in zip(losses, labels, strict=True) if count]
    sick_loss = not all(math.isfinite(loss) for loss, _ in told)
    sick_grad = grad_norm is not None and not math.isfinite(grad_norm)
    overflow = sick_grad and scaled and not sick_loss
    row = [0.0] * (_FIXED + 2 * len(EXTRAS))
    row[_FAILED], row[_OVERFLOW] = float(failed), float(overflow)
    row[_SICK_LOSS], row[_SICK_GRAD] = float(sick_loss), float(sick_grad)
    if told and not sick_loss:
        row[_LOSS] = math.fsum(loss * count for loss, count in told)
        row[_LABELS] = float(sum(count for _, count in told))
        row[_WORST], row[_HAS_WORST] = max(loss for loss, _ in told), 1.0
    if grad_norm is not None and not sick_grad:
        row[_GRAD], row[_HAS_GRAD] = grad_norm, 1.0
    for place, name in enumerate(EXTRAS):
        value = extra.get(name)
        if value is not None and math.isfinite(value):
            row[_FIXED + 2 * place], row[_FIXED + 2 * place + 1] = 1.0, value
    return _alone(row) if agreement.world_size == 1 else _read(agreement.table(row))


def _alone(row: Sequence[float]) -> Numbers:
    """Return what `_read` returns for the only rank, without the cost of NumPy."""
    sick_loss, sick_grad, overflow = row[_SICK_LOSS] > 0, row[_SICK_GRAD] > 0, row[_OVERFLOW] > 0
    sick = sick_loss or (sick_grad and not overflow)
    grad_norm = math.nan if sick_grad else row[_GRAD] if row[_HAS_GRAD] else None
    return Numbers(
        loss=math.nan if sick_loss or not row[_LABELS] else row[_LOSS] / row[_LABELS],
        worst_micro_loss=row[_WORST] if row[_HAS_WORST] else None,
        grad_norm=grad_norm,
        finite=not sick,
        sick_ranks=(0,) if sick else (),
        overflow=overflow,
        failed=row[_FAILED] > 0,
        extra={
            name: row[_FIXED + 2 * place + 1] for place, name in enumerate(EXTRAS) if row[_FIXED + 2 * place]
        },
    )


def _read(table: npt.NDArray[np.float64]) -> Numbers:
    # A NaN in the loss of one rank is in everyone's gradients: the loss says whose it was.
    sick = table[:, _SICK_LOSS] > 0
    overflow = bool(table[:, _OVERFLOW].any()) and not sick.any()
    if not sick.any() and not overflow:
        sick = table[:, _SICK_GRAD] > 0
    labels = float(table[:, _LABELS].sum())
    worst = table[table[:, _HAS_WORST] > 0, _WORST]
    grads = table[table[:, _HAS_GRAD] > 0, _GRAD]
    grad_norm: float | None = float(grads.max()) if len(grads) else None
    if table[:, _SICK_GRAD].any():
        grad_norm = math.nan
    extra = {}
    for place, name in enumerate(EXTRAS):
        given = table[table[:, _FIXED + 2 * place] > 0, _FIXED + 2 * place + 1]
        if len(given):
            extra[name] = float(given[0])
    return Numbers(
        loss=math.nan if table[:, _SICK_LOSS].any() or not labels else math.fsum(table[:, _LOSS]) / labels,
        worst_micro_loss=None if table[:, _SICK_LOSS].any() or not len(worst) else float(worst.max()),
        grad_norm=grad_norm,
        finite=not sick.any(),
        sick_ranks=tuple(np.flatnonzero(sick).tolist()),
        overflow=overflow,
        failed=bool(table[:, _FAILED].any()),
        extra=extra,
    )


def number(value: Any) -> float:
    """Return a metric as a float: a number, or a tensor of one element, sharded or not."""
    if isinstance(value, torch.Tensor):
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        return float(value.detach())
    return float(value)


def numbers(values: Sequence[Any]) -> list[float]:
    """Return several as floats, with one copy from the device where all are tensors on one."""
    plain = all(type(value) is torch.Tensor and value.numel() == 1 for value in values)
    if plain and all(value.device.type == "cpu" for value in values):
        return [float(value.item()) for value in values]
    if len(values) > 1 and plain and len({value.device for value in values}) == 1:
        return [
            float(value) for value in torch.stack([value.detach().reshape(()) for value in values]).tolist()
        ]
    return [number(value) for value in values]
