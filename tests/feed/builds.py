"""Sizes of stages go in; a catalog, or a whole finished build of that shape, comes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from cleanfeed.build.finished import curriculum_digest, manifest_digest
from cleanfeed.curriculum.durable import file_digest
from cleanfeed.curriculum.writer import PartWriter, curriculum_schema
from cleanfeed.feed.catalog import Catalog, StageEntry

Size = tuple[int, int]
"""Samples of a stage, and R."""
LONGEST = (8, 16, 32)
"""Longest sample of the bands; stage i is of band i modulo 3."""


def catalog_of_sizes(*sizes: Size, file_groups: int = 2, longest: Sequence[int] = LONGEST) -> Catalog:
    """Return the catalog of a build that does not exist."""
    stages: list[StageEntry] = []
    row = group = 0
    for index, (samples, group_rows) in enumerate(sizes):
        band = index % len(longest)
        stage = StageEntry(
            index,
            f"stage{index}",
            f"band{band}",
            "all",
            samples,
            group_rows,
            file_groups,
            row,
            group,
            longest[band],
        )
        stages.append(stage)
        row, group = row + samples, group + stage.groups
    return Catalog("nowhere", "0" * 32, "1" * 32, 0, tuple(stages))


def token_ids(row: int) -> list[int]:
    """Return the tokens that a written build gives a row, few enough for every band."""
    return [row + 1] * (1 + row % LONGEST[0])


def text_of(row: int) -> str:
    """Return the text that a written build gives a row."""
    return f"{row:08}"


def sample_hash(row: int, *, tokens: bool = True) -> bytes:
    """Return the hash of a row of a written build."""
    content = np.array(token_ids(row), dtype="<i4").tobytes() if tokens else text_of(row).encode()
    return xxhash.xxh3_128_digest(content)


def write_build(
    folder: Path,
    *sizes: Size,
    file_groups: int = 2,
    tokens: bool = True,
    twins: Sequence[tuple[int, int]] = (),
) -> Path:
    """Write a finished build.

    Args:
        folder: Where to.
        sizes: Stages.
        file_groups: Row groups in a file.
        tokens: Whether there is a tokenizer; else samples are text.
        twins: Pairs of rows: the second is the same sample as the first.
    """
    catalog = catalog_of_sizes(*sizes, file_groups=file_groups)
    schema = curriculum_schema(tokens=tokens, text=not tokens, keep_fields=())
    same_as = {second: first for first, second in twins}
    files: list[dict[str, Any]] = []
    for stage in catalog.stages:
        for number in range(stage.files):
            name = stage.file_name(number)
            first = stage.first_row + number * stage.group_rows * file_groups
            rows = range(first, first + stage.file_rows(number))
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with PartWriter(folder / name, schema, row_group_rows=stage.group_rows) as writer:
                if rows:
                    writer.write(_table(rows, stage, schema, same_as))
            size = (folder / name).stat().st_size
            files.append(
                {"path": name, "rows": len(rows), "bytes": size, "digest": file_digest(folder / name)}
            )
    stages = [
        {
            "index": stage.index,
            "name": stage.name,
            "band": stage.band,
            "tier": stage.tier,
            "samples": stage.samples,
            "row_group_samples": stage.group_rows,
            "files": [stage.file_name(number) for number in range(stage.files)],
        }
        for stage in catalog.stages
    ]
    bands = [{"name": f"band{i}", "max_tokens": n, "max_chars": n} for i, n in enumerate(LONGEST)]
    manifest: dict[str, Any] = {
        "format_version": 1,
        "request": "",
        "counts": {},
        "inputs": [],
        "pipeline": {"curriculum": {"bands": bands, "file_row_groups": file_groups}},
        "tokenizer": {"digest": "1" * 32, "vocab_size": 1 << 20, "end_of_text_id": 0} if tokens else None,
        "stages": stages,
        "files": files,
        "digest": curriculum_digest(stages, files),
    }
    write_manifest(folder, manifest)
    return folder


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest with its own digest."""
    manifest["manifest_digest"] = manifest_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _table(rows: range, stage: StageEntry, schema: pa.Schema, same_as: dict[int, int]) -> pa.Table:
    content = [same_as.get(row, row) for row in rows]
    ids = [token_ids(row) for row in content]
    tokens = "input_ids" in schema.names
    values: dict[str, Any] = {
        "sample_hash": [sample_hash(row, tokens=tokens) for row in content],
        "doc_id": [f"doc{row}" for row in rows],
        "part": [0] * len(rows),
        "source": ["a.jsonl"] * len(rows),
        "source_row": list(rows),
        "stage": [stage.index] * len(rows),
        "n_tokens": [len(one) for one in ids],
        "n_chars": [len(text_of(row)) for row in content],
        "quality": [0.5] * len(rows),
        "flags": [[]] * len(rows),
        "input_ids": ids,
        "text": [text_of(row) for row in content],
    }
    return pa.table([pa.array(values[field.name], field.type) for field in schema], schema=schema)
