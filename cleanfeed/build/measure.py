"""A task goes in; its documents, measured and tokenised, lie in a spool, and what is known of its pieces comes out.

The first phase. Nothing here depends on another task, so an engine may run tasks anywhere in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field

from cleanfeed.build.budget import Finding, Place, Reporter
from cleanfeed.build.measurer import Measurer
from cleanfeed.build.spool import SegmentWriter, spool_writer
from cleanfeed.build.tasks import EXPANSION, Context, Task
from cleanfeed.curriculum.durable import written_aside
from cleanfeed.curriculum.paths import AnyPath, fetched
from cleanfeed.documents.read import read_piece
from cleanfeed.documents.record import Damage, PieceResult, Unreadable
from cleanfeed.documents.work import Piece

Report = Callable[[int], None]

READER_DIES = Damage("reader_dies", None, "whoever reads on is killed; nothing behind this place was read")
"""Of a file whose bytes end the process that reads them."""

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


class Measured(Struct):
    """What is known of a task after it was measured."""

    pieces: list[PieceResult] = field(default_factory=list)
    segments: int = 1
    """Spool files the documents lie in."""
    documents: int = 0
    token_documents: int = 0
    """Documents that were tokenised."""
    present: dict[str, int] = field(default_factory=dict)
    """For each column that a record may lack: documents that have it."""


class CorpusCounts(Struct):
    """Counts that mean something once they are added up over all tasks."""

    token_documents: npt.NDArray[np.int64] | None
    """In how many documents each token occurs, shape [vocabulary]."""
    features: npt.NDArray[np.int64] | None
    """How often each hashed n-gram occurs, shape [buckets]."""
    reference: npt.NDArray[np.int64] | None
    """The same in the reference sample."""


def spool_path(context: Context, task: int, segment: int) -> AnyPath:
    """Return where some of a task's measured documents lie."""
    return context.work / f"measured-{task:05d}-{segment:03d}.arrow"


def unreadable_path(context: Context, task: int) -> AnyPath:
    """Return where a task's unreadable records lie."""
    return context.work / f"unreadable-{task:05d}.arrow"


def corpus_path(context: Context, task: int) -> AnyPath:
    """Return where a task's share of the corpus counts lies."""
    return context.work / f"corpus-{task:05d}.npz"


def measured_files(context: Context, task: int, found: Measured) -> list[AnyPath]:
    """Return the files a measured task consists of."""
    spools = [spool_path(context, task, segment) for segment in range(found.segments)]
    return [*spools, unreadable_path(context, task), corpus_path(context, task)]


def measure(
    context: Context, task: Task, limit: int | None, findings: Sequence[Finding], report: Reporter
) -> Measured:
    """Read, measure and tokenise the documents of one task and spool them.

    Args:
        context: The build.
        task: What to read.
        limit: Read no more than this many records.
        findings: What earlier attempts have shown.
        report: Told the bytes on disk that were read since it was told last, and which documents are at work.
    """
    measurer = Measurer(context, findings, report)
    found = Measured()
    with (
        SegmentWriter(
            lambda number: spool_path(context, task.index, number), measurer.schema, context.scale
        ) as writer,
        spool_writer(unreadable_path(context, task.index), UNREADABLE_SPOOL) as unreadable,
    ):
        left = limit
        for number, piece in enumerate(task.pieces):
            most = [f.place.first for f in findings if f.place.piece == number and f.place.last is None]
            batches, result = read_piece(
                piece,
                context.pipeline.documents,
                quality_column=context.pipeline.quality.column,
                limit=min(most, default=left) if left is None else min([left, *most]),
            )
            reported = 0
            report.end(Place(number, 0, None))
            for batch in batches:
                if batch.unreadable:
                    unreadable.write_batch(_unreadable_batch(number, batch.unreadable))
                if batch.table.num_rows:
                    writer.write(measurer.measured(number, batch))
                report.end(Place(number, result.records, None))
                reported += _advance(report, piece, result, reported)
            report(piece.bytes - reported)
            if most:
                result.damage = result.damage or READER_DIES
            found.pieces.append(result)
            left = None if left is None else left - result.records
    with written_aside(corpus_path(context, task.index)) as aside, aside.open("wb") as handle:
        np.savez_compressed(handle, **measurer.counts())
    found.documents, found.present = measurer.documents, measurer.present
    found.token_documents = measurer.token_documents
    found.segments = writer.number
    return found


def _advance(report: Report, piece: Piece, result: PieceResult, reported: int) -> int:
    """Report the bytes read so far of a piece and return how many were new."""
    plain = piece.file.kind == "jsonl" and piece.file.compression == "none"
    read = result.bytes_read if plain else result.bytes_read // EXPANSION
    new = max(0, min(read, piece.bytes) - reported)
    report(new)
    return new


def read_corpus_counts(paths: Iterable[AnyPath]) -> CorpusCounts:
    """Add up the corpus counts of all tasks."""
    total: dict[str, npt.NDArray[np.int64]] = {}
    for path in paths:
        with np.load(fetched(path)) as stored:
            for name in stored.files:
                total[name] = total[name] + stored[name] if name in total else stored[name]
    return CorpusCounts(total.get("token_documents"), total.get("features"), total.get("reference"))


def _unreadable_batch(piece: int, records: Sequence[Unreadable]) -> pa.RecordBatch:
    names = UNREADABLE_SPOOL.names[1:]
    columns = {name: [getattr(record, name) for record in records] for name in names}
    return pa.RecordBatch.from_pydict({"piece": [piece] * len(records), **columns}, schema=UNREADABLE_SPOOL)
