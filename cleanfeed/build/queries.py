"""The files of a build go in, local or in a store; what is asked of them, or a DuckDB connection for it, comes out.

DuckDB is imported where it is needed: it takes a tenth of a second, and of a small build everything can be told in
memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cleanfeed.curriculum.duplicates import FEW
from cleanfeed.curriculum.paths import AnyPath, ObjectPath
from cleanfeed.curriculum.writer import read_part

if TYPE_CHECKING:
    import duckdb


def disk_errors() -> tuple[type[Exception], ...]:
    """Return what reading and writing may raise: OSError, and DuckDB's own if there was a query."""
    return (OSError, sys.modules["duckdb"].Error) if "duckdb" in sys.modules else (OSError,)


def repeated_ids(out: AnyPath, names: Sequence[str], documents: int, scratch: Path) -> int:
    """Return how many documents have an id that an earlier one has too.

    Args:
        out: The folder of the build.
        names: Files in it with the column ``doc_id``.
        documents: How many there are in all.
        scratch: Where DuckDB spills what memory cannot hold.
    """
    if documents <= FEW and not isinstance(out, ObjectPath):
        ids = [read_part(out / name, ["doc_id"]).column(0) for name in names]
        # Arrow's count of distinct values takes eight times as long as the values themselves.
        return documents - len(pa.chunked_array(ids, pa.string()).unique())
    with duckdb_over(out, memory_limit="256MB", threads=1) as store:
        store.execute("SET temp_directory = ?", [str(scratch)])
        parts = [str(out / name) for name in names]
        row = store.execute(
            "SELECT count(*) - count(DISTINCT doc_id) FROM read_parquet(?)", [parts]
        ).fetchone()
    assert row is not None
    return int(row[0])


def duckdb_over(out: AnyPath, **config: Any) -> duckdb.DuckDBPyConnection:
    """Return a connection whose ``read_parquet`` takes the files below a place, each as the text of its path.

    Args:
        out: A folder or a prefix; of its objects, the ranges are fetched that a query needs.
        config: Settings of DuckDB.
    """
    import duckdb

    # Nothing is ever fetched to read a store that fsspec reads already.
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    connection = duckdb.connect(config={**offline, **config})
    if isinstance(out, ObjectPath):
        connection.register_filesystem(out.filesystem())
    return connection
