"""An argument of a public call and what it must be go in; a refusal in one line comes out where it does not fit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, TypeGuard

from cleanfeed.errors import MisuseError, one_line

_HASH = re.compile(r"[0-9a-fA-F]{32}")
SHOWN = 60
"""Characters of a wrong value that are shown."""


def wrong(call: str, argument: str, value: object, expected: str, todo: str = "") -> MisuseError:
    """Return the error for an argument that is not what it must be.

    Args:
        call: What was called, as a user writes it.
        argument: Name of the argument.
        value: What was given.
        expected: What it must be.
        todo: What to do, as a sentence.
    """
    shown = repr(value) if value is None or isinstance(value, (str, bytes, int, float, list, tuple)) else ""
    got = shown if shown and len(shown) <= SHOWN else f"a value of type {type(value).__name__}"
    return MisuseError(one_line("wrong argument", f"{call}({argument}=)", got, expected, todo))


def check_path(call: str, argument: str, value: object) -> None:
    """Refuse what is no path."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise wrong(call, argument, value, "a path")


def check_whole(call: str, argument: str, value: object, least: int | None = None) -> None:
    """Refuse what is no whole number, or one that is too small."""
    # NumPy's whole numbers are welcome: they are what an index often is.
    if (
        isinstance(value, bool)
        or not hasattr(value, "__index__")
        or (least is not None and int(value) < least)
    ):
        raise wrong(
            call, argument, value, "a whole number" + (f" of at least {least}" if least is not None else "")
        )


def check_bool(call: str, argument: str, value: object) -> None:
    """Refuse what is neither True nor False: a text would count as True, whatever it says."""
    if not isinstance(value, bool):
        raise wrong(call, argument, value, "True or False")


def check_call(call: str, argument: str, value: object, *, optional: bool = False) -> None:
    """Refuse what cannot be called."""
    if not callable(value) and not (optional and value is None):
        raise wrong(call, argument, value, "a function" + (" or None" if optional else ""))


def check_list(call: str, argument: str, value: Any, of: str) -> None:
    """Refuse a single text in the place of several things, and what cannot be gone through."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise wrong(call, argument, value, f"a list of {of}")


def is_hash(value: object) -> TypeGuard[str]:
    """Return whether a value is a hash of a sample or of content as people write it: 32 hexadecimal digits."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None
