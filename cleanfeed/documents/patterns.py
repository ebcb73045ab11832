"""A glob and a path go in; whether the path would be one of its matches, were it there, comes out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

_MAGIC = re.compile(r"[*?\[]")


def split_pattern(pattern: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the folder before the first wildcard of a path or address, and the parts from there on.

    None where there is no wildcard.
    """
    found = _MAGIC.search(pattern)
    if found is None:
        return None
    cut = pattern.rfind("/", 0, found.start()) + 1
    return pattern[:cut], tuple(part for part in pattern[cut:].split("/") if part)


def would_match(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether a file, by the parts of its path, is one that a pattern stands for, by its own.

    ``**`` stands for any number of names, none among them; at the end for one or more, since none would be a folder. No
    wildcard stands for a name that begins with a dot.
    """
    if not pattern or not path:
        return not pattern and not path
    first, rest = pattern[0], pattern[1:]
    if first == "**" and rest and would_match(rest, path):
        return True
    if path[0].startswith(".") and not first.startswith("."):
        return False
    if first == "**":
        return would_match(pattern, path[1:]) or would_match(rest, path[1:])
    return fnmatchcase(path[0], first) and would_match(rest, path[1:])
