"""An incident and the rows of its suspects go in; a folder that is whole or not there comes out, and can be read again.

``incidents/NNNN/incident.json`` is the truth of an incident and ``suspects.parquet`` beside it holds what was known of
the suspects' samples. A new incident is written into a folder of another name, synced and renamed; an update replaces
one file, synced, by rename. A process killed in between leaves at most such a folder or file, which nobody reads and
the next write of the same incident removes.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from cleanfeed.curriculum.durable import ASIDE_SUFFIX, sync, write_bytes, written_aside
from cleanfeed.errors import CleanfeedError, MisuseError, one_line
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.records import Incident

INCIDENT_NAME = "incident.json"
SUSPECTS_NAME = "suspects.parquet"
FORMAT = 1
LARGEST = 1e9
"""Written for a score that is infinite."""

EXCERPT_CHARS = 600
"""Code points of a sample's text that are kept."""
EXCERPT_TOKENS = 600
"""Tokens that are decoded for an excerpt: a token is at least one code point nearly always."""
EXCERPT_COLUMN = "excerpt"
BULKY = ("text", "input_ids")
"""Columns that hold a whole sample."""
PLACE_COLUMNS = {
    "attempt": pa.int32(),
    "step": pa.int64(),
    "slot": pa.int64(),
    "score": pa.float64(),
    "loss": pa.float64(),
}
"""What a suspect's row has besides the columns of the curriculum; null where it is not known."""


def write_incident(run: RunDir, incident: Incident, suspects: pa.Table | None = None) -> Path:
    """Write an incident, or bring the files of one that is there up to date, and return its folder.

    Args:
        run: The run directory.
        incident: What happened so far.
        suspects: Rows of the suspects, see :func:`suspect_rows`; those that are there stay, but for the same samples.

    Raises:
        OSError: The disk is full, or the folder cannot be written; what was there before still is.
    """
    folder = run.incident(incident.incident_id)
    record = _encode(incident)
    if folder.is_dir():
        if suspects is not None:
            _write_suspects(folder / SUSPECTS_NAME, suspects)
        write_bytes(folder / INCIDENT_NAME, record)
        return folder
    aside = folder.with_name(folder.name + ASIDE_SUFFIX)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        if suspects is not None:
            pq.write_table(suspects, aside / SUSPECTS_NAME, compression="zstd", write_page_checksum=True)
        (aside / INCIDENT_NAME).write_bytes(record)
        sync(aside.iterdir())
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync([folder])
    return folder


def _encode(incident: Incident) -> bytes:
    # JSON holds neither NaN nor infinity: msgspec writes null for them, which a score cannot be.
    suspects = [
        one if math.isfinite(one.score) else replace(one, score=0.0 if math.isnan(one.score) else LARGEST)
        for one in incident.suspects
    ]
    incident = replace(incident, suspects=suspects)
    return msgspec.json.format(msgspec.json.encode(incident), indent=1) + b"\n"


def _write_suspects(path: Path, suspects: pa.Table) -> None:
    """Write rows of suspects, and after them those of other samples that an earlier answer has left."""
    try:
        before = pq.read_table(path, memory_map=False) if path.is_file() else None
    except (pa.ArrowException, OSError):
        before = None  # nothing of it can be read any more
    if before is not None and "sample_hash" in before.column_names:
        known = pc.is_in(before["sample_hash"], value_set=suspects["sample_hash"].combine_chunks())
        suspects = pa.concat_tables([suspects, before.filter(pc.invert(known))], promote_options="default")
    with written_aside(path) as aside:
        pq.write_table(suspects, aside, compression="zstd", write_page_checksum=True)
        sync([aside])


def suspect_rows(
    rows: pa.Table,
    places: dict[str, Any],
    *,
    decode: Callable[[list[int]], str] | None = None,
) -> pa.Table:
    """Return the table of an incident's suspects from rows of the curriculum.

    The whole text and the token ids stay out: they can be large, and private. An excerpt of ``EXCERPT_CHARS`` code
    points takes their place.

    Args:
        rows: Columns of the curriculum, one row a suspect sample; ``text`` or ``input_ids`` are used for the excerpt.
        places: For ``attempt``, ``step``, ``slot``, ``score`` and ``loss`` one value a row; what is missing is null.
        decode: Token ids to text, where the curriculum holds no text.
    """
    unknown = places.keys() - PLACE_COLUMNS.keys()
    if unknown:
        raise ValueError(f"no such column of suspects: {', '.join(sorted(unknown))}")
    excerpts = pa.array(_excerpts(rows, decode), pa.large_string())
    # A field of the user's own may have one of these names: then ours stands.
    left_out = {*PLACE_COLUMNS, EXCERPT_COLUMN, *BULKY}
    kept = rows.select([name for name in rows.column_names if name not in left_out])
    for name, kind in PLACE_COLUMNS.items():
        values = places.get(name)
        kept = kept.append_column(
            name, pa.nulls(rows.num_rows, kind) if values is None else pa.array(values, kind)
        )
    return kept.append_column(EXCERPT_COLUMN, excerpts)


def _excerpts(rows: pa.Table, decode: Callable[[list[int]], str] | None) -> list[str | None]:
    if "text" in rows.column_names:
        return [text if text is None else text[:EXCERPT_CHARS] for text in rows["text"].to_pylist()]
    if "input_ids" in rows.column_names and decode is not None:
        return [decode(ids.as_py()[:EXCERPT_TOKENS])[:EXCERPT_CHARS] for ids in rows["input_ids"]]
    return [None] * rows.num_rows


def read_incident(run: RunDir, number: int) -> Incident:
    """Return an incident as its file has it.

    Raises:
        MisuseError: There is none of this number.
        CleanfeedError: Its file is not whole.
    """
    path = run.incident(number) / INCIDENT_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        known = ", ".join(map(str, run.incident_numbers())) or "none"
        raise MisuseError(
            one_line("no such incident", str(run.root), f"number {number}", f"one of: {known}")
        ) from error
    return decode_incident(data, str(path))


def decode_incident(data: bytes | str, where: str) -> Incident:
    """Return an incident from its JSON; ``where`` names it in errors.

    Raises:
        CleanfeedError: It is not whole, or of a later format.
    """
    try:
        incident = msgspec.json.decode(data, type=Incident)
    except msgspec.MsgspecError as error:
        raise CleanfeedError(
            one_line(
                "not an incident",
                where,
                str(error),
                todo="Restore the file, or move its folder away to go on without it.",
            )
        ) from error
    if incident.format > FORMAT:
        raise CleanfeedError(
            one_line(
                "an incident of a later format",
                where,
                f"format {incident.format}",
                f"at most {FORMAT}",
                "Use the version of cleanfeed it was written with.",
            )
        )
    return incident


def read_incidents(run: RunDir, on_problem: Callable[[str], None] | None = None) -> list[Incident]:
    """Return every incident of a run that can be read, by number.

    Args:
        run: The run directory.
        on_problem: Is told, in one line, of each that cannot be read; without it the first such is an error.
    """
    found = []
    for number in run.incident_numbers():
        try:
            found.append(read_incident(run, number))
        except CleanfeedError as error:
            if on_problem is None:
                raise
            on_problem(str(error))
    return found


def read_suspects(run: RunDir, number: int) -> pa.Table | None:
    """Return the rows of an incident's suspects, or None where there are none.

    Raises:
        CleanfeedError: The file is damaged.
    """
    path = run.incident(number) / SUSPECTS_NAME
    if not path.is_file():
        return None
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read()
    except (pa.ArrowException, OSError) as error:
        raise CleanfeedError(
            one_line("cannot read the suspects", str(path), str(error).splitlines()[0])
        ) from error


def next_incident_number(run: RunDir) -> int:
    """Return the number the next incident of a run gets: one more than the highest that is there."""
    return max(run.incident_numbers(), default=0) + 1
