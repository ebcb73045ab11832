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
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from numba import types

from cleanfeed.errors import TrainingError, one_line
from cleanfeed.feed.fills import IGNORED
from cleanfeed.feed.samples import NO_SAMPLE
from cleanfeed.kernel import kept
from cleanfeed.kernel_cache import ensure_cache

Int64 = npt.NDArray[np.int64]


class Counts(msgspec.Struct, frozen=True):
    """What one rank holds of a slot."""

    labels: tuple[int, ...] = ()
    """Label tokens of each of its micro-batches; rows where batches have no labels."""
    samples: int = 0
    """Its rows that are samples."""
    tokens: int = 0
    """Their tokens; code points where batches hold text."""
    failed: bool = False
    """It could not load its part."""

    def row(self) -> list[float]:
        """Return what is added up over all ranks."""
        return [float(sum(self.labels)), float(self.samples), float(self.tokens), float(self.failed)]


NOTHING = Counts()


class Shares(msgspec.Struct, frozen=True):
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


def sample_ids(batch: Any) -> Int64:
    """Return the row numbers a batch carries, shape [rows]; -1 for a row that is no sample.

    Raises:
        TrainingError: It carries none.
    """
    ids = batch.get("sample_ids") if type(batch) is dict or isinstance(batch, Mapping) else None
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
    if isinstance(ids, torch.Tensor):
        ids = ids.numpy() if ids.is_cpu else ids.cpu().numpy()
    return np.ascontiguousarray(ids, dtype=np.int64).reshape(-1)


def count(batches: Sequence[Any], ids: Sequence[Int64]) -> Counts:
    """Return what a rank holds of a slot.

    Args:
        batches: Its micro-batches.
        ids: Their `sample_ids`.
    """
    found = [_count(batch, rows) for batch, rows in zip(batches, ids, strict=True)]
    return Counts(
        labels=tuple([labels for labels, _, _ in found]),
        samples=sum([samples for _, samples, _ in found]),
        tokens=sum([tokens for _, _, tokens in found]),
    )


def weigh(counts: Counts, totals: Sequence[float], world_size: int) -> Shares:
    """Return what the micro-batches of a rank are of the whole.

    Args:
        counts: Of this rank.
        totals: The rows of all ranks, added up.
        world_size: Number of ranks.
    """
    labels, samples, tokens, failed = totals
    whole = max(1.0, labels)
    return Shares(
        labels=counts.labels,
        weights=tuple(world_size * count / whole for count in counts.labels),
        samples=int(samples),
        tokens=int(tokens),
        failed=failed > 0,
    )


def _count(batch: Mapping[str, Any], ids: Int64) -> tuple[int, int, int]:
    """Return label tokens, samples and tokens of a batch."""
    labels, mask = _table(batch.get("labels")), _table(batch.get("attention_mask"))
    if labels is not None and mask is not None and labels.shape == mask.shape and len(labels) == len(ids):
        return _count_padded(ids, labels, mask)
    real = ids != NO_SAMPLE
    return _labels(batch, real), int(np.count_nonzero(real)), _tokens(batch, real)


def _table(values: Any) -> Int64 | None:
    """Return a tensor as an array that compiled code takes, shape [rows, columns]; None where it is of another kind."""
    known = type(values) is torch.Tensor and values.is_cpu and values.dtype is torch.int64
    return values.numpy() if known and values.dim() == 2 and values.is_contiguous() else None


def _count_padded(ids: Int64, labels: Int64, mask: Int64) -> tuple[int, int, int]:
    """Return what `_count` does for rows that are padded to one length.

    numpy takes eight times as long for a small batch, and more than one pass for a large one.
    """
    label_tokens = samples = tokens = 0
    for row in range(len(ids)):
        for place in range(1, labels.shape[1]):
            label_tokens += labels[row, place] != IGNORED
        if ids[row] != NO_SAMPLE:
            samples += 1
            for place in range(mask.shape[1]):
                tokens += mask[row, place]
    return label_tokens, samples, tokens


ensure_cache(Path(__file__).parent)
_IDS, _ROWS = types.Array(types.int64, 1, "C", readonly=True), types.Array(types.int64, 2, "C")
_count_padded = kept(_count_padded, types.UniTuple(types.int64, 3)(_IDS, _ROWS, _ROWS), nogil=False)


def _labels(batch: Mapping[str, Any], real: npt.NDArray[np.bool_]) -> int:
    labels = batch.get("labels")
    if labels is None:
        return int(np.count_nonzero(real))
    return int((labels[..., 1:] != IGNORED).sum())


def _tokens(batch: Mapping[str, Any], real: npt.NDArray[np.bool_]) -> int:
    """Return the tokens of those rows of a batch that are samples."""
    if "cu_seqlens" in batch:
        return int(np.diff(np.asarray(batch["cu_seqlens"].cpu()))[real].sum())
    mask = batch.get("attention_mask", batch.get("input_ids"))
    if mask is None:
        return sum(
            len(text) for text, is_sample in zip(batch.get("text", ()), real, strict=False) if is_sample
        )
    if "attention_mask" not in batch:
        return int(real.sum()) * int(mask.shape[-1])
    return int((mask if real.all() else mask[torch.from_numpy(real).to(mask.device)]).sum())
