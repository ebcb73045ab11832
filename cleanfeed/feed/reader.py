"""Row numbers of a curriculum go in; views of their decoded values come out, in the one process that opened it."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanfeed.feed.catalog import Catalog
from cleanfeed.feed.decoded import Decoded
from cleanfeed.feed.decoded_files import DecodedFiles
from cleanfeed.feed.fills import find_spans, place_of
from cleanfeed.feed.pages import Columns, Files, Ragged
from cleanfeed.feed.rows import Rows

Int64 = npt.NDArray[np.int64]
MOST_MAPPED = 4096
"""Files mapped at once, however small: a process may have 65,530 maps."""


class Reader:
    """What one process has open and decoded of a build. Row numbers must be those of samples there are.

    Args:
        catalog: What the manifest says.
        cache_bytes: Decoded values it keeps, in bytes.
        decode_ahead: Whether a thread decodes what is expected.
        folder: Where decoded row groups are kept and mapped from; None: nowhere.
    """

    def __init__(
        self, catalog: Catalog, cache_bytes: int, *, decode_ahead: bool, folder: str | None = None
    ) -> None:
        self.pid = os.getpid()
        self.catalog = catalog
        self._kept = folder and DecodedFiles(folder, catalog, least_bytes=cache_bytes // MOST_MAPPED)
        column = "text" if catalog.tokenizer_digest is None else "input_ids"
        # The thread that decodes ahead has files of its own, so that neither waits for the other.
        here, ahead = Files(catalog, column), Files(catalog, column)
        self.decoded: Decoded[Hashable, Any] = Decoded(
            cache_bytes,
            lambda key: self._read(here, key),
            (lambda key: self._read(ahead, key)) if decode_ahead else None,
        )
        filled = [stage for stage in catalog.stages if stage.samples]
        self._firsts = [stage.first_row for stage in filled]
        self._stages = [(one.first_row, one.group_rows, one.first_group, one.max_length) for one in filled]
        self.last_limit = filled[-1].max_length
        self.needed = 0
        """Bytes of the row groups of the last batch for which any was decoded."""

    def _read(self, files: Files, key: Any) -> Ragged | Columns:
        """Decode a row group: its number alone stands for what is trained on, with names for other columns."""
        if isinstance(key, int):
            place = self.catalog.row_group(key)
            if not self._kept:
                return self._located(files.ragged(place))
            return self._kept.load(place) or self._located(self._kept.keep(place, files.ragged(place)))
        group, names = key
        return Columns(files.table(self.catalog.row_group(group), names))

    def _located(self, ragged: Ragged) -> Ragged:
        if self.catalog.tokenizer_digest is not None:
            ragged.place = place_of(ragged.values, ragged.bounds)
        return ragged

    def ids(self, rows: Int64, ends: tuple[int, int]) -> tuple[Rows, Int64]:
        """Return where the ids of each row lie, and the longest sample of its stage, of shape [n].

        Args:
            rows: Row numbers, shape [n], at least one.
            ends: The smallest of them and the largest.
        """
        found, places, limits = self._found(rows, ends)
        spans = np.empty((3, len(rows)), dtype=np.int64)
        groups = np.frombuffer(b"".join([group.place for group in found]), dtype=np.int64)
        find_spans(places, groups.reshape(-1, 3), spans)
        return Rows(spans, found), limits

    def texts(self, rows: Int64, ends: tuple[int, int]) -> tuple[list[str], Int64]:
        """Return the text of each row, and the longest sample of its stage; arguments as for :meth:`ids`."""
        found, places, limits = self._found(rows, ends)
        return [group.text(place) for group, place in zip(found, places.tolist(), strict=True)], limits

    def _found(self, rows: Int64, ends: tuple[int, int]) -> tuple[list[Ragged], Int64, Int64]:
        """Return row group, place in it, and longest sample of the stage of each row."""
        groups, places, limits = self._places(rows, ends)
        before, keys = self.decoded.made, groups.tolist()
        found: list[Ragged] = self.decoded.get(keys)
        if self.decoded.made > before:
            self.needed = sum(group.nbytes for group in dict(zip(keys, found, strict=True)).values())
        return found, places, limits

    def expect(self, rows: Int64) -> None:
        """Note the rows that will be asked for next, in order."""
        numbers, firsts = np.unique(self.catalog.groups_at(rows)[0], return_index=True)
        self.decoded.expect(numbers[np.argsort(firsts)].tolist())

    def columns(self, rows: Int64, names: Sequence[str]) -> pa.Table:
        """Return columns of some rows, in the order asked for."""
        groups, places = self.catalog.groups_at(rows)
        order = np.argsort(groups, kind="stable")
        numbers, firsts = np.unique(groups[order], return_index=True)
        found = self.decoded.get([(number, tuple(names)) for number in numbers.tolist() or [0]])
        parts = np.split(places[order], firsts[1:])
        tables = [one.table.take(part) for one, part in zip(found, parts, strict=True)]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.concat_tables(tables).take(back)

    def _places(self, rows: Int64, ends: tuple[int, int]) -> tuple[Int64, Int64, Int64]:
        low, high = (bisect_right(self._firsts, row) - 1 for row in ends)
        if low == high:
            # Nearly every batch, and a third of the time of what works for any.
            first_row, group_rows, first_group, limit = self._stages[low]
            inside = rows - first_row
            groups = inside // group_rows
            return (
                groups + first_group,
                inside - groups * group_rows,
                np.full(len(rows), limit, dtype=np.int64),
            )
        limits = np.array([stage.max_length for stage in self.catalog.stages], dtype=np.int64)
        return *self.catalog.groups_at(rows), limits[self.catalog.stages_at(rows)]
