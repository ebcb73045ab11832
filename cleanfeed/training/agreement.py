"""The numbers of one rank go in; the numbers of all ranks, the same on each of them, come out.

Each step needs one decision for all ranks, so the few numbers it rests on are shared first: every rank fills its own
row of a ``[world, columns]`` table of float64 zeros, and one all-reduce (sum) completes the table everywhere. Adding
zeros is exact, so the order in which ranks are added cannot matter, and the table still says whose NaN it was.
Non-finite numbers never travel as such (a NaN would erase the sums of the others): they are counted in a column.

Works on gloo and NCCL; without ``torch.distributed`` nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from cleanfeed.errors import TrainingError, one_line

Value = TypeVar("Value")


class Agreement:
    """What the ranks of a run tell each other; every method is a collective: all ranks call it, in the same order.

    Args:
        group: Process group; None is the default one, where `torch.distributed` was initialised.
    """

    def __init__(self, group: Any = None) -> None:
        self.distributed = dist.is_available() and dist.is_initialized()
        self.group = group
        self.rank = dist.get_rank(group) if self.distributed else 0
        self.world_size = dist.get_world_size(group) if self.distributed else 1
        self._device = torch.device("cpu")
        if self.distributed and dist.get_backend(group) == "nccl":
            self._device = torch.device("cuda", torch.cuda.current_device())

    def table(self, row: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the rows of all ranks, shape [world, columns], float64; the same bits on every rank.

        Args:
            row: Finite numbers of this rank; every rank gives as many.
        """
        mine = np.asarray(row, dtype=np.float64)[None, :]
        if self.world_size == 1:
            return mine
        rows = torch.zeros((self.world_size, mine.shape[1]), dtype=torch.float64)
        rows[self.rank] = torch.from_numpy(mine[0])
        rows = rows.to(self._device)
        dist.all_reduce(rows, group=self.group)
        return rows.cpu().numpy()

    def on_first(self, make: Callable[[], Value]) -> Value:
        """Return on every rank what rank 0 makes; for rare events only, since it is pickled.

        Whatever rank 0 raises is raised on every rank.
        """
        if self.world_size == 1:
            return make()
        box: list[Any] = [None]
        if self.rank == 0:
            try:
                box = [(make(), None)]
            except Exception as error:  # noqa: BLE001 - the other ranks wait: they must hear of any error
                box = [(None, error)]
        source = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        dist.broadcast_object_list(box, src=source, group=self.group, device=self._device)
        value, problem = box[0]
        if problem is not None:
            raise problem
        result: Value = value
        return result

    def all(self, value: Any) -> list[Any]:
        """Return the values of all ranks in order; for rare events only, since they are pickled."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def raise_first(self, error: Exception | None, doing: str) -> None:
        """Raise on every rank if any rank gives an error: its own on a rank that has one, else a line that names it."""
        errors = self.all(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        failed = [(rank, text) for rank, text in enumerate(errors) if text is not None]
        if failed:
            rank, text = failed[0]
            raise TrainingError(one_line(f"{doing} failed on another rank", f"rank {rank}", got=text))
