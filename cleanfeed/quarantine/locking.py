"""A store and how long one may wait go in; an open connection, or who holds the store, comes out.

DuckDB gives a file to one process that writes, or to several that read. A store is open for moments only, so whoever
finds it taken tries again for a while. Writers first lock the file of decisions beside the store, which is never
replaced: so a store that is being built anew is not written to at the same time.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import duckdb

from cleanfeed.errors import BusyError, CleanfeedError, DamagedStoreError, ForeignStoreError, one_line

CONFIG: dict[str, str | bool | int | float | list[str]] = {
    # Written so that every version of DuckDB this package allows can read it.
    "storage_compatibility_version": "v1.2.0",
    "threads": 1,
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
FIRST_WAIT, LONGEST_WAIT = 0.02, 0.5
"""Seconds between two tries: doubled from the first to the longest."""

_HELD = re.compile(r"held in (?P<program>.+?) \(PID (?P<pid>\d+)\)")
_TODO = "Wait for it, or end it."

Found = TypeVar("Found")


def tried(patience: float, attempt: Callable[[], Found]) -> Found:
    """Return what ``attempt`` returns, trying again while it raises `BusyError`, for ``patience`` seconds.

    Raises:
        BusyError: It was still busy then.
    """
    until = time.monotonic() + patience
    wait = FIRST_WAIT
    while True:
        try:
            return attempt()
        except BusyError:
            left = until - time.monotonic()
            if left <= 0:
                raise
            time.sleep(min(wait, left))
            wait = min(2 * wait, LONGEST_WAIT)


@contextmanager
def only_writer(path: Path, patience: float) -> Iterator[None]:
    """Hold the file ``path``, made where there is none, against other writers.

    Raises:
        BusyError: Another process holds it; the message says which.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        tried(patience, lambda: _lock(handle, path))
        yield
    finally:
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError(
            one_line("the store is in use", str(path), _flock_holder(handle), "no other writer", _TODO)
        ) from error


def _flock_holder(handle: int) -> str:
    """Return who holds the lock of an open file, as far as the system says."""
    inode = str(os.fstat(handle).st_ino)
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        words = line.split()
        if "FLOCK" in words and "->" not in words and words[-3].split(":")[-1] == inode:
            return _process(words[-4])
    return "another process"


def _process(pid: str, program: str = "") -> str:
    """Return a process in words; on some network file systems the number is 0: it runs on another machine."""
    if not pid.isdigit() or int(pid) == 0:
        return "a process on another machine"
    if not program:
        try:
            program = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            program = ""
    return f"process {pid}" + (f" ({Path(program).name})" if program else "")


def opened(path: Path, *, read_only: bool, patience: float) -> duckdb.DuckDBPyConnection:
    """Open the file of a store; the caller closes it, as ``with`` does.

    Raises:
        BusyError: Another process holds it; the message says which.
        DamagedStoreError: The file is not whole.
        ForeignStoreError: The file is of a later version of DuckDB.
    """
    return tried(patience, lambda: _connect(path, read_only))


def _connect(path: Path, read_only: bool) -> duckdb.DuckDBPyConnection:
    try:
        return duckdb.connect(str(path), read_only=read_only, config=CONFIG)
    except duckdb.Error as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: duckdb.Error) -> CleanfeedError:
    said = str(error)
    if isinstance(error, duckdb.ConnectionException):
        return BusyError(one_line("the store is in use", str(path), "this process, otherwise", todo=_TODO))
    if "Could not set lock" in said:
        held = _HELD.search(said)
        who = _process(held["pid"], held["program"]) if held else "another process"
        return BusyError(one_line("the store is in use", str(path), who, "no other process", _TODO))
    if "version number" in said:
        return ForeignStoreError(
            one_line(
                "a store of a later version of DuckDB",
                str(path),
                first_line(error),
                todo="Install that version.",
            )
        )
    if "ermission denied" in said or "Read-only file system" in said:
        return CleanfeedError(one_line("cannot open the store", str(path), first_line(error)))
    return DamagedStoreError(one_line("the store is damaged", str(path), first_line(error)))


def first_line(error: duckdb.Error) -> str:
    """Return what DuckDB says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".!")
