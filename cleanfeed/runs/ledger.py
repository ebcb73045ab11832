"""Optimizer steps go in and are on file when `write` returns; the lines of a run, and those that survived, come out.

One file an attempt, one JSON object a line, only ever appended to. A line is one ``write`` on an unbuffered file,
so after ``kill -9`` of the process it is there whole or not at all; against a power cut ask for ``fsync``, or rely on
`LedgerWriter.sync`, which the guard calls before it declares a checkpoint complete.

Which lines count: an attempt begins after a number of steps that were already done (``after_step``), so every line of
an earlier attempt with a higher step was undone by it. What is left, in order, is the surviving lineage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from cleanfeed.curriculum.durable import sync, write_bytes
from cleanfeed.errors import LedgerError, one_line
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.records import Attempt, ExclusionChange, LedgerLine

Line = TypeVar("Line", bound=msgspec.Struct)


def begin_attempt(run: RunDir, start: Attempt) -> None:
    """Write how an attempt begins, atomically and synced, before its first line.

    Raises:
        LedgerError: The attempt has begun before, or the file cannot be written.
    """
    path = run.attempt_start(start.attempt)
    if path.exists() or run.attempt_lines(start.attempt).exists():
        raise LedgerError(one_line("the attempt has begun before", str(path), todo="Use the next number."))
    try:
        write_bytes(path, msgspec.json.format(msgspec.json.encode(start)) + b"\n")
    except OSError as error:
        raise _unwritable(path, error) from error


def next_attempt(run: RunDir) -> int:
    """Return the number of the next attempt, from 1; a number is never used twice."""
    begun = (int(path.stem.split("-")[1]) for path in run.ledger.glob("attempt-*.json"))
    return max([0, *begun, *run.attempts()]) + 1


class LedgerWriter:
    """The ledger of one attempt, open for appending; one process of a run (rank 0) holds it.

    Args:
        run: The run directory.
        attempt: Number of the attempt; its start record is there.
        fsync: Wait for the disk after each line. Without it a line survives the end of the process, however violent,
            but not a power cut within the kernel's write-back time.
    """

    def __init__(self, run: RunDir, attempt: int, *, fsync: bool = False) -> None:
        self.run = run
        self.attempt = attempt
        self._fsync = fsync
        self._encoder = msgspec.json.Encoder()
        self._path = run.attempt_lines(attempt)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open(self._path)
        self._changes: int | None = None
        self._size = 0
        sync([self._path])

    @staticmethod
    def _open(path: Path) -> int:
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o644)
        except OSError as error:
            raise _unwritable(path, error) from error

    def write(self, line: LedgerLine) -> None:
        """Append one step.

        Raises:
            LedgerError: The line could not be written whole; the file ends with the line before it.
        """
        self._size = self._append(self._file, self._path, self._encoder.encode(line) + b"\n", self._size)

    def change(self, change: ExclusionChange) -> None:
        """Append a change of what the sampler leaves out; written before the sampler is told, and rare."""
        path = self.run.attempt_exclusions(self.attempt)
        if self._changes is None:
            self._changes = self._open(path)
        data = self._encoder.encode(change) + b"\n"
        self._append(self._changes, path, data, os.fstat(self._changes).st_size)
        os.fsync(self._changes)

    def _append(self, handle: int, path: Path, data: bytes, size: int) -> int:
        try:
            written = os.write(handle, data)
            if written != len(data):
                raise OSError(28, f"only {written} of {len(data)} bytes were taken")
            if self._fsync:
                os.fdatasync(handle)
        except OSError as error:
            os.ftruncate(handle, size)  # giving room back works on a full disk too
            raise _unwritable(path, error) from error
        return size + len(data)

    def sync(self) -> None:
        """Wait until every line is on disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Sync and close; closing twice is allowed."""
        for handle in (self._file, self._changes):
            if handle is not None and handle >= 0:
                os.fsync(handle)
                os.close(handle)
        self._file, self._changes = -1, None

    def __enter__(self) -> LedgerWriter:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """Return the lines of one file as structs of ``kind``; a torn last line is left out.

    A struct with fewer fields than `LedgerLine` is decoded faster: what it does not name is skipped.

    Raises:
        LedgerError: A line other than the last cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(one_line("cannot read the ledger", str(path), got=str(error.strerror))) from error
    whole = data.rfind(b"\n") + 1
    decoder = msgspec.json.Decoder(kind)
    try:
        return decoder.decode_lines(data[:whole])
    except msgspec.MsgspecError:
        raise _broken_line(path, data[:whole], decoder) from None


def _broken_line(path: Path, data: bytes, decoder: msgspec.json.Decoder[Line]) -> LedgerError:
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            decoder.decode(line)
        except msgspec.MsgspecError as error:
            return LedgerError(
                one_line(
                    "a line of the ledger cannot be read",
                    f"{path}:{number}",
                    got=str(error),
                    todo="Only the last line of an attempt may be torn: the file was changed, restore it.",
                )
            )
    return LedgerError(one_line("the ledger cannot be read", str(path)))


def read_attempts(run: RunDir) -> list[Attempt]:
    """Return how each attempt began, ascending.

    Raises:
        LedgerError: A record cannot be read, or an attempt has lines and no record.
    """
    starts = []
    for path in sorted(run.ledger.glob("attempt-*.json"), key=lambda path: int(path.stem.split("-")[1])):
        try:
            starts.append(msgspec.json.decode(path.read_bytes(), type=Attempt))
        except (OSError, msgspec.MsgspecError) as error:
            raise LedgerError(
                one_line(
                    "cannot read how an attempt began", str(path), got=str(error), todo="Restore the file."
                )
            ) from error
    missing = sorted(set(run.attempts()) - {start.attempt for start in starts})
    if missing:
        raise LedgerError(
            one_line(
                "an attempt has lines and no record of how it began",
                str(run.attempt_start(missing[0])),
                todo="Restore the file: without it nobody can say which lines were undone.",
            )
        )
    return starts


def read_changes(run: RunDir, attempt: int) -> list[ExclusionChange]:
    """Return the changes of exclusions within an attempt, in order."""
    path = run.attempt_exclusions(attempt)
    return read_lines(path, ExclusionChange) if path.exists() else []


def read_ledger(run: RunDir, kind: type[Line] = LedgerLine) -> Iterator[Line]:  # type: ignore[assignment]
    """Yield every line of a run, attempt after attempt, also those that were undone later."""
    for attempt in run.attempts():
        yield from read_lines(run.attempt_lines(attempt), kind)


def last_surviving(starts: Sequence[Attempt]) -> dict[int, float]:
    """Return for each attempt the last step of it that was not undone by a later one (infinity: none was undone)."""
    limits: dict[int, float] = {}
    limit = float("inf")
    for start in reversed(starts):
        limits[start.attempt] = limit
        limit = min(limit, start.after_step)
    return limits


def survives(starts: Sequence[Attempt], attempt: int, step: int) -> bool:
    """Return whether a step of an attempt is part of what the newest attempt goes on from.

    That holds for an attempt whose files are gone as well: only a later one can have undone a step.
    """
    return all(step <= start.after_step for start in starts if start.attempt > attempt)


def surviving(run: RunDir) -> list[LedgerLine]:
    """Return the lines that count, in order of step: what the weights of the newest attempt were trained on."""
    starts = read_attempts(run)
    limits = last_surviving(starts)
    lines: list[LedgerLine] = []
    for start in starts:
        path = run.attempt_lines(start.attempt)
        if path.exists() and limits[start.attempt] > start.after_step:
            lines += _until(read_lines(path, LedgerLine), limits[start.attempt])
    return lines


def newest_surviving(run: RunDir, step: int, most: int) -> list[LedgerLine]:
    """Return the last lines that count up to a step, ascending; attempts that are not needed for them are not read.

    Args:
        run: The run directory.
        step: Lines of later steps do not count.
        most: How many are enough.
    """
    starts = read_attempts(run)
    limits = last_surviving(starts)
    lines: list[LedgerLine] = []
    for start in reversed(starts):
        path, limit = run.attempt_lines(start.attempt), min(step, limits[start.attempt])
        if len(lines) < most and path.exists() and limit > start.after_step:
            lines = [*_until(read_lines(path, LedgerLine), limit), *lines]
    return lines[-most:] if most > 0 else []


def _until(lines: list[LedgerLine], limit: float) -> list[LedgerLine]:
    return lines if not lines or lines[-1].step <= limit else [line for line in lines if line.step <= limit]


def _unwritable(path: Path, error: OSError) -> LedgerError:
    return LedgerError(
        one_line(
            "cannot write the ledger",
            str(path),
            got=error.strerror or str(error),
            todo="Make room or give rights and start again: what was committed before is on file.",
        )
    )
