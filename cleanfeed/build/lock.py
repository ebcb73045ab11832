"""An output folder goes in; the right to be the only build in it comes out, for as long as this process lives."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from cleanfeed.errors import BusyError, one_line

LOCK_NAME = "lock"


@contextmanager
def only_build(work: Path) -> Iterator[None]:
    """Hold the folder ``work`` against other builds; the kernel lets go of it when this process ends, however.

    Raises:
        BusyError: Another process holds it; the message names the process, its machine and since when.
    """
    while True:
        work.mkdir(parents=True, exist_ok=True)
        handle = os.open(work / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(work / LOCK_NAME)
            os.close(handle)
            raise BusyError(
                one_line(
                    "another build is running",
                    str(work.parent),
                    holder,
                    "a folder no build is using",
                    "Wait for it.",
                )
            ) from error
        if _is(handle, work / LOCK_NAME):
            break
        # The build before removed the folder between our opening and locking: lock the new one.
        os.close(handle)
    try:
        who = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(timezone.utc).isoformat(),
        }
        os.truncate(handle, 0)
        os.pwrite(handle, json.dumps(who).encode(), 0)
        yield
    finally:
        os.close(handle)


def _is(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_text())
        return f"process {who['pid']} on {who['host']} since {who['since']}"
    except (OSError, ValueError, KeyError):
        return "a process that has just started"
