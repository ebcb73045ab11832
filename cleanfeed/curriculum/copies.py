"""Objects of a store go in; copies of them on this machine, shared by its processes and removed after use, come out.

A folder of copies lies in the temporary folder of the machine (``TMPDIR``). Every process that uses it holds a shared
lock on it, which the kernel takes back when the process ends, however that happens. A folder nobody holds is removed
by whoever comes next.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import xxhash

from cleanfeed.errors import CleanfeedError, one_line

HOLD = ".in-use"

_held: dict[Path, int] = {}
"""Folders this process uses, and the open files by which it holds them."""


def copies_folder(name: str) -> Path:
    """Return a folder for copies, held by this process from the first call on."""
    folder = _root() / name
    if folder not in _held:
        _sweep(folder.parent)
        _held[folder] = _hold(folder)
    return folder


def copy_path(name: str, address: str) -> Path:
    """Return where the copy of an object lies, or would."""
    return copies_folder(name) / f"{xxhash.xxh3_64_hexdigest(address.encode())}-{address.rpartition('/')[2]}"


def fetched_once(name: str, address: str, get: Callable[[Path], object]) -> Path:
    """Return the copy of an object; the first process that asks lets ``get`` write it, others wait for that."""
    copy = copy_path(name, address)
    if copy.exists():
        return copy
    handle = os.open(copy.with_name(copy.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not copy.exists():
            aside = copy.with_name(f"{uuid4().hex}-{copy.name}")
            try:
                get(aside)
                aside.replace(copy)
            finally:
                aside.unlink(missing_ok=True)
    finally:
        os.close(handle)
    return copy


def drop_copies(name: str) -> None:
    """Let go of a folder of copies, and remove it unless another process holds it."""
    folder = _root() / name
    handle = _held.pop(folder, None)
    if handle is not None:
        os.close(handle)
    _remove_unheld(folder)


def _root() -> Path:
    """Return the folder of all folders of copies, which is this user's alone."""
    root = Path(tempfile.gettempdir()) / f"cleanfeed-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        todo = "Set TMPDIR to a folder of your own."
        raise CleanfeedError(one_line("the folder for copies belongs to another user", str(root), todo=todo))
    return root


def _hold(folder: Path) -> int:
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            handle = os.open(folder / HOLD, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(handle, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), (folder / HOLD).stat()):
                    return handle
            # It was removed between our opening and locking.
            os.close(handle)


def _sweep(root: Path) -> None:
    """Remove the folders that processes left behind which could not remove them."""
    for folder in root.iterdir():
        if folder not in _held:
            _remove_unheld(folder)


def _remove_unheld(folder: Path) -> None:
    # A folder without the file was made just now by a process that is about to hold it.
    with suppress(OSError):
        handle = os.open(folder / HOLD, os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)
