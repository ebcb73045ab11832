"""An fsspec address goes in; its file system and the path in it, or one line that says what is missing, comes out."""

from __future__ import annotations

from typing import Any

import fsspec

from cleanfeed.errors import MisuseError, one_line

EXTRAS = {"s3": "s3", "s3a": "s3"}
"""For a protocol, the extra of this package that brings what it needs."""


def reached(address: str, **options: Any) -> tuple[Any, str]:
    """Return the file system of an address and the path in it; options are those of the file system.

    Raises:
        MisuseError: The protocol is unknown, or the library for it is not installed.
    """
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


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
