"""A run or a store goes in; its rows come out, as plain data for ``--json`` and as tables for the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from cleanfeed.cli.terminal import count, measure, print_json, row, stdout, table, visible
from cleanfeed.cli.wording import plural, words
from cleanfeed.errors import MisuseError, one_line
from cleanfeed.quarantine.corpus import Corpus
from cleanfeed.quarantine.model import CurriculumReport, HandSample, Report
from cleanfeed.quarantine.report import make_report
from cleanfeed.quarantine.schema import seconds
from cleanfeed.quarantine.sources import decisions_path, run_dir
from cleanfeed.quarantine.store import STORE_NAME, Quarantine
from cleanfeed.runs.curve import Totals
from cleanfeed.runs.layout import RunDir

STATES = ("quarantined", "suspected", "released")
PATIENCE = 1.0
"""Seconds a reader waits for a store before it reads the files."""


def say_note(line: str) -> None:
    """Print what was got around, on stderr."""
    click.echo(f"note: {' '.join(line.split())}", err=True)


def existing(place: str) -> Quarantine:
    """Return the store of a run or path that is there.

    Raises:
        MisuseError: There is neither a store nor a run.
    """
    path = Path(place)
    store = Quarantine(path, patience=PATIENCE, on_note=say_note)
    if not is_run(path) and (_is_misnamed(path) or not store.exists()):
        raise MisuseError(
            one_line(
                "neither a run nor a store",
                place,
                "no such file" if not path.exists() else "",
                "a run directory or a quarantine store",
            )
        )
    return store


def _is_misnamed(path: Path) -> bool:
    """Return whether a store is named that is not there, and of which nothing beside it speaks.

    The incidents of a run stand for the store in it alone, not for whatever else may be asked for there.
    """
    return not path.exists() and path.name != STORE_NAME and not decisions_path(path).is_file()


def is_run(path: Path) -> bool:
    """Return whether a folder is a run directory."""
    run = RunDir(path)
    return run.ledger.is_dir() or run.incidents.is_dir()


def readable_run(place: str) -> Path:
    """Return a run directory that is there.

    Raises:
        MisuseError: It is not.
    """
    if not is_run(Path(place)):
        raise MisuseError(
            one_line("not a run directory", place, expected="a folder with ledger/ or incidents/")
        )
    return Path(place)


def report_of(place: str, incident: int | None, look_ahead: int, curriculum: str | None) -> Report:
    """Return the report of a run, or of the only run that a store belongs to.

    Raises:
        MisuseError: The store belongs to several runs, or to none that can be reached.
    """
    store = existing(place)
    path = Path(place)
    if path.is_dir():
        return make_report(RunDir(path), incident, look_ahead=look_ahead, curriculum=curriculum)
    if is_run(path.parent):
        return make_report(RunDir(path.parent), incident, look_ahead=look_ahead, curriculum=curriculum)
    held = store.tables(["incidents", "samples"])
    names = sorted({str(found["run"]) for found in held["incidents"]})
    runs = [run_dir(store.path, name) for name in names]
    if not runs and incident is None:
        return _by_hand(place, held["samples"])
    if not runs:
        raise MisuseError(one_line("no such incident", place, f"number {incident}", "one of: none"))
    if len(runs) != 1 or not is_run(runs[0].root):
        listed = ", ".join(str(run.root) for run in runs) or "no run"
        raise MisuseError(
            one_line(
                "a report is of one run",
                place,
                f"a store of {listed}",
                "a run directory",
                "'cleanfeed quarantine show' has what the store knows of each.",
            )
        )
    return make_report(runs[0], incident, look_ahead=look_ahead, curriculum=curriculum)


def _by_hand(place: str, samples: Sequence[Mapping[str, Any]]) -> Report:
    """Return the report of a store that no run has recorded into."""
    return Report(
        run=place,
        made_at=time.time(),
        totals=Totals(),
        attempts=0,
        curriculum=CurriculumReport(),
        incident_count=0,
        incidents=[],
        by_hand=[
            msgspec.convert({**one, "decided_at": seconds(one["decided_at"])}, HandSample) for one in samples
        ],
        loss=[],
        grad_norm=[],
        notes=[],
    )


def listing(store: Quarantine) -> dict[str, Any]:
    """Return each incident in short, and how many samples are in each state."""
    if not store.exists():
        return {"store": str(store.path), "incidents": [], "samples": dict.fromkeys(STATES, 0), "by_hand": 0}
    held = store.tables(["decisions", "incidents", "samples"])
    decisions = held["decisions"]
    incidents = []
    for found in held["incidents"]:
        here = [
            one
            for one in decisions
            if (one["run"], one["incident_id"]) == (found["run"], found["incident_id"])
        ]
        short = {name: value for name, value in found.items() if name not in ("record", "digest", "detail")}
        short["samples"] = {state: sum(one["state"] == state for one in here) for state in STATES}
        incidents.append(plain(short))
    states = [one["state"] for one in held["samples"]]
    return {
        "store": str(store.path),
        "incidents": incidents,
        "samples": {state: states.count(state) for state in STATES},
        "by_hand": sum(one["incident_id"] is None for one in decisions),
    }


def show_listing(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the incidents, a line each, and the counts."""
    console = console or stdout()
    incidents: Sequence[Mapping[str, Any]] = result["incidents"]
    several = len({one["run"] for one in incidents}) > 1
    if incidents:
        grid = table(
            "opened (UTC)", "no.", "step", "rule", "done", "outcome", *STATES, *(["run"] if several else [])
        )
        for column in (3, 4, 5, *([9] if several else [])):
            grid.columns[column].justify = "left"
        for one in incidents:
            row(
                grid,
                one["opened_at"][:19].replace("T", " "),
                str(one["incident_id"]),
                count(one["trip_step"]),
                visible(words(one["rule"])),
                words(one["action"]),
                words(one["outcome"]),
                *(count(one["samples"][state]) for state in STATES),
                *([visible(one["run"])] if several else []),
            )
        console.print(grid)
        console.print()
    if not any(result["samples"].values()):
        console.print("No quarantined batches." if not incidents else "No samples are named.")
        return
    parts = [f"{count(result['samples'][state])} {state}" for state in STATES]
    by_hand = f"; {plural(result['by_hand'], 'decision')} by hand" if result["by_hand"] else ""
    console.print(f"Samples now: {', '.join(parts)}{by_hand}.", soft_wrap=True)


def contents(store: Quarantine, incident: int | None) -> dict[str, Any]:
    """Return the rows of the store, or those of one incident.

    Raises:
        MisuseError: There is no incident of this number.
    """
    tables = ("incidents", "suspects", "samples", "skip_ranges", "decisions", "metrics", "events")
    rows = store.tables(tables) if store.exists() else {name: [] for name in tables}
    if incident is not None:
        numbers = sorted({one["incident_id"] for one in rows["incidents"]})
        if incident not in numbers:
            known = ", ".join(map(str, numbers)) or "none"
            raise MisuseError(
                one_line("no such incident", str(store.path), f"number {incident}", f"one of: {known}")
            )
        named = {one["sample_hash"] for one in rows["decisions"] if one["incident_id"] == incident}
        rows = {
            name: [
                one
                for one in found
                if (one["sample_hash"] in named if name == "samples" else one["incident_id"] == incident)
            ]
            for name, found in rows.items()
        }
    return {
        "store": str(store.path),
        **{
            name: [plain({key: value for key, value in one.items() if key != "record"}) for one in found]
            for name, found in rows.items()
        },
    }


def show_contents(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print suspect batches, samples and skip ranges."""
    console = console or stdout()
    if not any(result[name] for name in ("incidents", "samples", "skip_ranges")):
        console.print("No quarantined batches.")
        return
    if result["suspects"]:
        grid = table("suspect batch", "incident", "attempt", "step", "slot", "score")
        for one in result["suspects"]:
            numbers = (count(one[name]) for name in ("incident_id", "attempt", "step", "slot"))
            row(grid, one["batch_hash"], *numbers, measure(one["score"]))
        console.print(grid)
        console.print()
    if result["samples"]:
        grid = table("sample", "state", "incident", "document", "source", "record", "decided by", "reason")
        for column in (1, 3, 4, 6, 7):
            grid.columns[column].justify = "left"
        grid.columns[0].no_wrap = True
        for column in (3, 4, 7):
            grid.columns[column].no_wrap = False
        for one in result["samples"]:
            row(
                grid,
                one["sample_hash"],
                one["state"],
                count(one["incident_id"]),
                visible(one["doc_id"] or "–"),
                visible(one["source"] or "–"),
                count(one["source_row"]),
                visible(one["decided_by"]),
                visible(one["reason"]),
            )
        console.print(grid)
        console.print()
    if result["skip_ranges"]:
        grid = table("skipped", "first slot", "last slot", "epoch", "attempt")
        for one in result["skip_ranges"]:
            numbers = (count(one[name]) for name in ("first_slot", "last_slot", "epoch", "attempt"))
            row(grid, f"incident {one['incident_id']}", *numbers)
        console.print(grid)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as values JSON can hold; times as ISO 8601 in UTC."""
    return {
        name: value.isoformat() + "Z" if isinstance(value, datetime) else value
        for name, value in values.items()
    }


def places_in(curriculum: str, hashes: Sequence[str]) -> dict[str, tuple[str, str, int]]:
    """Return (doc_id, source, source_row) of samples of a curriculum.

    Raises:
        MisuseError: One of them is not in it.
    """
    corpus = Corpus(curriculum)
    rows, _ = corpus.rows_of(hashes, most=None)
    missing = [name for name in hashes if name not in rows]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise MisuseError(
            one_line(
                "no such sample", f"--curriculum {curriculum}", f"{missing[0]}{more}", "a sample_hash of it"
            )
        )
    found = corpus.columns([rows[name][0] for name in hashes], ["doc_id", "source", "source_row"])
    return {
        name: (one["doc_id"], one["source"], one["source_row"])
        for name, one in zip(hashes, found, strict=True)
    }


def say_change(state: str, hashes: Sequence[str], store: Quarantine, as_json: bool) -> None:
    """Print what was decided."""
    if as_json:
        print_json({"store": str(store.path), "state": state, "samples": list(hashes)})
    else:
        click.echo(f"{plural(len(hashes), 'sample')} {state} in {store.path}")
