"""The numbers of one rank go in; the numbers of all ranks, the same on each of them, come out.

Each step needs one decision for all ranks, so the few numbers it rests on are shared first: one all-gather gives every
rank the same ``[world, columns]`` table of float64, row r from rank r. What is added up or compared, each rank works
out from the table in the order of its rows, so the same bits come out everywhere, and the table says whose NaN it was.

Works on gloo and NCCL; without ``torch.distributed`` nothing is sent.
"""

from __future__ import annotations

import math
import pickle
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
        self.broken: Exception | None = None
        """Why this rank cannot go on; told to the others before they wait for it."""

    def table(self, row: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the rows of all ranks, shape [world, columns], float64; the same bits on every rank.

        Args:
            row: Numbers of this rank; every rank gives as many.
        """
        mine = np.asarray(row, dtype=np.float64)[None, :]
        if self.world_size == 1:
            return mine
        rows = torch.empty((self.world_size, mine.shape[1]), dtype=torch.float64, device=self._device)
        dist.all_gather(list(rows), torch.from_numpy(mine[0]).to(self._device), group=self.group)
        return rows.cpu().numpy()

    def total(self, row: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, column by column; the same bits on every rank."""
        return list(row) if self.world_size == 1 else added(self.table(row))

    def on_first(self, make: Callable[[], Value]) -> Value:
        """Return on every rank what rank 0 makes; for rare events only, since it is pickled.

        Whatever rank 0 raises is raised on every rank. Where it cannot go on it makes nothing, and raises that.
        """
        if self.world_size == 1:
            return make()
        box: list[Any] = [None]
        if self.rank == 0:
            try:
                if self.broken is not None:
                    raise self.broken
                box = [(make(), None)]
            except Exception as error:  # noqa: BLE001 - the other ranks wait: they must hear of any error
                box = [(None, _portable(error))]
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

    def alone(self, work: Callable[..., object], *given: Any) -> None:
        """Do what no other rank waits for, not a collective; where it fails, they hear of it in `all_well`."""
        try:
            work(*given)
        except Exception as error:
            if self.world_size == 1:
                raise
            self.broken = self.broken or error

    def all_well(self) -> None:
        """Raise on every rank where any of them cannot go on."""
        self.raise_first(self.broken, "training")

    def raise_first(self, error: Exception | None, doing: str) -> None:
        """Raise on every rank if any rank gives an error: its own on a rank that has one, else a line that names it."""
        errors = self.all(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        failed = [(rank, text) for rank, text in enumerate(errors) if text is not None]
        if failed:
            rank, text = failed[0]
            raise TrainingError(one_line(f"{doing} failed on another rank", f"rank {rank}", got=text))


def _portable(error: Exception) -> Exception:
    """Return an error that other ranks can be sent: itself, or a line that names it where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - pickling calls what the error's own class brings along
        return TrainingError(one_line("the first rank failed", "rank 0", f"{type(error).__name__}: {error}"))
    return error


def added(table: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """Return the sums of a table's columns, rounded once, so that the order of ranks cannot matter."""
    return [math.fsum(column) for column in table.T.tolist()]
