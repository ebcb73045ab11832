"""What ``--exclude`` names goes in; lists for the build to read, and the hashes that runs and stores hold, come out.

A build knows lists of hashes. What a run has quarantined is asked of its quarantine, which reads the incident files
where the store is missing, damaged, behind or held by a training process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cleanfeed.cli.quarantine_store import existing, is_run, say_note
from cleanfeed.errors import ForeignStoreError
from cleanfeed.quarantine.store import STORE_NAME


@dataclass(frozen=True, slots=True)
class Exclusions:
    """What is to be left out."""

    lists: tuple[str, ...]
    """Files of hashes."""
    hashes: tuple[str, ...]
    """Samples that runs and stores have in quarantine, in hex."""


def exclusions(stores: Sequence[str]) -> Exclusions:
    """Return what some stores say is to be left out; a run or store in which nothing is quarantined is said.

    Args:
        stores: What ``--exclude`` was given, each of any kind.

    Raises:
        MisuseError: One of them is no store and no run.
        CleanfeedError: A store cannot be read, and there is nothing beside it that says what was in it.
    """
    lists: list[str] = []
    hashes: list[str] = []
    for place in stores:
        if not _has_quarantine(Path(place)):
            lists.append(place)
            continue
        try:
            found = existing(place).hashes()
        except ForeignStoreError:
            # A database that was made by something else may have a table of samples all the same.
            lists.append(place)
            continue
        if not found:
            say_note(f"no sample is quarantined in {place}: it leaves nothing out")
        hashes += found
    return Exclusions(tuple(lists), tuple(hashes))


def _has_quarantine(path: Path) -> bool:
    if path.is_dir():
        return is_run(path) or (path / STORE_NAME).is_file()
    if path.suffix == Path(STORE_NAME).suffix:
        return True
    if not path.is_file():
        return False
    with path.open("rb") as handle:
        return handle.read(12)[8:] == b"DUCK"
