"""What each rank saw of a step goes in; the numbers the decision rests on, the same on every rank, come out.

One collective a step. A value that is not finite is never added to another: it is counted instead, so that a NaN on one
rank makes the step non-finite for all and spoils nobody's mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from cleanfeed.arguments import wrong
from cleanfeed.training.agreement import Agreement, added
from cleanfeed.training.metrics import SAMPLE_HIGH, SAMPLE_LOW

EXTRAS = ("val_loss", "layer_ratio", "update_norm", "activation_mean", "activation_kurtosis", "loss_scale")
"""Metrics that detectors read: where ranks give different values, that of the lowest rank which gives one counts."""
_FAILED, _SICK_LOSS, _SICK_GRAD, _OVERFLOW, _LOSS, _LABELS, _WORST, _HAS_WORST, _GRAD, _HAS_GRAD = range(10)
_FIXED = 10
_HIGH = _FIXED + 2 * len(EXTRAS)
_LOW = _HIGH + len(SAMPLE_HIGH)
_SAMPLES = _LOW + len(SAMPLE_LOW)
_NONE = -1.0
"""In place of the loss of a sample that a rank does not have."""


class Numbers(msgspec.Struct, frozen=True):
    """The numbers of one step over all ranks."""

    loss: float
    """Mean over all label tokens, NaN where any rank's is not finite."""
    worst_micro_loss: float | None
    grad_norm: float | None
    """Largest of any rank; None where no rank gave one; NaN where any rank's is not finite."""
    finite: bool
    """Loss and gradient norm are finite on every rank."""
    empty: bool
    """No rank has a label token, so that there is no loss."""
    sick_ranks: tuple[int, ...]
    """Ranks whose loss is not finite; where all are, those whose gradient norm is not."""
    overflow: bool
    """The scaled gradients of half precision overflowed while the loss is finite: a scaler settles that way."""
    failed: bool
    """A rank cannot go on."""
    extra: Mapping[str, float]
    samples: Mapping[str, float]
    """The highest and lowest losses of single samples, by the names of `SAMPLE_HIGH` and `SAMPLE_LOW`."""
    carried: list[float]
    """Sums over all ranks of what travelled along."""


def combine(
    agreement: Agreement,
    losses: Sequence[float],
    labels: Sequence[int],
    grad_norm: float | None,
    extra: Mapping[str, float],
    samples: Sequence[float] = (),
    *,
    scaled: bool = False,
    failed: bool = False,
    carry: Sequence[float] = (),
) -> Numbers:
    """Return the numbers of a step; a collective of all ranks.

    Args:
        agreement: Of the ranks.
        losses: Mean loss of each micro-batch of this rank.
        labels: Their label tokens; a micro-batch without any has no loss, whatever it says.
        grad_norm: As this rank has it.
        extra: Further metrics of this rank.
        samples: Losses of this rank's samples, where the loop tells them.
        scaled: A gradient scaler is at work, so a gradient norm that is not finite is its business.
        failed: This rank cannot go on.
        carry: Further finite numbers that are added up over all ranks.
    """
    counted = [(loss, count) for loss, count in zip(losses, labels, strict=True) if count]
    sick_loss = not all(math.isfinite(loss) for loss, _ in counted)
    sick_grad = grad_norm is not None and not math.isfinite(grad_norm)
    mine = _Mine(
        failed=failed,
        sick_loss=sick_loss,
        sick_grad=sick_grad,
        overflow=sick_grad and scaled and not sick_loss,
        loss=0.0 if sick_loss else math.fsum([loss * count for loss, count in counted]),
        labels=0 if sick_loss else sum([count for _, count in counted]),
        worst=None if sick_loss or not counted else max([loss for loss, _ in counted]),
        grad_norm=None if sick_grad else grad_norm,
        extra={name: value for name, value in extra.items() if name in EXTRAS and math.isfinite(value)},
        samples=sorted(samples),
    )
    if agreement.world_size == 1:
        return _alone(mine, list(carry))
    table = agreement.table([*_row(mine), *carry])
    return _read(table, added(table[:, _SAMPLES + 1 :]))


class _Mine(msgspec.Struct):
    """What this rank saw of a step."""

    failed: bool
    sick_loss: bool
    sick_grad: bool
    overflow: bool
    loss: float
    """Sum over its label tokens; 0 where it is not finite."""
    labels: int
    worst: float | None
    grad_norm: float | None
    extra: dict[str, float]
    """Finite ones of `EXTRAS`."""
    samples: list[float]
    """Losses of its samples, rising."""


def _alone(mine: _Mine, carried: list[float]) -> Numbers:
    """Return the numbers of the only rank."""
    sick = mine.sick_loss or (mine.sick_grad and not mine.overflow)
    return Numbers(
        loss=mine.loss / mine.labels if mine.labels else math.nan,
        worst_micro_loss=mine.worst,
        grad_norm=math.nan if mine.sick_grad else mine.grad_norm,
        finite=not sick,
        empty=not mine.labels and not mine.sick_loss,
        sick_ranks=(0,) if sick else (),
        overflow=mine.overflow,
        failed=mine.failed,
        extra=mine.extra,
        samples=_samples(*_ends(mine.samples), len(mine.samples)) if mine.samples else {},
        carried=carried,
    )


def _row(mine: _Mine) -> list[float]:
    """Return what the other ranks are told: numbers alone."""
    row = [0.0] * (_SAMPLES + 1)
    row[_FAILED], row[_OVERFLOW] = float(mine.failed), float(mine.overflow)
    row[_SICK_LOSS], row[_SICK_GRAD] = float(mine.sick_loss), float(mine.sick_grad)
    row[_LOSS], row[_LABELS] = mine.loss, float(mine.labels)
    if mine.worst is not None:
        row[_WORST], row[_HAS_WORST] = mine.worst, 1.0
    if mine.grad_norm is not None:
        row[_GRAD], row[_HAS_GRAD] = mine.grad_norm, 1.0
    for place, name in enumerate(EXTRAS):
        if name in mine.extra:
            row[_FIXED + 2 * place], row[_FIXED + 2 * place + 1] = 1.0, mine.extra[name]
    high, low = _ends(mine.samples)
    row[_HIGH:] = [*high, *low, float(len(mine.samples))]
    return row


def _ends(ordered: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the highest losses, falling, and the lowest, rising, of those in order, each filled up with `_NONE`."""
    high, low = list(ordered[: -len(SAMPLE_HIGH) - 1 : -1]), list(ordered[: len(SAMPLE_LOW)])
    high += [_NONE] * (len(SAMPLE_HIGH) - len(high))
    low += [_NONE] * (len(SAMPLE_LOW) - len(low))
    return high, low


def _samples(high: Sequence[float], low: Sequence[float], count: float) -> dict[str, float]:
    """Return the k-th highest and lowest losses by name; the k-th only of at least 2 k samples."""
    named = [*zip(SAMPLE_HIGH, high, strict=True), *zip(SAMPLE_LOW, low, strict=True)]
    places = [*range(1, len(SAMPLE_HIGH) + 1), *range(1, len(SAMPLE_LOW) + 1)]
    return {name: value for (name, value), k in zip(named, places, strict=True) if 2 * k <= count}


def _read(table: npt.NDArray[np.float64], carried: list[float]) -> Numbers:
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
    ends = table[:, _HIGH:_SAMPLES]
    high = sorted(ends[:, : len(SAMPLE_HIGH)].ravel().tolist(), reverse=True)[: len(SAMPLE_HIGH)]
    low = sorted(one for one in ends[:, len(SAMPLE_HIGH) :].ravel().tolist() if one != _NONE)
    low = [*low, *[_NONE] * len(SAMPLE_LOW)][: len(SAMPLE_LOW)]
    return Numbers(
        loss=math.nan if table[:, _SICK_LOSS].any() or not labels else math.fsum(table[:, _LOSS]) / labels,
        worst_micro_loss=None if table[:, _SICK_LOSS].any() or not len(worst) else float(worst.max()),
        grad_norm=grad_norm,
        finite=not sick.any(),
        empty=not labels and not table[:, _SICK_LOSS].any(),
        sick_ranks=tuple(np.flatnonzero(sick).tolist()),
        overflow=overflow,
        failed=bool(table[:, _FAILED].any()),
        extra=extra,
        samples=_samples(high, low, float(table[:, _SAMPLES].sum())),
        carried=carried,
    )


def told(call: str, argument: str, value: Any) -> Any:
    """Return a number that the loop tells; as a tensor where it lies on a device, since to read it is to wait.

    Raises:
        MisuseError: It is neither a number nor a tensor of one.
    """
    if type(value) is torch.Tensor and value.is_cpu and value.dim() == 0:
        read = value.item()
        if type(read) is float:
            return read
    check_number(call, argument, value)
    return value.detach() if isinstance(value, torch.Tensor) else value


def check_number(call: str, argument: str, value: Any) -> None:
    """Refuse what is neither a number nor a tensor of one; a bool is no number, and None is none."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype == torch.bool:
            what = f"a tensor of one number; this one has shape {list(value.shape)} and type {value.dtype}"
            raise wrong(call, argument, value, what)
    elif isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "fiu":
        return  # what `loss.numpy()` is
    elif isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise wrong(call, argument, value, "a number or a tensor of one")


def number(value: Any) -> float:
    """Return a metric as a float: a number, or a tensor of one element, sharded or not."""
    if isinstance(value, torch.Tensor):
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        return float(value.detach())
    return float(value)


def numbers(values: Sequence[Any], rows: Sequence[torch.Tensor] = ()) -> tuple[list[float], list[float]]:
    """Return several numbers, and the elements of some tensors, as floats.

    They are copied from the device once where all of them are tensors on one.
    """
    if not rows and all(type(value) is float for value in values):
        return list(values), []
    if len(values) > 1 and all(type(value) is torch.Tensor and not value.is_cpu for value in values):
        devices = {value.device for value in (*values, *rows)}
        if len(devices) == 1:
            flat = torch.cat([value.detach().reshape(-1) for value in (*values, *rows)]).tolist()
            return flat[: len(values)], flat[len(values) :]
    return [number(value) for value in values], [one for row in rows for one in row.reshape(-1).tolist()]
