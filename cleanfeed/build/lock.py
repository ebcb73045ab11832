"""An output folder goes in; the right to be the only build in it comes out, for as long as this process lives.

On a local file system the kernel keeps a lock. In a store a build shows that it lives: :mod:`cleanfeed.build.lease`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cleanfeed.build.lease import leased, owner
from cleanfeed.curriculum.paths import AnyPath, ObjectPath
from cleanfeed.errors import BusyError, one_line

LOCK_NAME = "lock"


@contextmanager
def only_build(work: AnyPath) -> Iterator[Callable[[], None]]:
    """Hold the folder ``work`` against other builds.

    Yields:
        A function that raises BusyError where the folder was lost to another build, which only a store allows.

    Raises:
        BusyError: Another process holds it; the message names the process, its machine and since when.
    """
    if isinstance(work, ObjectPath):
        with leased(work / LOCK_NAME) as still_ours:
            yield still_ours
        return
    with _locked(work):
        yield lambda: None


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Hold a local folder; the kernel lets go of it when this process ends, however."""
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
        os.truncate(handle, 0)
        os.pwrite(handle, json.dumps(owner()).encode(), 0)
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
