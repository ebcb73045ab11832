"""Quarantined samples go in; a Parquet or text file that ``build --exclude`` takes comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cleanfeed.curriculum.durable import write_bytes, written_aside
from cleanfeed.errors import MisuseError, one_line

SUFFIXES = (".parquet", ".txt")


def write_export(out: Path, rows: Sequence[Mapping[str, Any]], store: str) -> None:
    """Write samples to a file: all their columns to ``.parquet``, with raw hashes; one hash a line to ``.txt``.

    Args:
        out: The file.
        rows: Rows of the table ``samples``.
        store: Where they come from, for the first line of a text file.

    Raises:
        MisuseError: The name ends otherwise.
    """
    if out.suffix not in SUFFIXES:
        raise MisuseError(
            one_line("cannot tell the format", str(out), f"'{out.suffix}'", " or ".join(SUFFIXES))
        )
    if out.suffix == ".txt":
        name = " ".join(store.split())
        lines = [f"# sample_hash of {len(rows)} quarantined samples, from {name}"]
        lines += [row["sample_hash"] for row in rows]
        write_bytes(out, "".join(f"{line}\n" for line in lines).encode())
        return
    kinds = {
        "sample_hash": pa.binary(16),
        "doc_id": pa.string(),
        "source": pa.string(),
        "source_row": pa.int64(),
        "state": pa.string(),
        "incident_id": pa.int32(),
        "reason": pa.string(),
        "decided_by": pa.string(),
        "decided_at": pa.timestamp("us", "UTC"),
        "run": pa.string(),
    }
    columns = {name: [row[name] for row in rows] for name in kinds}
    columns["sample_hash"] = [bytes.fromhex(text) for text in columns["sample_hash"]]
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in kinds.items()})
    with written_aside(out) as aside:
        pq.write_table(table, aside, compression="zstd", write_page_checksum=True)
