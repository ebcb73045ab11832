"""Rows of a global batch go in; the hashes of its samples, and the one hash that names the batch, come out.

A batch hash is xxh3-128 over the 16-byte sample hashes of the whole global batch in slot order, 16 zero bytes for a
pad row. Ranks, micro-batches and workers have no part in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from cleanfeed.arguments import is_hash
from cleanfeed.errors import MisuseError, one_line
from cleanfeed.feed.catalog import Catalog, RowGroup
from cleanfeed.feed.pages import Files
from cleanfeed.feed.permutation import Int64

HASH_BYTES = 16
COLUMN = "sample_hash"
KEPT_BYTES = 32 * 2**20
"""Hashes that are kept once read: 2 million rows, all row groups that 64 lanes have open many times over."""
SEARCHERS = 8
"""Files that are searched at a time."""

Hashes = npt.NDArray[np.uint8]


class HasColumns(Protocol):
    """What is needed of a curriculum."""

    catalog: Catalog

    def columns(self, rows: Int64, names: list[str]) -> pa.Table:
        """Return columns of rows, in the order asked for."""


def hash_bytes(given: str | bytes) -> bytes:
    """Return a sample hash as 16 bytes.

    Raises:
        MisuseError: It is neither 32 hex digits nor 16 bytes.
    """
    if isinstance(given, bytes) and len(given) == HASH_BYTES:
        return given
    if is_hash(given):
        return bytes.fromhex(given)
    raise MisuseError(one_line("not a sample hash", "hashes", repr(given)[:60], "32 hex digits"))


def batch_hash(hashes: Hashes) -> str:
    """Return the hash of a global batch: hashes of its rows in slot order, shape [rows, 16], zeros for a pad row."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(hashes).tobytes())


class SampleHashes:
    """The column ``sample_hash`` of a curriculum, looked up by row and searched by hash.

    Args:
        curriculum: Where the rows are.
    """

    def __init__(self, curriculum: HasColumns) -> None:
        self.curriculum = curriculum
        self._kept: OrderedDict[int, Hashes] = OrderedDict()
        self._bytes = 0
        self._found: dict[bytes, tuple[int, ...]] = {}

    def of(self, rows: Int64) -> Hashes:
        """Return the hash of each row, shape [n, 16]; zeros where the row is negative, a pad row."""
        result: Hashes = np.zeros((len(rows), HASH_BYTES), dtype=np.uint8)
        real = np.flatnonzero(rows >= 0)
        groups, places = self.curriculum.catalog.groups_at(rows[real])
        for group in np.unique(groups):
            here = groups == group
            result[real[here]] = self._group(int(group))[places[here]]
        return result

    def rows_of(self, hashes: Iterable[bytes]) -> dict[bytes, tuple[int, ...]]:
        """Return the rows of each hash, none where there is no such sample; equal samples have more than one.

        Hashes not asked for before cost one pass over the column, however many they are; memory is that of one row
        group and of what is found.
        """
        wanted = list(dict.fromkeys(hashes))
        new = [one for one in wanted if one not in self._found]
        if new:
            found: dict[bytes, list[int]] = {one: [] for one in new}
            for one, row in self._search(new):
                found[one].append(row)
            self._found.update({one: tuple(rows) for one, rows in found.items()})
        return {one: self._found[one] for one in wanted}

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: nothing that can be read again."""
        return {"curriculum": self.curriculum, "_kept": OrderedDict(), "_bytes": 0, "_found": {}}

    def know(self, rows: dict[bytes, tuple[int, ...]]) -> None:
        """Take up what is already known, such as from a state of the same curriculum."""
        self._found.update(rows)

    def _search(self, wanted: list[bytes]) -> Iterator[tuple[bytes, int]]:
        """Yield each of the hashes with each of its rows, ascending, file by file."""
        catalog, files = self.curriculum.catalog, self.curriculum.catalog.file_groups()
        heads = np.sort(np.frombuffer(b"".join(wanted), dtype=np.uint64)[::2])
        sought = set(wanted)

        def of_file(groups: range) -> list[tuple[bytes, int]]:
            # Its own, for a ParquetFile is not for two threads.
            own = Files(catalog, "text" if catalog.tokenizer_digest is None else "input_ids")
            return [
                found for group in groups for found in _found_in(own, catalog.row_group(group), heads, sought)
            ]

        with ThreadPoolExecutor(min(SEARCHERS, len(files))) as pool:
            for found in pool.map(of_file, files):
                yield from found

    def _group(self, number: int) -> Hashes:
        hashes = self._kept.get(number)
        if hashes is None:
            place = self.curriculum.catalog.row_group(number)
            rows = np.arange(place.first_row, place.first_row + place.rows, dtype=np.int64)
            hashes = self._kept[number] = _array(self.curriculum.columns(rows, [COLUMN]))
            self._bytes += hashes.nbytes
            while self._bytes > KEPT_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        self._kept.move_to_end(number)
        return hashes


def _found_in(
    files: Files, place: RowGroup, heads: npt.NDArray[np.uint64], sought: set[bytes]
) -> list[tuple[bytes, int]]:
    """Return the hashes of a row group that are sought, and their rows; ``heads`` are their first halves, sorted."""
    hashes = _array(files.table(place, [COLUMN]))
    own = hashes.view(np.uint64)[:, 0]
    near = heads[np.minimum(np.searchsorted(heads, own), len(heads) - 1)]
    rows = np.flatnonzero(near == own).tolist()
    return [(one, place.first_row + row) for row in rows if (one := hashes[row].tobytes()) in sought]


def _array(table: pa.Table) -> Hashes:
    """Return the only column of a table, 16 bytes a row, as an array of shape [rows, 16]."""
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype=np.uint8).reshape(-1, HASH_BYTES)[
            chunk.offset : chunk.offset + len(chunk)
        ]
        for chunk in table.column(0).chunks
        if len(chunk)
    ]
    return np.concatenate(chunks)
