"""Judged segments go in; which of their documents are copies of another, and of which, comes out.

Only documents that would be kept are looked at: a copy of a rejected document is judged by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanfeed.build.judge import DUPLICATES_SCHEMA, Corpus, Judge, Judged
from cleanfeed.build.measure import Report
from cleanfeed.build.tasks import Context, Segment
from cleanfeed.curriculum.duplicates import FEW, DuplicateCounts, find_duplicates
from cleanfeed.curriculum.paths import AnyPath, fetched
from cleanfeed.curriculum.writer import HASH_TYPE, PartWriter, read_part
from cleanfeed.settings import DuplicateSettings
from cleanfeed.signals.minhash import signature_array, signatures

NAME_QUERY = """
SELECT duplicates.position, kind, candidates.doc_id AS kept
FROM read_parquet($duplicates) duplicates
JOIN read_parquet($candidates) candidates ON candidates.position = duplicates.duplicate_of
ORDER BY duplicates.position
"""
MEMORY_LIMIT = 2**28
"""Bytes for DuckDB, which takes about twice as much: more than that is on disk. The workers wait meanwhile and keep
what they have."""
ROWS = 1 << 16


def candidates_path(context: Context, segment: int) -> AnyPath:
    """Return where the documents of a segment that may be duplicates are listed."""
    return context.work / f"candidates-{segment:05d}.parquet"


def candidates(context: Context, segment: Segment, corpus: Corpus, report: Report) -> int:
    """List the documents of a segment that would be kept; return how many they are."""
    settings = context.pipeline.duplicates
    judge = Judge(context, segment, corpus)
    with PartWriter(candidates_path(context, segment.index), _schema(settings)) as part:
        for batch in judge.batches():
            part.write(_table(settings, batch))
    report(1)
    return part.rows


def _schema(settings: DuplicateSettings) -> pa.Schema:
    fields = [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("content_hash", HASH_TYPE, nullable=False),
        pa.field("quality", pa.float32(), nullable=False),
    ]
    if settings.method == "near":
        fields.append(pa.field("signature", pa.list_(pa.uint32(), settings.bands * settings.rows)))
    return pa.schema(fields)


def _table(settings: DuplicateSettings, batch: Judged) -> pa.Table:
    rows = np.flatnonzero(batch.kept)
    taken = pa.array(rows)
    columns = {
        "position": batch.first_position + rows,
        "doc_id": batch.doc_id.take(taken),
        "content_hash": batch.spool.column("content_hash").take(taken),
        "quality": batch.quality[rows],
    }
    if settings.method == "near":
        texts = batch.spool.column("text").take(taken)
        hashes = settings.bands * settings.rows
        columns["signature"] = signature_array(*signatures(texts, ngram=settings.ngram, hashes=hashes))
    return pa.table(columns, schema=_schema(settings))


def group(context: Context, segments: Sequence[Segment], out: AnyPath) -> DuplicateCounts:
    """Find the duplicates among all candidates and write them with the ids of what is kept instead.

    Args:
        context: The build.
        segments: All segments.
        out: Parquet file of :data:`~cleanfeed.build.judge.DUPLICATES_SCHEMA`.
    """
    paths = [fetched(candidates_path(context, segment.index)) for segment in segments]
    found = context.scratch / "duplicates.parquet"
    counts = find_duplicates(
        paths,
        found,
        context.pipeline.duplicates,
        scratch=context.scratch / "grouping",
        memory_limit=MEMORY_LIMIT,
    )
    with PartWriter(out, DUPLICATES_SCHEMA) as part:
        if counts.exact + counts.near and counts.documents <= FEW:
            part.write(_few_named(paths, found))
        elif counts.exact + counts.near:
            for table in _named(paths, found, context.scratch / "naming"):
                part.write(table)
    return counts


def _few_named(paths: Sequence[Path], found: Path) -> pa.Table:
    """Return the duplicates with the ids of the kept documents, where memory can hold all candidates."""
    duplicates = read_part(found)
    listed = pa.concat_tables([read_part(path, ["position", "doc_id"]) for path in paths])
    # Positions rise from segment to segment and within each.
    rows = np.searchsorted(listed.column("position").to_numpy(), duplicates.column("duplicate_of").to_numpy())
    kept = listed.column("doc_id").take(pa.array(rows))
    return pa.table(
        [duplicates.column("position"), duplicates.column("kind"), kept], schema=DUPLICATES_SCHEMA
    )


def _named(paths: Sequence[Path], found: Path, spill: Path) -> Iterator[pa.Table]:
    """Yield the duplicates with the ids of the kept documents, which DuckDB joins and, if it must, spills."""
    import duckdb  # a tenth of a second, which few candidates do not need

    with duckdb.connect(config={"memory_limit": f"{MEMORY_LIMIT}B", "threads": 1}) as store:
        store.execute("SET temp_directory = ?", [str(spill)])
        values = {"duplicates": str(found), "candidates": [str(path) for path in paths]}
        rows = store.execute(NAME_QUERY, values)
        while block := rows.fetchmany(ROWS):
            columns = dict(zip(DUPLICATES_SCHEMA.names, zip(*block, strict=True), strict=True))
            yield pa.table({name: list(column) for name, column in columns.items()}, schema=DUPLICATES_SCHEMA)
