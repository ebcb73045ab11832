"""The small records that say what there is to read: a file, a piece of one, and the plan of all of them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["jsonl", "parquet", "arrow", "text"]


class InputFile(Struct, frozen=True):
    """One physical file."""

    index: int
    """Its place in the plan."""
    input: str
    """The input it came from, as the user gave it."""
    source: str
    """Its name in every output: relative to the input, the same on every machine, different for every file."""
    path: str
    """Where to open it: a local path or an fsspec address."""
    kind: Kind
    size: int
    """Bytes on disk."""
    compression: str
    """``none``, ``gzip``, ``zstd``, ``bz2`` or ``xz``, by the first bytes."""


class Piece(Struct, frozen=True):
    """A part of one file that one worker reads.

    ``start`` and ``stop`` are bytes for JSON Lines that are not compressed (the lines that *start* there), row groups
    for Parquet and record batches for Arrow; a ``stop`` of -1 is the end of the file.
    """

    file: InputFile
    start: int
    stop: int
    first: bool
    """The first piece of its file."""
    bytes: int
    """Bytes on disk it stands for; those of the pieces of a file add up to the size of the file."""


class Plan(Struct, frozen=True):
    """All there is to read, in order."""

    files: tuple[InputFile, ...]
    pieces: tuple[Piece, ...]
    ignored: tuple[str, ...]
    """Markers, hidden and temporary files, and files of no kind, passed over in folders and globs."""
