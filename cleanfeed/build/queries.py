"""The files of a build go in, local or in a store; a DuckDB connection that can read them comes out."""

from __future__ import annotations

from typing import Any

import duckdb

from cleanfeed.curriculum.paths import AnyPath, ObjectPath


def duckdb_over(out: AnyPath, **config: Any) -> duckdb.DuckDBPyConnection:
    """Return a connection whose ``read_parquet`` takes the files below a place, each as the text of its path.

    Args:
        out: A folder or a prefix; of its objects, the ranges are fetched that a query needs.
        config: Settings of DuckDB.
    """
    # Nothing is ever fetched to read a store that fsspec reads already.
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    connection = duckdb.connect(config={**offline, **config})
    if isinstance(out, ObjectPath):
        connection.register_filesystem(out.filesystem())
    return connection
