"""Arrow columns of samples go in; Parquet files with one fixed schema and checked pages come out, and are read back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cleanfeed.curriculum.durable import file_digest, written_aside
from cleanfeed.curriculum.paths import AnyPath

ZSTD_LEVEL = 1
"""Measured on real text: level 3 saves 9 % of the bytes and costs 1.6 times the time."""

HASH_TYPE = pa.binary(16)
SPLIT_COLUMN = "input_ids.list.element"
PLAIN_COLUMNS = frozenset(
    {
        "sample_hash", "content_hash", "part", "source_row", "position", "stage", "n_tokens", "n_chars", "quality",
    }
)  # fmt: skip
"""Short columns that are not compressed: to begin costs the compressor as much as a tenth of what the text takes, and
saves a 200th of the bytes."""

DICTIONARY_COLUMNS = ("source", "flags.list.element", "verdict", "reason")


def curriculum_schema(*, tokens: bool, text: bool, keep_fields: Sequence[str]) -> pa.Schema:
    """Return the schema of every curriculum file of a build.

    Args:
        tokens: Whether there is a tokenizer, so that samples are ``input_ids``.
        text: Whether samples carry their text.
        keep_fields: Names of further string columns.
    """
    fields = [
        pa.field("sample_hash", HASH_TYPE, nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("stage", pa.int16(), nullable=False),
        pa.field("n_tokens", pa.int32()),
        pa.field("n_chars", pa.int64(), nullable=False),
        pa.field("quality", pa.float32()),
        pa.field("flags", pa.list_(pa.string()), nullable=False),
    ]
    if tokens:
        fields.append(pa.field("input_ids", pa.list_(pa.int32()), nullable=False))
    if text:
        fields.append(pa.field("text", pa.large_string(), nullable=False))
    return pa.schema(fields + [pa.field(name, pa.string()) for name in keep_fields])


RESERVED: tuple[str, ...] = tuple(curriculum_schema(tokens=True, text=True, keep_fields=()).names)
"""Names no kept field can have."""


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the Parquet column paths of a schema of plain columns, lists and lists of structs."""
    paths: list[str] = []
    for field in schema:
        if pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            struct = field.type.value_type
            paths += [f"{field.name}.list.element.{struct.field(i).name}" for i in range(struct.num_fields)]
        elif pa.types.is_list(field.type):
            paths.append(f"{field.name}.list.element")
        else:
            paths.append(field.name)
    return paths


class PartWriter:
    """Writes one Parquet file of a fixed schema, table by table; it appears at its path once it is whole.

    Args:
        path: Where the file appears.
        schema: Its schema, also when there are no rows.
        always: Whether there is to be a file even without rows.
        row_group_rows: Rows in a full row group; by default one row group a table.
        gather_bytes: Tables are put together until they have this many bytes in memory: a row group of many narrow
            columns costs more than its rows.
    """

    def __init__(
        self,
        path: AnyPath,
        schema: pa.Schema,
        *,
        always: bool = True,
        row_group_rows: int | None = None,
        gather_bytes: int = 0,
    ) -> None:
        self.path, self.schema, self.row_group_rows = path, schema, row_group_rows
        self.gather_bytes = gather_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self.rows = 0
        self.digest: str | None = None
        """xxh3-128 of the file, once it is whole; None where there is none."""
        self._always = always
        self._open = ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._aside: Path | None = None

    def _begin(self) -> pq.ParquetWriter:
        leaves = _leaves(self.schema)
        self._aside = self._open.enter_context(written_aside(self.path))
        return self._open.enter_context(
            pq.ParquetWriter(
                self._aside,
                self.schema,
                compression={leaf: "none" if leaf in PLAIN_COLUMNS else "zstd" for leaf in leaves},
                compression_level={leaf: ZSTD_LEVEL for leaf in leaves if leaf not in PLAIN_COLUMNS},
                use_dictionary=[
                    leaf
                    for leaf in leaves
                    if leaf in DICTIONARY_COLUMNS or leaf.endswith((".rule", ".signal"))
                ],
                column_encoding={SPLIT_COLUMN: "BYTE_STREAM_SPLIT"} if SPLIT_COLUMN in leaves else None,
                write_statistics=[leaf for leaf in leaves if "." not in leaf and leaf != "text"],
                write_page_checksum=True,
            )
        )

    def write(self, table: pa.Table) -> None:
        """Write a table; what is left of it after full row groups is a short one, so only the last may have rest."""
        if table.num_rows:
            self._held.append(table)
            self._held_bytes += table.nbytes if self.gather_bytes else 0
            self.rows += table.num_rows
            if self._held_bytes >= self.gather_bytes:
                self._flush()

    def _flush(self) -> None:
        if self._held:
            table = pa.concat_tables(self._held)
            self._held, self._held_bytes = [], 0
            self._writer = self._writer or self._begin()
            self._writer.write_table(table, row_group_size=self.row_group_rows or table.num_rows)

    def __enter__(self) -> PartWriter:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Finish the file; leave none if something went wrong."""
        if kind is None:
            self._flush()
        if kind is None and self._writer is None and self._always:
            self._writer = self._begin()
        if kind is None and self._writer is not None and self._aside is not None:
            # The footer must be written before the digest is taken, and that before the file is renamed.
            self._writer.close()
            self.digest = file_digest(self._aside)
        self._open.__exit__(kind, *rest)


def read_part(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file, or some columns of it.

    ``pq.read_table`` would import Arrow's datasets for that, in each process anew: a tenth of a second.
    """
    with pq.ParquetFile(path) as file:
        return file.read(columns=columns)
