"""A task goes in; its documents, measured and tokenised, lie in a spool, and what is known of its pieces comes out.

The first phase. Nothing here depends on another task, so an engine may run tasks anywhere in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanfeed.build.spool import IDS_TYPE, SegmentWriter, hashes, spool_schema, spool_writer
from cleanfeed.build.tasks import EXPANSION, Context, Task, bytes_on_disk
from cleanfeed.curriculum.durable import written_aside
from cleanfeed.curriculum.gather import offsets_of
from cleanfeed.curriculum.reference import count_features
from cleanfeed.curriculum.tokenizer import TextEncoder
from cleanfeed.documents.read import read_piece
from cleanfeed.documents.record import DocumentBatch, PieceResult, Unreadable
from cleanfeed.rules.ruleset import REJECT
from cleanfeed.signals.buffers import text_buffers
from cleanfeed.signals.corpus import count_documents
from cleanfeed.signals.measure import measure_texts
from cleanfeed.signals.registry import SIGNALS
from cleanfeed.signals.tokens import measure_tokens

Columns = dict[str, npt.NDArray[np.float64]]
Report = Callable[[int], None]

UNREADABLE_SPOOL = pa.schema(
    [
        pa.field("piece", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("line_format", pa.bool_(), nullable=False),
        pa.field("byte_offset", pa.int64()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("excerpt", pa.string(), nullable=False),
    ]
)


@dataclass(slots=True)
class Measured:
    """What is known of a task after it was measured."""

    pieces: list[PieceResult] = field(default_factory=list)
    segments: int = 1
    """Spool files the documents lie in."""
    documents: int = 0
    token_documents: int = 0
    """Documents that were tokenised."""
    present: dict[str, int] = field(default_factory=dict)
    """For each column that a record may lack: documents that have it."""


@dataclass(slots=True)
class CorpusCounts:
    """Counts that mean something once they are added up over all tasks."""

    token_documents: npt.NDArray[np.int64] | None
    """In how many documents each token occurs, shape [vocabulary]."""
    features: npt.NDArray[np.int64] | None
    """How often each hashed n-gram occurs, shape [buckets]."""
    reference: npt.NDArray[np.int64] | None
    """The same in the reference sample."""


def spool_path(context: Context, task: int, segment: int) -> Path:
    """Return where some of a task's measured documents lie."""
    return context.work / f"measured-{task:05d}-{segment:03d}.arrow"


def unreadable_path(context: Context, task: int) -> Path:
    """Return where a task's unreadable records lie."""
    return context.work / f"unreadable-{task:05d}.arrow"


def corpus_path(context: Context, task: int) -> Path:
    """Return where a task's share of the corpus counts lies."""
    return context.work / f"corpus-{task:05d}.npz"


def measured_files(context: Context, task: int, found: Measured) -> list[Path]:
    """Return the files a measured task consists of."""
    spools = [spool_path(context, task, segment) for segment in range(found.segments)]
    return [*spools, unreadable_path(context, task), corpus_path(context, task)]


def measure(context: Context, task: Task, report: Report, limit: int | None = None) -> Measured:
    """Read, measure and tokenise the documents of one task and spool them.

    Args:
        context: The build.
        task: What to read.
        report: Called with the bytes on disk that were read since the last call.
        limit: Read no more than this many records.
    """
    measurer = _Measurer(context)
    found = Measured()
    with (
        SegmentWriter(
            lambda number: spool_path(context, task.index, number), measurer.schema, context.scale
        ) as writer,
        spool_writer(unreadable_path(context, task.index), UNREADABLE_SPOOL) as unreadable,
    ):
        left = limit
        for number, piece in enumerate(task.pieces):
            batches, result = read_piece(
                piece,
                context.pipeline.documents,
                quality_column=context.pipeline.quality.column,
                limit=left,
            )
            reported = 0
            for batch in batches:
                if batch.unreadable:
                    unreadable.write_batch(_unreadable_batch(number, batch.unreadable))
                if batch.table.num_rows:
                    writer.write(measurer.measured(number, batch))
                reported += _advance(report, piece, result, reported)
            report(bytes_on_disk(piece) - reported)
            found.pieces.append(result)
            left = None if left is None else left - result.records
    with written_aside(corpus_path(context, task.index)) as aside, aside.open("wb") as handle:
        np.savez_compressed(handle, **measurer.counts())
    found.documents, found.present = measurer.documents, measurer.present
    found.token_documents = measurer.token_documents
    found.segments = writer.number
    return found


def _advance(report: Report, piece: Any, result: PieceResult, reported: int) -> int:
    """Report the bytes read so far of a piece and return how many were new."""
    plain = piece.file.kind == "jsonl" and piece.file.compression == "none"
    read = result.bytes_read if plain else result.bytes_read // EXPANSION
    new = max(0, min(read, bytes_on_disk(piece)) - reported)
    report(new)
    return new


def content_hashes(texts: pa.LargeStringArray) -> pa.FixedSizeBinaryArray:
    """Return the xxh3-128 of each text's UTF-8, in the byte order of its hex digest."""
    data, offsets = text_buffers(texts)
    return hashes(data.data, offsets[:-1], offsets[1:])


class _Measurer:
    """Turns batches of documents into batches of a spool and keeps the corpus counts."""

    def __init__(self, context: Context) -> None:
        pipeline = context.pipeline
        self.keep_fields = pipeline.documents.keep_fields
        self.column = pipeline.quality.column
        self.encoder = context.encoder()
        self.tables = context.token_tables() if self.encoder else None
        self.text_rules = context.rules().without_tokens()
        self.documents = self.token_documents = 0
        self.present: dict[str, int] = {}
        self.tokens_in = np.zeros(self.encoder.vocab_size, dtype=np.int64) if self.encoder else None
        buckets = pipeline.quality.reference_buckets
        self.features = np.zeros(buckets, dtype=np.int64) if pipeline.quality.reference else None
        # What is measured against the corpus comes in the second phase and has no column here.
        self.names = [
            signal.name
            for signal in SIGNALS
            if not signal.needs_corpus and (self.encoder is not None or not signal.needs_tokenizer)
        ]
        self.schema = spool_schema(
            self.names, self.keep_fields, tokens=self.encoder is not None, column=self.column is not None
        )

    def measured(self, piece: int, batch: DocumentBatch) -> pa.RecordBatch:
        """Return a batch of the spool for a batch of documents."""
        table = batch.table
        self.documents += table.num_rows
        for name in ("doc_id", *self.keep_fields, *(("quality_column",) if self.column is not None else ())):
            column = table.column(name)
            self.present[name] = self.present.get(name, 0) + len(column) - column.null_count
        texts = table.column("text")
        signals: Columns = measure_texts(texts)
        signals["lone_surrogates"] = table.column("lone_surrogates").to_numpy().astype(np.float64)
        if self.features is not None:
            self.features += count_features(texts, len(self.features))
        arrays: dict[str, Any] = {
            "piece": pa.array(np.full(len(texts), piece, dtype=np.int32)),
            "row": table.column("row"),
            "doc_id": table.column("doc_id"),
            "text": texts,
            "content_hash": content_hashes(texts),
        }
        for name in self.keep_fields:
            arrays[f"field:{name}"] = table.column(name)
        if self.column is not None:
            arrays["quality_column"] = table.column("quality_column")
        if self.encoder is not None:
            arrays["ids"] = self._tokenised(self.encoder, texts, signals)
        for name in self.names:
            arrays[f"signal:{name}"] = pa.array(signals[name])
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)

    def _tokenised(
        self, encoder: TextEncoder, texts: pa.LargeStringArray, signals: Columns
    ) -> pa.LargeListArray:
        """Return the ids of each document, the end-of-text token last, and add the signals measured on them.

        What the text alone has already got rejected is not tokenised: it is the kind of text that stalls encoders.
        """
        assert self.tables is not None
        assert self.tokens_in is not None
        worth = self.text_rules.evaluate(signals).verdict != REJECT
        chosen = np.flatnonzero(worth)
        ids, offsets = encoder.encode(texts.take(pa.array(chosen)).to_pylist())
        chars = signals["chars"][chosen].astype(np.int64)
        for name, values in measure_tokens(ids, offsets, chars, self.tables).items():
            signals[name] = np.full(len(texts), np.nan)
            signals[name][chosen] = values
        self.token_documents += len(chosen)
        count_documents(ids, offsets, self.tokens_in)
        lengths = np.zeros(len(texts), dtype=np.int64)
        lengths[chosen] = np.diff(offsets) + 1
        closed = np.insert(ids, offsets[1:], np.int32(encoder.end_of_text_id))
        return pa.LargeListArray.from_arrays(pa.array(offsets_of(lengths)), pa.array(closed), type=IDS_TYPE)

    def counts(self) -> dict[str, Any]:
        """Return the corpus counts by name."""
        named = {"token_documents": self.tokens_in, "features": self.features}
        return {name: values for name, values in named.items() if values is not None}


def read_corpus_counts(paths: Iterable[Path]) -> CorpusCounts:
    """Add up the corpus counts of all tasks."""
    total: dict[str, npt.NDArray[np.int64]] = {}
    for path in paths:
        with np.load(path) as stored:
            for name in stored.files:
                total[name] = total[name] + stored[name] if name in total else stored[name]
    return CorpusCounts(total.get("token_documents"), total.get("features"), total.get("reference"))


def _unreadable_batch(piece: int, records: Sequence[Unreadable]) -> pa.RecordBatch:
    names = UNREADABLE_SPOOL.names[1:]
    columns = {name: [getattr(record, name) for record in records] for name in names}
    return pa.RecordBatch.from_pydict({"piece": [piece] * len(records), **columns}, schema=UNREADABLE_SPOOL)
