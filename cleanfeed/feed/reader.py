"""Row numbers of a curriculum go in; views of their decoded values come out, in the one process that opened it."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanfeed.feed.catalog import Catalog
from cleanfeed.feed.decoded import Decoded
from cleanfeed.feed.decoded_files import DecodedFiles
from cleanfeed.feed.fills import find_groups, find_spans, place_of
from cleanfeed.feed.pages import Columns, Files, Ragged
from cleanfeed.feed.rows import Rows

Int64 = npt.NDArray[np.int64]
QUICK = 1e-3
"""Seconds a row group takes at least for which a thread pays: mapping one of 500 KB that the system has in memory
takes 0.15 ms, decoding it 5 ms."""
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
            quick=QUICK,
        )
        filled = [stage for stage in catalog.stages if stage.samples]
        self._stages = np.array(
            [(one.first_row, one.group_rows, one.first_group, one.max_length) for one in filled],
            dtype=np.int64,
        )
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

    def ids(self, rows: Int64) -> tuple[Rows, Int64]:
        """Return where the ids of each row lie, and the longest sample of its stage, of shape [n]."""
        found, numbers, limits = self._found(rows)
        spans = np.empty((3, len(rows)), dtype=np.int64)
        places = np.frombuffer(b"".join([group.place for group in found]), dtype=np.int64)
        find_spans(numbers, places.reshape(-1, 3), spans)
        return Rows(spans, found), limits

    def texts(self, rows: Int64) -> tuple[list[str], Int64]:
        """Return the text of each row, and the longest sample of its stage, of shape [n]."""
        found, numbers, limits = self._found(rows)
        return [group.text(number) for group, number in zip(found, numbers.tolist(), strict=True)], limits

    def _found(self, rows: Int64) -> tuple[list[Ragged], Int64, Int64]:
        """Return the row group of each row, its number in it, and the longest sample of its stage."""
        found = np.empty((3, len(rows)), dtype=np.int64)
        find_groups(rows, self._stages, found)
        before, keys = self.decoded.made, found[0].tolist()
        groups: list[Ragged] = self.decoded.get(keys)
        if self.decoded.made > before:
            self.needed = sum(group.nbytes for group in dict(zip(keys, groups, strict=True)).values())
        return groups, found[1], found[2]

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
