"""A measured segment and what is known of the corpus go in; each document, named and with its verdict, comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct, field

from cleanfeed.build.measure import CorpusCounts, read_corpus_counts, spool_path
from cleanfeed.build.spool import Spool, flat_ids, hashes, signal_columns
from cleanfeed.build.tasks import Context, Segment, stamp
from cleanfeed.curriculum.duplicates import EXACT
from cleanfeed.curriculum.exclusions import HashSet
from cleanfeed.curriculum.paths import AnyPath, fetched
from cleanfeed.curriculum.quality import quality_scores
from cleanfeed.curriculum.reference import LogRatio
from cleanfeed.curriculum.samples import SampleRanges, split_ids, split_text
from cleanfeed.curriculum.stages import band_limits
from cleanfeed.curriculum.writer import HASH_TYPE
from cleanfeed.rules.ruleset import REASON_TYPE, REJECT, VERDICTS, Verdicts
from cleanfeed.signals.buffers import text_buffers
from cleanfeed.signals.corpus import rare_token_share

REASONS_TYPE = pa.list_(REASON_TYPE)
DUPLICATE, EXCLUDED = 3, 4
"""Verdicts of documents that no rule rejects, after the numbers of :mod:`cleanfeed.rules.ruleset`."""

WORDS = (*VERDICTS, "duplicate", "excluded")


DUPLICATES_SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("kept", pa.string(), nullable=False),
    ]
)
"""One row a duplicate, by rising position: how it was found and the id of the document kept in its place."""

SEGMENT_BITS = 32
"""A document's position is its segment's index, then this many bits for its place in the segment."""


class Corpus(Struct, frozen=True):
    """What is known of the whole corpus once all tasks are measured; small and picklable."""

    counts: AnyPath | None
    excluded: AnyPath | None
    """Hashes to leave out."""
    documents: int
    """Documents that were tokenised."""
    bases: tuple[int, ...]
    """Records before each piece of the task, within its file."""
    duplicates: AnyPath | None = None
    """Documents that are not kept because another one is; None before that is known."""


@lru_cache(maxsize=1)
def _corpus_counts(path: Path, stamped: tuple[int | str, ...]) -> CorpusCounts:
    return read_corpus_counts([path])


@lru_cache(maxsize=1)
def _excluded(path: Path, stamped: tuple[int | str, ...]) -> HashSet:
    return HashSet(np.load(path, mmap_mode="r"))


class Samples(Struct, frozen=True):
    """The samples of some documents of a batch: ranges of its flat ids or bytes, and their hashes."""

    ranges: SampleRanges
    documents: npt.NDArray[np.int64]
    """Which document of the batch each is from."""
    first_byte: npt.NDArray[np.int64]
    """Where each begins, counted from that of the batch."""
    hashes: pa.FixedSizeBinaryArray


class Judged(Struct):
    """One spool batch with its documents' names, signals, quality and verdicts."""

    number: int
    first_byte: int
    """Where the file of the spool has its flat ids, or without a tokenizer its flat text."""
    first_position: int
    """Position of its first document among those of all segments; positions rise in the order of the inputs."""
    spool: pa.RecordBatch
    doc_id: pa.StringArray
    source: pa.StringArray
    source_row: pa.Int64Array
    files: npt.NDArray[np.int64]
    """Index of each document's file."""
    signals: dict[str, npt.NDArray[np.float64]]
    rules: Verdicts
    """What the rules say."""
    verdict: npt.NDArray[np.uint8]
    """What comes of each document, as a place in ``WORDS``."""
    reasons: pa.ListArray
    quality: npt.NDArray[np.float32]
    """NaN where it is unknown."""
    refused: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """For each reason not to measure a document: which of them it stopped."""

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Which documents go to the curriculum."""
        return np.asarray(self.verdict < REJECT)


def raw_hashes(column: pa.FixedSizeBinaryArray) -> npt.NDArray[np.uint8]:
    """Return a column of 16-byte hashes as bytes, shape [n, 16], without copying."""
    data = column.buffers()[1]
    flat = np.frombuffer(data if data is not None else b"", dtype=np.uint8)
    return flat[column.offset * 16 : (column.offset + len(column)) * 16].reshape(-1, 16)


def with_reasons(
    reasons: pa.ListArray, hit: npt.NDArray[np.bool_], new: Sequence[Sequence[Mapping[str, Any]]]
) -> pa.ListArray:
    """Return the reasons, with new ones put before those of the documents ``hit``."""
    if not hit.any():
        return reasons
    rows = reasons.to_pylist()
    for place, more in zip(np.flatnonzero(hit).tolist(), new, strict=True):
        rows[place] = [*more, *rows[place]]
    return pa.array(rows, REASONS_TYPE)


def _refuse(batch: Judged) -> None:
    """Reject the documents that could not be measured."""
    column = batch.spool.column("refused")
    if column.null_count == len(column):
        return
    hit = column.is_valid().to_numpy(zero_copy_only=False)
    batch.verdict[hit] = REJECT
    refused = column.filter(pa.array(hit)).to_pylist()
    batch.reasons = with_reasons(batch.reasons, hit, [[reason] for reason in refused])
    names = np.array([reason["rule"] for reason in refused])
    for name in np.unique(names).tolist():
        batch.refused[name] = np.zeros(len(hit), dtype=np.bool_)
        batch.refused[name][np.flatnonzero(hit)[names == name]] = True


def between(listed: Path, first: int, stop: int) -> pa.Table:
    """Return the duplicates that may lie between two positions: those of the row groups that reach there."""
    with pq.ParquetFile(listed) as file:
        groups = range(file.num_row_groups)
        ranges = [file.metadata.row_group(group).column(0).statistics for group in groups]
        return file.read_row_groups([g for g in groups if ranges[g].min < stop and ranges[g].max >= first])


class Judge:
    """Judges the documents of one segment.

    Args:
        context: The build.
        segment: What to judge.
        corpus: What is known of the whole corpus.
    """

    def __init__(self, context: Context, segment: Segment, corpus: Corpus) -> None:
        self.context, self.segment, self.corpus = context, segment, corpus
        self.rules = context.rules()
        pieces = segment.task.pieces
        self.sources = pa.array([piece.file.source for piece in pieces], pa.string())
        self.files = np.array([piece.file.index for piece in pieces], dtype=np.int64)
        self.bases = np.array(corpus.bases, dtype=np.int64)
        self.settings = context.pipeline.curriculum
        self.encoder = context.encoder()
        self.limits = band_limits(self.settings, tokens=self.encoder is not None)
        self.counts = None if corpus.counts is None else fetched(corpus.counts)
        listed = None if corpus.excluded is None else fetched(corpus.excluded)
        self.excluded = None if listed is None else _excluded(listed, stamp(listed))
        self.duplicates: pa.Table | None = None
        self.ratio: LogRatio | None = None
        if context.pipeline.quality.reference is not None:
            assert self.counts is not None
            counts = _corpus_counts(self.counts, stamp(self.counts))
            assert counts.features is not None
            assert counts.reference is not None
            self.ratio = LogRatio(counts.reference, counts.features)

    def batches(self) -> Iterator[Judged]:
        """Yield the segment's batches."""
        spool = Spool.open(spool_path(self.context, self.segment.task.index, self.segment.number))
        position = self.segment.index << SEGMENT_BITS
        for number, spooled in enumerate(spool.batches):
            yield self._judged(number, spool.byte_of(self._flat(spooled)[0]), position, spooled)
            position += spooled.num_rows

    def _flat(self, spooled: pa.RecordBatch) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return what samples are cut from, ids or without a tokenizer bytes, and the offsets of documents in it."""
        if self.encoder is None:
            return text_buffers(spooled.column("text"))
        return flat_ids(spooled.column("ids"))

    def _judged(self, number: int, first_byte: int, position: int, spooled: pa.RecordBatch) -> Judged:
        signals = signal_columns(spooled)
        if self.context.tokenizer is not None:
            signals["rare_token_share"] = self._rare(spooled)
        pieces = spooled.column("piece").to_numpy()
        source = self.sources.take(spooled.column("piece"))
        source_row = pa.array(spooled.column("row").to_numpy() + self.bases[pieces])
        fallback = pc.binary_join_element_wise(source, pc.cast(source_row, pa.string()), ":")
        verdicts = self.rules.evaluate(signals)
        batch = Judged(
            number=number,
            first_byte=first_byte,
            first_position=position,
            spool=spooled,
            doc_id=pc.coalesce(spooled.column("doc_id"), fallback),
            source=source,
            source_row=source_row,
            files=self.files[pieces],
            signals=signals,
            rules=verdicts,
            verdict=verdicts.verdict.copy(),
            reasons=verdicts.reasons.cast(REASONS_TYPE),
            quality=self._quality(spooled, signals),
        )
        _refuse(batch)
        if self.excluded is not None:
            self._exclude(batch, self.excluded)
        if self.corpus.duplicates is not None:
            self._leave_out_duplicates(batch, self.corpus.duplicates)
        return batch

    def _leave_out_duplicates(self, batch: Judged, listed: AnyPath) -> None:
        """Leave out documents of which another copy is kept."""
        if self.duplicates is None:
            start = self.segment.index << SEGMENT_BITS
            self.duplicates = between(fetched(listed), start, start + (1 << SEGMENT_BITS))
        first, position = batch.first_position, self.duplicates.column("position").to_numpy()
        low, high = np.searchsorted(position, [first, first + len(batch.verdict)])
        rows = self.duplicates.slice(low, high - low)
        hit = np.zeros(len(batch.verdict), dtype=np.bool_)
        hit[position[low:high] - first] = True
        batch.verdict[hit] = DUPLICATE
        least = self.context.pipeline.duplicates.min_similarity
        reasons = []
        for kind, kept in zip(rows.column("kind").to_pylist(), rows.column("kept").to_pylist(), strict=True):
            signal, value = ("content_hash", 1.0) if kind == EXACT else ("similarity", least)
            reasons.append(
                [{"rule": f"duplicate_of {kept}", "signal": signal, "value": value, "limit": value}]
            )
        batch.reasons = with_reasons(batch.reasons, hit, reasons)

    def _exclude(self, batch: Judged, listed: HashSet) -> None:
        """Leave out documents whose content, or any of whose samples, is listed."""
        by_content = batch.kept & listed.contains(raw_hashes(batch.spool.column("content_hash")))
        samples = self.samples(batch)
        by_sample = np.zeros(len(batch.verdict), dtype=np.bool_)
        by_sample[samples.documents[listed.contains(raw_hashes(samples.hashes))]] = True
        for hit, signal in ((by_sample, "sample_hash"), (by_content, "content_hash")):
            batch.verdict[hit] = EXCLUDED
            reason = [{"rule": "excluded", "signal": signal, "value": 1.0, "limit": 0.0}]
            batch.reasons = with_reasons(batch.reasons, hit, [reason] * int(hit.sum()))

    def samples(self, batch: Judged) -> Samples:
        """Return the samples of the kept documents of a batch."""
        kept = np.flatnonzero(batch.kept)
        chars = batch.signals["chars"][kept].astype(np.int64)
        limit = int(self.limits[-1])
        flat, offsets = self._flat(batch.spool)
        starts, stops = offsets[:-1][kept], offsets[1:][kept]
        if self.encoder is None:
            ranges = split_text(flat, starts, stops, chars, limit)
        else:
            kinds, token_chars = self.encoder.token_starts, self.encoder.token_chars
            ranges = split_ids(flat, kinds, token_chars, starts, stops, chars, limit)
        view = flat.view(np.uint8).data
        begin, end = ranges.start * flat.itemsize, (ranges.start + ranges.length) * flat.itemsize
        documents = kept[ranges.document]
        if self.encoder is not None:
            return Samples(ranges, documents, begin, hashes(view, begin, end))
        # The hash of a whole text is known; taking it anew would read all texts once more.
        found = raw_hashes(batch.spool.column("content_hash"))[documents]
        parts = ranges.length != (stops - starts)[ranges.document]
        found[parts] = raw_hashes(hashes(view, begin[parts], end[parts]))
        column = pa.FixedSizeBinaryArray.from_buffers(HASH_TYPE, len(found), [None, pa.py_buffer(found)])
        return Samples(ranges, documents, begin, column)

    def _rare(self, spooled: pa.RecordBatch) -> npt.NDArray[np.float64]:
        assert self.counts is not None
        counts = _corpus_counts(self.counts, stamp(self.counts)).token_documents
        assert counts is not None
        ids, offsets = flat_ids(spooled.column("ids"))
        # The ids end with the end-of-text token, which every document has and which is no part of the text.
        lengths = np.diff(offsets)
        body = np.delete(ids, offsets[1:][lengths > 0] - 1)
        places = np.concatenate([[0], np.cumsum(np.maximum(lengths - 1, 0))]).astype(np.int64)
        return rare_token_share(body, places, counts, self.corpus.documents)

    def _quality(
        self, spooled: pa.RecordBatch, signals: dict[str, npt.NDArray[np.float64]]
    ) -> npt.NDArray[np.float32]:
        settings = self.context.pipeline.quality
        if settings.column is not None:
            column = spooled.column("quality_column").to_numpy(zero_copy_only=False)
            with np.errstate(over="ignore"):
                quality = column.astype(np.float32)
            # Beyond the range of float32 a number says as little as none.
            return np.asarray(np.where(np.isfinite(quality), quality, np.float32(np.nan)))
        if self.ratio is not None:
            return self.ratio.scores(spooled.column("text"))
        return quality_scores(settings, signals, spooled.num_rows)
