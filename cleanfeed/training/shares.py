"""The micro-batches of one step go in; how much each of them weighs, and what all ranks together train, come out.

The loss of a micro-batch is a mean over its label tokens. For the gradient to be that of the mean over all label
tokens of the global batch, however these are spread over ranks and micro-batches, the loss of micro-batch m is
multiplied before ``backward`` by

    weight_m = world_size x labels_m / labels of the global batch

and DistributedDataParallel divides by ``world_size``. A label token is a label other than -100 that some position
predicts, so the first label of a row counts nowhere: models shift labels by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cleanfeed.errors import TrainingError, one_line
from cleanfeed.training.agreement import Agreement

IGNORED = -100
NO_SAMPLE = -1


@dataclass(frozen=True, slots=True)
class Shares:
    """What the micro-batches of this rank are of the whole."""

    labels: tuple[int, ...]
    """Label tokens of each micro-batch of this rank; rows where batches have no labels."""
    weights: tuple[float, ...]
    """What the mean loss of each micro-batch is multiplied by."""
    samples: int
    """Rows of the global batch that are samples."""
    tokens: int
    """Their tokens; code points where batches hold text."""
    failed: bool = False
    """A rank could not load its part."""


def sample_ids(batch: Any) -> npt.NDArray[np.int64]:
    """Return the row numbers a batch carries, shape [rows]; -1 for a row that is no sample.

    Raises:
        TrainingError: It carries none.
    """
    ids = batch.get("sample_ids") if isinstance(batch, Mapping) else None
    if ids is None:
        got = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise TrainingError(
            one_line(
                "a batch does not say which samples it holds",
                "loader",
                got,
                "a mapping with sample_ids",
                "Use PadCollator or FlattenCollator, or carry sample_ids through your own.",
            )
        )
    return np.asarray(ids.cpu() if isinstance(ids, torch.Tensor) else ids, dtype=np.int64).reshape(-1)


def share(
    agreement: Agreement,
    batches: Sequence[Any],
    ids: Sequence[npt.NDArray[np.int64]],
    *,
    failed: bool = False,
) -> Shares:
    """Count what this rank holds, add up over all ranks (one small all-reduce), and weigh.

    Args:
        agreement: Of the ranks.
        batches: The micro-batches of this rank.
        ids: Their `sample_ids`.
        failed: This rank could not load its part; it takes part with nothing, so that no other waits for it.
    """
    labels = tuple(_labels(batch, rows) for batch, rows in zip(batches, ids, strict=True))
    samples = sum(int((rows != NO_SAMPLE).sum()) for rows in ids)
    tokens = sum(_tokens(batch, rows) for batch, rows in zip(batches, ids, strict=True))
    total = [sum(labels), samples, tokens, int(failed)]
    if agreement.world_size > 1:
        total = agreement.table(total).sum(axis=0).astype(np.int64).tolist()
    whole = max(1, total[0])
    return Shares(
        labels=labels,
        weights=tuple(agreement.world_size * count / whole for count in labels),
        samples=total[1],
        tokens=total[2],
        failed=total[3] > 0,
    )


def _labels(batch: Mapping[str, Any], rows: npt.NDArray[np.int64]) -> int:
    labels = batch.get("labels")
    if labels is None:
        return int((rows != NO_SAMPLE).sum())
    if labels.device.type == "cpu":
        return int(np.count_nonzero(labels.numpy()[..., 1:] != IGNORED))
    return int((labels[..., 1:] != IGNORED).sum())


def _tokens(batch: Mapping[str, Any], rows: npt.NDArray[np.int64]) -> int:
    """Return the tokens of those rows of a batch that are samples."""
    real = rows != NO_SAMPLE
    if "cu_seqlens" in batch:
        return int(np.diff(np.asarray(batch["cu_seqlens"].cpu()))[real].sum())
    mask = batch.get("attention_mask", batch.get("input_ids"))
    if mask is None:
        return sum(
            len(text) for text, is_sample in zip(batch.get("text", ()), real, strict=False) if is_sample
        )
    if "attention_mask" not in batch:
        return int(real.sum()) * int(mask.shape[-1])
    if mask.device.type == "cpu":
        values = mask.numpy()
        return int((values if real.all() else values[real]).sum())
    return int(mask.sum() if real.all() else mask[torch.from_numpy(real).to(mask.device)].sum())
