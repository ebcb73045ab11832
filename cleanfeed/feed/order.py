"""A stage, an epoch and positions in it go in; the rows that are trained there come out, and the way back.

Epoch 0 reads a stage as it was written, later epochs permute its full row groups and the rows of each. In either
case whole windows of Λ row groups are dealt over Λ lanes, so that neighbours in the order come from Λ row groups
and each lane reads its own from front to back. The specification is docs/order.md; it is frozen as `ORDER_VERSION`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cleanfeed.feed.permutation import Int64, UInt64, key_of, keys_of, permuted_all, restored_all

Move: TypeAlias = "Callable[[Int64, int, int | UInt64], Int64]"

ORDER_VERSION = 1
"""Changes when any slot of any schedule would hold other rows; a state of another version is refused."""
GROUPS, ROWS = 1, 2
"""What a key is for: the order of a stage's row groups, the order of the rows of one."""


@dataclass(frozen=True, slots=True)
class StageOrder:
    """The order of one stage, for any epoch. Positions and rows count from 0 within the stage."""

    number: int
    """Index of the stage in the curriculum."""
    samples: int
    group_rows: int
    """R: rows in a full row group."""
    lanes: int
    """Λ."""
    seed: int

    @property
    def full_groups(self) -> int:
        """Row groups of exactly R rows; what is left is one short group, always the last."""
        return self.samples // self.group_rows

    @property
    def windows(self) -> int:
        """Whole windows of Λ full row groups; the rest of the stage comes after them, one row group at a time."""
        return self.full_groups // self.lanes

    def rows(self, epoch: int, positions: Int64) -> Int64:
        """Return the row at each position of an epoch, both of shape [n]."""
        group, row = np.divmod(positions, self.group_rows)
        # The windows hold the same places, dealt otherwise, so the rest begins where they end.
        dealt = positions < self.windows * self.lanes * self.group_rows
        if dealt.any():
            window, place = np.divmod(positions, self.lanes * self.group_rows)
            group = np.where(dealt, window * self.lanes + place % self.lanes, group)
            row = np.where(dealt, place // self.lanes, row)
        if epoch:
            group = self._groups(permuted_all, epoch, group)
            row = self._within(permuted_all, epoch, group, row)
        return group * self.group_rows + row

    def positions(self, epoch: int, rows: Int64) -> Int64:
        """Return the position of each row in an epoch, both of shape [n]: the inverse of `rows`."""
        group, row = np.divmod(rows, self.group_rows)
        if epoch:
            row = self._within(restored_all, epoch, group, row)
            group = self._groups(restored_all, epoch, group)
        window, lane = np.divmod(group, self.lanes)
        dealt = window * self.lanes * self.group_rows + row * self.lanes + lane
        return np.where(window < self.windows, dealt, group * self.group_rows + row)

    def _groups(self, move: Move, epoch: int, groups: Int64) -> Int64:
        """Move full row groups; the short one stays where it is."""
        full = self.full_groups
        if full < 2:
            return groups
        moved = move(np.minimum(groups, full - 1), full, key_of(self.seed, epoch, self.number, GROUPS))
        return np.where(groups < full, moved, groups)

    def _within(self, move: Move, epoch: int, groups: Int64, rows: Int64) -> Int64:
        """Move the rows of each row group, which is named by where it was written."""
        keys = keys_of((self.seed, epoch, self.number, ROWS), groups)
        short = groups == self.full_groups
        moved = np.empty_like(rows)
        for these, size in ((~short, self.group_rows), (short, self.samples % self.group_rows)):
            if these.any():
                moved[these] = move(rows[these], size, keys[these])
        return moved
