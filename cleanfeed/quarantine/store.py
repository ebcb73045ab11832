"""Incidents and decisions by hand go in; a DuckDB file one can query, and the hashes to leave out, come out.

Files are the truth (:mod:`cleanfeed.quarantine.sources`) and the store follows them: every write first brings it up to
date with whatever they hold, in one transaction, and ends with a checkpoint of DuckDB. So a store that was locked, or
whose disk was full, or that was killed at any moment catches up at the next write, and one that is damaged is set
aside and made anew.
"""

from __future__ import annotations

import getpass
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

import duckdb

from cleanfeed.arguments import check_call, check_list, check_path, is_hash, wrong
from cleanfeed.errors import BusyError, CleanfeedError, DamagedStoreError, MisuseError, one_line
from cleanfeed.quarantine import schema
from cleanfeed.quarantine.exporting import write_export
from cleanfeed.quarantine.locking import first_line, only_writer, opened
from cleanfeed.quarantine.rebuild import (
    Contents,
    Sources,
    build,
    contents,
    discard_leftovers,
    fill,
    in_memory,
    is_current,
    not_a_store,
    set_aside,
    stored_files,
    with_stored,
)
from cleanfeed.quarantine.sources import (
    HandDecision,
    KnownRun,
    Note,
    append_decisions,
    decisions_path,
    incident_files,
    read_decisions,
    run_dir,
    run_name,
)
from cleanfeed.runs.incident_files import decode_incident
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.records import Incident, SkipRange, State

LOG = logging.getLogger("cleanfeed.quarantine")
STORE_NAME = "quarantine.duckdb"
OWN_RUN = "."
"""Name of the run in whose directory the store lies."""
PATIENCE = 5.0
STATES: tuple[str, ...] = get_args(State)


class Quarantine:
    """The quarantine of one run, or one that several runs share.

    Nothing is opened, read or made before it is needed, and nothing stays open.

    Args:
        path: The DuckDB file, or a run directory, which stands for ``quarantine.duckdb`` in it.
        patience: Seconds to try again while another process holds the store.
        on_note: Is told, in one line, what went wrong and was got around; by default a warning in the log
            ``cleanfeed.quarantine``.
    """

    def __init__(self, path: str | Path, *, patience: float = PATIENCE, on_note: Note | None = None) -> None:
        check_path("Quarantine", "path", path)
        if isinstance(patience, bool) or not isinstance(patience, (int, float)) or not patience >= 0:
            raise wrong("Quarantine", "patience", patience, "a number of seconds, 0 or more")
        check_call("Quarantine", "on_note", on_note, optional=True)
        path = Path(path)
        self.path = path / STORE_NAME if path.is_dir() else path
        self.patience = patience
        self._note: Note = LOG.warning if on_note is None else on_note

    def record(self, incident: Incident, run: str | Path | RunDir | None = None) -> bool:
        """Bring the store up to date with the incident files of a run; never raises for want of a store.

        The file of the incident is written first, with :func:`cleanfeed.runs.incident_files.write_incident`.

        Args:
            incident: The incident that is new or has changed.
            run: The run directory; by default the folder of the store.

        Returns:
            Whether the store holds it now. If not, the reason was noted; the next write takes it up.
        """
        if not isinstance(incident, Incident):
            raise wrong("record", "incident", incident, "an Incident")
        root = self.path.parent if run is None else run.root if isinstance(run, RunDir) else Path(run)
        name = run_name(self.path, RunDir(root))
        try:
            self._write([name])
        except (CleanfeedError, OSError) as error:
            self._note(
                f"incident {incident.incident_id} is on file, but not in the store {self.path} yet: {error}"
            )
            return False
        return True

    def rebuild(self, runs: Iterable[str | Path] = ()) -> dict[str, int]:
        """Make the store anew from the files of its runs and the decisions by hand.

        What a readable store holds of runs whose directory is gone is taken over.

        Args:
            runs: Run directories besides those the store, its folder and the file of decisions name.

        Returns:
            How many incidents and decisions by hand it holds.

        Raises:
            BusyError: Another process holds the store.
            ForeignStoreError: The file is no store.
        """
        check_list("rebuild", "runs", runs, "run directories")
        runs = list(runs)
        for run in runs:
            check_path("rebuild", "runs", run)
        self._refuse_foreign()
        with only_writer(decisions_path(self.path), self.patience):
            held, stored = Contents({}, {}), []
            if self.path.exists():
                try:
                    # Opened to write, so that no one else has it and its log is taken up.
                    with opened(self.path, read_only=False, patience=self.patience) as connection:
                        held = contents(connection, self.path)
                        stored = stored_files(connection)
                except DamagedStoreError as error:
                    self._set_aside(error)
            named = [
                *(run_name(self.path, RunDir(Path(run))) for run in runs),
                *(run for run, _ in held.digests),
            ]
            sources = self._sources(named)
            self._know_runs(named)
            self._keep_decisions(held, sources)
            files = with_stored(sources.files, stored, self._is_gone, self._note)
            written, decided = build(self.path, Sources(files, sources.decisions), self._note)
        return {"incidents": written, "decisions": decided}

    def add(
        self,
        hashes: Sequence[str],
        reason: str,
        *,
        by: str | None = None,
        places: dict[str, tuple[str, str, int]] | None = None,
    ) -> None:
        """Quarantine samples by hand; the store is made if there is none.

        Args:
            hashes: Sample hashes, 32 hexadecimal digits each.
            reason: Why.
            by: Who decides; by default the user's name.
            places: (doc_id, source, source_row) of samples, where known.

        Raises:
            MisuseError: One of them is no hash, or there is no reason.
            BusyError: Another process holds the store. The decision is on file and enters with the next write.
        """
        self._decide(hashes, "quarantined", reason, by, places or {})

    def release(self, hashes: Sequence[str], reason: str, *, by: str | None = None) -> None:
        """Release samples by hand: they are trained again, until a later incident quarantines them again.

        Raises:
            MisuseError: There is no store, or it does not know one of the samples.
            BusyError: Another process holds the store. The decision is on file and enters with the next write.
        """
        wanted = checked_hashes(hashes)
        known = {row["sample_hash"] for row in self.rows("samples")}
        missing = [name for name in wanted if name not in known]
        if missing:
            raise MisuseError(
                one_line(
                    "no such sample in the store",
                    str(self.path),
                    f"{missing[0]}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}",
                    "hashes that 'cleanfeed quarantine show' lists",
                )
            )
        self._decide(wanted, "released", reason, by, {})

    def export(self, out: str | Path) -> int:
        """Write the quarantined samples to a ``.parquet`` or ``.txt`` file for ``build --exclude``; return how many.

        Raises:
            MisuseError: The name ends otherwise, or there is no store.
        """
        check_path("export", "out", out)
        rows = [row for row in self.rows("samples") if row["state"] == "quarantined"]
        write_export(Path(out), rows, str(self.path))
        return len(rows)

    def hashes(self, state: State = "quarantined") -> list[str]:
        """Return the hashes of the samples in a state, sorted; none where there is no store yet.

        Raises:
            MisuseError: There is no such state.
        """
        if state not in STATES:
            raise wrong("hashes", "state", state, f"one of {', '.join(STATES)}")
        if not self.exists():
            return []
        return sorted(row["sample_hash"] for row in self.rows("samples") if row["state"] == state)

    def skip_ranges(self, run: str | Path | None = None) -> list[SkipRange]:
        """Return the slots a run skips; by default those of the run in whose directory the store lies."""
        if run is not None:
            check_path("skip_ranges", "run", run)
        name = OWN_RUN if run is None else run_name(self.path, RunDir(Path(run)))
        rows = self.rows("skip_ranges") if self.exists() else []
        return [
            SkipRange(row["attempt"], row["epoch"], row["first_slot"], row["last_slot"])
            for row in rows
            if row["run"] == name
        ]

    def incidents(self) -> list[tuple[str, Incident]]:
        """Return every incident with the name of its run, by run and number."""
        return [
            (row["run"], decode_incident(row["record"], f"incident {row['incident_id']} of {row['run']}"))
            for row in self.rows("incidents")
        ]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table as plain values, in a fixed order; times are UTC.

        Raises:
            MisuseError: There is no store and nothing to make one from, or no such table.
        """
        return self.tables([table])[table]

    def tables(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of several tables, all read at once: see `rows`."""
        for name in names:
            if name not in schema.TABLES:
                raise MisuseError(
                    one_line(
                        "no such table", str(self.path), repr(name), f"one of {', '.join(schema.TABLES)}"
                    )
                )
        try:
            with self.reading() as connection:
                return {name: _all_rows(connection, name) for name in names}
        except DamagedStoreError as error:
            self._read_files_instead(error)
            with in_memory(self._sources([]), self._note) as connection:
                return {name: _all_rows(connection, name) for name in names}

    def file_rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table as the files beside the store have them, whatever the store is: see `rows`."""
        with in_memory(self._sources([]), self._note) as connection:
            return _all_rows(connection, table)

    def exists(self) -> bool:
        """Return whether there is a store, or something to make one from."""
        return self.path.is_file() or decisions_path(self.path).is_file() or not self._is_gone(OWN_RUN)

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Give a connection to read from; the file is not changed.

        Where the store is locked for longer than the patience, damaged, missing or behind its files, this is a store
        in memory made from the files, and what was wrong is noted.

        Raises:
            MisuseError: There is no store and nothing to make one from.
            ForeignStoreError: The file is no store.
        """
        if not self.exists() and not self._has_run():
            raise MisuseError(
                one_line(
                    "no such store",
                    str(self.path),
                    expected="a quarantine store or a run directory",
                    todo="'cleanfeed quarantine add' makes one.",
                )
            )
        connection = self._open_current()
        try:
            yield connection
        except duckdb.ProgrammingError:
            raise
        except duckdb.Error as error:
            raise DamagedStoreError(
                one_line(
                    "the store is damaged",
                    str(self.path),
                    first_line(error),
                    todo="'cleanfeed quarantine rebuild' makes it anew from the incident files.",
                )
            ) from error
        finally:
            connection.close()

    def _open_current(self) -> duckdb.DuckDBPyConnection:
        if self.path.is_file():
            self._refuse_foreign()
            try:
                return self._open_file()
            except (BusyError, DamagedStoreError) as error:
                self._read_files_instead(error)
        return in_memory(self._sources([]), self._note)

    def _read_files_instead(self, error: CleanfeedError) -> None:
        """Note that the store cannot be read; raise where nothing beside it says what was in it."""
        if not any(read_decisions(self.path, self._note)) and not self._has_run():
            raise error
        self._note(f"read from the incident files instead: {error}")

    def _has_run(self) -> bool:
        """Return whether the store is, or would be, that of a run: one that may not have had an incident yet."""
        run = RunDir(self.path.parent)
        return self.path.name == STORE_NAME and (run.ledger.is_dir() or run.incidents.is_dir())

    def _open_file(self) -> duckdb.DuckDBPyConnection:
        """Return the file opened read-only, or what is in it and in newer files together, in memory."""
        connection = opened(self.path, read_only=True, patience=self.patience)
        try:
            held = contents(connection, self.path)
            sources = self._sources([run for run, _ in held.digests])
            if is_current(held, sources):
                return connection
            stored = stored_files(connection)
        except BaseException:
            connection.close()
            raise
        connection.close()
        decisions = {**held.decisions, **{one.key: one for one in sources.decisions}}
        files = with_stored(sources.files, stored, self._is_gone, self._note)
        return in_memory(Sources(files, list(decisions.values())), self._note)

    def _write(self, runs: Sequence[str], new: Sequence[HandDecision] = ()) -> None:
        """Hold the store, put decisions on file, and bring the store up to date."""
        beside = decisions_path(self.path)
        self._refuse_foreign()
        with only_writer(beside, self.patience):
            append_decisions(self.path, new)
            self._know_runs(runs)
            discard_leftovers(self.path)
            try:
                self._catch_up(runs)
            except DamagedStoreError as error:
                self._set_aside(error)
                self._catch_up(runs)
            except BusyError as error:
                if not new:
                    raise
                kept = f"What was decided is kept in {beside} and enters the store with the next write."
                raise BusyError(f"{error} {kept}") from error

    def _catch_up(self, runs: Sequence[str]) -> None:
        if not self.path.exists():
            build(self.path, self._sources(runs), self._note)
            return
        with opened(self.path, read_only=False, patience=self.patience) as connection:
            held = contents(connection, self.path)
            sources = self._sources([*runs, *(run for run, _ in held.digests)])
            self._keep_decisions(held, sources)
            if is_current(held, sources):
                return
            try:
                fill(connection, held, sources, self._note)
                connection.execute("CHECKPOINT")
            except duckdb.Error as error:
                said = first_line(error)
                # A fatal error may as well be a full disk: the next to open the store sees what is left.
                broken = isinstance(error, duckdb.SerializationException | duckdb.InternalException)
                if broken or "orrupt" in said or "checksum" in said:
                    raise DamagedStoreError(one_line("the store is damaged", str(self.path), said)) from error
                raise CleanfeedError(one_line("cannot write the store", str(self.path), said)) from error

    def _decide(
        self,
        hashes: Sequence[str],
        state: State,
        reason: str,
        by: str | None,
        places: dict[str, tuple[str, str, int]],
    ) -> None:
        check_decision(reason, by, places)
        if not reason.strip():
            raise MisuseError(one_line("no reason given", "reason", "nothing", "why this is decided"))
        self._refuse_foreign()
        if self.path.is_file():
            # Before the decision is on file, beside a database of something else.
            with (
                suppress(BusyError, DamagedStoreError),
                opened(self.path, read_only=True, patience=0.0) as found,
            ):
                contents(found, self.path)
        by, at = by or user_name(), round(time.time(), 6)
        new = [
            HandDecision(name, state, reason, by, at, *places.get(name, (None, None, None)))
            for name in checked_hashes(hashes)
        ]
        self._write([], new)

    def _sources(self, runs: Iterable[str]) -> Sources:
        decisions, known = read_decisions(self.path, self._note)
        names = dict.fromkeys([OWN_RUN, *known, *runs])
        return Sources(list(incident_files(self.path, names, self._note)), decisions)

    def _is_gone(self, name: str) -> bool:
        return not run_dir(self.path, name).incident_numbers()

    def _know_runs(self, runs: Iterable[str]) -> None:
        _, known = read_decisions(self.path, self._note)
        new = [name for name in dict.fromkeys(runs) if name != OWN_RUN and name not in known]
        append_decisions(self.path, [KnownRun(name) for name in new])

    def _keep_decisions(self, held: Contents, sources: Sources) -> None:
        """Put decisions that only the store has on file, so that they outlive it."""
        on_file = {one.key for one in sources.decisions}
        missing = [one for key, one in held.decisions.items() if key not in on_file]
        append_decisions(self.path, missing)
        sources.decisions.extend(missing)

    def _set_aside(self, error: DamagedStoreError) -> None:
        kept = set_aside(self.path)
        self._note(
            f"{error} It is kept as {kept.name}; a new one is made from the incident files and decisions by hand."
        )

    def _refuse_foreign(self) -> None:
        """Refuse a file that never was a store, before anything is written beside it."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as handle:
            head = handle.read(12)
        beside = decisions_path(self.path)
        ours = self.path.name == STORE_NAME or (beside.is_file() and beside.stat().st_size > 0)
        if head[8:12] != b"DUCK" and not ours:
            raise not_a_store(self.path, "a file that is no DuckDB database")


def _all_rows(connection: duckdb.DuckDBPyConnection, table: str) -> list[dict[str, Any]]:
    found = connection.execute(f"SELECT * FROM {table} ORDER BY ALL NULLS FIRST")
    names = [column[0] for column in found.description or []]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    order = [name for name in ("run", "incident_id") if name in schema.TABLES[table]]
    return sorted(rows, key=lambda row: tuple((row[name] is not None, row[name] or 0) for name in order))


def check_decision(reason: object, by: object, places: object) -> None:
    """Refuse a reason or a name that is no text, and places that are not (doc_id, source, source_row)."""
    if not isinstance(reason, str):
        raise wrong("add or release", "reason", reason, "a text")
    if by is not None and not isinstance(by, str):
        raise wrong("add or release", "by", by, "a name or None")
    kinds = (str, str, int)
    for place in places.values() if isinstance(places, dict) else [places]:
        if not isinstance(place, tuple) or [type(one) for one in place] != list(kinds):
            raise wrong("add", "places", place, "(doc_id, source, source_row) by sample hash")


def checked_hashes(hashes: Sequence[str]) -> list[str]:
    """Return sample hashes in lower case, each once, in the order given.

    Raises:
        MisuseError: There is none, or one is not 32 hexadecimal digits.
    """
    check_list("add or release", "hashes", hashes, "sample hashes")
    hashes = list(hashes)
    if not hashes:
        raise MisuseError(one_line("no sample given", "HASH", "nothing", "sample hashes"))
    for text in hashes:
        if not is_hash(text):
            raise MisuseError(
                one_line("not a hash", "HASH", repr(text)[:62], "32 hexadecimal digits, a sample_hash")
            )
    return list(dict.fromkeys(text.lower() for text in hashes))


def user_name() -> str:
    """Return the name of the user, or a word where the system knows none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"
