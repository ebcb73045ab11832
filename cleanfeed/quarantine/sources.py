"""A store's place goes in; every incident file and every decision by hand that it is made from comes out.

The store can be made anew at any time from files beside it:

- ``RUN/incidents/NNNN/incident.json`` of each run that records into it, and
- ``<store>.decisions.jsonl`` next to it: one JSON object a line, only ever appended to, for each sample that a person
  added or released, and for each run that records into the store and lies elsewhere.

A run is named by its path from the folder of the store: ``.`` for the store inside a run directory, so that a run, or
a folder with runs and the store they share, can be moved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from cleanfeed.runs.incident_files import INCIDENT_NAME
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.records import State

DECISIONS_SUFFIX = ".decisions.jsonl"

Note = Callable[[str], None]


class HandDecision(msgspec.Struct, frozen=True, tag="decision"):
    """What a person decided of one sample."""

    sample_hash: str
    state: State
    reason: str
    decided_by: str
    decided_at: float
    """Seconds since 1970, in whole microseconds."""
    doc_id: str | None = None
    source: str | None = None
    source_row: int | None = None

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What tells it from others."""
        return self.sample_hash, self.state, round(self.decided_at * 1e6), self.decided_by


class KnownRun(msgspec.Struct, frozen=True, tag="run"):
    """A run that records into the store."""

    run: str


@dataclass(frozen=True, slots=True)
class IncidentFile:
    """One version of the file of one incident."""

    run: str
    number: int
    path: Path
    digest: str
    data: bytes


def decisions_path(store: Path) -> Path:
    """Return the file of decisions that belongs to a store."""
    return store.with_name(store.stem + DECISIONS_SUFFIX)


def run_name(store: Path, run: RunDir) -> str:
    """Return how a store names a run."""
    return os.path.relpath(run.root.absolute(), store.parent.absolute())


def run_dir(store: Path, name: str) -> RunDir:
    """Return the run directory of a name."""
    return RunDir(Path(os.path.normpath(store.parent / name)))


def read_decisions(store: Path, on_note: Note) -> tuple[list[HandDecision], list[str]]:
    """Return the decisions by hand and the names of the runs that a store knows of, in the order they came.

    A torn last line, left by a kill, is passed over; any other line that cannot be read is said.
    """
    path = decisions_path(store)
    if not path.is_file():
        return [], []
    decisions: list[HandDecision] = []
    runs: list[str] = []
    decoder = msgspec.json.Decoder(HandDecision | KnownRun)
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = decoder.decode(line)
        except msgspec.MsgspecError as error:
            if number < len(lines):
                on_note(f"{path}, line {number} is passed over: {error}")
            continue
        if isinstance(found, KnownRun):
            runs.append(found.run)
        else:
            decisions.append(found)
    return decisions, list(dict.fromkeys(runs))


def append_decisions(store: Path, entries: Iterable[HandDecision | KnownRun]) -> None:
    """Append lines to the file of decisions and wait until they are on disk; the caller is the only writer."""
    encoder = msgspec.json.Encoder()
    data = b"".join(encoder.encode(entry) + b"\n" for entry in entries)
    if not data:
        return
    path = decisions_path(store)
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            # What a kill left of a line must not swallow the next one.
            data = data if file.read(1) == b"\n" else b"\n" + data
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def incident_files(store: Path, runs: Iterable[str], on_note: Note) -> Iterator[IncidentFile]:
    """Yield the file of every incident of some runs."""
    for name in runs:
        run = run_dir(store, name)
        for number in run.incident_numbers():
            path = run.incident(number) / INCIDENT_NAME
            try:
                data = path.read_bytes()
            except OSError as error:
                on_note(f"{path} cannot be read: {error.strerror}")
                continue
            yield IncidentFile(name, number, path, xxhash.xxh3_128_hexdigest(data), data)
