"""A measured segment and what is known of the whole corpus go in; verdicts, rejects and an index of samples come out.

The second of three phases: everything that needs no other task's documents but may need the corpus' counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cleanfeed.build.measure import CorpusCounts, Report, read_corpus_counts, spool_path, unreadable_path
from cleanfeed.build.spool import Spool, flat_ids, flat_text, hashes, signal_columns, spool_writer
from cleanfeed.build.tasks import Context, Segment
from cleanfeed.curriculum.order import shuffle_keys
from cleanfeed.curriculum.quality import quality_scores
from cleanfeed.curriculum.reference import LogRatio
from cleanfeed.curriculum.samples import ByteCutter, SampleRanges, TokenCutter, split
from cleanfeed.curriculum.stages import band_limits, bands, quality_bins
from cleanfeed.curriculum.writer import HASH_TYPE, PartWriter
from cleanfeed.documents.record import UNREADABLE_SCHEMA
from cleanfeed.rules.ruleset import KEEP, REASON_TYPE, REJECT, VERDICTS, Verdicts
from cleanfeed.signals.corpus import rare_token_share
from cleanfeed.signals.registry import SIGNALS

REASONS_TYPE = pa.list_(REASON_TYPE)
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
        pa.field("start", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("sample_hash", HASH_TYPE, nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("n_chars", pa.int64(), nullable=False),
        pa.field("flags", pa.list_(pa.string()), nullable=False),
    ]
)
"""One row a sample, by rising key: what decides its stage, where its values lie in the spool, and its columns."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """What the second phase knows of the whole corpus; small and picklable."""

    counts: Path | None
    documents: int
    bases: tuple[int, ...]
    """Records before each piece of the task, within its file."""


@dataclass(slots=True)
class Settled:
    """What is known of a segment after its documents were judged."""

    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    """For each file index: read, kept, flagged, rejected, unreadable."""
    rejected_by_rule: dict[str, list[int]] = field(default_factory=dict)
    """For each rule: documents, tokens, code points, and how many of the documents were tokenised."""
    flagged_by_rule: dict[str, list[int]] = field(default_factory=dict)
    unreadable_by_reason: dict[str, int] = field(default_factory=dict)
    quality: dict[int, int] = field(default_factory=dict)
    """Samples in each quality bin."""
    samples: int = 0
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    """For each finished file below OUT: rows and digest."""


def samples_path(context: Context, segment: int) -> Path:
    """Return where a segment's index of samples lies."""
    return context.work / f"samples-{segment:05d}.arrow"


@lru_cache(maxsize=1)
def _corpus_counts(path: Path) -> CorpusCounts:
    return read_corpus_counts([path])


@dataclass(slots=True)
class _Batch:
    """One spool batch with its documents' names, signals and verdicts."""

    number: int
    spool: pa.RecordBatch
    place: dict[str, pa.Array]
    signals: dict[str, npt.NDArray[np.float64]]
    verdicts: Verdicts

    @property
    def rejected(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.verdicts.verdict == REJECT)


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
            name: stack.enter_context(PartWriter(context.out / name, schema, always=segment.index == 0))
            for name, schema in _parts(segment).items()
        }
        signals, rejected, unreadable = parts.values()
        spool = Spool.open(spool_path(context, segment.task.index, segment.number))
        for number, spooled in enumerate(spool.batches):
            batch = settler.judged(number, spooled)
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
    found.samples = index.num_rows
    report(1)
    return found


def _parts(segment: Segment) -> dict[str, pa.Schema]:
    """Return the files a segment may write, and their schemas."""
    schemas = {"signals": SIGNALS_SCHEMA, "rejected": REJECTED_SCHEMA, "unreadable": UNREADABLE_SCHEMA}
    return {f"{folder}/part-{segment.index:05d}.parquet": schema for folder, schema in schemas.items()}


class _Settler:
    def __init__(self, context: Context, segment: Segment, corpus: Corpus) -> None:
        task = segment.task
        self.context, self.task, self.corpus = context, task, corpus
        self.settings = context.pipeline.curriculum
        self.encoder = context.encoder()
        self.rules = context.rules()
        self.found = Settled()
        self.sources = pa.array([piece.file.source for piece in task.pieces], pa.string())
        self.files = np.array([piece.file.index for piece in task.pieces], dtype=np.int64)
        self.bases = np.array(corpus.bases, dtype=np.int64)
        self.limits = band_limits(self.settings, tokens=self.encoder is not None)
        quality = context.pipeline.quality
        self.ratio: LogRatio | None = None
        if quality.reference is not None:
            assert corpus.counts is not None
            counts = _corpus_counts(corpus.counts)
            assert counts.features is not None
            assert counts.reference is not None
            self.ratio = LogRatio(counts.reference, counts.features)

    def judged(self, number: int, spooled: pa.RecordBatch) -> _Batch:
        """Return a batch with the corpus' signals and verdicts added and every document named."""
        signals = signal_columns(spooled)
        if self.encoder is not None:
            signals["rare_token_share"] = self._rare(spooled)
        pieces = spooled.column("piece").to_numpy()
        source = self.sources.take(spooled.column("piece"))
        source_row = pa.array(spooled.column("row").to_numpy() + self.bases[pieces])
        fallback = pc.binary_join_element_wise(source, pc.cast(source_row, pa.string()), ":")
        verdicts = self.rules.evaluate(signals)
        place = {
            "doc_id": pc.coalesce(spooled.column("doc_id"), fallback),
            "source": source,
            "source_row": source_row,
            "content_hash": spooled.column("content_hash"),
            "verdict": pa.array(VERDICTS, pa.string()).take(pa.array(verdicts.verdict)),
            "reasons": verdicts.reasons.cast(REASONS_TYPE),
        }
        return _Batch(number, spooled, place, signals, verdicts)

    def _rare(self, spooled: pa.RecordBatch) -> npt.NDArray[np.float64]:
        assert self.corpus.counts is not None
        counts = _corpus_counts(self.corpus.counts).token_documents
        assert counts is not None
        ids, offsets = flat_ids(spooled.column("ids"))
        # The ids end with the end-of-text token, which every document has and which is no part of the text.
        lengths = np.diff(offsets)
        body = np.delete(ids, offsets[1:][lengths > 0] - 1)
        places = np.concatenate([[0], np.cumsum(np.maximum(lengths - 1, 0))]).astype(np.int64)
        return rare_token_share(body, places, counts, self.corpus.documents)

    def count(self, batch: _Batch) -> None:
        """Add a batch to the counts by file and by rule."""
        files = self.files[batch.spool.column("piece").to_numpy()]
        verdict = batch.verdicts.verdict
        for file in np.unique(files).tolist():
            here = verdict[files == file]
            rejected = int(np.count_nonzero(here == REJECT))
            kept = len(here) - rejected
            flagged = kept - int(np.count_nonzero(here == KEEP))
            self._add(file, read=len(here), kept=kept, flagged=flagged, rejected=rejected)
        for totals, fired in (
            (self.found.rejected_by_rule, batch.verdicts.fired),
            (self.found.flagged_by_rule, batch.verdicts.flagged),
        ):
            for rule, hit in fired.items():
                tokens = batch.signals.get("tokens")
                row = totals.setdefault(rule, [0, 0, 0, 0])
                row[0] += int(np.count_nonzero(hit))
                row[2] += int(batch.signals["chars"][hit].sum())
                if tokens is not None:
                    row[1] += int(np.nansum(tokens[hit]))
                    row[3] += int(np.count_nonzero(~np.isnan(tokens[hit])))

    def _add(self, file: int, **numbers: int) -> None:
        total = self.found.counts.setdefault(
            file, dict.fromkeys(("read", "kept", "flagged", "rejected", "unreadable"), 0)
        )
        for name, number in numbers.items():
            total[name] += number

    def samples(self, batch: _Batch) -> pa.Table:
        """Return the index of the samples of the kept documents of a batch."""
        kept = np.flatnonzero(~batch.rejected)
        quality = self._quality(batch)[kept]
        ranges, data = self._ranges(batch, kept)
        documents = kept[ranges.document]
        size = data.dtype.itemsize
        digests = hashes(data.data.cast("B"), ranges.start * size, (ranges.start + ranges.length) * size)
        row = pa.array(documents)
        place = {name: batch.place[name].take(row) for name in ("doc_id", "source", "source_row")}
        quality = quality[ranges.document]
        bins, numbers = np.unique(quality_bins(quality[~np.isnan(quality)]), return_counts=True)
        totals = Counter(self.found.quality)
        totals.update(dict(zip(bins.tolist(), numbers.tolist(), strict=True)))
        self.found.quality = dict(totals)
        lengths = ranges.length if self.encoder is not None else ranges.chars
        columns = {
            "key": shuffle_keys(
                np.frombuffer(digests.buffers()[1], dtype=np.uint8).reshape(-1, 16),
                self.settings.seed,
                self.files[batch.spool.column("piece").to_numpy()[documents]],
                place["source_row"].to_numpy(),
                ranges.part,
            ),
            "band": bands(lengths, self.limits),
            "quality": quality,
            "batch": np.full(len(documents), batch.number, dtype=np.int32),
            "document": documents.astype(np.int32),
            "start": ranges.start,
            "length": ranges.length,
            "sample_hash": digests,
            **place,
            "part": ranges.part,
            "n_chars": ranges.chars,
            "flags": batch.verdicts.flags.take(row),
        }
        return pa.table({name: columns[name] for name in SAMPLES_SCHEMA.names}, schema=SAMPLES_SCHEMA)

    def _ranges(
        self, batch: _Batch, kept: npt.NDArray[np.int64]
    ) -> tuple[SampleRanges, npt.NDArray[np.generic]]:
        """Return the samples of the kept documents as ranges of the batch's flat ids or bytes, and these."""
        chars = batch.signals["chars"].astype(np.int64)[kept]
        limit = int(self.limits[-1])
        if self.encoder is None:
            data, offsets = flat_text(batch.spool.column("text"))
            starts, stops = offsets[:-1][kept], offsets[1:][kept]
            return split(starts, stops, chars, chars, limit, ByteCutter(data)), data
        ids, offsets = flat_ids(batch.spool.column("ids"))
        starts, stops = offsets[:-1][kept], offsets[1:][kept]
        cutter = TokenCutter(ids, self.encoder.token_starts, self.encoder.token_chars)
        return split(starts, stops, chars, stops - starts, limit, cutter), ids

    def _quality(self, batch: _Batch) -> npt.NDArray[np.float32]:
        """Return the quality of each document of a batch; NaN where it is unknown."""
        settings = self.context.pipeline.quality
        if settings.column is not None:
            column = batch.spool.column("quality_column").to_numpy(zero_copy_only=False)
            return np.asarray(column, dtype=np.float32)
        if self.ratio is not None:
            return self.ratio.scores(batch.spool.column("text"))
        return quality_scores(settings, batch.signals, batch.spool.num_rows)

    def unreadable(self) -> Iterator[pa.Table]:
        """Yield the task's unreadable records with their place in their files."""
        for rows in Spool.open(unreadable_path(self.context, self.task.index)).batches:
            pieces = rows.column("piece").to_numpy()
            row = pa.array(rows.column("row").to_numpy() + self.bases[pieces])
            for file, number in zip(*np.unique(self.files[pieces], return_counts=True), strict=True):
                self._add(int(file), read=int(number), unreadable=int(number))
            reasons = Counter(rows.column("reason").to_pylist())
            self.found.unreadable_by_reason = dict(Counter(self.found.unreadable_by_reason) + reasons)
            by_line = rows.column("line_format")
            columns = {
                "source": self.sources.take(rows.column("piece")),
                "line": pc.if_else(by_line, pc.add(row, 1), None),
                "row": pc.if_else(by_line, None, row),
                **{name: rows.column(name) for name in ("byte_offset", "reason", "detail", "excerpt")},
            }
            yield pa.table(
                {name: columns[name] for name in UNREADABLE_SCHEMA.names}, schema=UNREADABLE_SCHEMA
            )


def _signals_table(batch: _Batch) -> pa.Table:
    columns: dict[str, pa.Array] = dict(batch.place)
    for signal in SIGNALS:
        values = batch.signals.get(signal.name)
        kind = pa.int64() if signal.type == "int" else pa.float64()
        if values is None:
            columns[signal.name] = pa.nulls(batch.spool.num_rows, kind)
        else:
            nulls = np.isnan(values)
            columns[signal.name] = pa.array(
                np.where(nulls, 0, values) if signal.type == "int" else values, mask=nulls
            ).cast(kind)
    return pa.table(columns, schema=SIGNALS_SCHEMA)


def _rejected_table(batch: _Batch) -> pa.Table:
    rows = pa.array(np.flatnonzero(batch.rejected))
    columns = {**batch.place, "text": batch.spool.column("text")}
    return pa.table(
        {name: columns[name].take(rows) for name in REJECTED_SCHEMA.names}, schema=REJECTED_SCHEMA
    )
