"""Inputs as the user gave them go in; the files they stand for, cut into pieces of work, come out."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from cleanfeed.documents.addresses import reached
from cleanfeed.documents.arrow import arrow_schema, cut_arrow
from cleanfeed.documents.codecs import BrokenStream, ByteStream, compression_of
from cleanfeed.documents.discover import Found, discover
from cleanfeed.documents.fields import Fields
from cleanfeed.documents.jsonl import check_text_field
from cleanfeed.documents.parquet import Cut, cut_parquet, parquet_schema
from cleanfeed.documents.shape import (
    SHAPE_BYTES,
    SUFFIXES,
    is_spread_object,
    kind_of,
    shape_damage,
    suffix_of,
)
from cleanfeed.documents.tables import check_schema
from cleanfeed.documents.work import InputFile, Kind, Piece, Plan
from cleanfeed.errors import MisuseError, one_line
from cleanfeed.settings import DocumentSettings

__all__ = ["InputFile", "Piece", "Plan", "check_columns", "plan_inputs"]

PIECE_BYTES = 32 * 2**20
"""Bytes of text in a piece; a row group or record batch is never cut."""

CHECKED_FILES = 16
"""Files of JSON Lines that are looked into beforehand: they declare no columns. The others tell while they are read."""


def plan_inputs(inputs: Sequence[str], *, piece_bytes: int = PIECE_BYTES) -> Plan:
    """Return everything there is to read.

    Args:
        inputs: Files, folders, globs, fsspec addresses, saved datasets, names of datasets.
        piece_bytes: About how many bytes a piece should have.

    Returns:
        Files in the order of the inputs, sorted within each by their relative path in code-point order, and their
        pieces in the same order.

    Raises:
        MisuseError: An input stands for nothing, for a kind that is not read, or for a file that may not be read.
    """
    if not inputs:
        raise MisuseError(one_line("no input given", "INPUT", expected="files, folders, globs or addresses"))
    found = discover(inputs)
    ignored = list(found.ignored)
    files: list[InputFile] = []
    pieces: list[Piece] = []
    for item in found.files:
        examined = _examine(item)
        if examined is None:
            ignored.append(item.path)
            continue
        kind, compression, size, divisible = examined
        file = InputFile(len(files), item.input, item.source, item.path, kind, size, compression)
        files.append(file)
        pieces += _pieces(file, piece_bytes, divisible)
    for given in inputs:
        if not any(file.input == given for file in files) and given not in found.repeated:
            raise MisuseError(
                one_line(
                    "an input has no file that can be read",
                    given,
                    got=_shown(ignored),
                    expected=f"files ending in {', '.join(SUFFIXES)}",
                )
            )
    return Plan(tuple(files), tuple(pieces), tuple(ignored))


def check_columns(plan: Plan, settings: DocumentSettings, quality_column: str | None = None) -> None:
    """Refuse what no record could answer, before anything is written.

    Args:
        plan: What is to be read.
        settings: Which fields are asked for.
        quality_column: The field quality is taken from.

    Raises:
        MisuseError: A field name is malformed, a column of a Parquet or Arrow file is missing or of a wrong type, or
            one of the first :data:`CHECKED_FILES` files of JSON Lines has no record with the text field.
    """
    fields = Fields(settings, quality_column)
    fields.check()
    for file in [file for file in plan.files if file.kind == "jsonl"][:CHECKED_FILES]:
        check_text_field(file, fields)
    for file in plan.files:
        if file.kind == "parquet" and file.size:
            about = parquet_schema(file.path)
            if about is not None:
                check_schema(about[0], fields, file.source, empty=about[1])
        elif file.kind == "arrow" and file.size:
            schema = arrow_schema(file.path)
            if schema is not None:
                check_schema(schema, fields, file.source)


def _examine(found: Found) -> tuple[Kind, str, int, bool] | None:
    """Return kind, compression, size and whether byte ranges make sense, or None for a file that is passed over."""
    raw_head, size = _head(found.path, "none"), _size(found.path)
    compression = compression_of(raw_head)
    name = PurePosixPath(found.path).name
    head = raw_head if compression == "none" else _head(found.path, compression)
    kind: Kind | None = "arrow" if found.arrow else kind_of(name, head)
    if kind is None:
        if not found.named:
            return None
        if size:
            raise MisuseError(
                one_line(
                    "an input is of no kind that is read",
                    found.path,
                    got=f"a name ending in {suffix_of(name) or 'nothing'!r}",
                    expected=f"one of {', '.join(SUFFIXES)}, also compressed",
                )
            )
        kind = "jsonl"
    if compression != "none" and kind in ("parquet", "arrow"):
        raise MisuseError(
            one_line(
                f"a {kind} file cannot be read through {compression}", found.path, todo="Decompress it first."
            )
        )
    spread = kind == "jsonl" and suffix_of(name) == ".json" and is_spread_object(head)
    if spread and not found.named:
        return None
    return kind, compression, size, kind == "jsonl" and compression == "none" and shape_damage(head) is None


def _head(path: str, compression: str) -> bytes:
    """Return the first bytes of a file, as many as can be had."""
    try:
        with ByteStream(path, compression) as stream:
            return stream.read(SHAPE_BYTES)
    except BrokenStream as broken:
        if broken.reason == "unreadable_file":
            raise MisuseError(one_line("an input file cannot be read", path, got=broken.detail)) from broken
        return b""


def _size(path: str) -> int:
    if "://" not in path:
        return os.path.getsize(path)  # noqa: PTH202 - no Path for each of many files
    system, place = reached(path)
    return int(system.size(place) or 0)


def _pieces(file: InputFile, piece_bytes: int, divisible: bool) -> Iterator[Piece]:
    """Yield the pieces of a file, in order."""
    cuts = [Cut(0, -1, 1)]
    if file.kind == "parquet" and file.size:
        cuts = cut_parquet(file.path, piece_bytes)
    elif file.kind == "arrow" and file.size:
        cuts = cut_arrow(file.path, file.size, piece_bytes)
    elif divisible and file.size > piece_bytes:
        count = _even(-(-file.size // piece_bytes))
        edges = [file.size * i // count for i in range(count + 1)]
        cuts = [Cut(start, stop, stop - start) for start, stop in itertools.pairwise(edges)]
    total = sum(cut.size for cut in cuts)
    ends = [file.size * size // total for size in itertools.accumulate(cut.size for cut in cuts)]
    for cut, begin, end in zip(cuts, [0, *ends], ends, strict=False):
        yield Piece(file, cut.start, cut.stop, first=cut.start == 0, bytes=end - begin)


def _even(count: int) -> int:
    """Return how many pieces to cut where there must be ``count``: as many for each of 2, 4 or 8 workers.

    Pieces of a file take about equally long: at the end of an odd number of them a worker would wait.
    """
    together = min(8, 1 << (count - 1).bit_length())
    return -(-count // together) * together


def _shown(ignored: Sequence[str]) -> str:
    names = ", ".join(ignored[:5])
    return f"only {names}" + (f" and {len(ignored) - 5} more" if len(ignored) > 5 else "") if ignored else ""
