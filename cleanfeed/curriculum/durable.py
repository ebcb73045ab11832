"""Bytes and a path go in; a file that is either whole or not there at all, and on disk if asked, comes out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

ASIDE_SUFFIX = ".unfinished"


def sync(paths: Iterable[Path]) -> None:
    """Make files, their names and those of their folders survive a power cut."""
    paths = list(paths)
    folders = {path.parent for path in paths}
    for path in [*paths, *sorted(folders | {folder.parent for folder in folders})]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Give a path to write to; on leaving, rename what was written there to ``path``.

    If the block raises, what was written is removed and ``path`` is untouched. A power cut may still lose the file:
    whoever relies on it calls :func:`sync` first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    try:
        yield aside
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file aside, sync it and rename it."""
    with written_aside(path) as aside:
        aside.write_bytes(data)
        sync([aside])
    sync([path])


def file_digest(path: Path) -> str:
    """Return the xxh3-128 of a file in lower-case hex, read in blocks of 4 MiB."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as handle:
        while block := handle.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
