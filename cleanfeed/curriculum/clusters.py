"""Signatures and documents sorted by a band key go in; clusters of documents with like signatures come out.

Two documents that share a key are compared once, unless they are known to belong together already, and join when
enough places of their signatures agree. Clusters are what is connected so, whatever the order of the comparisons.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import Kernel, inner
from cleanfeed.signals.minhash import UInt32, UInt64, equal_places

Int64 = npt.NDArray[np.int64]

LEADERS = 16
"""Each document is compared with so many of its key before it: a key that half the corpus has costs no more each."""
_CHUNK = 1 << 13
"""Pairs compared at a time: their signatures are in memory."""
_GAP = 4
"""Rows of a signature file that are read along rather than passed over."""


class SignatureFile:
    """Rows of equal size on disk, written one after another and read by number.

    The file is read, not mapped: what is read counts as this process' memory only for as long as it is used.
    """

    def __init__(self, path: Path, hashes: int) -> None:
        """Begin an empty file for signatures of so many places."""
        self.hashes = hashes
        self.rows = 0
        self._open = ExitStack()
        self._file = self._open.enter_context(path.open("wb+"))

    def __enter__(self) -> SignatureFile:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._open.__exit__(kind, error, trace)

    def append(self, signatures: UInt32) -> Int64:
        """Write signatures and return the numbers of their rows."""
        self._file.write(signatures.tobytes())
        first, self.rows = self.rows, self.rows + len(signatures)
        return np.arange(first, self.rows)

    def read(self, rows: Int64) -> UInt32:
        """Return the signatures of the rows given, in their order."""
        self._file.flush()
        size = 4 * self.hashes
        wanted, back = np.unique(rows, return_inverse=True)
        parts: list[UInt32] = []
        cuts = np.flatnonzero(np.diff(wanted) > _GAP) + 1
        for run in np.split(wanted, cuts):
            first, stop = int(run[0]), int(run[-1]) + 1
            data = os.pread(self._file.fileno(), (stop - first) * size, first * size)
            parts.append(np.frombuffer(data, np.uint32).reshape(-1, self.hashes)[run - first])
        found: UInt32 = np.concatenate(parts)[back.reshape(-1)]
        return found


class Clusters:
    """Sets of rows of a signature file that grow together."""

    def __init__(self, signatures: SignatureFile, min_similarity: float, leaders: int = LEADERS) -> None:
        """Begin with every row on its own.

        Args:
            signatures: All signatures, written.
            min_similarity: Share of equal places from which on two rows belong together.
            leaders: With how many rows of the same key, at most, each is compared.
        """
        self.signatures = signatures
        self.leaders = leaders
        # A share such as 0.3 of 10 places is 3, not the 3.0000000000000004 that the product may be.
        self.enough = math.ceil(min_similarity * signatures.hashes - 1e-9)
        kind = np.int32 if signatures.rows < 1 << 31 else np.int64
        self.parent = np.arange(signatures.rows, dtype=kind)

    def join_equal_keys(self, batches: Iterator[tuple[UInt64, Int64]]) -> None:
        """Compare rows with those of the same key before them.

        Args:
            batches: Keys in ascending order and their rows; batches may end anywhere.
        """
        keys, rows = np.empty(0, np.uint64), np.empty(0, np.int64)
        for more_keys, more_rows in batches:
            keys, rows = np.concatenate([keys, more_keys]), np.concatenate([rows, more_rows])
            first = _first_of_key(keys)
            self._join(rows, first)
            # The key at the end may go on in the next batch, with the same leaders.
            leaders = slice(int(first[-1]), int(first[-1]) + self.leaders) if len(first) else slice(0)
            keys, rows = keys[leaders], rows[leaders]

    def _join(self, rows: Int64, first: Int64) -> None:
        # One leader after another: who has joined the first is not compared with the second.
        for leader in range(self.leaders):
            left, right, told = np.empty_like(rows), np.empty_like(rows), np.zeros(2, np.int64)
            _apart(rows, first, leader, self.parent, left, right, told)
            count, deeper = told.tolist()
            for at in range(0, count, _CHUNK):
                chunk = slice(at, min(at + _CHUNK, count))
                self._compare(left[chunk], right[chunk])
            if not deeper:
                break

    def _compare(self, left: Int64, right: Int64) -> None:
        found = self.signatures.read(np.concatenate([left, right]))
        alike = equal_places(found[: len(left)], found[len(left) :]) >= self.enough
        _unite(left[alike], right[alike], self.parent)

    def joined(self, size: int = 1 << 20) -> Iterator[tuple[Int64, Int64]]:
        """Yield the rows that are not alone, and for each a row that stands for its cluster."""
        together = np.zeros(len(self.parent), np.bool_)
        _flatten(self.parent, together)
        for at in range(0, len(self.parent), size):
            rows = at + np.flatnonzero(together[at : at + size])
            yield rows, self.parent[rows].astype(np.int64)


def warm_up_clusters() -> None:
    """Compile the kernels, or load them from the cache on disk."""
    one, parent = np.zeros(1, np.int64), np.zeros(1, np.int32)
    _apart(
        one, _first_of_key(np.zeros(1, np.uint64)), 0, parent, one.copy(), one.copy(), np.zeros(2, np.int64)
    )
    _unite(one, one, parent)
    _flatten(parent, np.zeros(1, np.bool_))


def _first_of_key(keys: UInt64) -> Int64:
    """Return for each place of an ascending array where its key begins."""
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = keys[1:] != keys[:-1]
    starts = np.flatnonzero(begins)
    return np.repeat(starts, np.diff(starts, append=len(keys)))


@inner
def _root(row: Any, parent: Any) -> Any:  # pragma: no cover - compiled
    """Return the row that stands for a cluster, and halve the way to it."""
    while parent[row] != row:
        parent[row] = parent[parent[row]]
        row = np.int64(parent[row])
    return row


@Kernel
def _apart(
    rows: Any, first: Any, leader: Any, parent: Any, left: Any, right: Any, told: Any
) -> None:  # pragma: no cover - compiled
    """Find the pairs of a row and a leader of its key that are not known to belong together.

    They go to ``left`` and ``right``; to ``told`` goes how many they are, and whether any key has a further leader.
    """
    count, deeper = 0, False
    for i in range(len(rows)):
        if i - first[i] > leader:
            deeper |= i - first[i] > leader + 1
            other = rows[first[i] + leader]
            if _root(other, parent) != _root(rows[i], parent):
                left[count], right[count] = other, rows[i]
                count += 1
    told[0], told[1] = count, deeper


@Kernel
def _unite(left: Any, right: Any, parent: Any) -> None:  # pragma: no cover - compiled
    """Join the clusters of each pair; the lesser row stands for both."""
    for i in range(len(left)):
        one, two = _root(left[i], parent), _root(right[i], parent)
        parent[max(one, two)] = min(one, two)


@Kernel
def _flatten(parent: Any, together: Any) -> None:  # pragma: no cover - compiled
    """Let each row name what stands for its cluster, and mark those in ``together`` that are not alone."""
    for row in range(len(parent)):
        root = _root(np.int64(row), parent)
        parent[row] = root
        if root != row:
            together[row] = together[root] = True
