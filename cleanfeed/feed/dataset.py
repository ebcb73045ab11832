"""A finished build and row numbers go in; the samples of a batch come out, each row group decoded once."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch.utils.data import Dataset

from cleanfeed.errors import one_line
from cleanfeed.feed.catalog import Catalog, read_catalog
from cleanfeed.feed.pages import Files, Kept, Ragged
from cleanfeed.feed.samples import FILLER, NO_SAMPLE, NO_TOKENS, Item, Samples

CACHE_BYTES = 256 * 2**20
"""Decoded values a process keeps by default: 128 lanes' row groups of 1 MiB, twice over while a window changes."""

Int64 = npt.NDArray[np.int64]


class _Opened:
    """What one process has open and decoded of a build."""

    def __init__(self, catalog: Catalog, column: str, cache_bytes: int) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.files = Files(catalog, column)
        self.kept = Kept(cache_bytes)


_inherited: list[_Opened] = []
"""What forked processes have of their parents: never read and never closed, since the parent goes on with it."""


class Curriculum(Dataset[Item]):
    """The samples of a finished build as a map-style torch dataset, in the order they were written.

    An index is the row number of a sample: 0-based over the whole curriculum, stages in order. ``CurriculumSampler``
    also gives negative ones: ``~row`` stands for a quarantined sample, whose place a pad row of the same length takes,
    and ``FILLER`` for a pad row of no length. So ``curriculum[-1]`` is not the last sample.

    Files are opened in the process that reads them, when it first does, so a curriculum can be handed to workers
    however they are started, and pickles to a few kilobytes. Page checksums are verified whenever a row group is
    decoded.

    Args:
        path: Folder that ``cleanfeed build`` wrote, or its fsspec address.
        cache_bytes: Decoded row groups each process keeps, in bytes. There should be room for twice as many row
            groups (about 1 MiB each) as this rank has lanes; a warning says when a batch alone does not fit.

    Attributes:
        catalog: What the manifest says about stages, row groups and files.
        digest: Digest of the curriculum, 32 hex digits.
        tokenizer_digest: Digest of the tokenizer it was built with; None without one.
        end_of_text_id: Id that closes each document; None without a tokenizer.

    Raises:
        CurriculumError: There is no finished build at the address, or it was altered.
    """

    def __init__(self, path: str | os.PathLike[str], *, cache_bytes: int = CACHE_BYTES) -> None:
        self.catalog = read_catalog(os.fspath(path))
        self.cache_bytes = cache_bytes
        self._opened: _Opened | None = None
        self._warned = False

    @property
    def digest(self) -> str:
        """Digest of the curriculum, 32 hex digits."""
        return self.catalog.digest

    @property
    def tokenizer_digest(self) -> str | None:
        """Digest of the tokenizer the curriculum was built with; None without one."""
        return self.catalog.tokenizer_digest

    @property
    def end_of_text_id(self) -> int | None:
        """Id that closes each document; None without a tokenizer."""
        return self.catalog.end_of_text_id

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.catalog.samples

    def __getitem__(self, index: int) -> Item:
        """Return one row; :class:`~cleanfeed.feed.samples.Samples` says what is in it.

        Raises:
            IndexError: There is no such row.
            CurriculumError: Its row group is not what was written.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Samples:
        """Return the rows of a batch in the order asked for; each row group they lie in is decoded once.

        Raises:
            IndexError: There is no such row.
            CurriculumError: A row group is not what was written; no row is given out.
        """
        asked = np.array(indices, dtype=np.int64)
        filler = asked == FILLER
        pad = asked < 0
        rows = np.where(filler, 0, np.where(pad, ~asked, asked))
        self._check(rows)
        groups, places = self.catalog.groups_at(rows)
        limits = np.array([stage.max_length for stage in self.catalog.stages])[self.catalog.stages_at(rows)]
        if filler.any():
            # A filler has the shape of the batch it fills, and in a batch of fillers that of the last stage.
            own = limits[~filler]
            limits[filler] = own.max() if len(own) else self._last_limit()
        found = self._ragged(groups[~filler])
        tokenized = self.tokenizer_digest is not None
        cut = [
            _cut(None if hole else found[group], place)
            for group, place, hole in zip(groups.tolist(), places.tolist(), filler.tolist(), strict=True)
        ]
        return Samples(
            sample_ids=np.where(pad, NO_SAMPLE, rows).tolist(),
            lengths=[len(values) if tokenized else 0 for values in cut],
            limits=limits.tolist(),
            tokens=[NO_TOKENS if blank else values for values, blank in zip(cut, pad.tolist(), strict=True)]
            if tokenized
            else None,
            texts=None if tokenized else [str(values, "utf-8") for values in cut],
        )

    def columns(self, rows: Sequence[int] | Int64, names: Sequence[str]) -> pa.Table:
        """Return columns of some rows, in the order asked for, decoding only these columns.

        Args:
            rows: Row numbers; ``~row`` means the same as ``row``, so that quarantined samples can be looked up.
            names: Columns of the curriculum: ``sample_hash``, ``n_tokens``, ``doc_id``, ``source`` and so on.

        Raises:
            IndexError: There is no such row.
            CurriculumError: There is no such column, or a row group is not what was written.
        """
        asked = np.array(rows, dtype=np.int64)
        asked = np.where(asked < 0, ~asked, asked)
        self._check(asked)
        groups, places = self.catalog.groups_at(asked)
        order = np.argsort(groups, kind="stable")
        numbers, firsts = np.unique(groups[order], return_index=True)
        parts = np.split(places[order], firsts[1:])
        opened, key = self._own(), tuple(names)
        with opened.lock:
            tables = [
                opened.kept.get((number, key), partial(self._table, opened, number, key)).take(part)
                for number, part in zip(numbers.tolist(), parts, strict=True)
            ]
        if not tables:
            return self._table(opened, 0, key).slice(0, 0)
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_tables(tables).take(back)

    def _check(self, rows: Int64) -> None:
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            wrong = int(rows[(rows < 0) | (rows >= len(self))][0])
            raise IndexError(
                one_line("no such sample", self.catalog.path, f"row {wrong}", f"0 to {len(self) - 1}")
            )

    def _last_limit(self) -> int:
        return next(stage.max_length for stage in reversed(self.catalog.stages) if stage.samples)

    def _ragged(self, groups: Int64) -> dict[int, Ragged]:
        opened = self._own()
        with opened.lock:
            before = opened.kept.misses
            found = {
                group: opened.kept.get(group, partial(self._values, opened, group))
                for group in dict.fromkeys(groups.tolist())
            }
            if opened.kept.misses > before:
                self._warn_if_small(sum(group.nbytes for group in found.values()))
        return found

    def _values(self, opened: _Opened, group: int) -> Ragged:
        return opened.files.ragged(self.catalog.row_group(group))

    def _table(self, opened: _Opened, group: int, names: Sequence[str]) -> pa.Table:
        return opened.files.table(self.catalog.row_group(group), names)

    def _own(self) -> _Opened:
        """Return what this process has open: a forked one starts anew."""
        opened = self._opened
        if opened is None or opened.pid != os.getpid():
            if opened is not None:
                _inherited.append(opened)
            column = "text" if self.tokenizer_digest is None else "input_ids"
            opened = self._opened = _Opened(self.catalog, column, self.cache_bytes)
        return opened

    def _warn_if_small(self, needed: int) -> None:
        if needed > self.cache_bytes and not self._warned:
            self._warned = True
            warnings.warn(
                one_line(
                    "the row groups of one batch do not fit the cache and are decoded for every batch anew",
                    "Curriculum(cache_bytes=...)",
                    f"{self.cache_bytes}",
                    f"{2 * needed} or more",
                    "Or use fewer lanes, or build with smaller row groups.",
                ),
                RuntimeWarning,
                stacklevel=4,
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: nothing open, nothing decoded."""
        return {"catalog": self.catalog, "cache_bytes": self.cache_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take up the state in another process."""
        self.catalog, self.cache_bytes = state["catalog"], state["cache_bytes"]
        self._opened, self._warned = None, False


def _cut(group: Ragged | None, place: int) -> Any:
    """Return the values of one row, none for a filler."""
    return b"" if group is None else group.values[group.bounds[place] : group.bounds[place + 1]]
