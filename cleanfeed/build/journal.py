"""Finished pieces of work go in; after a crash, what need not be done again comes out.

On a local file system the journal is a file of JSON lines that only grows. In a store, where nothing can be appended,
every entry is an object of its own; it lies below the digest of its request, so that no other build takes it for its
own, and it is written when the objects it speaks of are there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import msgspec

from cleanfeed.curriculum.durable import sync
from cleanfeed.curriculum.paths import AnyPath, ObjectPath
from cleanfeed.errors import MisuseError, one_line

JOURNAL_NAME = "journal.jsonl"
ENTRIES_NAME = "journal"
Result = TypeVar("Result")


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    request: str


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    phase: str
    number: int
    result: msgspec.Raw


def has_journal(work: AnyPath) -> bool:
    """Return whether a work folder holds an unfinished build."""
    return (work / JOURNAL_NAME).exists()


def request_of(work: AnyPath) -> str | None:
    """Return the request of the unfinished build in a work folder, or None where there is none."""
    if not has_journal(work):
        return None
    path = work / JOURNAL_NAME
    if isinstance(path, ObjectPath):
        line = path.read_bytes()
    else:
        with path.open("rb") as file:
            line = file.readline()
    return msgspec.json.decode(line, type=_Header).request if line.endswith(b"\n") else None


def has_entered(work: AnyPath, phase: str) -> bool:
    """Return whether the unfinished build in a work folder, whatever its request, has an entry of a phase."""
    request = request_of(work)
    if request is None:
        return False
    if isinstance(work, ObjectPath):
        return any(entry.phase == phase for entry in _ObjectLog(work, request).entries)
    lines = (work / JOURNAL_NAME).read_bytes().splitlines(keepends=True)[1:]
    return any(_entry(line).phase == phase for line in lines if line.endswith(b"\n"))


def drop_journal(work: AnyPath) -> None:
    """Let a work folder hold no unfinished build, on disk, before anything else of it goes.

    A journal that outlives what it names would be believed.
    """
    (work / JOURNAL_NAME).unlink(missing_ok=True)
    sync([work])


class Journal:
    """What a build has finished, in a form that is believed after any crash.

    Args:
        work: Folder of the unfinished build.
        request: Digest of everything that decides the result.
        still_ours: Called before each entry; raises where another build has taken the folder over.

    Raises:
        MisuseError: The folder holds an unfinished build of another request.
    """

    def __init__(self, work: AnyPath, request: str, still_ours: Callable[[], None] = lambda: None) -> None:
        self._still_ours, self._out = still_ours, work.parent
        self._log = _FileLog(work) if isinstance(work, Path) else _ObjectLog(work, request)
        there = self._log.request
        if there not in (None, request):
            self._log.close()
            raise MisuseError(
                one_line(
                    "the folder holds an unfinished build of other inputs or settings",
                    str(work.parent),
                    todo="Repeat the command it was started with, give another --out, "
                    "or start anew with --overwrite.",
                )
            )
        if there is None:
            self._log.begin(request)
        self._done = {(entry.phase, entry.number): entry.result for entry in self._log.entries}

    def done(self, phase: str, number: int, kind: type[Result]) -> Result | None:
        """Return the result of a finished piece of work, or None."""
        raw = self._done.get((phase, number))
        return None if raw is None else msgspec.json.decode(raw, type=kind)

    def enter(self, phase: str, number: int, result: Any, files: Iterable[AnyPath] = ()) -> None:
        """Record a piece of work, once its files are on disk.

        Workers do not wait for the disk: the process that keeps the journal does, while they go on.
        """
        sync(files, below=self._out)
        self._still_ours()
        self._log.append(_Entry(phase, number, msgspec.Raw(msgspec.json.encode(result))))

    def __enter__(self) -> Journal:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._log.close()


class _FileLog:
    """Lines in a file, on disk before they are believed."""

    def __init__(self, work: Path) -> None:
        self.path = work / JOURNAL_NAME
        self.request: str | None = None
        self.entries: list[_Entry] = []
        whole = self._read() if self.path.exists() else 0
        self._file: IO[bytes] = self.path.open("ab")
        # A torn last line is work that was not finished: it is cut off and done again.
        self._file.truncate(whole)

    def _read(self) -> int:
        """Take in all whole lines and return their length in bytes."""
        whole = 0
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True)):
            if not line.endswith(b"\n"):
                break
            if number == 0:
                self.request = msgspec.json.decode(line, type=_Header).request
            else:
                self.entries.append(_entry(line))
            whole += len(line)
        return whole

    def begin(self, request: str) -> None:
        self._write(_Header(request))

    def append(self, entry: _Entry) -> None:
        self._write(entry)

    def _write(self, record: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class _ObjectLog:
    """Objects in a store: one that names the request, and one for each entry."""

    def __init__(self, work: ObjectPath, request: str) -> None:
        self.request = request_of(work)
        self._header = work / JOURNAL_NAME
        self._folder = work / ENTRIES_NAME / request
        self.entries = list(self._read()) if self.request == request else []

    def _read(self) -> Iterator[_Entry]:
        for data in self._folder.read_below().values():
            # A store that shows objects before they are whole is taken at its word only where the entry is whole.
            if data.endswith(b"\n"):
                yield _entry(data)

    def begin(self, request: str) -> None:
        # Entries of a journal that was dropped, if whoever dropped it was killed before they went.
        self._folder.remove_below(self._folder.sizes())
        self._header.put(msgspec.json.encode(_Header(request)) + b"\n")

    def append(self, entry: _Entry) -> None:
        name = f"{entry.phase}-{entry.number:06d}.json"
        (self._folder / name).put(msgspec.json.encode(entry) + b"\n")

    def close(self) -> None:
        """Do nothing: there is nothing open."""


def _entry(line: bytes) -> _Entry:
    entry = msgspec.json.decode(line, type=_Entry)
    return _Entry(entry.phase, entry.number, msgspec.Raw(bytes(entry.result)))
