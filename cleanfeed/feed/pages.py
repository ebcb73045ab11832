"""A row group and columns go in; its values come out, decoded and held against manifest and checksums."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cleanfeed.errors import CurriculumError, one_line
from cleanfeed.feed.catalog import REBUILD, Catalog, RowGroup, storage
from cleanfeed.feed.decoded import Kept
from cleanfeed.feed.rows import Ids

OPEN_FILES = 16
"""Files of a process that are open at once. In the first epoch a window of row groups lies in one or two files; later
each row group comes from another one, is read whole, and its file is not needed again soon."""

KINDS = {"input_ids": "list<element: int32>", "text": "large_string"}
"""Arrow types of the columns that are trained on."""
HASH = "sample_hash"


class Ragged(Kept):
    """The rows of a list or text column as one run of values; row i is ``values[bounds[i] : bounds[i + 1]]``.

    Args:
        values: Token ids, or the bytes of texts in UTF-8.
        bounds: Where rows start and end; a memoryview gives Python integers faster than an array does.
    """

    __slots__ = ("bounds", "place", "values")

    def __init__(self, values: Ids | memoryview, bounds: memoryview) -> None:
        super().__init__(values.nbytes + bounds.nbytes)
        self.values, self.bounds = values, bounds
        self.place = b""
        """Where the reader has found it in memory, for compiled code."""

    def text(self, row: int) -> str:
        """Return a row of UTF-8."""
        values: memoryview = memoryview(self.values)  # type: ignore[arg-type]
        return str(values[self.bounds[row] : self.bounds[row + 1]], "utf-8")

    def hashes(self) -> bytes:
        """Return the hash of each row, 16 bytes each."""
        values: memoryview = memoryview(self.values)  # type: ignore[arg-type]
        ends = self.bounds.tolist()
        return b"".join([xxhash.xxh3_128_digest(values[a:b]) for a, b in pairwise(ends)])


class Columns(Kept):
    """Some columns of a row group."""

    __slots__ = ("table",)

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table.nbytes)
        self.table = table


class Files:
    """The files of a build as one process sees them: opened when first read, the last used kept open.

    What a file says is held against the catalog and the checksums of its pages before a value is given out.

    Args:
        catalog: What the manifest says.
        column: Column that holds what is trained on: ``input_ids`` or ``text``.
    """

    def __init__(self, catalog: Catalog, column: str) -> None:
        self.catalog = catalog
        self.column = column
        self._system, self._root, self._local = storage(catalog.path)
        self._open: OrderedDict[str, pq.ParquetFile] = OrderedDict()
        self._lock = threading.Lock()

    def table(self, place: RowGroup, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a row group.

        Raises:
            CurriculumError: The file is missing or is not the one the manifest speaks of, or a page of these columns
                is not what was written.
        """
        try:
            # Nothing says that two threads may read through one file, and one may close what another reads.
            with self._lock:
                file = self._file(place)
                _check_names(place, columns, file.schema_arrow.names)
                table = file.read_row_group(place.index, columns=list(columns), use_threads=False)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise _damaged(place, error) from error
        if table.num_rows != place.rows:
            raise _differs(place, f"{table.num_rows} rows", f"{place.rows}")
        return table

    def ragged(self, place: RowGroup) -> Ragged:
        """Return what is trained on of a row group as one run of values, without copying.

        Page checksums do not cover the headers of pages, where one wrong byte can make other values of the same bytes.
        So each sample is hashed and held against its ``sample_hash``: 4 % of the time of decoding.

        Raises:
            CurriculumError: As for :meth:`table`, or a sample is not the one that was hashed.
        """
        table = self.table(place, [self.column, HASH])
        try:
            ragged = _ragged(table.column(0).combine_chunks())
            expected = _hashes(table.column(1).combine_chunks())
        except (ValueError, pa.ArrowException) as error:
            raise _damaged(place, error) from error
        if ragged.hashes() != expected:
            raise _differs(place, "a sample with another hash", f"its {HASH}")
        return ragged

    def _file(self, place: RowGroup) -> pq.ParquetFile:
        file = self._open.get(place.file)
        if file is None:
            file = self._open[place.file] = self._opened(place)
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(place.file)
        groups = file.metadata.num_row_groups
        rows = file.metadata.row_group(place.index).num_rows if place.index < groups else 0
        if rows != place.rows:
            raise _differs(place, f"{rows} rows in the footer", f"{place.rows}")
        return file

    def _opened(self, place: RowGroup) -> pq.ParquetFile:
        path = f"{self._root}/{place.file}"
        # A path, not a Python file, where there is one: pyarrow then reads without the interpreter.
        source = path if self._local else self._system.open(path, "rb")
        file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=not self._local)
        schema = file.schema_arrow
        kind = str(schema.field(self.column).type) if self.column in schema.names else "none"
        if kind != KINDS[self.column]:
            raise _differs(place, f"column {self.column} of type {kind} in the footer", KINDS[self.column])
        return file


def _ragged(array: pa.ListArray | pa.LargeStringArray) -> Ragged:
    if isinstance(array, pa.LargeStringArray):
        _, bounds, data = array.buffers()
        ends = memoryview(bounds).cast("q")[array.offset : array.offset + len(array) + 1]
        return Ragged(memoryview(data or b""), ends)
    return Ragged(array.values.to_numpy(zero_copy_only=True), memoryview(array.offsets.to_numpy()))


def _hashes(array: pa.FixedSizeBinaryArray) -> bytes:
    size = array.type.byte_width
    return bytes(memoryview(array.buffers()[1])[array.offset * size : (array.offset + len(array)) * size])


def _check_names(place: RowGroup, wanted: Sequence[str], there: Sequence[str]) -> None:
    # pyarrow reads the columns it knows and passes over the others.
    for name in wanted:
        if name not in there:
            raise CurriculumError(one_line("no such column", _name(place), name, ", ".join(there)))


def _differs(place: RowGroup, got: str, expected: str) -> CurriculumError:
    return CurriculumError(
        one_line("file is not the one of the manifest", _name(place), got, expected, REBUILD)
    )


def _damaged(place: RowGroup, error: Exception) -> CurriculumError:
    if isinstance(error, FileNotFoundError):
        return CurriculumError(one_line("a file of the curriculum is missing", _name(place), todo=REBUILD))
    return CurriculumError(
        one_line("a file of the curriculum is damaged", _name(place), str(error), todo=REBUILD)
    )


def _name(place: RowGroup) -> str:
    return f"{place.file}, row group {place.index}"
