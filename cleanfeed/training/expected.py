"""A sampler goes in; what each slot must deliver, and what the ledger says of it, comes out, worked out in blocks.

One slot alone costs as many calls to NumPy as a thousand, so many are worked out at once and kept until what is left
out changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleanfeed.errors import TrainingError, one_line
from cleanfeed.feed.identity import SampleHashes, batch_hash
from cleanfeed.feed.sampler import CurriculumSampler
from cleanfeed.feed.samples import NO_SAMPLE
from cleanfeed.feed.schedule import rank_part

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
    micro_batches: int
    """How many this rank has of it."""
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
        self._first = 0
        self._block: list[Due] = []
        """What the slots from the first one on hold, with what was left out at this version."""
        self._version = -1

    def of(self, slot: int) -> Due:
        """Return what a slot holds, with what is left out now."""
        at = slot - self._first
        if not 0 <= at < len(self._block) or self._version != self._sampler.exclusions.version:
            self._block, self._first, at = self._work_out(slot), slot, 0
            self._version = self._sampler.exclusions.version
        return self._block[at]

    def _work_out(self, slot: int) -> list[Due]:
        """Return what a slot holds and some that follow."""
        sampler, catalog = self._sampler, self._sampler.curriculum.catalog
        block = sampler.schedule.block(slot, BLOCK_ROWS)
        rows = sampler.exclusions.blanked(block.rows)
        hashes = None if self._hashes is None else self._hashes.of(rows.reshape(-1)).reshape(*rows.shape, -1)
        rows = np.where(rows < 0, NO_SAMPLE, rows)
        micro_batches = sampler.micro_batches(slot)  # slots of a block have equally many rows
        stages = catalog.stages_at(np.maximum(block.rows[:, 0], 0)).tolist()
        return [
            Due(
                slot=slot + at,
                epoch=sampler.schedule.epoch(slot + at),
                stage=catalog.stages[stage].index,
                context=f"{catalog.stages[stage].index}/{catalog.stages[stage].band}",
                ids=rows[at, rank_part(block, at, sampler.rank, sampler.world_size)],
                micro_batches=micro_batches,
                batch_hash="" if hashes is None else batch_hash(hashes[at]),
            )
            for at, stage in enumerate(stages)
        ]


def check(due: Due, got: Sequence[npt.NDArray[np.int64]], rank: int) -> None:
    """Hold what a loader delivered against what is due.

    Args:
        due: The slot.
        got: ``sample_ids`` of each of this rank's micro-batches, in the order they came.
        rank: This rank.

    Raises:
        TrainingError: They differ; the message names the first row that does.
    """
    if b"".join([ids.tobytes() for ids in got]) == due.ids.tobytes():
        return
    found, expected = np.concatenate(got), due.ids
    at = int(np.flatnonzero(found != expected)[0]) if len(found) == len(expected) else -1
    raise TrainingError(
        one_line(
            "the loader delivered other samples than the sampler says",
            f"slot {due.slot}, rank {rank}" + (f", row {at}" if at >= 0 else ""),
            f"sample {found[at]}" if at >= 0 else f"{len(found)} rows",
            f"sample {expected[at]}" if at >= 0 else f"{len(expected)} rows",
            "Give the DataLoader this guard's sampler as batch_sampler, with in_order=True, and iterate nothing else "
            "over it.",
        )
    )
