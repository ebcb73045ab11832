"""A file of the curriculum and the spools of all segments go in; the file, in its final order, comes out.

The last phase. Each file is made on its own from the spools it needs, so memory is bounded by one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanfeed.build.layout import FileSpec, column, read_index, stage_rows
from cleanfeed.build.measure import Report, spool_path
from cleanfeed.build.settle import samples_path
from cleanfeed.build.spool import Spool, flat_ids
from cleanfeed.build.tasks import Context, Segment
from cleanfeed.curriculum.gather import offsets_of, scatter
from cleanfeed.curriculum.order import BUCKET_BITS
from cleanfeed.curriculum.stages import Tiers
from cleanfeed.curriculum.writer import PartWriter, curriculum_schema
from cleanfeed.errors import CleanfeedError, one_line
from cleanfeed.signals.buffers import text_buffers

Int64 = npt.NDArray[np.int64]

MOST_IDS = 2**31 - 1
"""Ids in a file: the places in a column of lists have 32 bits."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The samples of one segment that go to the file."""

    segment: Segment
    rows: pa.Table
    """Their index rows, in rising key."""
    places: Int64
    """Where each stands in the file."""


class _Memory:
    """Memory for the values of one file after another; what the system hands out anew it clears first."""

    def __init__(self) -> None:
        self._block = np.empty(0, dtype=np.uint8)

    def array(self, size: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array in the memory, whatever was in it before."""
        needed = size * np.dtype(kind).itemsize
        if len(self._block) < needed:
            self._block = np.empty(needed, dtype=np.uint8)
        return self._block[:needed].view(kind)


_memories: list[_Memory] = []
"""Those no call is using now."""


def place(
    context: Context, spec: FileSpec, tiers: Tiers, segments: Sequence[Segment], report: Report
) -> tuple[int, str]:
    """Write one file of the curriculum; return its rows and digest."""
    report(1)
    schema = curriculum_schema(
        tokens=context.tokenizer is not None,
        text=context.has_text,
        keep_fields=context.pipeline.documents.keep_fields,
    )
    path = context.out / spec.name
    memory = _memories.pop() if _memories else _Memory()
    with PartWriter(path, schema, row_group_rows=spec.row_group_rows) as part:
        if spec.rows:
            part.write(_table(context, spec, _choose(context, spec, tiers, segments), schema, memory))
    _memories.append(memory)
    assert part.digest is not None
    return part.rows, part.digest


def _choose(context: Context, spec: FileSpec, tiers: Tiers, segments: Sequence[Segment]) -> list[_Chosen]:
    """Return the file's samples by segment: those of its stage and its run of shuffle keys."""
    indexes: list[pa.Table] = []
    keys: list[npt.NDArray[np.uint64]] = []
    for segment in segments:
        index = read_index(samples_path(context, segment.index))
        low, high = (
            np.searchsorted(
                column(index, "key"), _key_range(spec.first_bucket, spec.last_bucket), side="left"
            )
            if index.num_rows
            else (0, 0)
        )
        if spec.last_bucket == 1 << BUCKET_BITS:
            high = index.num_rows
        index = index.slice(low, high - low)
        index = index.filter(pa.array(stage_rows(index, spec.stage, tiers)))
        indexes.append(index)
        keys.append(column(index, "key").astype(np.uint64))
    owner = np.repeat(np.arange(len(segments)), [len(part) for part in keys])
    within = np.concatenate([np.arange(len(part)) for part in keys])
    # Rising key; equal keys by segment and place in it, which is the order of the inputs.
    order = np.lexsort((within, owner, np.concatenate(keys)))[spec.skip : spec.skip + spec.rows]
    chosen: list[_Chosen] = []
    for number in np.unique(owner[order]).tolist():
        places = np.flatnonzero(owner[order] == number)
        chosen.append(
            _Chosen(segments[number], indexes[number].take(pa.array(within[order][places])), places)
        )
    return chosen


def _key_range(first: int, last: int) -> npt.NDArray[np.uint64]:
    shift = 64 - BUCKET_BITS
    return np.array([first << shift, min(last << shift, (1 << 64) - 1)], dtype=np.uint64)


def _table(
    context: Context, spec: FileSpec, chosen: list[_Chosen], schema: pa.Schema, memory: _Memory
) -> pa.Table:
    """Return the file's rows with all columns, in their final order; the values lie in ``memory``."""
    places = np.concatenate([part.places for part in chosen])
    back = pa.array(np.argsort(places, kind="stable"))
    index = pa.concat_tables([part.rows for part in chosen]).take(back).combine_chunks()
    values = _Values(context, index, memory)
    fields: dict[str, list[pa.Array]] = {name: [] for name in context.pipeline.documents.keep_fields}
    for part in chosen:
        spool = Spool.open(spool_path(context, part.segment.task.index, part.segment.number)).batches
        batches = column(part.rows, "batch")
        for name, taken in fields.items():
            taken.append(_field(spool, f"field:{name}", batches, column(part.rows, "document")))
        for number in np.unique(batches).tolist():
            here = np.flatnonzero(batches == number)
            values.take(spool[number], part, here)
    columns: dict[str, Any] = {name: index.column(name) for name in index.schema.names}
    columns |= {name: pa.concat_arrays(taken).take(back) for name, taken in fields.items()}
    columns |= values.columns()
    columns["stage"] = np.full(spec.rows, spec.stage.index, dtype=np.int16)
    quality = column(index, "quality").astype(np.float32)
    columns["quality"] = pa.array(quality, mask=np.isnan(quality))
    lengths = (
        index.column("length").cast(pa.int32()) if context.tokenizer else pa.nulls(spec.rows, pa.int32())
    )
    columns["n_tokens"] = lengths
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _field(spool: tuple[pa.RecordBatch, ...], name: str, batches: Int64, documents: Int64) -> pa.Array:
    """Return a kept field for samples given by batch and document, in their order."""
    order = np.argsort(batches, kind="stable")
    taken = [
        spool[number].column(name).take(pa.array(documents[order][batches[order] == number]))
        for number in np.unique(batches).tolist()
    ]
    return pa.concat_arrays(taken).take(pa.array(np.argsort(order, kind="stable")))


class _Values:
    """The ids or the text of a file's samples, each copied once from a spool to its place."""

    def __init__(self, context: Context, index: pa.Table, memory: _Memory) -> None:
        self.encoder = context.encoder()
        self.keep_text = context.keep_text
        self.lengths = column(index, "length").astype(np.int64)
        self.offsets = offsets_of(self.lengths)
        kind = np.uint8 if self.encoder is None else np.int32
        self.flat = memory.array(int(self.offsets[-1]), kind)
        self.texts: list[str] = [""] * len(self.lengths)

    def take(self, batch: pa.RecordBatch, part: _Chosen, here: Int64) -> None:
        """Copy samples ``here`` of ``part`` from the batch they lie in."""
        starts, lengths = (column(part.rows, name).astype(np.int64)[here] for name in ("start", "length"))
        if self.encoder is None:
            flat: npt.NDArray[Any] = text_buffers(batch.column("text"))[0]
        else:
            flat, _ = flat_ids(batch.column("ids"))
            if self.keep_text:
                self._take_texts(batch, part, here)
        scatter(flat, starts, lengths, self.flat, self.offsets[:-1][part.places[here]])

    def _take_texts(self, batch: pa.RecordBatch, part: _Chosen, here: Int64) -> None:
        documents, which = np.unique(column(part.rows, "document")[here], return_inverse=True)
        texts = batch.column("text").take(pa.array(documents)).to_pylist()
        first, size = (column(part.rows, name)[here] for name in ("first_char", "n_chars"))
        rows = (part.places[here], which, first, first + size)
        for spot, number, start, stop in zip(*(values.tolist() for values in rows), strict=True):
            self.texts[spot] = texts[number][start:stop]

    def columns(self) -> dict[str, pa.Array]:
        """Return the value columns of the file."""
        if self.encoder is None:
            offsets, data = pa.py_buffer(self.offsets), pa.py_buffer(self.flat)
            return {"text": pa.LargeStringArray.from_buffers(len(self.lengths), offsets, data)}
        if self.offsets[-1] > MOST_IDS:
            raise CleanfeedError(
                one_line(
                    "a file of the curriculum would hold too many ids",
                    "samples of very different lengths",
                    f"{self.offsets[-1]} in one file",
                    f"at most {MOST_IDS}",
                    "Give the pipeline's last band a lower max_tokens.",
                )
            )
        ids = pa.ListArray.from_arrays(pa.array(self.offsets.astype(np.int32)), pa.array(self.flat))
        if not self.keep_text:
            return {"input_ids": ids}
        return {"input_ids": ids, "text": pa.array(self.texts, pa.large_string())}
