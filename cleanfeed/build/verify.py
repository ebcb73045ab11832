"""A finished build goes in; a proof from its files that nothing is missing or altered, or what is, comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow.parquet as pq

from cleanfeed.build.finished import curriculum_digest
from cleanfeed.build.manifest import read_manifest
from cleanfeed.build.queries import duckdb_over
from cleanfeed.build.retrace import misplaced
from cleanfeed.build.settle import REJECTED_SCHEMA, SIGNALS_SCHEMA
from cleanfeed.curriculum.durable import file_digest
from cleanfeed.curriculum.paths import AnyPath, opened, path_of, sizes_below
from cleanfeed.curriculum.writer import curriculum_schema
from cleanfeed.documents.record import UNREADABLE_SCHEMA
from cleanfeed.errors import CleanfeedError, MisuseError, VerifyError, one_line
from cleanfeed.rules.ruleset import COUNTS

FOREIGN = "not in the manifest"
FOLDERS = ("curriculum/", "rejected/", "unreadable/", "signals/")


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was proven."""

    files: int
    rows: int
    bytes: int
    counts: Mapping[str, int]
    stages: int
    samples: int
    digest: str


def verify(out: str) -> VerifyReport:
    """Prove a finished build again from its files: checksums, schemas, conservation, stages and their limits, order.

    Raises:
        MisuseError: The folder holds no finished build.
        VerifyError: The manifest was altered, or something else is wrong; the message names all of it, the first five
            places in full.
    """
    folder = path_of(out)
    if not folder.is_dir():
        raise MisuseError(one_line("no such folder", out, expected="a folder written by cleanfeed build"))
    manifest = read_manifest(folder)
    if manifest is None:
        todo = "Run the same build command again to finish it." if (folder / ".work").exists() else ""
        raise MisuseError(one_line("the folder holds no finished build", out, "no manifest.json", todo=todo))
    # Each check trusts what the ones before it have shown.
    for check in (_files, _schemas, _conservation, _stages, _samples, misplaced):
        problems = list(check(folder, manifest))
        if problems:
            more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
            foreign = all(FOREIGN in problem for problem in problems)
            todo = "Remove it, it is no part of the build." if foreign else "Build it anew with --overwrite."
            raise VerifyError("; ".join(problems[:5]) + more + ". " + todo)
    return VerifyReport(
        files=len(manifest["files"]) + 1,
        rows=sum(entry["rows"] for entry in manifest["files"]),
        bytes=sum(entry["bytes"] for entry in manifest["files"]),
        counts=manifest["counts"],
        stages=len(manifest["stages"]),
        samples=sum(stage["samples"] for stage in manifest["stages"]),
        digest=manifest["digest"],
    )


def _files(out: AnyPath, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Check that every listed file is there unaltered, and that no other lies among them."""
    sizes = sizes_below(out)
    for entry in manifest["files"]:
        size = sizes.get(entry["path"])
        if size is None:
            yield f"{entry['path']}: missing"
        elif size != entry["bytes"]:
            yield f"{entry['path']}: got {size} bytes, expected {entry['bytes']}"
        elif (digest := file_digest(out / entry["path"])) != entry["digest"]:
            yield f"{entry['path']}: got digest {digest}, expected {entry['digest']}"
    listed = {entry["path"] for entry in manifest["files"]}
    for name in sizes:
        if name.startswith(FOLDERS) and name.endswith(".parquet") and name not in listed:
            yield f"{name}: {FOREIGN}"
    digest = curriculum_digest(manifest["stages"], manifest["files"])
    if digest != manifest["digest"]:
        yield f"manifest.json: digest is {manifest['digest']}, its stages and files give {digest}"


def _schemas(out: AnyPath, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Check the columns and the rows of every Parquet file."""
    names = {name for stage in manifest["stages"] for name in stage["files"]}
    first = pq.read_schema(opened(out / min(names)))
    expected = {
        "curriculum": curriculum_schema(
            tokens=manifest["tokenizer"] is not None,
            text="text" in first.names,
            keep_fields=manifest["pipeline"]["documents"]["keep_fields"],
        ),
        "rejected": REJECTED_SCHEMA,
        "unreadable": UNREADABLE_SCHEMA,
        "signals": SIGNALS_SCHEMA,
    }
    for entry in manifest["files"]:
        kind = entry["path"].split("/")[0]
        if kind not in expected:
            continue
        meta = pq.ParquetFile(opened(out / entry["path"]))
        if not meta.schema_arrow.equals(expected[kind]):
            yield f"{entry['path']}: its columns are not those of {kind}/"
        if meta.metadata.num_rows != entry["rows"]:
            yield f"{entry['path']}: got {meta.metadata.num_rows} rows, expected {entry['rows']}"


def _conservation(out: AnyPath, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Check that read = kept + rejected + duplicate + excluded + unreadable, in the counts and in the files."""
    for entry in manifest["inputs"]:
        yield from _adds_up(entry["source"], entry["counts"])
    counts = manifest["counts"]
    yield from _adds_up("manifest.json counts", counts)
    for name in COUNTS:
        total = sum(entry["counts"][name] for entry in manifest["inputs"])
        if total != counts[name]:
            yield f"manifest.json: the inputs have {total} {name}, counts say {counts[name]}"
    found = _counted(out, manifest)
    for entry in manifest["inputs"]:
        for name in COUNTS:
            number = found.get(entry["source"], {}).get(name, 0)
            if number != entry["counts"][name]:
                expected = entry["counts"][name]
                yield f"{entry['source']}: the files hold {number} {name}, the manifest says {expected}"
    for source in found.keys() - {entry["source"] for entry in manifest["inputs"]}:
        yield f"{source}: in the files, but no input"
    left_out = counts["rejected"] + counts["duplicate"] + counts["excluded"]
    if (rows := _number(out, manifest, "rejected", "count(*)")) != left_out:
        yield f"rejected/: {rows} rows, the manifest says {left_out}"
    kept = _number(out, manifest, "curriculum", "count(*) FILTER (part = 0)")
    if kept != counts["kept"]:
        yield f"curriculum/: {kept} documents, the manifest says {counts['kept']} were kept"


def _counted(out: AnyPath, manifest: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return what the files say of each input: as many of its records as ``signals/`` and ``unreadable/`` hold."""
    names = {"keep": ("kept",), "flag": ("kept", "flagged"), "reject": ("rejected",)}
    found: dict[str, dict[str, int]] = {}
    for folder, verdict in (("signals", "verdict"), ("unreadable", "'unreadable'")):
        query = f"SELECT source, {verdict}, count(*) FROM read_parquet($files) GROUP BY ALL"
        for source, word, number in _query(out, query, {"files": _names(manifest, folder)}):
            counts = found.setdefault(source, {})
            for name in ("read", *names.get(word, (word,))):
                counts[name] = counts.get(name, 0) + number
    return found


def _adds_up(where: str, counts: Mapping[str, int]) -> Iterator[str]:
    parts = sum(counts[name] for name in ("kept", "rejected", "duplicate", "excluded", "unreadable"))
    if parts != counts["read"] or counts["flagged"] > counts["kept"]:
        yield f"{where}: read {counts['read']}, but its parts add up to {parts}"


def _stages(out: AnyPath, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Check samples, tokens and length limits of every stage, and its row groups."""
    settings = manifest["pipeline"]["curriculum"]
    tokens = manifest["tokenizer"] is not None
    limit_of = {band["name"]: band["max_tokens" if tokens else "max_chars"] for band in settings["bands"]}
    length = "n_tokens" if tokens else "n_chars"
    for stage in manifest["stages"]:
        where = f"stage {stage['index']} ({stage['name']})"
        found = _row(
            out,
            stage["files"],
            f"count(*), coalesce(sum(n_tokens), 0), coalesce(sum(n_chars), 0), coalesce(max({length}), 0), "
            f"count(*) FILTER (stage != {int(stage['index'])})",
        )
        samples, n_tokens, chars, longest, strangers = found
        if (samples, chars) != (stage["samples"], stage["chars"]) or (tokens and n_tokens != stage["tokens"]):
            yield (
                f"{where}: {samples} samples of {n_tokens} tokens and {chars} characters, "
                "the manifest says otherwise"
            )
        if longest > limit_of[stage["band"]]:
            yield f"{where}: a sample of {longest}, the band's limit is {limit_of[stage['band']]}"
        if strangers:
            yield f"{where}: {strangers} samples say they belong to another stage"
        yield from _row_groups(out, stage)


def _row_groups(out: AnyPath, stage: Mapping[str, Any]) -> Iterator[str]:
    sizes = [
        meta.row_group(i).num_rows
        for meta in (pq.read_metadata(opened(out / name)) for name in stage["files"])
        for i in range(meta.num_row_groups)
    ]
    if any(size != stage["row_group_samples"] for size in sizes[:-1]):
        yield f"stage {stage['index']} ({stage['name']}): a row group before the last is not full"


def _samples(out: AnyPath, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Check that every kept document is in the curriculum with all its parts, and nothing else is."""
    lost, extra, torn = _query(
        out,
        """
            WITH samples AS (
                SELECT source, source_row, count(*) AS parts, max(part) AS last, count(DISTINCT part) AS different
                FROM read_parquet($curriculum) GROUP BY ALL
            ), kept AS (SELECT source, source_row FROM read_parquet($signals) WHERE verdict IN ('keep', 'flag'))
            SELECT count(*) FILTER (samples.source IS NULL), count(*) FILTER (kept.source IS NULL),
                count(*) FILTER (samples.parts != samples.last + 1 OR samples.parts != samples.different)
            FROM kept FULL JOIN samples USING (source, source_row)
        """,
        {folder: _names(manifest, folder) for folder in ("curriculum", "signals")},
    )[0]
    for number, what in (
        (lost, "kept but not there"),
        (extra, "there but not kept"),
        (torn, "there in part only"),
    ):
        if number:
            yield f"curriculum/: {number} documents are {what}"


def _number(out: AnyPath, manifest: Mapping[str, Any], folder: str, expression: str) -> int:
    return int(_row(out, _names(manifest, folder), expression)[0])


def _names(manifest: Mapping[str, Any], folder: str) -> list[str]:
    return [entry["path"] for entry in manifest["files"] if entry["path"].startswith(folder + "/")]


def _row(out: AnyPath, names: list[str], expression: str) -> tuple[Any, ...]:
    return _query(out, f"SELECT {expression} FROM read_parquet($files)", {"files": names})[0]


def _query(out: AnyPath, query: str, files: Mapping[str, list[str]]) -> list[tuple[Any, ...]]:
    """Return the rows of a query over files of the build; DuckDB goes to disk for what 1 GB cannot hold."""
    paths = {parameter: [str(out / name) for name in names] for parameter, names in files.items()}
    try:
        with TemporaryDirectory() as spill, duckdb_over(out, memory_limit="1GB") as store:
            store.execute("SET temp_directory = ?", [spill])
            return store.execute(query, paths).fetchall()
    except duckdb.Error as error:
        raise CleanfeedError(
            one_line("cannot check the build", str(out), str(error).splitlines()[0])
        ) from error
