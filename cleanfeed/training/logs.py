"""The log of a finished run goes in, whatever wrote it; one row of numbers a step comes out, under our names."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleanfeed.errors import MisuseError, NothingReadableError, one_line
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_ledger
from cleanfeed.runs.records import LedgerLine

NAMES: dict[str, tuple[str, ...]] = {
    "step": (
        "step",
        "global step",
        "iteration",
        "iter",
        "update",
        "num updates",
        "steps",
        "trainer global step",
        "train global step",
    ),
    "loss": (
        "loss",
        "train loss",
        "training loss",
        "lm loss",
        "train lm loss",
        "lm loss training lm loss",
        "loss train",
        "train loss step",
        "train ce loss",
        "train crossentropyloss",
        "metrics train languagecrossentropy",
        "loss metrics global avg loss",
    ),
    "grad_norm": (
        "grad norm",
        "train grad norm",
        "gnorm",
        "train gnorm",
        "gradient norm",
        "grad norm grad norm",
        "total norm",
        "optim total grad norm",
        "optim grad norm",
        "l2 norm grad global",
        "grad norm global",
    ),
    "worst_micro_loss": ("worst micro loss",),
    "stage": ("stage", "context"),
    "val_loss": (
        "val loss",
        "validation loss",
        "eval loss",
        "valid loss",
        "lm loss validation lm loss validation",
    ),
    "layer_ratio": ("layer ratio",),
    "update_norm": ("update norm", "l2 norm update global"),
    "activation_mean": ("activation mean",),
    "activation_kurtosis": ("activation kurtosis",),
    "loss_scale": ("loss scale", "train loss scale", "loss scale loss scale"),
}
"""What common loggers call a number, in lower case with every other character a space; the first that is there wins."""
TEXT = frozenset({"stage"})


@dataclass(slots=True)
class Log:
    """A run's numbers by step."""

    kind: str
    """``ledger``, ``csv``, ``jsonl`` or ``tensorboard``."""
    names: dict[str, str] = field(default_factory=dict)
    """Our name → the log's name, for each number found."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows with ``step`` and ``loss`` and whatever else there was, under our names, in the order written."""
    left_out: int = 0
    """Lines without a step, or without a loss."""


def read_log(path: str, chosen: Mapping[str, str | None] | None = None) -> Log:
    """Read a run directory, a ledger, or a CSV, JSON Lines or TensorBoard log.

    Args:
        path: A file or folder.
        chosen: Names in the log for some of ours (``step``, ``loss``, ``grad_norm``), where guessing is not wanted.

    Raises:
        MisuseError: No such file, no such column, or a TensorBoard log without the extra ``tensorboard``.
        NothingReadableError: There is no step with a loss in it.
    """
    wanted = {key: name for key, name in (chosen or {}).items() if name is not None}
    place = Path(path)
    if not place.exists():
        raise MisuseError(one_line("no such log", path, expected="a file or folder"))
    run = RunDir(place if place.name != "ledger" else place.parent)
    if place.is_dir() and run.attempts():
        if wanted:
            got = ", ".join(f"{key} = {name}" for key, name in wanted.items())
            raise MisuseError(one_line("a ledger names its own columns", path, got, todo="Leave them out."))
        rows = list(_ledger_rows(read_ledger(run)))
        log = Log("ledger", rows=[row for row in rows if "loss" in row])
        log.left_out = len(rows) - len(log.rows)
    elif place.is_dir() or "tfevents" in place.name:
        from cleanfeed.training.tensorboard_log import read_scalars

        log = _named("tensorboard", read_scalars(path, wanted), path, wanted)
    elif place.suffix.lower() in (".csv", ".tsv"):
        log = _named("csv", _csv_rows(place), path, wanted)
    else:
        log = _named("jsonl", _json_rows(place), path, wanted)
    if not log.rows:
        raise NothingReadableError(
            one_line(
                "no step with a loss",
                path,
                f"{log.left_out:,} rows without a number in both columns",
                ", ".join(f"{ours} from '{theirs}'" for ours, theirs in log.names.items()),
                "Name other columns with --step and --loss.",
            )
        )
    return log


def plain(name: str) -> str:
    """Return a name in lower case, every run of other characters than letters and digits one space."""
    return " ".join(re.split(r"[^a-z0-9]+", name.lower())).strip()


def _named(kind: str, rows: Iterable[Mapping[str, Any]], path: str, wanted: Mapping[str, str]) -> Log:
    """Return rows under our names; rows of one step after another that do not repeat a number become one."""
    log, lines = Log(kind), list(rows)
    if not lines:
        got = "an empty file" if Path(path).is_file() and not Path(path).stat().st_size else "no row"
        raise NothingReadableError(one_line("the log holds no step", path, got, "a row for each step"))
    found = list(dict.fromkeys(name for row in lines for name in row))
    log.names = choose(found, path, wanted)
    for line in lines:
        row = {
            ours: value
            for ours, theirs in log.names.items()
            if (value := _value(line.get(theirs), text=ours in TEXT)) is not None
        }
        step = row.pop("step", math.nan)
        if math.isfinite(step):
            row["step"] = int(step)
        last = log.rows[-1] if log.rows else None
        if (
            last is not None
            and row.get("step") == last["step"]
            and not (row.keys() & last.keys()) - {"step", "stage"}
        ):
            last.update(row)
        elif "step" in row:
            log.rows.append(row)
        else:
            log.left_out += 1
    complete = [row for row in log.rows if "loss" in row]
    log.left_out += len(log.rows) - len(complete)
    log.rows = complete
    return log


def choose(found: list[str], path: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return which of the names found stands for which of ours.

    Raises:
        MisuseError: A wanted name is not there, or there is none for the step or the loss.
    """
    by_plain: dict[str, str] = {}
    for name in found:
        by_plain.setdefault(plain(name), name)
    names: dict[str, str] = {}
    for ours, guesses in NAMES.items():
        if ours in wanted:
            if wanted[ours] not in found:
                shown = ", ".join(found[:20])
                raise MisuseError(one_line("no such column", path, f"'{wanted[ours]}'", f"one of {shown}"))
            names[ours] = wanted[ours]
            continue
        hit = next((by_plain[guess] for guess in guesses if guess in by_plain), None)
        if hit is not None:
            names[ours] = hit
    for ours in ("step", "loss"):
        if ours not in names:
            shown = ", ".join(found[:20]) or "nothing"
            raise MisuseError(
                one_line(
                    f"no {ours} in the log", path, f"the columns {shown}", todo=f"Name it with --{ours}."
                )
            )
    return names


def _value(value: Any, *, text: bool) -> Any:
    """Return a value as a number, or text where a name is wanted; None where it is missing."""
    if value is None or value == "":
        return None
    if text:
        return str(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _ledger_rows(lines: Iterable[LedgerLine]) -> Iterator[dict[str, Any]]:
    for line in lines:
        loss, norm = _told(line.loss, line.grad_norm, line.finite)
        row: dict[str, Any] = {
            "step": line.step,
            "loss": loss,
            "grad_norm": norm,
            "worst_micro_loss": line.worst_micro_loss,
            "stage": str(line.stage),
            **line.metrics,
        }
        yield {key: value for key, value in row.items() if value is not None}


def _told(loss: Any, norm: Any, finite: bool) -> tuple[Any, Any]:
    """Return loss and norm with what a ledger writes as null: one of them, the loss first, was NaN or infinite."""
    if finite or (loss is not None and norm is not None):
        return loss, norm
    return (math.nan, norm) if loss is None else (loss, math.inf)


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            yield from reader
            if reader.line_num == 1:
                raise NothingReadableError(
                    one_line("the log holds no step", str(path), "a header alone", "a row for each step")
                )
        except (csv.Error, UnicodeDecodeError) as error:
            raise NothingReadableError(one_line("not a CSV file", str(path), str(error))) from error


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file, or of the list in a JSON file (``log_history`` of a trainer state)."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NothingReadableError(
            one_line(
                "not a log", str(path), "bytes", "a run directory, CSV, JSON Lines or TensorBoard events"
            )
        ) from error
    # Not splitlines: a string of JSON may hold other line ends, such as U+2028.
    lines = text.rstrip().split("\n")
    if path.suffix.lower() == ".json":
        yield from _whole(text, path)
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            if number == len(lines) and number > 1:
                return  # a process that was killed leaves a torn last line
            raise NothingReadableError(
                one_line("not a JSON line", f"{path}:{number}", line[:40], "one JSON object a line")
            ) from error
        if isinstance(value, dict):
            yield from _ledger_line(value)


def _ledger_line(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a line; one of a ledger says with ``finite`` that a null was NaN or Inf."""
    if value.get("finite") is False:
        loss, norm = _told(value.get("loss"), value.get("grad_norm"), finite=False)
        value = {**value, "loss": loss, "grad_norm": norm}
    metrics = value.get("metrics")
    yield {**metrics, **value} if isinstance(metrics, dict) else value


def _whole(text: str, path: Path) -> Iterator[dict[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise NothingReadableError(one_line("not JSON", str(path), str(error))) from error
    if isinstance(value, dict):
        value = value.get("log_history", [])
    yield from (row for row in value if isinstance(row, dict))
