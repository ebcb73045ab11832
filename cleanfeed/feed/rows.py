"""Arrays of ids go in; the rows of a batch come out as places in memory, which compiled code reads without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ctypes import string_at
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import address_of

Ids: TypeAlias = "npt.NDArray[np.int32] | npt.NDArray[np.uint16]"
"""Ids as they lie in memory: in two bytes each where they come from a file of decoded row groups."""
Int64 = npt.NDArray[np.int64]


@dataclass(slots=True)
class Rows:
    """Where the ids of each row lie. It is handed to another process as a copy of them."""

    spans: Int64
    """Address of the first id, number of ids, and bytes of an id (2 or 4) of each row, shape [3, rows]."""
    held: Sequence[object]
    """What the ids lie in: it must not go as long as they may be read."""

    @classmethod
    def of(cls, ids: Iterable[npt.NDArray[np.int32]]) -> Rows:
        """Return rows of these ids, one array a row; they are copied."""
        arrays = list(ids)
        lengths = np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))
        return cls.cut(np.concatenate([NO_TOKENS, *arrays]), np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def cut(cls, ids: Ids, starts: Int64, lengths: Int64) -> Rows:
        """Return rows that are parts of one contiguous array: where each starts in it, and how many ids it has."""
        spans = np.empty((3, len(starts)), dtype=np.int64)
        np.multiply(starts, ids.itemsize, out=spans[0])
        spans[0] += address_of(ids)
        spans[1], spans[2] = lengths, ids.itemsize
        return cls(spans, (ids,))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.spans[0])

    def copy(self, number: int) -> npt.NDArray[np.int32]:
        """Return the ids of one row as an array of its own."""
        address, length, size = self.spans[:, number].tolist()
        kept = string_at(address, length * size)
        return np.frombuffer(kept, dtype=np.uint16 if size == 2 else np.int32).astype(np.int32)

    def clipped(self, longest: int) -> Rows:
        """Return the rows, of each no more than its first ``longest`` ids."""
        spans = self.spans.copy()
        np.minimum(spans[1], longest, out=spans[1])
        return Rows(spans, self.held)

    def __reduce__(self) -> tuple[Callable[..., Rows], tuple[Any, ...]]:
        """Pickle and copy by value: an address means nothing elsewhere."""
        return Rows.of, ([self.copy(number) for number in range(len(self))],)


NO_TOKENS: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)
NO_TOKENS.setflags(write=False)
