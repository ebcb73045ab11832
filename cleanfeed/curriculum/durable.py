"""Bytes and a place go in; a file that is either whole or not there at all, and on disk if asked, comes out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import xxhash

from cleanfeed.curriculum.paths import AnyPath

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ASIDE_SUFFIX = ".unfinished"

WRITE_BYTES = 2**18
"""Bytes of a large file that are written at a time. Linux keeps a written piece of 2 MiB in one run of memory as large;
a virtual machine that hands its free memory back has none left and must get it from its host page by page, at ten times
the time."""

_alone = True
"""Whether no process of another machine may be writing the same file."""


def among_others() -> None:
    """Let this process write aside under names no other has, and sync what it writes before it is renamed.

    For a worker on one of several machines: one that was given up for lost may still be at work on the same task.
    """
    global _alone  # what a process is, it is for all of its life
    _alone = False


def sync(places: Iterable[AnyPath], *, below: AnyPath | None = None) -> None:
    """Make files, their names and those of their folders survive a power cut; objects do once they are put.

    Args:
        places: The files.
        below: A folder they all lie below, if the folders between may be new; else only the last is taken for new.
    """
    paths = [place for place in places if isinstance(place, Path)]
    folders = {folder for path in paths for folder in _above(path, below)}
    for path in [*paths, *sorted(folders)]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _above(path: Path, below: AnyPath | None) -> Iterator[Path]:
    """Yield the folders whose entries make up the names of a file and of its new folders."""
    for folder in path.parents if isinstance(below, Path) else (path.parent, path.parent.parent):
        yield folder
        if folder == below:
            return


@contextmanager
def written_aside(place: AnyPath, *, keep: bool = False) -> Iterator[Path]:
    """Give a path to write to; on leaving, what was written there appears at ``place``: renamed, or put whole.

    If the block raises, what was written is removed and ``place`` is untouched. A power cut may still lose a local
    file: whoever relies on it calls :func:`sync` first.

    Args:
        place: Where the file appears.
        keep: Leave a copy of an object on this machine, which will read it again.
    """
    if isinstance(place, Path):
        place.parent.mkdir(parents=True, exist_ok=True)
        mark = "" if _alone else f".{uuid4().hex}"
        aside = place.with_name(place.name + mark + ASIDE_SUFFIX)
    else:
        aside = place.aside()
    try:
        yield aside
        if not isinstance(place, Path):
            place.upload(aside)
            aside.replace(place.copy()) if keep else aside.unlink()
            return
        if not _alone:
            sync([aside])
        aside.replace(place)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


class _InPieces(FileIO):
    """A file that takes at most :data:`WRITE_BYTES` at a time."""

    def write(self, data: ReadableBuffer) -> int:
        """Write the first bytes of ``data``; return how many."""
        return super().write(memoryview(data)[:WRITE_BYTES])


def in_pieces(path: Path) -> BufferedWriter:
    """Open a file of this machine that is to hold megabytes for writing."""
    return BufferedWriter(_InPieces(path, "wb"), WRITE_BYTES)


def write_bytes(place: AnyPath, data: bytes) -> None:
    """Write a whole file so that it survives a power cut: aside, synced and renamed, or put."""
    if not isinstance(place, Path):
        place.put(data)
        return
    with written_aside(place) as aside:
        aside.write_bytes(data)
        sync([aside])
    sync([place])


def move(place: AnyPath, to: AnyPath) -> None:
    """Give a small file another name. An object is put anew first and deleted last: killed, it has both names."""
    if isinstance(place, Path) and isinstance(to, Path):
        place.replace(to)
    else:
        write_bytes(to, place.read_bytes())
        place.unlink()


def remove_tree(folder: AnyPath) -> None:
    """Remove a folder with all that is in it."""
    if isinstance(folder, Path):
        shutil.rmtree(folder)
    else:
        folder.remove_below(folder.sizes())


def file_digest(place: AnyPath) -> str:
    """Return the xxh3-128 of a file in lower-case hex, read in blocks of 4 MiB."""
    digest = xxhash.xxh3_128()
    with place.open("rb") if isinstance(place, Path) else place.open() as handle:
        while block := handle.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
