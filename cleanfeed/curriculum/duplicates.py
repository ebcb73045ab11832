"""Files with place, content hash, quality and signature of each document go in; who is a duplicate of whom comes out.

Documents of the same text are exact duplicates. Of each such group the kept copy goes on, and those whose signatures
are alike (:mod:`cleanfeed.curriculum.clusters`) are near-duplicates. The kept copy is the one of highest quality, then
the first in the order of the inputs; unknown quality is the lowest.

The result follows from the rows alone: it is the same for any order or split of the files. Rows are sorted and grouped
by DuckDB, which goes to disk beyond its memory limit; besides, 4 bytes a document with a signature are in memory. Exact
duplicates among few documents are found in memory: DuckDB takes a fifth of a second to start.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from cleanfeed.curriculum.clusters import Clusters, SignatureFile
from cleanfeed.curriculum.writer import PartWriter
from cleanfeed.errors import CleanfeedError, one_line
from cleanfeed.settings import DuplicateSettings
from cleanfeed.signals.minhash import band_keys

if TYPE_CHECKING:
    import duckdb

EXACT, NEAR = "exact", "near"

FOUND_SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("duplicate_of", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
    ]
)
"""One row a document that is not kept, by rising position; ``duplicate_of`` is the position of a kept one."""

FEW = 1 << 20
"""So many documents are held in memory, 32 bytes and an id each."""

ROW_GROUP_ROWS = 1 << 16
_BATCH_ROWS = 1 << 16
_UNKNOWN = np.uint32(0xFFFFFFFF)

_DOCUMENT = pa.schema(
    [
        pa.field("position", pa.int64()),
        pa.field("rank", pa.uint32()),
        pa.field("high", pa.uint64()),
        pa.field("low", pa.uint64()),
    ]
)
_MEMBER = pa.schema([pa.field("slot", pa.int64()), pa.field("root", pa.int64())])

# A document's standing: the less the better. One number, so that the best of a group is a plain minimum.
_STANDING = "rank::HUGEINT * 18446744073709551616 + position"
_POSITION = f"(min({_STANDING}) % 18446744073709551616)::BIGINT"

_EXACT = f"""
CREATE TABLE exact AS
WITH kept AS (
    SELECT high, low, {_POSITION} AS duplicate_of FROM documents GROUP BY high, low HAVING count(*) > 1
)
SELECT position, duplicate_of FROM documents JOIN kept USING (high, low) WHERE position <> duplicate_of
"""
_NEAR = f"""
CREATE TABLE near AS
WITH clustered AS (SELECT root, position, rank FROM member JOIN signed USING (slot)),
kept AS (SELECT root, {_POSITION} AS duplicate_of FROM clustered GROUP BY root)
SELECT position, duplicate_of FROM clustered JOIN kept USING (root) WHERE position <> duplicate_of
"""
# The kept copy of an exact group may be a near-duplicate itself; what is named is always kept.
_ALL = f"""
SELECT exact.position, coalesce(near.duplicate_of, exact.duplicate_of) AS duplicate_of, '{EXACT}' AS kind
FROM exact LEFT JOIN near ON exact.duplicate_of = near.position
UNION ALL SELECT position, duplicate_of, '{NEAR}' FROM near
ORDER BY position
"""


class DuplicateCounts(Struct, frozen=True):
    """What was found."""

    documents: int
    exact: int
    """Documents that are not kept because one of the same text is."""
    near: int
    """Those of another text that are not kept because one like it is."""


def find_duplicates(
    inputs: Sequence[Path],
    out: Path,
    settings: DuplicateSettings,
    *,
    scratch: Path,
    memory_limit: int = 2**29,
) -> DuplicateCounts:
    """Write which documents are duplicates, and of which kept one.

    Args:
        inputs: Parquet files with the columns ``position`` (int64, from 0, all different), ``content_hash``
            (fixed_size_binary(16)), ``quality`` (float32, null or NaN where unknown) and, for the method ``near``,
            ``signature`` (fixed_size_list<uint32>, null where there is none).
        out: Parquet file of :data:`FOUND_SCHEMA`; it appears once it is whole.
        settings: Method ``exact`` or ``near``.
        scratch: A folder of this call's own: emptied before, removed after.
        memory_limit: Bytes DuckDB may use before it goes to disk in ``scratch``.

    Raises:
        CleanfeedError: Not enough disk or memory.
    """
    if settings.method == "off":
        raise ValueError("duplicates are not looked for where the method is off")
    shutil.rmtree(scratch, ignore_errors=True)
    if settings.method == "exact" and sum(pq.read_metadata(path).num_rows for path in inputs) <= FEW:
        return _few_exact(inputs, out)
    import duckdb

    with ExitStack() as undo:
        scratch.mkdir(parents=True)
        undo.callback(shutil.rmtree, scratch, ignore_errors=True)
        try:
            database = undo.enter_context(_connect(scratch, memory_limit))
            grouping = _Grouping(database, inputs, settings, scratch)
            grouping.find_exact()
            grouping.find_near()
            return grouping.write(out)
        except duckdb.Error as error:
            cause = str(error).split("\n")[0]
            todo = "Make room on that disk, or in memory, and run the same command again."
            raise CleanfeedError(
                one_line("cannot group duplicates", str(scratch), cause, todo=todo)
            ) from error


def _few_exact(inputs: Sequence[Path], out: Path) -> DuplicateCounts:
    """Do the same for exact duplicates among few documents."""
    rows = pa.Table.from_batches(_documents(inputs), _DOCUMENT)
    position, rank, high, low = (rows.column(name).to_numpy() for name in _DOCUMENT.names)
    # Equal texts side by side, the best of them first.
    order = np.lexsort((position, rank, low, high))
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    best = position[order][first][np.cumsum(first) - 1]
    copies, best = position[order][~first], best[~first]
    sorted_ = np.argsort(copies)
    kind = pa.array([EXACT]).take(pa.array(np.zeros(len(copies), np.int64)))
    found = pa.table([pa.array(copies[sorted_]), pa.array(best[sorted_]), kind], schema=FOUND_SCHEMA)
    with PartWriter(out, FOUND_SCHEMA, row_group_rows=ROW_GROUP_ROWS) as part:
        part.write(found)
    return DuplicateCounts(documents=len(position), exact=len(copies), near=0)


def _connect(scratch: Path, memory_limit: int) -> duckdb.DuckDBPyConnection:
    import duckdb

    return duckdb.connect(
        str(scratch / "groups.duckdb"),
        config={
            "memory_limit": f"{memory_limit}B",
            "threads": 1,
            "temp_directory": str(scratch / "spilled"),
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )


class _Grouping:
    """The tables of one call: ``documents``, ``signed`` (those that may be near-duplicates), ``exact``, ``near``."""

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        inputs: Sequence[Path],
        settings: DuplicateSettings,
        scratch: Path,
    ) -> None:
        self.database, self.inputs, self.settings, self.scratch = database, inputs, settings, scratch

    def find_exact(self) -> None:
        """Group documents by content hash."""
        self._load("CREATE TABLE documents AS SELECT * FROM arriving", _DOCUMENT, _documents(self.inputs))
        self.database.execute(_EXACT)

    def find_near(self) -> None:
        """Group the kept copies by their signatures."""
        if self.settings.method != "near":
            self.database.execute("CREATE TABLE near AS SELECT * FROM exact WHERE false")
            return
        settings = self.settings
        with SignatureFile(self.scratch / "signatures", settings.bands * settings.rows) as signatures:
            place = [pa.field("slot", pa.int64()), _DOCUMENT.field("position"), _DOCUMENT.field("rank")]
            bands = [pa.field(f"band_{band}", pa.uint64()) for band in range(settings.bands)]
            schema = pa.schema([*place, *bands])
            self._load(
                "CREATE TABLE signed AS SELECT * FROM arriving ANTI JOIN exact USING (position)",
                schema,
                self._signed(signatures, schema),
            )
            clusters = Clusters(signatures, settings.min_similarity)
            for band in bands:
                clusters.join_equal_keys(self._sorted_by(band.name))
            self._load("CREATE TABLE member AS SELECT * FROM arriving", _MEMBER, _members(clusters))
        self.database.execute(_NEAR)

    def write(self, out: Path) -> DuplicateCounts:
        """Write the file of duplicates."""
        with PartWriter(out, FOUND_SCHEMA, row_group_rows=ROW_GROUP_ROWS) as part:
            for table in _full_row_groups(pa.RecordBatchReader.from_stream(self.database.sql(_ALL))):
                part.write(table)
        counts = (f"(SELECT count(*) FROM {table})" for table in ("documents", "exact", "near"))
        found = self.database.execute(f"SELECT {', '.join(counts)}").fetchone()
        assert found is not None
        return DuplicateCounts(*found)

    def _load(self, statement: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Run a statement over ``arriving`` batches; what goes wrong in making them is raised as it is."""
        failures: list[BaseException] = []

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except BaseException as error:
                failures.append(error)
                raise

        import duckdb

        self.database.register("arriving", pa.RecordBatchReader.from_batches(schema, watched()))
        try:
            self.database.execute(statement)
        except duckdb.Error:
            if failures:
                raise failures[0] from None
            raise
        finally:
            self.database.unregister("arriving")

    def _signed(self, signatures: SignatureFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for rows in _read(self.inputs, ("position", "quality", "signature")):
            rows = rows.filter(rows.column("signature").is_valid())
            flat = rows.column("signature").flatten().to_numpy().astype(np.uint32, copy=False)
            found = flat.reshape(rows.num_rows, signatures.hashes)
            keys = band_keys(found, self.settings.bands)
            columns = (signatures.append(found), rows.column("position"), _ranks(rows), *keys.T.copy())
            yield pa.record_batch([pa.array(column) for column in columns], schema=schema)

    def _sorted_by(self, band: str) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]:
        query = self.database.sql(f"SELECT {band}, slot FROM signed ORDER BY {band}, rank, position")
        for batch in pa.RecordBatchReader.from_stream(query):
            yield batch.column(0).to_numpy(), batch.column(1).to_numpy()


def _documents(inputs: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for rows in _read(inputs, ("position", "content_hash", "quality")):
        hashes = rows.column("content_hash")
        halves = np.frombuffer(hashes.buffers()[1], "<u8", 2 * len(hashes), 16 * hashes.offset).reshape(-1, 2)
        columns = (rows.column("position"), _ranks(rows), halves[:, 0].copy(), halves[:, 1].copy())
        yield pa.record_batch([pa.array(column) for column in columns], schema=_DOCUMENT)


def _members(clusters: Clusters) -> Iterator[pa.RecordBatch]:
    for rows, roots in clusters.joined():
        yield pa.record_batch([pa.array(rows), pa.array(roots)], schema=_MEMBER)


def _ranks(rows: pa.RecordBatch) -> npt.NDArray[np.uint32]:
    """Return numbers that rise as quality falls; the highest where it is unknown."""
    quality = rows.column("quality").to_numpy(zero_copy_only=False).astype(np.float32)
    bits = (quality + np.float32(0)).view(np.uint32)  # the sum makes one zero of the two
    # As unsigned numbers floats above zero rise with their value, and those below it fall.
    falling = np.where(bits >> 31 == 1, bits, ~bits & np.uint32(0x7FFFFFFF))
    ranks: npt.NDArray[np.uint32] = np.where(np.isnan(quality), _UNKNOWN, falling).astype(np.uint32)
    return ranks


def _read(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of all files, in batches of a size that fits in memory and has at least one row."""
    yield from (batch for path in paths for batch in _batches(path, columns) if batch.num_rows)


def _batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(_BATCH_ROWS, columns=list(columns))


def _full_row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables of full row groups, then the rest, so that the file depends on the rows alone."""
    rest = FOUND_SCHEMA.empty_table()
    for batch in batches:
        rows = pa.concat_tables([rest, pa.table(batch.columns, schema=FOUND_SCHEMA)])
        full = rows.num_rows - rows.num_rows % ROW_GROUP_ROWS
        if full:
            yield rows.slice(0, full).combine_chunks()
        rest = rows.slice(full)
    yield rest.combine_chunks()
