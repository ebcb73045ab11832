"""Incident files and decisions by hand go in; a store that holds all of them, and nothing twice, comes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from cleanfeed.curriculum.durable import sync
from cleanfeed.errors import CleanfeedError, DamagedStoreError, ForeignStoreError, one_line
from cleanfeed.quarantine import schema
from cleanfeed.quarantine.locking import first_line, opened
from cleanfeed.quarantine.sources import HandDecision, IncidentFile, Note
from cleanfeed.runs.incident_files import decode_incident

ASIDE = ".{}.unfinished"
WAL_SUFFIX = ".wal"


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything a store is made from."""

    files: list[IncidentFile]
    decisions: list[HandDecision]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a store holds already."""

    digests: dict[tuple[str, int], str]
    """Digest of the file of each incident, by run and number."""
    decisions: dict[tuple[str, str, int, str], HandDecision]
    """Decisions by hand, by key."""


def contents(connection: duckdb.DuckDBPyConnection, path: Path) -> Contents:
    """Return what a store holds.

    Raises:
        ForeignStoreError: It is no store, or one of a later version of cleanfeed.
        DamagedStoreError: Its file is not whole.
    """
    try:
        formats = connection.execute("SELECT format FROM store").fetchall()
        if formats and formats[0][0] > schema.FORMAT:
            raise ForeignStoreError(
                one_line(
                    "a store of a later format",
                    str(path),
                    f"format {formats[0][0]}",
                    f"at most {schema.FORMAT}",
                    "Use the version of cleanfeed it was written with.",
                )
            )
        incidents = connection.execute("SELECT run, incident_id, digest FROM incidents").fetchall()
        by_hand = connection.execute(
            "SELECT sample_hash, state, reason, decided_by, decided_at, doc_id, source, source_row "
            "FROM decisions WHERE incident_id IS NULL"
        ).fetchall()
    except duckdb.ProgrammingError as error:
        raise not_a_store(path, first_line(error)) from error
    except duckdb.Error as error:
        raise DamagedStoreError(one_line("the store is damaged", str(path), first_line(error))) from error
    decisions = [
        HandDecision(name, state, reason, by, schema.seconds(at), doc_id, source, source_row)
        for name, state, reason, by, at, doc_id, source, source_row in by_hand
    ]
    return Contents(
        {(run, number): digest for run, number, digest in incidents}, {d.key: d for d in decisions}
    )


def not_a_store(path: Path, got: str) -> ForeignStoreError:
    """Return the error for a file that is something else."""
    return ForeignStoreError(one_line("not a quarantine store", str(path), got, "a store cleanfeed has made"))


def is_current(held: Contents, sources: Sources) -> bool:
    """Return whether a store holds everything that is in its sources."""
    return all(held.digests.get((file.run, file.number)) == file.digest for file in sources.files) and all(
        decision.key in held.decisions for decision in sources.decisions
    )


def fill(
    connection: duckdb.DuckDBPyConnection, held: Contents, sources: Sources, on_note: Note
) -> tuple[int, int]:
    """Bring a store up to date in one transaction; return how many incidents and decisions are new or changed.

    Raises:
        duckdb.Error: It could not be written; then nothing is changed.
    """
    touched: list[str] = []
    written = 0
    connection.execute("BEGIN")
    try:
        for file in sources.files:
            if held.digests.get((file.run, file.number)) == file.digest:
                continue
            try:
                incident = decode_incident(file.data, str(file.path))
            except CleanfeedError as error:
                on_note(str(error))
                continue
            touched += schema.forget(connection, file.run, file.number)
            rows = schema.incident_rows(file.run, file.digest, file.data.decode(), incident)
            for table, listed in rows.items():
                schema.insert(connection, table, listed)
            touched += [sample.sample_hash for sample in incident.samples]
            written += 1
        new = {one.key: one for one in sources.decisions if one.key not in held.decisions}
        schema.insert(connection, "decisions", [_hand_row(one) for one in new.values()])
        schema.settle(connection, [*touched, *(one.sample_hash for one in new.values())])
        connection.execute("COMMIT")
    except BaseException:
        # After some errors DuckDB refuses this as well; the file then holds what it held before.
        with suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        raise
    return written, len(new)


def _hand_row(decision: HandDecision) -> dict[str, object]:
    return {
        "sample_hash": decision.sample_hash,
        "doc_id": decision.doc_id,
        "source": decision.source,
        "source_row": decision.source_row,
        "state": decision.state,
        "reason": decision.reason,
        "decided_by": decision.decided_by,
        "decided_at": schema.moment(decision.decided_at),
    }


def in_memory(sources: Sources, on_note: Note) -> duckdb.DuckDBPyConnection:
    """Return a connection to a store in memory that holds what is in the sources."""
    connection = duckdb.connect(":memory:", config={"threads": 1})
    schema.create(connection)
    fill(connection, Contents({}, {}), sources, on_note)
    return connection


@contextmanager
def made_anew(path: Path) -> Iterator[Path]:
    """Give a path for a new store; on leaving, put it in the place of ``path``, which must be closed and locked."""
    discard_leftovers(path)
    aside = path.with_name(ASIDE.format(path.name))
    try:
        yield aside
        sync([aside])
        # The log of the store before would be replayed over the new one.
        if wal(path).exists():
            set_aside(path)
        aside.replace(path)
    except BaseException:
        discard_leftovers(path)
        raise
    sync([path])


def discard_leftovers(path: Path) -> None:
    """Remove what a kill left of a store that was being made; the caller is the only writer."""
    aside = path.with_name(ASIDE.format(path.name))
    for leftover in (aside, wal(aside)):
        leftover.unlink(missing_ok=True)


def build(path: Path, sources: Sources, on_note: Note) -> tuple[int, int]:
    """Write a store from its sources alone and put it at ``path``; return its incidents and decisions by hand."""
    with made_anew(path) as aside, opened(aside, read_only=False, patience=0.0) as connection:
        schema.create(connection)
        counts = fill(connection, Contents({}, {}), sources, on_note)
        connection.execute("CHECKPOINT")
    return counts


def wal(path: Path) -> Path:
    """Return the log DuckDB keeps beside a file."""
    return path.with_name(path.name + WAL_SUFFIX)


def set_aside(path: Path) -> Path:
    """Rename a damaged store and its log; nothing of it is deleted. Return the new name."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while kept.exists() or wal(kept).exists():
        number += 1
        kept = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    for old, new in ((wal(path), wal(kept)), (path, kept)):
        if old.exists():
            old.rename(new)
    return kept


def stored_files(connection: duckdb.DuckDBPyConnection) -> list[IncidentFile]:
    """Return the incidents of a store as the files they were made from."""
    rows = connection.execute("SELECT run, incident_id, digest, record FROM incidents").fetchall()
    return [
        IncidentFile(run, number, Path(f"incident {number} of {run}"), digest, record.encode())
        for run, number, digest, record in rows
    ]


def with_stored(
    files: Iterable[IncidentFile],
    stored: Iterable[IncidentFile],
    gone: Callable[[str], bool],
    on_note: Note,
) -> list[IncidentFile]:
    """Return every incident once: from its file, or from the store where its run is gone or its file is damaged."""
    held = {(one.run, one.number): one for one in stored}
    found = [one for one in held.values() if gone(one.run)]
    for file in files:
        try:
            decode_incident(file.data, str(file.path))
        except CleanfeedError as error:
            copy = held.get((file.run, file.number))
            on_note(f"{error} The copy in the store is used." if copy is not None else str(error))
            found += [copy] if copy is not None else []
        else:
            found.append(file)
    return sorted(found, key=lambda one: (one.run, one.number))
