"""The report of a finished build goes in; the result for ``--json`` and its tables for people come out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from cleanfeed.cli.terminal import count, duration, row, shortened, stdout, table, visible, volume
from cleanfeed.curriculum.paths import opened, path_of, sizes_below
from cleanfeed.rules.ruleset import COUNTS

if TYPE_CHECKING:
    from cleanfeed.build.runner import BuildReport
    from cleanfeed.build.verify import VerifyReport

ID_WIDTH = 60


def build_result(report: BuildReport, out: str) -> dict[str, Any]:
    """Return the manifest with what a finished run adds to it: time, rate and the next commands."""
    manifest = report.manifest
    size = sum(max(0, int(entry["bytes"])) for entry in manifest["inputs"])
    return {
        **manifest,
        "out": out,
        "already_done": report.already_done,
        "exit_code": report.exit_code,
        "seconds": round(report.seconds, 3),
        "input_bytes": size,
        "mb_per_second": None if report.already_done else round(size / 1e6 / max(report.seconds, 1e-9), 4),
        "next": next_steps(manifest, out),
    }


def next_steps(manifest: Mapping[str, Any], out: str) -> list[str]:
    """Return the commands worth running next, ready to be pasted."""
    steps = [shlex.join(["cleanfeed", "verify", out])]
    doc_id = first_rejected(out) if manifest["counts"]["rejected"] else None
    if doc_id is not None:
        steps.append(explain_command(out, doc_id))
    return steps


def explain_command(out: str, doc_id: str) -> str:
    """Return the command that explains a document; an id that looks like an option is set apart."""
    return shlex.join(["cleanfeed", "explain", *(["--"] if doc_id.startswith("-") else []), out, doc_id])


def first_rejected(out: str) -> str | None:
    """Return the id of the first document a rule rejected."""
    folder = path_of(out) / "rejected"
    for name in (name for name in sizes_below(folder) if name.endswith(".parquet")):
        for batch in pq.ParquetFile(opened(folder / name)).iter_batches(1024, columns=["doc_id", "verdict"]):
            ids = batch["doc_id"].filter(pc.equal(batch["verdict"], "reject"))
            if len(ids):
                return str(ids[0].as_py())
    return None


def show_build(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the result of a build as tables, ending in the next step to take."""
    console = console or stdout()
    out = result["out"]
    if result["already_done"]:
        console.print(
            f"{visible(out)} is already built from these inputs with this pipeline: nothing to do.\n"
        )
    _show_counts(result, console)
    _show_rules(result, "rejected by rule", result["rejected_by_rule"], console)
    if result["tokenizer"] and result["rejected_by_rule"]:
        console.print("Text rejected before it is tokenised has no tokens here.\n")
    _show_rules(result, "flagged by rule", result["flagged_by_rule"], console)
    _show_unreadable(result, console)
    _show_stages(result, console)
    if not result["already_done"]:
        console.print(
            f"{duration(result['seconds'])} for {volume(result['input_bytes'])} of input, "
            f"{volume(result['mb_per_second'] * 1e6)}/s\n"
        )
    for index, step in enumerate(result["next"]):
        console.print(f"{'next:' if index == 0 else '     '} {visible_command(step)}", soft_wrap=True)


def visible_command(command: str) -> str:
    """Return a shell command as it is, unless it holds control characters, which no one could paste."""
    return command if command.isprintable() else visible(command)


def _show_counts(result: Mapping[str, Any], console: Console) -> None:
    grid = table("documents", *COUNTS)
    inputs: list[Mapping[str, Any]] = result["inputs"]
    if 1 < len(inputs) <= 20:
        for entry in inputs:
            row(grid, shortened(visible(entry["source"]), ID_WIDTH), *_counts(entry["counts"]))
    row(grid, "all", *_counts(result["counts"]), style="bold" if len(inputs) > 1 else "")
    _print(grid, console)
    for entry in inputs:
        if entry["damage"]:
            line = f"damaged: {visible(entry['source'])}: {_damage(entry['damage'])}"
            console.print(line, soft_wrap=True)
    if any(entry["damage"] for entry in inputs):
        console.print("What could be read was used; exit code 3.\n")
    limit = result.get("limit")
    if limit is not None:
        console.print(f"Only the first {count(limit)} records were read (--limit).\n")
    twice = result["counts"].get("duplicate_ids", 0)
    if twice:
        console.print(
            f"{count(twice)} documents have the id of an earlier one; their source and row differ.\n"
        )


def _counts(counts: Mapping[str, int]) -> list[str]:
    return [count(counts[name]) for name in COUNTS]


def _damage(damage: Mapping[str, Any]) -> str:
    offset = damage.get("byte_offset")
    at = "" if offset is None else f" at byte {count(offset)}"
    return visible(f"{damage['reason']}{at}: {damage.get('detail', '')}".rstrip(": "))


def _show_rules(
    result: Mapping[str, Any], title: str, rules: Mapping[str, Mapping[str, Any]], console: Console
) -> None:
    """Print what each rule did; a document counts under every rule that fired."""
    if not rules:
        return
    units = ("tokens", "chars") if result["tokenizer"] else ("chars",)
    grid = table(title, "documents", *units)
    for name, hit in sorted(rules.items(), key=lambda item: (-item[1]["documents"], item[0])):
        row(grid, name, *(count(hit[unit]) for unit in ("documents", *units)))
    _print(grid, console)


def _show_unreadable(result: Mapping[str, Any], console: Console) -> None:
    reasons: Mapping[str, int] = result["unreadable_by_reason"]
    if not reasons:
        return
    grid = table("unreadable", "records")
    for reason, records in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        row(grid, reason, count(records))
    _print(grid, console)


def _show_stages(result: Mapping[str, Any], console: Console) -> None:
    unit = "tokens" if result["tokenizer"] else "chars"
    grid = table("stage", "samples", unit, "mean quality")
    for stage in result["stages"]:
        quality = stage["mean_quality"]
        row(
            grid,
            f"{stage['index']:02d} {stage['name']}",
            count(stage["samples"]),
            count(stage[unit]),
            "–" if quality is None else f"{quality:.3f}",
        )
    _print(grid, console)


def _print(grid: Any, console: Console) -> None:
    console.print(grid)
    console.print()


def verify_result(report: VerifyReport, out: str) -> dict[str, Any]:
    """Return what was proved, for ``--json`` and the line on stdout."""
    return {"out": out, "ok": True, **asdict(report)}


def show_verify(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print what was proved in one line."""
    console = console or stdout()
    console.print(
        f"{visible(result['out'])} is whole: {count(result['files'])} files and {count(result['rows'])} rows "
        f"agree with the manifest, digest {result['digest']}.",
        soft_wrap=True,
    )
