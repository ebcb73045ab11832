from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cleanfeed.documents.fields import Fields
from cleanfeed.documents.plan import check_columns, plan_inputs
from cleanfeed.documents.read import read_piece
from cleanfeed.documents.record import Damage, Unreadable
from cleanfeed.settings import DocumentSettings


@dataclass
class Outcome:
    """Everything a reader said about some inputs, piece after piece, rows counted from the start of each file."""

    ids: list[str | None]
    texts: list[str]
    rows: list[int]
    unreadable: list[Unreadable]
    damage: list[Damage]
    columns: dict[str, list[Any]]
    records: int
    pieces: int
    batches: int

    @property
    def reasons(self) -> list[tuple[int, str]]:
        return [(record.row, record.reason) for record in self.unreadable]


def read_all(
    inputs: list[str],
    *,
    piece_bytes: int = 2**25,
    batch_bytes: int = 2**23,
    quality: str | None = None,
    limit: int | None = None,
    **settings: Any,
) -> Outcome:
    chosen = DocumentSettings(**settings)
    plan = plan_inputs(inputs, piece_bytes=piece_bytes)
    check_columns(plan, chosen, quality)
    outcome = Outcome([], [], [], [], [], {}, 0, len(plan.pieces), 0)
    before = 0
    for piece in plan.pieces:
        before = 0 if piece.first else before
        found, result = read_piece(
            piece, chosen, quality_column=quality, batch_bytes=batch_bytes, limit=limit
        )
        for batch in found:
            outcome.batches += 1
            batch.table.validate(full=True)
            assert batch.table.schema.equals(Fields(chosen, quality).schema())
            columns = batch.table.to_pydict()
            outcome.ids += columns.pop("doc_id")
            outcome.texts += columns.pop("text")
            outcome.rows += [before + row for row in columns.pop("row")]
            for name, values in columns.items():
                outcome.columns.setdefault(name, []).extend(values)
            for record in batch.unreadable:
                outcome.unreadable.append(
                    Unreadable(
                        before + record.row,
                        record.line_format,
                        record.byte_offset,
                        record.reason,
                        record.detail,
                        record.excerpt,
                    )
                )
        outcome.damage += [result.damage] if result.damage else []
        outcome.records += result.records
        before += result.rows
    assert outcome.records == len(outcome.texts) + len(outcome.unreadable)
    return outcome


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Outcome]:
    """Write bytes to a file of a name and read it back as documents."""

    def write_and_read(data: bytes, name: str = "in.jsonl", **options: Any) -> Outcome:
        path = tmp_path / name
        path.write_bytes(data)
        return read_all([str(path)], **options)

    return write_and_read


@pytest.fixture
def read_inputs() -> Callable[..., Outcome]:
    return read_all
