"""A wrong name and the names that exist go in, the nearest ones and a sentence for the user come out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names most like a wrong one, the most alike first."""
    lower = {item.lower(): item for item in known}
    found = [lower[hit] for hit in difflib.get_close_matches(name.lower(), list(lower), n=most, cutoff=0.6)]
    parts = [item for item in lower.values() if name and (name.lower() in item.lower())]
    return list(dict.fromkeys([*found, *sorted(parts)]))[:most]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that offers the nearest names, or an empty string where nothing is near."""
    near = near_names(name, known)
    return f"Did you mean {' or '.join(repr(item) for item in near)}?" if near else ""
