"""Batches of documents go in; batches of a spool, and counts that mean something over all tasks, come out.

Documents that cost more than their budget are not measured; they keep their place, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict

from cleanfeed.build.budget import (
    TOKENIZER_FAILED,
    TOO_COSTLY,
    Finding,
    Place,
    Reason,
    Reporter,
    most_text_bytes,
    needed_bytes,
)
from cleanfeed.build.spool import IDS_TYPE, hashes, spool_schema
from cleanfeed.build.tasks import Context
from cleanfeed.curriculum.gather import offsets_of
from cleanfeed.curriculum.reference import count_features
from cleanfeed.curriculum.tokenizer import TextEncoder
from cleanfeed.documents.record import DocumentBatch
from cleanfeed.rules.ruleset import REASON_TYPE, REJECT
from cleanfeed.signals.buffers import text_buffers
from cleanfeed.signals.corpus import count_documents
from cleanfeed.signals.measure import measure_texts
from cleanfeed.signals.registry import SIGNALS
from cleanfeed.signals.tokens import measure_tokens

Columns = dict[str, npt.NDArray[np.float64]]
Int64 = npt.NDArray[np.int64]


def content_hashes(texts: pa.LargeStringArray) -> pa.FixedSizeBinaryArray:
    """Return the xxh3-128 of each text's UTF-8, in the byte order of its hex digest."""
    data, offsets = text_buffers(texts)
    return hashes(data.data, offsets[:-1], offsets[1:])


class _Group(Struct, frozen=True):
    """Documents of a batch that are measured together."""

    places: Int64
    """Where they are in the batch."""
    piece: int
    rows: Int64
    """Row numbers of all documents of the batch."""
    texts: pa.LargeStringArray

    def place(self, first: int = 0, last: int = -1) -> Place:
        """Return where the documents from ``first`` to ``last`` of the group are."""
        return Place(self.piece, int(self.rows[self.places[first]]), int(self.rows[self.places[last]]))


class Measurer:
    """Measures and tokenises the documents of one task and counts over them.

    Args:
        context: The build.
        findings: What earlier attempts at the task have shown.
        report: Told which documents are at work.
    """

    def __init__(self, context: Context, findings: Sequence[Finding], report: Reporter) -> None:
        pipeline = context.pipeline
        self.findings, self.report, self.budget = findings, report, pipeline.budget
        self.keep_fields = pipeline.documents.keep_fields
        self.column = pipeline.quality.column
        self.encoder = context.encoder()
        self.tables = context.token_tables() if self.encoder else None
        self.text_rules = context.rules().without_tokens()
        self.most_bytes = most_text_bytes(self.budget.memory, tokens=False)
        self.most_token_bytes = most_text_bytes(self.budget.memory, tokens=True)
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
        texts, rows = table.column("text"), table.column("row").to_numpy()
        refused = self._refused(piece, rows, np.diff(text_buffers(texts)[1]))
        surrogates = table.column("lone_surrogates").to_numpy().astype(np.float64)
        parts: list[tuple[Int64, Columns]] = []
        lengths, ids = np.zeros(len(texts), dtype=np.int64), [np.empty(0, dtype=np.int32)]
        for group in self._groups(piece, rows, texts, refused):
            self.report.begin(group.place(), self.budget.seconds)
            found = measure_texts(group.texts)
            found["lone_surrogates"] = surrogates[group.places]
            if self.features is not None:
                self.features += count_features(group.texts, len(self.features))
            if self.encoder is not None:
                taken, counts = self._tokenised(self.encoder, group, found, refused)
                ids.append(taken)
                lengths[group.places] = counts
            self.report.end()
            parts.append((group.places, found))
        signals = self._put_together(len(texts), parts) | {"lone_surrogates": surrogates}
        arrays: dict[str, Any] = {
            "piece": pa.array(np.full(len(texts), piece, dtype=np.int32)),
            "row": table.column("row"),
            "doc_id": table.column("doc_id"),
            "text": texts,
            "content_hash": content_hashes(texts),
            "refused": _reasons(len(texts), refused),
        }
        for name in self.keep_fields:
            arrays[f"field:{name}"] = table.column(name)
        if self.column is not None:
            arrays["quality_column"] = table.column("quality_column")
        if self.encoder is not None:
            offsets = pa.array(offsets_of(lengths))
            arrays["ids"] = pa.LargeListArray.from_arrays(
                offsets, pa.array(np.concatenate(ids)), type=IDS_TYPE
            )
        for name in self.names:
            arrays[f"signal:{name}"] = pa.array(signals[name])
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)

    def _put_together(self, size: int, parts: Sequence[tuple[Int64, Columns]]) -> Columns:
        """Return the signals of a batch from those of its groups; NaN where a document is in none."""
        if len(parts) == 1 and len(parts[0][0]) == size:
            return parts[0][1]
        signals: Columns = {name: np.full(size, np.nan) for name in self.names}
        for places, found in parts:
            for name, values in found.items():
                signals[name][places] = values
        return signals

    def _refused(self, piece: int, rows: Int64, sizes: Int64) -> dict[int, Reason]:
        """Return why some documents of a batch are not to be measured, by their place in it."""
        found: dict[int, Reason] = {}
        for place in np.flatnonzero(sizes > self.most_bytes).tolist():
            found[place] = self._too_large(int(sizes[place]), tokens=False)
        for finding in self.findings:
            if finding.place.piece == piece and finding.reason is not None:
                place = int(np.searchsorted(rows, finding.place.first))
                if place < len(rows) and rows[place] == finding.place.first:
                    found[place] = finding.reason
        return found

    def _too_large(self, text_bytes: int, *, tokens: bool) -> Reason:
        needed = needed_bytes(text_bytes, tokens=tokens)
        return Reason(TOO_COSTLY, "bytes", float(needed), float(self.budget.memory))

    def _groups(
        self, piece: int, rows: Int64, texts: pa.LargeStringArray, refused: dict[int, Reason]
    ) -> Iterator[_Group]:
        """Yield the documents to measure, in order: together, but for those that are to be taken one at a time."""
        apart = [
            (f.place.first, f.place.last)
            for f in self.findings
            if f.place.piece == piece and f.reason is None
        ]
        single = np.zeros(len(rows), dtype=np.bool_)
        for first, last in apart:
            if last is not None:
                single |= (rows >= first) & (rows <= last)
        if not refused and not single.any():
            if len(rows):
                yield _Group(np.arange(len(rows)), piece, rows, texts)
            return
        measured = np.setdiff1d(np.arange(len(rows)), sorted(refused))
        # A new group begins at each document that stands alone, and after it.
        breaks = np.flatnonzero(single[measured][1:] | single[measured][:-1]) + 1
        for places in np.split(measured, breaks):
            if len(places):
                yield _Group(places, piece, rows, texts.take(pa.array(places)))

    def _tokenised(
        self, encoder: TextEncoder, group: _Group, signals: Columns, refused: dict[int, Reason]
    ) -> tuple[npt.NDArray[np.int32], Int64]:
        """Return the ids of a group and how many each document has, the end-of-text token last.

        The signals measured on the ids are added to ``signals``. What the text alone has already got rejected is not
        tokenised: it is the kind of text that stalls encoders.
        """
        assert self.tables is not None
        assert self.tokens_in is not None
        worth = self.text_rules.evaluate(signals).verdict != REJECT
        sizes = np.diff(text_buffers(group.texts)[1])
        for number in np.flatnonzero(worth & (sizes > self.most_token_bytes)).tolist():
            refused[int(group.places[number])] = self._too_large(int(sizes[number]), tokens=True)
            worth[number] = False
        chosen = np.flatnonzero(worth)
        failed: set[int] = set()

        def begun(first: int, last: int) -> None:
            self.report.begin(group.place(int(chosen[first]), int(chosen[last])), self.budget.seconds)

        texts = group.texts.take(pa.array(chosen)).to_pylist()
        ids, offsets = encoder.encode(texts, begun=begun, failed=failed)
        for number in failed:
            refused[int(group.places[chosen[number]])] = Reason(TOKENIZER_FAILED, "tokenizer", 1.0, 0.0)
        whole = np.array([number not in failed for number in range(len(chosen))], dtype=np.bool_)
        chosen, offsets = chosen[whole], offsets_of(np.diff(offsets)[whole])
        for name, values in measure_tokens(
            ids, offsets, signals["chars"][chosen].astype(np.int64), self.tables
        ).items():
            signals[name] = np.full(len(group.places), np.nan)
            signals[name][chosen] = values
        self.token_documents += len(chosen)
        count_documents(ids, offsets, self.tokens_in)
        lengths = np.zeros(len(group.places), dtype=np.int64)
        lengths[chosen] = np.diff(offsets) + 1
        return np.insert(ids, offsets[1:], np.int32(encoder.end_of_text_id)), lengths

    def counts(self) -> dict[str, Any]:
        """Return the corpus counts by name."""
        named = {"token_documents": self.tokens_in, "features": self.features}
        return {name: values for name, values in named.items() if values is not None}


def _reasons(size: int, refused: dict[int, Reason]) -> pa.StructArray:
    """Return a column of reasons, null where there is none."""
    if not refused:
        return pa.nulls(size, REASON_TYPE)
    return pa.array(
        [asdict(refused[place]) if place in refused else None for place in range(size)], REASON_TYPE
    )
