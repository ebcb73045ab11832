"""The ledger of a run goes in; totals, single lines and curves of it come out, at a million steps in a second or two.

DuckDB reads the lines, several at a time, and only the fields that are asked for here. The files may grow while they
are read: a torn last line is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal

import duckdb
import msgspec

from cleanfeed.errors import LedgerError, one_line
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import last_surviving, read_attempts
from cleanfeed.runs.records import Attempt

Signal = Literal["loss", "grad_norm"]
_FIELDS = {
    "attempt": "INTEGER",
    "step": "BIGINT",
    "epoch": "INTEGER",
    "slot": "BIGINT",
    "stage": "INTEGER",
    "samples": "BIGINT",
    "tokens": "BIGINT",
    "loss": "DOUBLE",
    "worst_micro_loss": "DOUBLE",
    "grad_norm": "DOUBLE",
    "lr": "DOUBLE",
    "time": "DOUBLE",
    "accepted": "BOOLEAN",
    "finite": "BOOLEAN",
    "judged": "BOOLEAN",
}
NEVER_UNDONE = 1 << 62
BLOCK = 1 << 22
"""Bytes that are read at once to count lines."""


class CurveLine(msgspec.Struct, frozen=True):
    """One line of the ledger, without what only an audit needs."""

    attempt: int
    step: int
    epoch: int
    slot: int
    stage: int
    samples: int
    tokens: int
    loss: float | None
    worst_micro_loss: float | None
    grad_norm: float | None
    lr: float | None
    time: float
    accepted: bool
    finite: bool
    survived: bool
    """False where a later attempt began before this step."""


class Bucket(msgspec.Struct, frozen=True):
    """Some neighbouring steps of a curve; only finite values count."""

    first_step: int
    last_step: int
    low: float
    mean: float
    high: float
    survived: bool


class Totals(msgspec.Struct, frozen=True):
    """What a ledger adds up to."""

    steps: int = 0
    """Steps of the surviving lineage."""
    last_step: int = 0
    tokens: int = 0
    """Tokens of the surviving steps that were accepted."""
    undone_steps: int = 0
    """Steps that a later attempt undid."""
    refused_steps: int = 0
    """Surviving steps that were not accepted."""
    unjudged_steps: int = 0
    """Surviving steps of which no statistical rule could speak: in the grace, and while a stage was new."""
    nonfinite_steps: int = 0
    """Steps with a NaN or an infinity, undone ones as well."""
    last_slot: int = -1
    """Highest slot of the surviving lineage; -1 where nothing was trained."""
    first_time: float | None = None
    last_time: float | None = None


def _whole_lines(path: Path) -> int:
    """Return the lines of a file without a torn last one."""
    count = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            count += block.count(b"\n")
    return count


class LedgerTable:
    """The lines of a run's ledger, ready to be asked.

    Args:
        run: The run directory; without a ledger there are no lines.
        on_note: Is told, in one line, what could not be read.
    """

    def __init__(self, run: RunDir, on_note: Callable[[str], None]) -> None:
        self.run = run
        self.attempts: list[Attempt] = []
        """How each attempt began, as far as that can be read."""
        files = [str(run.attempt_lines(number)) for number in run.attempts()]
        try:
            self.attempts = read_attempts(run)
        except LedgerError as error:
            on_note(f"{error} Every line is taken for one that counts.")
        limits = last_surviving(self.attempts)
        self._store = duckdb.connect()
        listed = ", ".join(f"{name} {kind}" for name, kind in _FIELDS.items())
        self._store.execute(f"CREATE TABLE lines ({listed}, survived BOOLEAN)")
        self._store.execute("CREATE TABLE limits (attempt INTEGER, last BIGINT)")
        for attempt, last in limits.items():
            self._store.execute("INSERT INTO limits VALUES (?, ?)", [attempt, min(last, NEVER_UNDONE)])
        if files:
            lines = {number: _whole_lines(run.attempt_lines(number)) for number in run.attempts()}
            self._read(files)
            self._note_damaged(lines, on_note)

    def _note_damaged(self, lines: dict[int, int], on_note: Callable[[str], None]) -> None:
        """Say which files hold whole lines that are none of a ledger; one may have grown since they were counted."""
        rows = dict(self._store.execute("SELECT attempt, count(*) FROM lines GROUP BY attempt").fetchall())
        for number, count in lines.items():
            if (lost := count - rows.get(number, 0)) > 0:
                path = self.run.attempt_lines(number)
                on_note(f"{lost:,} of {count:,} lines of the ledger cannot be read and are left out: {path}")

    def _read(self, files: list[str]) -> None:
        columns = ", ".join(f"{name}: '{kind}'" for name, kind in _FIELDS.items())
        # A line without the last three was accepted, finite and judged.
        fields = ", ".join(
            f"coalesce(lines_read.{name}, true)" if kind == "BOOLEAN" else f"lines_read.{name}"
            for name, kind in _FIELDS.items()
        )
        self._store.execute("SET preserve_insertion_order = false")
        try:
            self._store.execute(
                f"""
                INSERT INTO lines
                SELECT {fields}, lines_read.step <= coalesce(limits.last, {NEVER_UNDONE})
                FROM read_json($files, format = 'newline_delimited', ignore_errors = true,
                    columns = {{{columns}}}) AS lines_read
                LEFT JOIN limits USING (attempt)
                WHERE lines_read.step IS NOT NULL AND lines_read.attempt IS NOT NULL AND lines_read.time IS NOT NULL
                """,
                {"files": files},
            )
        except duckdb.Error as error:
            raise LedgerError(
                one_line("cannot read the ledger", str(self.run.ledger), str(error).splitlines()[0])
            ) from error

    def totals(self) -> Totals:
        """Return what the ledger adds up to."""
        row = self._store.execute(
            """
            SELECT count(*) FILTER (survived), max(step) FILTER (survived),
                sum(tokens) FILTER (survived AND accepted), count(*) FILTER (NOT survived),
                count(*) FILTER (survived AND NOT accepted), count(*) FILTER (survived AND NOT judged),
                count(*) FILTER (NOT finite),
                max(slot) FILTER (survived), min(time), max(time)
            FROM lines
            """
        ).fetchall()[0]
        steps, last_step, tokens, undone, refused, unjudged, nonfinite = (
            int(value or 0) for value in row[:7]
        )
        last_slot = -1 if row[7] is None else int(row[7])
        return Totals(
            steps, last_step, tokens, undone, refused, unjudged, nonfinite, last_slot, row[8], row[9]
        )

    def around(self, first_step: int, last_step: int, most: int = 2000) -> list[CurveLine]:
        """Return the lines of some steps in the order they were written, at most ``most`` of them."""
        names = CurveLine.__struct_fields__
        rows = self._store.execute(
            f"SELECT {', '.join(names)} FROM lines WHERE step BETWEEN ? AND ? ORDER BY attempt, step LIMIT ?",
            [first_step, last_step, most],
        ).fetchall()
        return [CurveLine(**dict(zip(names, row, strict=True))) for row in rows]

    def curve(self, signal: Signal, buckets: int) -> list[Bucket]:
        """Return a signal over the whole run in at most ``buckets`` runs of steps; those undone apart."""
        rows = self._store.execute(
            f"""
            WITH ends AS (SELECT min(step) AS first, max(step) AS last FROM lines)
            SELECT min(step), max(step), min({signal}), avg({signal}), max({signal}), survived
            FROM lines, ends
            WHERE isfinite({signal})
            GROUP BY (step - first) * {buckets} // (last - first + 1), survived
            ORDER BY 1, 6
            """
        ).fetchall()
        return [Bucket(*row) for row in rows]

    def nonfinite(self, most: int) -> list[int]:
        """Return the first steps with a NaN or an infinity, undone ones as well, each once."""
        rows = self._store.execute(
            "SELECT DISTINCT step FROM lines WHERE NOT finite ORDER BY step LIMIT ?", [most]
        ).fetchall()
        return [step for (step,) in rows]

    def close(self) -> None:
        """Give the memory back."""
        self._store.close()

    def __enter__(self) -> LedgerTable:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
