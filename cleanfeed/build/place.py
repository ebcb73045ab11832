"""A file of the curriculum and the spools of all segments go in; the file, in its final order, comes out.

The last phase. Each file is made on its own from the spools it needs, some row groups at a time, so memory is bounded
by the indexes and these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from cleanfeed.build.layout import FileSpec, column, read_index, stage_rows
from cleanfeed.build.measure import Report, spool_path
from cleanfeed.build.settle import samples_path
from cleanfeed.build.spool import Spool, mapped
from cleanfeed.build.tasks import Context, Segment
from cleanfeed.curriculum.gather import offsets_of, scatter
from cleanfeed.curriculum.order import BUCKET_BITS
from cleanfeed.curriculum.paths import AnyPath, fetched
from cleanfeed.curriculum.stages import Tiers
from cleanfeed.curriculum.writer import PartWriter, curriculum_schema
from cleanfeed.errors import CleanfeedError, one_line
from cleanfeed.kernel import address_of

Int64 = npt.NDArray[np.int64]

MOST_IDS = 2**31 - 1
"""Ids that are put together: the places in a column of lists have 32 bits."""

TOGETHER, OF_SEGMENT = 8 * 2**20, 64 * 2**10
"""Bytes of row groups that are put together, in all and for each segment: still in the cache of the processor when they
are compressed, and enough not to go through all segments for a few bytes of each."""


class _Chosen(Struct, frozen=True):
    """The samples of one segment that go to the file."""

    segment: Segment
    rows: pa.Table
    """Their index rows, in rising key."""
    places: Int64
    """Where each stands in the file."""


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
    with PartWriter(path, schema, row_group_rows=spec.row_group_rows) as part:
        if spec.rows:
            for table in _row_groups(context, spec, _choose(context, spec, tiers, segments), schema):
                part.write(table)
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
        # Copied: of the whole of all indexes, which are mapped, nothing must stay in memory.
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


def _row_groups(
    context: Context, spec: FileSpec, chosen: list[_Chosen], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield the file's rows with all columns, in their final order, some row groups at a time."""
    places = np.concatenate([part.places for part in chosen])
    back = pa.array(np.argsort(places, kind="stable"))
    index = pa.concat_tables([part.rows for part in chosen]).take(back).combine_chunks()
    values = _Values(context, chosen, index)
    fields: dict[str, list[pa.Array]] = {name: [] for name in context.pipeline.documents.keep_fields}
    for part in chosen if fields or values.keep_text else []:
        spool = Spool.open(_spool_path(context, part)).batches
        for name, taken in fields.items():
            batches, documents = column(part.rows, "batch"), column(part.rows, "document")
            taken.append(_field(spool, f"field:{name}", batches, documents))
        if values.keep_text:
            values.take_texts(spool, part)
    columns: dict[str, Any] = {name: index.column(name) for name in index.schema.names}
    columns |= {name: pa.concat_arrays(taken).take(back) for name, taken in fields.items()}
    columns["stage"] = np.full(spec.rows, spec.stage.index, dtype=np.int16)
    quality = column(index, "quality").astype(np.float32)
    columns["quality"] = pa.array(quality, mask=np.isnan(quality))
    lengths = (
        index.column("length").cast(pa.int32()) if context.tokenizer else pa.nulls(spec.rows, pa.int32())
    )
    columns["n_tokens"] = lengths
    short = [field for field in schema if field.name in columns]
    table = pa.table({field.name: columns[field.name] for field in short}, schema=pa.schema(short))
    together = max(TOGETHER, OF_SEGMENT * len(chosen))
    most = together * spec.rows // max(1, int(values.lengths.sum()) * values.size)
    step = spec.row_group_rows * max(1, most // spec.row_group_rows)
    for first in range(0, spec.rows, step):
        rows = table.slice(first, step)
        found = values.columns(first, first + rows.num_rows)
        yield pa.table(
            [found[name] if name in found else rows.column(name) for name in schema.names], schema=schema
        )


def _spool_path(context: Context, part: _Chosen) -> AnyPath:
    return spool_path(context, part.segment.task.index, part.segment.number)


def _field(spool: tuple[pa.RecordBatch, ...], name: str, batches: Int64, documents: Int64) -> pa.Array:
    """Return a kept field for samples given by batch and document, in their order."""
    order = np.argsort(batches, kind="stable")
    taken = [
        spool[number].column(name).take(pa.array(documents[order][batches[order] == number]))
        for number in np.unique(batches).tolist()
    ]
    return pa.concat_arrays(taken).take(pa.array(np.argsort(order, kind="stable")))


class _Values:
    """The ids or the text of a file's samples, each copied once, from the spool it lies in.

    Args:
        context: The build.
        chosen: Which samples of which segments they are.
        index: The index rows of all samples of the file, in their final order.
    """

    def __init__(self, context: Context, chosen: Sequence[_Chosen], index: pa.Table) -> None:
        self.encoder = context.encoder()
        self.keep_text = context.keep_text and self.encoder is not None
        self.lengths = column(index, "length").astype(np.int64)
        self.size = 1 if self.encoder is None else np.dtype(np.int32).itemsize
        self.parts = [
            (
                fetched(_spool_path(context, part)),
                part.places,
                column(part.rows, "byte"),
                column(part.rows, "length") * self.size,
            )
            for part in chosen
        ]
        """Of each segment its spool, which rows of the file are from there, where in the spool their values begin and
        how many bytes they take."""
        self.texts: list[str] = [""] * len(self.lengths)
        self._memory = np.empty(0, dtype=np.uint8)

    def take_texts(self, spool: Sequence[pa.RecordBatch], part: _Chosen) -> None:
        """Take the texts of the samples of a segment, which are no range of bytes where ids are what is cut."""
        batches = column(part.rows, "batch")
        for number in np.unique(batches).tolist():
            here = np.flatnonzero(batches == number)
            documents, which = np.unique(column(part.rows, "document")[here], return_inverse=True)
            texts = spool[number].column("text").take(pa.array(documents)).to_pylist()
            first, size = (column(part.rows, name)[here] for name in ("first_char", "n_chars"))
            rows = (part.places[here], which, first, first + size)
            for spot, text, start, stop in zip(*(values.tolist() for values in rows), strict=True):
                self.texts[spot] = texts[text][start:stop]

    def columns(self, first: int, last: int) -> dict[str, pa.Array]:
        """Return the value columns of the rows from ``first`` to before ``last``, which are good until the next call.

        Raises:
            CleanfeedError: They hold more ids than a column of Parquet can count, or lie outside of their files.
        """
        offsets = offsets_of(self.lengths[first:last])
        if len(self._memory) < offsets[-1] * self.size:
            self._memory = np.empty(int(offsets[-1]) * self.size, dtype=np.uint8)
        for spool, rows, starts, sizes in self.parts:
            low, high = np.searchsorted(rows, [first, last])
            if low < high:
                places = offsets[rows[low:high] - first] * self.size
                self._copy(spool, starts[low:high], sizes[low:high], places)
        data = pa.py_buffer(self._memory)
        if self.encoder is None:
            return {"text": pa.LargeStringArray.from_buffers(last - first, pa.py_buffer(offsets), data)}
        if offsets[-1] > MOST_IDS:
            raise CleanfeedError(
                one_line(
                    "row groups of the curriculum would hold too many ids",
                    "samples of very different lengths",
                    f"{offsets[-1]} together",
                    f"at most {MOST_IDS}",
                    "Give the pipeline's last band a lower max_tokens.",
                )
            )
        flat = pa.Int32Array.from_buffers(pa.int32(), int(offsets[-1]), [None, data])
        ids = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat)
        if not self.keep_text:
            return {"input_ids": ids}
        return {"input_ids": ids, "text": pa.array(self.texts[first:last], pa.large_string())}

    def _copy(self, path: Path, starts: Int64, sizes: Int64, places: Int64) -> None:
        """Copy ranges of a spool, which is mapped no longer than that: what was read counts as memory while it is."""
        spool = mapped(path)
        if starts.min() < 0 or (starts + sizes).max() > len(spool):
            raise CleanfeedError(
                one_line(
                    "a sample lies outside of its file",
                    str(path),
                    got=f"bytes {starts.min()} to {(starts + sizes).max()}",
                    expected=f"at most {len(spool)}",
                    todo="The unfinished build was damaged: start anew with --overwrite.",
                )
            )
        scatter(address_of(spool) + starts, sizes, self._memory, places)
