"""Decoded row groups go in; files come out that later processes map into memory instead of decoding Parquet again.

A folder holds ``DIGEST/STAGE/PART/row-group-N.ids`` for any number of curricula, each under its digest. A file is::

    16 bytes   xxh3-128 of all that follows
    48 bytes   what it is: format, digest of the curriculum, first row, rows, bytes of an id
    (rows + 1) × 4 bytes     where each row starts and the last one ends, int32
    ids                      uint16 where all of them have room in it, else int32

in the byte order of the machine. It appears by a rename, so that any number of processes may write the same one at
once, and is believed only when all of it agrees with its checksum: one that a power cut cut short is decoded anew.
"""

from __future__ import annotations

import os
import struct
import time
import warnings
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
import xxhash

from cleanfeed.errors import MisuseError, one_line
from cleanfeed.feed.catalog import Catalog, RowGroup
from cleanfeed.feed.fills import place_of
from cleanfeed.feed.pages import Ragged
from cleanfeed.feed.rows import Ids

FORMAT = b"cfids-01"
HEAD = struct.Struct("=16s8s16sqqq")
CHECKSUM_BYTES = 16
SHORT_IDS = 1 << 16
"""Ids below this are kept in two bytes."""
UNFINISHED = "unfinished"
ABANDONED_SECONDS = 3600
"""An unfinished file this old belongs to a process that is gone: writing one takes milliseconds."""


def decoded_folder(folder: str | os.PathLike[str] | None, catalog: Catalog) -> str | None:
    """Return the folder for decoded row groups as an absolute path; None stays None.

    Raises:
        MisuseError: It cannot be one, or there is nothing to keep in it.
    """
    if folder is None:
        return None
    path = os.fspath(folder)
    if catalog.tokenizer_digest is None:
        todo = "Leave decoded out: texts are read far faster than a tokenizer encodes them."
        raise MisuseError(
            one_line("no ids to keep decoded", "decoded", "a curriculum without a tokenizer", todo=todo)
        )
    if "://" in path or (os.path.exists(path) and not os.path.isdir(path)):  # noqa: PTH110, PTH112
        raise MisuseError(
            one_line("no folder of this machine", "decoded", path, "a folder, perhaps a new one")
        )
    return os.path.abspath(path)  # noqa: PTH100


def decoded_bytes(catalog: Catalog) -> int:
    """Return the bytes that all row groups take when decoded; at most, where the tokenizer has many ids."""
    id_bytes = 2 if (catalog.vocab_size or SHORT_IDS + 1) <= SHORT_IDS else 4
    return sum(
        stage.tokens * id_bytes + stage.samples * 4 + stage.groups * (HEAD.size + 4)
        for stage in catalog.stages
    )


class DecodedFiles:
    """The decoded row groups of one curriculum in a folder, as one process sees them. Safe to use from threads.

    Args:
        folder: For any number of curricula; made when the first row group is written.
        catalog: The curriculum.
        least_bytes: What a mapped file counts at least, so that a bound of bytes bounds the number of maps too.
    """

    def __init__(self, folder: str, catalog: Catalog, *, least_bytes: int = 0) -> None:
        self.folder = Path(folder) / catalog.digest
        self._folder = str(self.folder)
        self._digest, self._least_bytes = bytes.fromhex(catalog.digest), least_bytes
        self._writes = True
        """Whether writing has not failed yet."""
        self._swept = False

    def path(self, place: RowGroup) -> str:
        """Return where a row group lies."""
        # Put together as text: a Path takes a tenth of the time that mapping its file does.
        part = place.file.removeprefix("curriculum/").removesuffix(".parquet")
        return f"{self._folder}/{part}/row-group-{place.index}.ids"

    def load(self, place: RowGroup) -> Ragged | None:
        """Return a row group mapped from its file; None where there is none, or, with a warning, a damaged one."""
        path = self.path(place)
        try:
            return self._mapped(path, place)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            todo = "It is decoded anew from Parquet."
            message = one_line("a decoded row group is damaged", path, str(error), todo=todo)
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            return None

    def _mapped(self, path: str, place: RowGroup) -> Ragged:
        size = os.stat(path).st_size  # noqa: PTH116
        if size < HEAD.size:
            raise ValueError(f"{size} bytes")
        # Not mmap.mmap, which keeps a descriptor open for each map; here only the map stays, as long as it is seen.
        try:
            content = torch.from_file(path, size=size, dtype=torch.uint8).numpy().data.toreadonly()
        except RuntimeError as error:  # as torch says that a file cannot be opened, or is shorter by now
            os.stat(path)  # noqa: PTH116 - one that is gone is none
            raise OSError(str(error).splitlines()[0]) from error
        checksum, *found, id_bytes = HEAD.unpack_from(content)
        if xxhash.xxh3_128_digest(content[CHECKSUM_BYTES:]) != checksum:
            raise ValueError("a wrong checksum")
        if found != [FORMAT, self._digest, place.first_row, place.rows]:
            raise ValueError("a row group of another place or format")
        start = HEAD.size + 4 * (place.rows + 1)
        if size < start or id_bytes not in (2, 4):
            raise ValueError("a row group without room for its rows")
        ids: Ids = np.frombuffer(content[start:], dtype=np.uint16 if id_bytes == 2 else np.int32)
        ragged = Ragged(ids, content[HEAD.size : start].cast("i"))
        ragged.place = place_of(ids, ragged.bounds)
        ragged.nbytes = max(ragged.nbytes, self._least_bytes)
        return ragged

    def keep(self, place: RowGroup, ragged: Ragged) -> Ragged:
        """Write a row group that was decoded, and return it; the first failure is a warning, and the last try."""
        if self._writes:
            try:
                self.write(place, ragged)
            except OSError as error:
                self._writes = False
                warnings.warn(
                    cannot_write(self.folder, error) + " Training goes on.", RuntimeWarning, stacklevel=2
                )
        return ragged

    def write(self, place: RowGroup, ragged: Ragged) -> None:
        """Write a row group that was decoded.

        Raises:
            OSError: It cannot be written; nothing is left of it.
        """
        ids = _narrowed(np.asarray(ragged.values))
        head = HEAD.pack(
            bytes(CHECKSUM_BYTES), FORMAT, self._digest, place.first_row, place.rows, ids.itemsize
        )
        content = head[CHECKSUM_BYTES:] + ragged.bounds.tobytes() + ids.tobytes()
        aside, path = self._aside(), Path(self.path(place))
        try:
            aside.write_bytes(xxhash.xxh3_128_digest(content) + content)
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def _aside(self) -> Path:
        """Return a new name to write under; what processes that were killed have left is removed once."""
        unfinished = self.folder / UNFINISHED
        unfinished.mkdir(parents=True, exist_ok=True)
        if not self._swept:
            self._swept = True
            for left in unfinished.iterdir():
                try:
                    if left.stat().st_mtime < time.time() - ABANDONED_SECONDS:
                        left.unlink()
                except OSError:
                    continue  # finished or removed by another process a moment ago, or not ours to remove
        return unfinished / uuid4().hex


def cannot_write(folder: Path, error: OSError) -> str:
    """Return what to say when decoded row groups cannot be written."""
    got = error.strerror or str(error)
    return one_line(
        "cannot keep row groups decoded", str(folder), got, todo="Make room, or name another folder."
    )


def _narrowed(ids: Ids) -> Ids:
    """Return ids in two bytes each where all of them have room in that."""
    return ids.astype(np.uint16) if int(ids.view(np.uint32).max(initial=0)) < SHORT_IDS else ids
