"""An fsspec address goes in; its file system, or a file opened for reading, comes out.

A store that does not answer is not a file that is damaged: reading then ends in an error that stops whoever reads,
and what was read of the file before does not count.

fsspec is imported where it is needed: it is a tenth of what a worker would load, and nothing that local files need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any, TypeVar, cast

from cleanfeed.errors import CleanfeedError, MisuseError, one_line

EXTRAS = {"s3": "s3", "s3a": "s3"}
"""For a protocol, the extra of this package that brings what it needs."""

READ_AHEAD = 4 * 2**20
"""Bytes of an object that are fetched at least, where it is read from front to back."""

Result = TypeVar("Result")


def reached(address: str, **options: Any) -> tuple[Any, str]:
    """Return the file system of an address and the path in it; options are those of the file system.

    Raises:
        MisuseError: The protocol is unknown, or the library for it is not installed.
    """
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(address, **options)
    except ImportError as error:
        protocol = address.partition("://")[0]
        extra = EXTRAS.get(protocol)
        todo = f"Run pip install 'cleanfeed[{extra}]'." if extra else f"{_said(error)}."
        got = f"no library for {protocol}:// is installed"
        raise MisuseError(one_line("an address cannot be read", address, got, todo=todo)) from error
    except ValueError as error:
        raise MisuseError(one_line("an address cannot be read", address, got=_said(error))) from error
    return system, str(path)


def is_local(system: Any) -> bool:
    """Return whether a file system is that of this machine."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(system, LocalFileSystem)


def open_address(address: str, *, jumps: bool = False) -> IO[bytes]:
    """Open a file for reading.

    Args:
        address: Its address.
        jumps: It is read here and there, so that only what is asked for is to be fetched.

    Raises:
        OSError: It is not there or may not be read.
        CleanfeedError: The store does not answer, now or while the file is read.
    """
    system, path = reached(address)
    how: dict[str, Any] = {}
    if getattr(system, "async_impl", False):  # a store behind a network
        how = {"cache_type": "none"} if jumps else {"cache_type": "readahead", "block_size": READ_AHEAD}
    file = _asked(address, lambda: system.open(path, "rb", **how), passed=(OSError, ValueError))
    return cast("IO[bytes]", _Steady(address, file))


class _Steady:
    """A file whose store may fail; then whoever reads is stopped, whatever errors of files it takes for damage."""

    def __init__(self, address: str, file: Any) -> None:
        self._address, self._file = address, file

    def read(self, size: int = -1) -> bytes:
        return _asked(self._address, lambda: cast("bytes", self._file.read(size)))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> _Steady:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _asked(address: str, question: Callable[[], Result], passed: tuple[type[Exception], ...] = ()) -> Result:
    """Return the answer of a store; what it raises, but what is passed on, becomes an error that stops the build."""
    try:
        return question()
    except passed:
        raise
    except Exception as error:  # each store's client has a tree of exceptions of its own
        todo = "When the store answers, run the same command again: it goes on where it stopped."
        raise CleanfeedError(
            one_line("cannot read from the store", address, _said(error), todo=todo)
        ) from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
