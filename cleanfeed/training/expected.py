"""A sampler goes in; what each slot must deliver, and what the ledger says of it, comes out, worked out in blocks.

The cost of the order is that of calls to NumPy, so many slots are worked out at once and kept until what is left out
changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleanfeed.errors import TrainingError, one_line
from cleanfeed.feed.identity import Hashes, SampleHashes, batch_hash
from cleanfeed.feed.sampler import CurriculumSampler
from cleanfeed.feed.schedule import Block, rank_part

BLOCK_ROWS = 1 << 13
"""Rows whose order and hashes are worked out at once."""


@dataclass(frozen=True, slots=True)
class Due:
    """One slot as it must be delivered."""

    slot: int
    epoch: int
    stage: int
    context: str
    """Stage and band: baselines are kept for each."""
    ids: npt.NDArray[np.int64]
    """``sample_ids`` of this rank's rows, -1 for pad rows."""
    batch_hash: str
    """Of the global batch; empty where it was not asked for."""


class Expected:
    """What the slots of a run hold.

    Args:
        sampler: The sampler of the loop.
        hashes: Whether batch hashes are wanted; rank 0 alone writes them.
    """

    def __init__(self, sampler: CurriculumSampler, *, hashes: bool) -> None:
        self._sampler = sampler
        self._hashes = SampleHashes(sampler.curriculum) if hashes else None
        self._block: Block | None = None
        self._rows: npt.NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        self._of_rows: Hashes = np.zeros((0, 0), dtype=np.uint8)
        self._stages: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._version = -1

    def of(self, slot: int) -> Due:
        """Return what a slot holds, with what is left out now."""
        sampler, block = self._sampler, self._block
        if block is None or not 0 <= slot - block.first < len(block.rows) or self._version != self._now():
            block = self._work_out(slot)
        at = slot - block.first
        mine = self._rows[at, rank_part(block, at, sampler.rank, sampler.world_size)]
        stage = sampler.curriculum.catalog.stages[int(self._stages[at])]
        return Due(
            slot=slot,
            epoch=sampler.schedule.epoch(slot),
            stage=stage.index,
            context=f"{stage.index}/{stage.band}",
            ids=mine,
            batch_hash="" if self._hashes is None else batch_hash(self._of_rows[at]),
        )

    def _now(self) -> int:
        return self._sampler.exclusions.version

    def _work_out(self, slot: int) -> Block:
        sampler = self._sampler
        block = self._block = sampler.schedule.block(slot, BLOCK_ROWS)
        self._rows = sampler.exclusions.blanked(block.rows)
        self._stages = sampler.curriculum.catalog.stages_at(np.maximum(block.rows[:, 0], 0))
        if self._hashes is not None:
            count, size = self._rows.shape
            self._of_rows = self._hashes.of(self._rows.reshape(-1)).reshape(count, size, -1)
        self._rows = np.where(self._rows < 0, -1, self._rows)
        self._version = self._now()
        return block


def check(due: Due, got: npt.NDArray[np.int64], rank: int) -> None:
    """Hold what a loader delivered against what is due.

    Args:
        due: The slot.
        got: ``sample_ids`` of this rank's rows, in the order they came.
        rank: This rank.

    Raises:
        TrainingError: They differ; the message names the first row that does.
    """
    expected = due.ids
    if len(got) == len(expected) and (got == expected).all():
        return
    at = int(np.flatnonzero(got != expected)[0]) if len(got) == len(expected) else -1
    raise TrainingError(
        one_line(
            "the loader delivered other samples than the sampler says",
            f"slot {due.slot}, rank {rank}" + (f", row {at}" if at >= 0 else ""),
            f"sample {got[at]}" if at >= 0 else f"{len(got)} rows",
            f"sample {expected[at]}" if at >= 0 else f"{len(expected)} rows",
            "Give the DataLoader this guard's sampler as batch_sampler, with in_order=True, and iterate nothing else "
            "over it.",
        )
    )
