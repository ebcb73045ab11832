"""Folders that can be written go in; a place for compiled code and its like comes out, however it was installed.

numba keeps compiled code beside its source, or in the user's cache folder where the package cannot be written, and
fails on import where neither can. For that last case a folder under the system's temporary one is named.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import stat
import sys
import tempfile
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"

KEPT_VERSIONS = 4
"""Of how many versions of cleanfeed files are kept: some may be in use side by side."""

_DIGEST_BYTES = 16


def ensure_cache(package: Path = Path(__file__).parent) -> str | None:
    """Name a cache folder if numba would find none; return it, or None where nothing had to be done."""
    if os.environ.get(VARIABLE) or _writable(package / "__pycache__") or _writable(_user_cache()):
        return None
    folder = _own_folder()
    # Processes started from here inherit it.
    os.environ[VARIABLE] = folder
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = folder
    return folder


def cache_folder(package: Path) -> Path:
    """Return a folder that lies with what numba keeps of a package's code."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    beside = package / "__pycache__"
    return beside if _writable(beside) else _user_cache()


@lru_cache(maxsize=1)
def processor() -> str:
    """Return what differs between processors that do not run each other's code."""
    told = platform.machine()
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
        # Of the first processor, what stays the same while the machine runs.
        first = itertools.takewhile(str.strip, lines)
        told += "".join(
            line for line in first if line.startswith(("model", "flags", "cpu family", "Features", "CPU "))
        )
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


@lru_cache(maxsize=1)
def toolchain() -> str:
    """Return what differs between interpreters, compilers and processors that cannot run each other's code."""
    return f"{sys.implementation.cache_tag}-{_compiler()}-{processor()}"


def _compiler() -> str:
    """Return what differs between versions of numba, without loading it."""
    found = find_spec("numba")
    if found is not None and found.origin is not None:
        with suppress(OSError):
            # Looking its version up among all that is installed takes 10 ms of each process.
            told = Path(found.origin).with_name("_version.py").read_bytes()
            return hashlib.blake2b(told, digest_size=8).hexdigest()
    from importlib.metadata import version

    return f"numba{version('numba')}"


class KeptFile:
    """Bytes that are kept on disk beside compiled code, so that they need not be made anew.

    Args:
        family: What they are; may stand in the name of a file.
        version: What they are told from other versions of themselves by.
    """

    def __init__(self, family: str, version: int) -> None:
        self._family = family
        self.path = cache_folder(Path(__file__).parent) / f"{family}-{version:014x}.kernel"

    def load(self) -> bytes | None:
        """Return the bytes, or None where the file is not there or not whole."""
        try:
            held = self.path.read_bytes()
        except OSError:
            return None
        digest, data = held[:_DIGEST_BYTES], held[_DIGEST_BYTES:]
        return data if digest == hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest() else None

    def save(self, data: bytes) -> None:
        """Keep the bytes, where there is room and leave to; elsewhere they are made again each time."""
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                aside.write_bytes(hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest() + data)
                aside.replace(self.path)
            finally:
                aside.unlink(missing_ok=True)
            others = sorted(
                self.path.parent.glob(f"{self._family}-*.kernel"), key=lambda file: file.stat().st_mtime
            )
            for old in others[:-KEPT_VERSIONS]:
                old.unlink(missing_ok=True)


def _own_folder() -> str:
    """Return a folder only this user can write: what lies in it is loaded as code."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"cleanfeed-kernels-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return tempfile.mkdtemp(prefix="cleanfeed-kernels-")
    theirs = hasattr(os, "getuid") and found.st_uid != user
    if theirs or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        return tempfile.mkdtemp(prefix="cleanfeed-kernels-")
    return str(folder)


def _user_cache() -> Path:
    """Return the folder numba falls back to."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return home / "numba"


def _writable(folder: Path) -> bool:
    """Tell whether a folder, or the one it would be made in, can be written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
