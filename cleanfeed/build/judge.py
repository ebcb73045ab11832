"""A measured segment and what is known of the corpus go in; each document, named and with its verdict, comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cleanfeed.build.measure import CorpusCounts, read_corpus_counts, spool_path
from cleanfeed.build.spool import Spool, flat_ids, signal_columns
from cleanfeed.build.tasks import Context, Segment
from cleanfeed.curriculum.quality import quality_scores
from cleanfeed.curriculum.reference import LogRatio
from cleanfeed.rules.ruleset import REJECT, Verdicts
from cleanfeed.signals.corpus import rare_token_share


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is known of the whole corpus once all tasks are measured; small and picklable."""

    counts: Path | None
    documents: int
    """Documents that were tokenised."""
    bases: tuple[int, ...]
    """Records before each piece of the task, within its file."""


@lru_cache(maxsize=1)
def _corpus_counts(path: Path) -> CorpusCounts:
    return read_corpus_counts([path])


@dataclass(slots=True)
class Judged:
    """One spool batch with its documents' names, signals, quality and verdicts."""

    number: int
    spool: pa.RecordBatch
    doc_id: pa.StringArray
    source: pa.StringArray
    source_row: pa.Int64Array
    files: npt.NDArray[np.int64]
    """Index of each document's file."""
    signals: dict[str, npt.NDArray[np.float64]]
    verdicts: Verdicts
    quality: npt.NDArray[np.float32]
    """NaN where it is unknown."""

    @property
    def rejected(self) -> npt.NDArray[np.bool_]:
        """Which documents a rule rejects."""
        return np.asarray(self.verdicts.verdict == REJECT)


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
        self.ratio: LogRatio | None = None
        if context.pipeline.quality.reference is not None:
            assert corpus.counts is not None
            counts = _corpus_counts(corpus.counts)
            assert counts.features is not None
            assert counts.reference is not None
            self.ratio = LogRatio(counts.reference, counts.features)

    def batches(self) -> Iterator[Judged]:
        """Yield the segment's batches."""
        spool = Spool.open(spool_path(self.context, self.segment.task.index, self.segment.number))
        for number, spooled in enumerate(spool.batches):
            yield self._judged(number, spooled)

    def _judged(self, number: int, spooled: pa.RecordBatch) -> Judged:
        signals = signal_columns(spooled)
        if self.context.tokenizer is not None:
            signals["rare_token_share"] = self._rare(spooled)
        pieces = spooled.column("piece").to_numpy()
        source = self.sources.take(spooled.column("piece"))
        source_row = pa.array(spooled.column("row").to_numpy() + self.bases[pieces])
        fallback = pc.binary_join_element_wise(source, pc.cast(source_row, pa.string()), ":")
        return Judged(
            number=number,
            spool=spooled,
            doc_id=pc.coalesce(spooled.column("doc_id"), fallback),
            source=source,
            source_row=source_row,
            files=self.files[pieces],
            signals=signals,
            verdicts=self.rules.evaluate(signals),
            quality=self._quality(spooled, signals),
        )

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

    def _quality(
        self, spooled: pa.RecordBatch, signals: dict[str, npt.NDArray[np.float64]]
    ) -> npt.NDArray[np.float32]:
        settings = self.context.pipeline.quality
        if settings.column is not None:
            column = spooled.column("quality_column").to_numpy(zero_copy_only=False)
            return np.asarray(column, dtype=np.float32)
        if self.ratio is not None:
            return self.ratio.scores(spooled.column("text"))
        return quality_scores(settings, signals, spooled.num_rows)
