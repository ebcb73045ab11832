"""Grouping of duplicates: exactly one of a group is kept, the best, whatever the order of files and documents."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.curriculum.clusters import LEADERS
from cleanfeed.curriculum.duplicates import (
    DUPLICATES_SCHEMA,
    DuplicateCounts,
    duplicates_between,
    find_duplicates,
)
from cleanfeed.errors import CleanfeedError
from cleanfeed.settings import DuplicateSettings
from cleanfeed.signals.minhash import band_keys

EXACT = DuplicateSettings(method="exact")
NEAR = DuplicateSettings(method="near", bands=3, rows=2, min_similarity=0.5)


@dataclass(frozen=True)
class Document:
    position: int
    text: int
    """Documents of the same number have the same content hash."""
    quality: float | None = None
    signature: tuple[int, ...] | None = None


def write(path: Path, documents: Sequence[Document], hashes: int = 6) -> Path:
    table = pa.table(
        {
            "position": pa.array([one.position for one in documents], pa.int64()),
            "content_hash": pa.array([one.text.to_bytes(16, "big") for one in documents], pa.binary(16)),
            "quality": pa.array([one.quality for one in documents], pa.float32()),
            "signature": pa.array([one.signature for one in documents], pa.list_(pa.uint32(), hashes)),
        }
    )
    if path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    else:
        pq.write_table(table, path, row_group_size=3)
    return path


def found(
    folder: Path, files: Sequence[Sequence[Document]], settings: DuplicateSettings, suffix: str = ".arrow"
) -> list[tuple[int, int, str]]:
    paths = [write(folder / f"{number}{suffix}", file) for number, file in enumerate(files)]
    counts = find_duplicates(paths, folder / "out.parquet", settings, scratch=folder / "scratch")
    table = pq.read_table(folder / "out.parquet")
    assert table.schema.equals(DUPLICATES_SCHEMA)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    kinds = [kind for *_, kind in rows]
    assert counts == DuplicateCounts(sum(map(len, files)), kinds.count("exact"), kinds.count("near"))
    assert not (folder / "scratch").exists()
    return rows


def standing(one: Document) -> tuple[bool, float, int]:
    unknown = one.quality is None or math.isnan(one.quality)
    return (unknown, 0.0 if unknown else -one.quality, one.position)


def expected(documents: Sequence[Document], settings: DuplicateSettings) -> list[tuple[int, int, str]]:
    """The same by comparing every two documents that may be compared."""
    ordered = sorted(documents, key=standing)
    group = {one.position: one.position for one in ordered}
    texts: dict[int, Document] = {}
    for one in ordered:
        group[one.position] = texts.setdefault(one.text, one).position
    if settings.method == "near":
        kept = [one for one in texts.values() if one.signature is not None]
        edges: dict[int, set[int]] = defaultdict(set)
        signatures = np.array([one.signature for one in kept], np.uint32).reshape(len(kept), 6)
        keys = band_keys(signatures, settings.bands)
        for band in range(settings.bands):
            for value in set(keys[:, band].tolist()):
                same = np.flatnonzero(keys[:, band] == value).tolist()
                for i, right in enumerate(same):
                    for left in same[: min(i, LEADERS)]:
                        if (signatures[left] == signatures[right]).mean() >= settings.min_similarity:
                            edges[left].add(right)
                            edges[right].add(left)
        seen: set[int] = set()
        for first in range(len(kept)):  # best first, so that the first of a component is its best
            todo = [] if first in seen else [first]
            while todo:
                one = todo.pop()
                if one not in seen:
                    seen.add(one)
                    todo += edges[one]
                    position = kept[one].position
                    group |= {p: kept[first].position for p, best in group.items() if best == position}
    exact = {one.position for one in documents if texts[one.text] is not one}
    return [
        (position, best, "exact" if position in exact else "near")
        for position, best in sorted(group.items())
        if position != best
    ]


qualities = st.sampled_from([None, math.nan, -math.inf, -1.5, -0.0, 0.0, 0.25, 0.5, math.inf])
places = st.integers(0, 2)


@st.composite
def corpora(draw: st.DrawFn) -> list[Document]:
    size = draw(st.integers(0, 24))
    positions = draw(st.lists(st.integers(0, 2**40), min_size=size, max_size=size, unique=True))
    # Copies of a text have the same signature, but may differ in quality where that is a column of the input.
    signatures = draw(st.lists(st.none() | st.tuples(*[places] * 6), min_size=12, max_size=12))
    texts = draw(st.lists(st.integers(0, 11), min_size=size, max_size=size))
    return [
        Document(position, text, draw(qualities), signatures[text])
        for position, text in zip(positions, texts, strict=True)
    ]


@given(corpora(), st.sampled_from([EXACT, NEAR]), st.lists(st.integers(0, 24), max_size=3), st.randoms())
def test_groups_are_those_of_comparing_all_whatever_the_order_and_split(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[Document],
    settings: DuplicateSettings,
    cuts: list[int],
    random: object,
) -> None:
    folder = tmp_path_factory.mktemp("duplicates")
    random.shuffle(documents)  # type: ignore[attr-defined]
    ends = [0, *sorted(min(cut, len(documents)) for cut in cuts), len(documents)]
    files = [documents[start:stop] for start, stop in zip(ends, ends[1:], strict=False)]
    rows = found(folder, files, settings, random.choice([".arrow", ".parquet"]))  # type: ignore[attr-defined]
    assert rows == expected(documents, settings)
    removed = {position for position, *_ in rows}
    assert {best for _, best, _ in rows} & removed == set()
