"""A finished build and row numbers go in; the samples of a batch come out, each row group decoded once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch.utils.data import Dataset

from cleanfeed.arguments import check_bool, check_path, check_whole
from cleanfeed.errors import MisuseError, one_line
from cleanfeed.feed.catalog import read_catalog
from cleanfeed.feed.decoded_files import decoded_bytes, decoded_folder
from cleanfeed.feed.decoding import decode_all
from cleanfeed.feed.reader import Reader
from cleanfeed.feed.samples import FILLER, Item, Samples

CACHE_BYTES = 256 * 2**20
"""Decoded values a process keeps by default: 128 lanes' row groups of 1 MiB, twice over while a window changes."""

Int64 = npt.NDArray[np.int64]


_inherited: list[Reader] = []
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
        decoded: Folder, best on a local disk, where each row group is kept decoded once it was needed, to be mapped
            into memory from then on, by all ranks, workers and runs of this machine. Any number of curricula may share
            it; :meth:`decode` fills it before training. What is given out is the same with and without it. None:
            every process decodes for itself.

    Attributes:
        catalog: What the manifest says about stages, row groups and files.
        digest: Digest of the curriculum, 32 hex digits.
        tokenizer_digest: Digest of the tokenizer it was built with; None without one.
        end_of_text_id: Id that closes each document; None without a tokenizer.

    Raises:
        CurriculumError: There is no finished build at the address, or it was altered.
        MisuseError: ``decoded`` is no folder of this machine, or the build has no tokenizer.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cache_bytes: int = CACHE_BYTES,
        decode_ahead: bool = True,
        decoded: str | os.PathLike[str] | None = None,
    ) -> None:
        check_path("Curriculum", "path", path)
        check_whole("Curriculum", "cache_bytes", cache_bytes, 0)
        check_bool("Curriculum", "decode_ahead", decode_ahead)
        if decoded is not None:
            check_path("Curriculum", "decoded", decoded)
        self.catalog = read_catalog(os.fspath(path))
        self.cache_bytes, self.decode_ahead = cache_bytes, decode_ahead
        self.decoded = decoded_folder(decoded, self.catalog)
        self._forget()

    def _forget(self) -> None:
        self._reader: Reader | None = None
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
        sample_ids = np.array(indices, dtype=np.int64)
        rows: list[int] = sample_ids.tolist()
        if min(rows, default=0) >= 0:
            return self._samples(sample_ids, rows)
        pads = [number for number, row in enumerate(rows) if row < 0]
        fillers = [number for number in pads if rows[number] == FILLER]
        spoken = _spoken_of(rows)
        samples = self._samples(np.array(spoken, dtype=np.int64), spoken)
        samples.blank(pads, fillers)
        if len(fillers) == len(rows):
            samples.limits[:] = self._own().last_limit
        return samples

    def expect(self, rows: Int64) -> None:
        """Note the rows that will be asked for next, in this order, so that they can be decoded ahead.

        It only makes things faster: row groups are decoded in another thread while the loop trains. Nothing is
        decoded in a process that does not itself ask for rows, such as one whose loader has workers.

        Args:
            rows: Indices as in :meth:`__getitems__`, shape [n]; they take the place of those noted before.
        """
        self._following = rows

    @property
    def decoded_bytes(self) -> int:
        """Bytes that the row groups take at most when decoded: 2 a token, 4 where the tokenizer has over 65,536 ids."""
        return decoded_bytes(self.catalog)

    def decode(self, *, threads: int | None = None, progress: bool = True) -> int:
        """Decode every row group into the folder ``decoded`` before training, and return the bytes they take.

        What is there already is held against its checksum and not decoded again, so a call that was cut short goes on.
        Call it once a machine; where several processes do, they share the work.

        Args:
            threads: Files of the curriculum decoded at a time; by default as many as there are processors.
            progress: Say on stderr how many bytes it takes at most and how many are free, and how far it is.

        Raises:
            MisuseError: The curriculum was made without ``decoded``.
            CleanfeedError: The folder cannot be written to, or is full.
            CurriculumError: A row group is not what was written.
        """
        check_bool("Curriculum.decode", "progress", progress)
        if threads is not None:
            check_whole("Curriculum.decode", "threads", threads, 1)
        if self.decoded is None:
            raise MisuseError(
                one_line("no folder to decode into", "Curriculum.decode", "decoded None", "a folder")
            )
        return decode_all(self.catalog, self.decoded, threads or os.cpu_count() or 1, progress=progress)

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
        self._check(int(asked.max(initial=0)))
        return self._own().columns(asked, names)

    def _samples(self, sample_ids: Int64, rows: list[int]) -> Samples:
        """Return the samples of some rows, which are the ids as Python integers."""
        reader, texts, tokens = self._own(), None, None
        self._check(max(rows, default=0))
        if self._following is not None:
            following, self._following = self._following, None
            following = np.where(following < 0, ~following, following)
            reader.expect(following[following < len(self)])
        if self.tokenizer_digest is None:
            texts, limits = reader.texts(sample_ids)
            lengths = np.zeros_like(sample_ids)
        else:
            tokens, limits = reader.ids(sample_ids)
            lengths = tokens.spans[1]
        if reader.needed > self.cache_bytes and not self._warned:
            self._warn(reader.needed)
        return Samples(sample_ids, lengths, limits, tokens, texts)

    def _warn(self, needed: int) -> None:
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

    def _check(self, last: int) -> None:
        if last >= len(self):
            raise IndexError(
                one_line("no such sample", self.catalog.path, f"row {last}", f"0 to {len(self) - 1}")
            )

    def _own(self) -> Reader:
        """Return what this process has open: a forked one starts anew."""
        reader = self._reader
        if reader is None or reader.pid != os.getpid():
            if reader is not None:
                _inherited.append(reader)
            reader = self._reader = Reader(
                self.catalog, self.cache_bytes, decode_ahead=self.decode_ahead, folder=self.decoded
            )
        return reader

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: nothing open, nothing decoded."""
        return {
            "catalog": self.catalog,
            "cache_bytes": self.cache_bytes,
            "decode_ahead": self.decode_ahead,
            "decoded": self.decoded,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take up the state in another process."""
        self.__dict__.update(state)
        self._forget()


def _spoken_of(indices: list[int]) -> list[int]:
    """Return the row that each index speaks of; a filler takes that of another, and with it the stage."""
    rows = [~index if index < 0 else index for index in indices if index != FILLER]
    left = iter(rows)
    return [(rows[0] if rows else 0) if index == FILLER else next(left) for index in indices]
