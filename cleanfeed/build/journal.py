"""Finished pieces of work go in; after a crash, what need not be done again comes out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import msgspec

from cleanfeed.curriculum.durable import sync
from cleanfeed.errors import MisuseError, one_line

JOURNAL_NAME = "journal.jsonl"
Result = TypeVar("Result")


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    request: str


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    phase: str
    number: int
    result: msgspec.Raw


def request_of(work: Path) -> str | None:
    """Return the request of the unfinished build in a work folder, or None where there is none."""
    path = work / JOURNAL_NAME
    if not path.exists():
        return None
    with path.open("rb") as file:
        line = file.readline()
    return msgspec.json.decode(line, type=_Header).request if line.endswith(b"\n") else None


class Journal:
    """An append-only file of what a build has finished, one JSON line each, on disk before it is believed.

    Args:
        work: Folder of the unfinished build.
        request: Digest of everything that decides the result.

    Raises:
        MisuseError: The folder holds an unfinished build of another request.
    """

    def __init__(self, work: Path, request: str) -> None:
        self.path = work / JOURNAL_NAME
        self._done: dict[tuple[str, int], msgspec.Raw] = {}
        whole = self._read(request) if self.path.exists() else 0
        self._file: IO[bytes] = self.path.open("ab")
        # A torn last line is work that was not finished: it is cut off and done again.
        self._file.truncate(whole)
        if not whole:
            self._append(_Header(request))

    def _read(self, request: str) -> int:
        """Take in all whole lines and return their length in bytes."""
        whole = 0
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True)):
            if not line.endswith(b"\n"):
                break
            if number == 0:
                header = msgspec.json.decode(line, type=_Header)
                if header.request != request:
                    raise MisuseError(
                        one_line(
                            "the folder holds an unfinished build of other inputs or settings",
                            str(self.path.parent.parent),
                            todo="Repeat the command it was started with, give another --out, "
                            "or start anew with --overwrite.",
                        )
                    )
            else:
                entry = msgspec.json.decode(line, type=_Entry)
                self._done[entry.phase, entry.number] = msgspec.Raw(bytes(entry.result))
            whole += len(line)
        return whole

    def _append(self, record: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def done(self, phase: str, number: int, kind: type[Result]) -> Result | None:
        """Return the result of a finished piece of work, or None."""
        raw = self._done.get((phase, number))
        return None if raw is None else msgspec.json.decode(raw, type=kind)

    def enter(self, phase: str, number: int, result: Any, files: Iterable[Path] = ()) -> None:
        """Record a piece of work, once its files are on disk.

        Workers do not wait for the disk: the process that keeps the journal does, while they go on.
        """
        sync(files)
        self._append(_Entry(phase, number, msgspec.Raw(msgspec.json.encode(result))))

    def __enter__(self) -> Journal:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()
