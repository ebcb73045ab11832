"""Measured documents go in, batch by batch; an Arrow file that later phases read where it lies comes out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from msgspec import Struct

from cleanfeed.build.tasks import SEGMENT_BYTES, SEGMENT_DOCUMENTS
from cleanfeed.curriculum.durable import in_pieces, written_aside
from cleanfeed.curriculum.paths import AnyPath, fetched
from cleanfeed.curriculum.writer import HASH_TYPE
from cleanfeed.kernel import address_of
from cleanfeed.rules.ruleset import REASON_TYPE

IDS_TYPE = pa.large_list(pa.int32())


def spool_schema(
    signals: Sequence[str], keep_fields: Sequence[str], *, tokens: bool, column: bool
) -> pa.Schema:
    """Return the columns of a spool: place, document, hash, kept fields, ids, then every signal as float64.

    ``refused`` is why a document was not measured, or not tokenised, and null for nearly all.
    """
    fields = [
        pa.field("piece", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("doc_id", pa.string()),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("content_hash", HASH_TYPE, nullable=False),
        pa.field("refused", REASON_TYPE),
        *(pa.field(f"field:{name}", pa.string()) for name in keep_fields),
    ]
    if column:
        fields.append(pa.field("quality_column", pa.float64()))
    if tokens:
        fields.append(pa.field("ids", IDS_TYPE, nullable=False))
    return pa.schema(fields + [pa.field(f"signal:{name}", pa.float64(), nullable=False) for name in signals])


class Spool(Struct, frozen=True):
    """One task's measured documents, mapped into memory, never read whole."""

    batches: tuple[pa.RecordBatch, ...]
    address: int
    """Where in memory the file begins."""

    @classmethod
    def open(cls, path: AnyPath) -> Spool:
        """Map a spool; its pages are read when they are touched."""
        with pa.memory_map(str(fetched(path))) as source:
            address = source.read_buffer(1).address
            reader = pa.ipc.open_file(source)
            return cls(tuple(reader.get_batch(i) for i in range(reader.num_record_batches)), address)

    def byte_of(self, values: npt.NDArray[Any]) -> int:
        """Return at which byte of the file the values of a column of one of the batches begin."""
        return address_of(values) - self.address


def mapped(path: Path) -> npt.NDArray[np.uint8]:
    """Map the bytes of a file, which has some; its pages are read when they are touched."""
    # Arrow would ask for all pages at once, of a file of which a part is wanted.
    handle = os.open(path, os.O_RDONLY)
    try:
        return np.frombuffer(mmap(handle, 0, access=ACCESS_READ), dtype=np.uint8)
    finally:
        os.close(handle)


@contextmanager
def spool_writer(path: AnyPath, schema: pa.Schema) -> Iterator[pa.RecordBatchFileWriter]:
    """Give a writer for an Arrow file that appears at ``path`` once it is whole."""
    with (
        written_aside(path, keep=True) as aside,
        in_pieces(aside) as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        yield writer


class SegmentWriter:
    """Writes batches of measured documents to as many spool files as they need.

    Args:
        path_of: Where the file of each segment appears once it is whole.
        schema: Columns of the batches.
        scale: How many times larger than usual a segment is.
    """

    def __init__(self, path_of: Callable[[int], AnyPath], schema: pa.Schema, scale: int) -> None:
        self.path_of, self.schema, self.scale = path_of, schema, scale
        self.number = 0
        """Segments begun."""
        self._bytes = self._documents = 0
        self._open = ExitStack()
        self._writer: pa.RecordBatchFileWriter | None = None

    def __enter__(self) -> SegmentWriter:
        """Begin the first segment, so that there is one even without documents."""
        self._begin()
        return self

    def __exit__(self, *error: Any) -> None:
        """Finish the last segment; leave no file of it if something went wrong."""
        self._open.__exit__(*error)

    def _begin(self) -> pa.RecordBatchFileWriter:
        self._open.close()
        self._writer = self._open.enter_context(spool_writer(self.path_of(self.number), self.schema))
        self.number += 1
        self._bytes = self._documents = 0
        return self._writer

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, to a new segment if this one is full."""
        full = self._bytes >= self.scale * SEGMENT_BYTES or self._documents >= self.scale * SEGMENT_DOCUMENTS
        writer = self._begin() if full or self._writer is None else self._writer
        writer.write_batch(batch)
        self._bytes += batch.column("text").nbytes
        self._documents += batch.num_rows


def signal_columns(batch: pa.RecordBatch) -> dict[str, npt.NDArray[np.float64]]:
    """Return the signals of a batch by name, without copying; NaN is null."""
    names = [name for name in batch.schema.names if name.startswith("signal:")]
    return {name.removeprefix("signal:"): batch.column(name).to_numpy(zero_copy_only=True) for name in names}


def flat_ids(ids: pa.LargeListArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return the ids of an id column in a row and the n + 1 offsets in it, without copying."""
    return ids.values.to_numpy(zero_copy_only=True), ids.offsets.to_numpy(zero_copy_only=True)


def hashes(
    data: memoryview, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> pa.FixedSizeBinaryArray:
    """Return the xxh3-128 of each range of bytes, 16 raw bytes in the order of the hex digest."""
    digest = xxhash.xxh3_128_digest
    ranges = zip(starts.tolist(), stops.tolist(), strict=True)
    joined = b"".join(digest(data[start:stop]) for start, stop in ranges)
    return pa.FixedSizeBinaryArray.from_buffers(HASH_TYPE, len(starts), [None, pa.py_buffer(joined)])
