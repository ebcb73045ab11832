"""A finished build and row numbers go in; the samples of a batch come out, each row group decoded once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch.utils.data import Dataset

from cleanfeed.errors import one_line
from cleanfeed.feed.catalog import Catalog, read_catalog
from cleanfeed.feed.decoded import Decoded
from cleanfeed.feed.pages import Files, Ragged
from cleanfeed.feed.samples import FILLER, NO_SAMPLE, NO_TOKENS, Item, Samples

CACHE_BYTES = 256 * 2**20
"""Decoded values a process keeps by default: 128 lanes' row groups of 1 MiB, twice over while a window changes."""

Int64 = npt.NDArray[np.int64]
NONE: Int64 = np.empty(0, dtype=np.int64)


class _Opened:
    """What one process has open and decoded of a build."""

    def __init__(self, catalog: Catalog, cache_bytes: int, *, decode_ahead: bool) -> None:
        self.pid = os.getpid()
        self.catalog = catalog
        column = "text" if catalog.tokenizer_digest is None else "input_ids"
        # The thread that decodes ahead has files of its own, so that neither waits for the other.
        here, ahead = Files(catalog, column), Files(catalog, column)
        self.decoded: Decoded[Hashable, Any] = Decoded(
            cache_bytes,
            lambda key: self._read(here, key),
            (lambda key: self._read(ahead, key)) if decode_ahead else None,
        )
        # What Catalog.groups_at works out for each call, once: a batch is found in microseconds.
        filled = [stage for stage in catalog.stages if stage.samples]
        self._firsts = np.array([stage.first_row for stage in filled], dtype=np.int64)
        self._stages = np.array(
            [(one.first_row, one.group_rows, one.first_group, one.max_length) for one in filled], np.int64
        ).T.copy()
        self.last_limit = filled[-1].max_length

    def places(self, rows: Int64) -> tuple[Int64, Int64, Int64]:
        """Return row group, place in it, and longest sample of the stage of each row, all of shape [n]."""
        stages = self._firsts.searchsorted(rows, side="right") - 1
        first_row, group_rows, first_group, limits = self._stages[:, stages]
        group, place = np.divmod(rows - first_row, group_rows)
        return first_group + group, place, limits

    def _read(self, files: Files, key: Any) -> Any:
        """Decode a row group: its number alone stands for what is trained on, with names for other columns."""
        if isinstance(key, int):
            return files.ragged(self.catalog.row_group(key))
        group, names = key
        return files.table(self.catalog.row_group(group), names)


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
        decode_ahead: Without workers, decode what the sampler will ask for next in a thread, up to half of
            ``cache_bytes``.

    Attributes:
        catalog: What the manifest says about stages, row groups and files.
        digest: Digest of the curriculum, 32 hex digits.
        tokenizer_digest: Digest of the tokenizer it was built with; None without one.
        end_of_text_id: Id that closes each document; None without a tokenizer.

    Raises:
        CurriculumError: There is no finished build at the address, or it was altered.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, cache_bytes: int = CACHE_BYTES, decode_ahead: bool = True
    ) -> None:
        self.catalog = read_catalog(os.fspath(path))
        self.cache_bytes, self.decode_ahead = cache_bytes, decode_ahead
        self._forget()

    def _forget(self) -> None:
        self._opened: _Opened | None = None
        self._following: Int64 | None = None
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
        pad = np.flatnonzero(asked < 0) if min(indices, default=0) < 0 else NONE
        filler = np.flatnonzero(asked == FILLER) if len(pad) else pad
        rows = self._rows(asked, pad, filler)
        opened = self._own()
        groups, places, limits = opened.places(rows)
        numbers = groups.tolist()
        cut, lengths = _cut(self._found(opened, numbers), numbers, places.tolist())
        sample_ids = rows
        if len(pad):
            sample_ids = rows.copy()
            sample_ids[pad] = NO_SAMPLE
            lengths[filler] = 0
            if len(filler) == len(rows):
                limits = np.full_like(limits, opened.last_limit)
        if self.tokenizer_digest is None:
            texts = [str(values, "utf-8") for values in cut]
            for number in filler.tolist():
                texts[number] = ""
            return Samples(sample_ids, np.zeros_like(lengths), limits, None, texts)
        for number in pad.tolist():
            cut[number] = NO_TOKENS
        return Samples(sample_ids, lengths, limits, cut)

    def expect(self, rows: Int64) -> None:
        """Note the rows that will be asked for next, in this order, so that they can be decoded ahead.

        It only makes things faster: row groups are decoded in another thread while the loop trains. Nothing is
        decoded in a process that does not itself ask for rows, such as one whose loader has workers.

        Args:
            rows: Indices as in :meth:`__getitems__`, shape [n]; they take the place of those noted before.
        """
        self._following = rows

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
        keys = [(number, tuple(names)) for number in numbers.tolist()] or [(0, tuple(names))]
        found = self._own().decoded.get(keys)
        parts = np.split(places[order], firsts[1:])
        sorted_rows = pa.concat_tables(found[key].take(part) for key, part in zip(keys, parts, strict=True))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return sorted_rows.take(back)

    def _rows(self, asked: Int64, pad: Int64, filler: Int64) -> Int64:
        """Return the row that each index speaks of; a filler gets that of a neighbour, whose stage it takes."""
        rows = asked
        if len(pad):
            rows = np.where(asked < 0, ~asked, asked)
            rows[filler] = np.delete(rows, filler)[:1] if len(filler) < len(rows) else 0
        self._check(rows)
        return rows

    def _check(self, rows: Int64) -> None:
        if len(rows) and int(rows.max()) >= len(self):
            wrong = int(rows.max())
            raise IndexError(
                one_line("no such sample", self.catalog.path, f"row {wrong}", f"0 to {len(self) - 1}")
            )

    def _found(self, opened: _Opened, groups: list[int]) -> dict[Hashable, Ragged]:
        """Return the row groups of a batch."""
        decoded, following = opened.decoded, self._following
        if following is not None:
            self._following = None
            rows = np.where(following < 0, ~following, following)
            decoded.expect(opened.places(rows[rows < len(self)])[0].tolist())
        before = decoded.made
        found = decoded.get(dict.fromkeys(groups))
        if decoded.made > before:
            self._warn_if_small(sum(group.nbytes for group in found.values()))
        return found

    def _own(self) -> _Opened:
        """Return what this process has open: a forked one starts anew."""
        opened = self._opened
        if opened is None or opened.pid != os.getpid():
            if opened is not None:
                _inherited.append(opened)
            opened = self._opened = _Opened(self.catalog, self.cache_bytes, decode_ahead=self.decode_ahead)
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
        return {
            "catalog": self.catalog,
            "cache_bytes": self.cache_bytes,
            "decode_ahead": self.decode_ahead,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take up the state in another process."""
        self.__dict__.update(state)
        self._forget()


def _cut(found: dict[Hashable, Ragged], groups: list[int], places: list[int]) -> tuple[list[Any], Int64]:
    """Return the values of each row, as views, and how many there are."""
    cut = []
    for group, place in zip(groups, places, strict=True):
        one = found[group]
        cut.append(one.values[one.bounds[place] : one.bounds[place + 1]])
    return cut, np.fromiter(map(len, cut), dtype=np.int64, count=len(cut))
