"""A measured segment and what is known of the whole corpus go in; verdicts, rejects and an index of samples come out.

The phase of everything that needs no other task's documents but may need the corpus' counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from cleanfeed.build.judge import DUPLICATE, REASONS_TYPE, WORDS, Corpus, Judge, Judged, raw_hashes
from cleanfeed.build.measure import Report, unreadable_path
from cleanfeed.build.spool import Spool, spool_writer
from cleanfeed.build.tasks import Context, Segment
from cleanfeed.curriculum.order import shuffle_keys
from cleanfeed.curriculum.paths import AnyPath
from cleanfeed.curriculum.samples import first_chars
from cleanfeed.curriculum.stages import bands, quality_bins
from cleanfeed.curriculum.writer import HASH_TYPE, PartWriter
from cleanfeed.documents.record import UNREADABLE_SCHEMA
from cleanfeed.rules.ruleset import COUNTS, REJECT
from cleanfeed.signals.registry import SIGNALS

GATHER_BYTES = 8 * 2**20
"""Rows of ``signals/`` and the like are written in row groups of about this size in memory."""

PLACE_FIELDS = (
    pa.field("doc_id", pa.string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("source_row", pa.int64(), nullable=False),
    pa.field("content_hash", HASH_TYPE, nullable=False),
    pa.field("verdict", pa.string(), nullable=False),
    pa.field("reasons", REASONS_TYPE, nullable=False),
)
REJECTED_SCHEMA = pa.schema([*PLACE_FIELDS, pa.field("text", pa.large_string())])
SIGNALS_SCHEMA = pa.schema(
    [
        *PLACE_FIELDS,
        *(pa.field(signal.name, pa.int64() if signal.type == "int" else pa.float64()) for signal in SIGNALS),
    ]
)
SAMPLES_SCHEMA = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("band", pa.int16(), nullable=False),
        pa.field("quality", pa.float32(), nullable=False),
        pa.field("batch", pa.int32(), nullable=False),
        pa.field("document", pa.int32(), nullable=False),
        pa.field("byte", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("sample_hash", HASH_TYPE, nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("n_chars", pa.int64(), nullable=False),
        pa.field("first_char", pa.int64(), nullable=False),
        pa.field("flags", pa.list_(pa.string()), nullable=False),
    ]
)
"""One row a sample, by rising key: what decides its stage, where its values lie in the spool, and its columns."""


class Settled(Struct):
    """What is known of a segment after its documents were judged."""

    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    """For each file index: ``COUNTS``."""
    rejected_by_rule: dict[str, list[int]] = field(default_factory=dict)
    """For each rule: documents, tokens, code points, and how many of the documents were tokenised."""
    flagged_by_rule: dict[str, list[int]] = field(default_factory=dict)
    """The same for kept documents that a rule flags."""
    unreadable_by_reason: dict[str, int] = field(default_factory=dict)
    quality: dict[int, int] = field(default_factory=dict)
    """Samples in each quality bin."""
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    """For each finished file below OUT: rows and digest."""


def samples_path(context: Context, segment: int) -> AnyPath:
    """Return where a segment's index of samples lies."""
    return context.work / f"samples-{segment:05d}.arrow"


def settled_files(context: Context, segment: int, found: Settled) -> list[AnyPath]:
    """Return the files a settled segment consists of."""
    return [samples_path(context, segment), *(context.out / name for name in found.files)]


def settle(context: Context, segment: Segment, corpus: Corpus, report: Report) -> Settled:
    """Judge the documents of one segment; write its signals and rejects, and index its samples.

    The first segment of a task also writes the task's unreadable records.
    """
    settler = _Settler(context, segment, corpus)
    found = settler.found
    samples: list[pa.Table] = [SAMPLES_SCHEMA.empty_table()]
    with ExitStack() as stack:
        parts = {
            # The first segment writes each kind, so that there always is a file to query.
            name: stack.enter_context(
                PartWriter(context.out / name, schema, always=segment.index == 0, gather_bytes=GATHER_BYTES)
            )
            for name, schema in _parts(segment).items()
        }
        signals, rejected, unreadable = parts.values()
        for batch in settler.judge.batches():
            settler.count(batch)
            signals.write(_signals_table(batch))
            rejected.write(_rejected_table(batch))
            samples.append(settler.samples(batch))
        if segment.number == 0:
            for table in settler.unreadable():
                unreadable.write(table)
    found.files = {name: (part.rows, part.digest) for name, part in parts.items() if part.digest is not None}
    index = pa.concat_tables(samples)
    order = np.argsort(index.column("key").to_numpy(), kind="stable")
    with spool_writer(samples_path(context, segment.index), SAMPLES_SCHEMA) as writer:
        writer.write_table(index.take(pa.array(order)).combine_chunks())
    report(1)
    return found


def _parts(segment: Segment) -> dict[str, pa.Schema]:
    """Return the files a segment may write, and their schemas."""
    schemas = {"signals": SIGNALS_SCHEMA, "rejected": REJECTED_SCHEMA, "unreadable": UNREADABLE_SCHEMA}
    return {f"{folder}/part-{segment.index:05d}.parquet": schema for folder, schema in schemas.items()}


class _Settler:
    def __init__(self, context: Context, segment: Segment, corpus: Corpus) -> None:
        self.context, self.task = context, segment.task
        self.judge = Judge(context, segment, corpus)
        self.found = Settled()

    def count(self, batch: Judged) -> None:
        """Add a batch to the counts by file and by rule."""
        for file in np.unique(batch.files).tolist():
            numbers = np.bincount(batch.verdict[batch.files == file], minlength=len(WORDS)).tolist()
            keep, flag, rejected, duplicate, excluded = numbers
            self._add(
                file,
                read=sum(numbers),
                kept=keep + flag,
                flagged=flag,
                rejected=rejected,
                duplicate=duplicate,
                excluded=excluded,
            )
        for totals, fired, counted in (
            (self.found.rejected_by_rule, {**batch.rules.fired, **batch.refused}, batch.verdict == REJECT),
            (self.found.flagged_by_rule, batch.rules.flagged, batch.kept),
        ):
            for rule, everywhere in fired.items():
                hit = everywhere & counted
                if not hit.any():
                    continue
                tokens = batch.signals.get("tokens")
                row = totals.setdefault(rule, [0, 0, 0, 0])
                row[0] += int(np.count_nonzero(hit))
                row[2] += int(np.nansum(batch.signals["chars"][hit]))
                if tokens is not None:
                    row[1] += int(np.nansum(tokens[hit]))
                    row[3] += int(np.count_nonzero(~np.isnan(tokens[hit])))

    def _add(self, file: int, **numbers: int) -> None:
        total = self.found.counts.setdefault(file, dict.fromkeys(COUNTS, 0))
        for name, number in numbers.items():
            total[name] += number

    def samples(self, batch: Judged) -> pa.Table:
        """Return the index of the samples of the kept documents of a batch."""
        found = self.judge.samples(batch)
        ranges, documents = found.ranges, found.documents
        quality = batch.quality[documents]
        bins, numbers = np.unique(quality_bins(quality[~np.isnan(quality)]), return_counts=True)
        totals = Counter(self.found.quality)
        totals.update(dict(zip(bins.tolist(), numbers.tolist(), strict=True)))
        self.found.quality = dict(totals)
        row = pa.array(documents)
        columns = {
            "key": shuffle_keys(
                raw_hashes(found.hashes),
                self.context.pipeline.curriculum.seed,
                batch.files[documents],
                batch.source_row.to_numpy()[documents],
                ranges.part,
            ),
            "band": bands(
                ranges.chars if self.context.tokenizer is None else ranges.length, self.judge.limits
            ),
            "quality": quality,
            "batch": np.full(len(documents), batch.number, dtype=np.int32),
            "document": documents.astype(np.int32),
            # What is empty may lie nowhere.
            "byte": np.where(ranges.length > 0, batch.first_byte + found.first_byte, 0),
            "length": ranges.length,
            "sample_hash": found.hashes,
            "doc_id": batch.doc_id.take(row),
            "source": batch.source.take(row),
            "source_row": batch.source_row.take(row),
            "part": ranges.part,
            "n_chars": ranges.chars,
            "first_char": first_chars(ranges),
            "flags": batch.rules.flags.take(row),
        }
        return pa.table({name: columns[name] for name in SAMPLES_SCHEMA.names}, schema=SAMPLES_SCHEMA)

    def unreadable(self) -> Iterator[pa.Table]:
        """Yield the task's unreadable records with their place in their files."""
        for rows in Spool.open(unreadable_path(self.context, self.task.index)).batches:
            pieces = rows.column("piece").to_numpy()
            row = pa.array(rows.column("row").to_numpy() + self.judge.bases[pieces])
            for file, number in zip(*np.unique(self.judge.files[pieces], return_counts=True), strict=True):
                self._add(int(file), read=int(number), unreadable=int(number))
            reasons = Counter(rows.column("reason").to_pylist())
            self.found.unreadable_by_reason = dict(Counter(self.found.unreadable_by_reason) + reasons)
            by_line = rows.column("line_format")
            columns = {
                "source": self.judge.sources.take(rows.column("piece")),
                "line": pc.if_else(by_line, pc.add(row, 1), None),
                "row": pc.if_else(by_line, None, row),
                **{name: rows.column(name) for name in ("byte_offset", "reason", "detail", "excerpt")},
            }
            yield pa.table(
                {name: columns[name] for name in UNREADABLE_SCHEMA.names}, schema=UNREADABLE_SCHEMA
            )


def _place(batch: Judged) -> dict[str, pa.Array]:
    """Return the columns that say which document a row is about and what came of it."""
    return {
        "doc_id": batch.doc_id,
        "source": batch.source,
        "source_row": batch.source_row,
        "content_hash": batch.spool.column("content_hash"),
        "verdict": pa.array(WORDS, pa.string()).take(pa.array(batch.verdict)),
        "reasons": batch.reasons,
    }


def _signals_table(batch: Judged) -> pa.Table:
    columns = _place(batch)
    for signal in SIGNALS:
        values = batch.signals.get(signal.name)
        kind = pa.int64() if signal.type == "int" else pa.float64()
        if values is None:
            columns[signal.name] = pa.nulls(batch.spool.num_rows, kind)
        else:
            # from_pandas: NaN is how a column without nulls says null.
            found = pa.array(values, from_pandas=True)
            columns[signal.name] = found.cast(kind) if signal.type == "int" else found
    return pa.table(columns, schema=SIGNALS_SCHEMA)


def _rejected_table(batch: Judged) -> pa.Table:
    rows = np.flatnonzero(~batch.kept)
    taken = pa.array(rows)
    # A duplicate's text is that of the kept copy, or nearly so.
    text_of = pa.array(rows, mask=batch.verdict[rows] == DUPLICATE)
    columns = {name: column.take(taken) for name, column in _place(batch).items()}
    columns["text"] = batch.spool.column("text").take(text_of)
    return pa.table(columns, schema=REJECTED_SCHEMA)
