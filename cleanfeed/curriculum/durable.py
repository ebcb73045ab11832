"""Bytes and a path go in; a file that is either whole and on disk or not there at all comes out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

ASIDE_SUFFIX = ".unfinished"


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Give a path to write to; on leaving, sync what was written there and rename it to ``path``.

    If the block raises, what was written is removed and ``path`` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    try:
        yield aside
        with aside.open("rb+") as handle:
            os.fsync(handle.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file aside, sync and rename it."""
    with written_aside(path) as aside:
        aside.write_bytes(data)


def file_digest(path: Path) -> str:
    """Return the xxh3-128 of a file in lower-case hex, read in blocks of 4 MiB."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as handle:
        while block := handle.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
