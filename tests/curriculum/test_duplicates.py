"""Grouping of duplicates: exactly one of a group is kept, the best, whatever the order of files and documents."""

from __future__ import annotations

import math
import random as chance
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.curriculum import duplicates
from cleanfeed.curriculum.clusters import LEADERS, Clusters, SignatureFile
from cleanfeed.curriculum.duplicates import (
    FOUND_SCHEMA,
    DuplicateCounts,
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
    pq.write_table(table, path, row_group_size=3)
    return path


def found(
    folder: Path, files: Sequence[Sequence[Document]], settings: DuplicateSettings
) -> list[tuple[int, int, str]]:
    paths = [write(folder / f"{number}.parquet", file) for number, file in enumerate(files)]
    counts = find_duplicates(paths, folder / "out.parquet", settings, scratch=folder / "scratch")
    table = pq.read_table(folder / "out.parquet")
    assert table.schema.equals(FOUND_SCHEMA)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    kinds = [kind for *_, kind in rows]
    assert counts == DuplicateCounts(sum(map(len, files)), kinds.count("exact"), kinds.count("near"))
    assert not (folder / "scratch").exists()
    if settings.method == "exact":
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(duplicates, "FEW", 0)
            assert counts == find_duplicates(
                paths, folder / "many.parquet", settings, scratch=folder / "scratch"
            )
        assert pq.read_table(folder / "many.parquet").equals(table)
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
    random: chance.Random,
) -> None:
    folder = tmp_path_factory.mktemp("duplicates")
    random.shuffle(documents)
    ends = [0, *sorted(min(cut, len(documents)) for cut in cuts), len(documents)]
    files = [documents[start:stop] for start, stop in pairwise(ends)]
    rows = found(folder, files, settings)
    assert rows == expected(documents, settings)
    removed = {position for position, *_ in rows}
    assert {best for _, best, _ in rows} & removed == set()


def same(number: int) -> tuple[int, ...]:
    return (number,) * 6


def test_the_best_copy_is_kept_then_the_first(tmp_path: Path) -> None:
    documents = [Document(0, 7, 0.5), Document(1, 7, 0.75), Document(2, 7, 0.75), Document(3, 7, None)]
    assert found(tmp_path, [documents], EXACT) == [(0, 1, "exact"), (2, 1, "exact"), (3, 1, "exact")]


def test_unknown_quality_is_the_lowest_and_both_zeros_are_equal(tmp_path: Path) -> None:
    documents = [Document(0, 1, math.nan), Document(1, 1, None), Document(2, 1, -math.inf)]
    documents += [Document(3, 2, -0.0), Document(4, 2, 0.0), Document(5, 3, None), Document(6, 3, math.nan)]
    rows = [(0, 2, "exact"), (1, 2, "exact"), (4, 3, "exact"), (6, 5, "exact")]
    assert found(tmp_path, [documents], EXACT) == rows


def test_a_copy_of_a_near_duplicate_names_the_one_that_is_kept(tmp_path: Path) -> None:
    documents = [Document(0, 1, 0.1, same(1)), Document(1, 1, 0.2, same(1)), Document(2, 2, 0.9, same(1))]
    assert found(tmp_path, [documents], NEAR) == [(0, 2, "exact"), (1, 2, "near")]


def test_like_documents_join_through_those_between_them(tmp_path: Path) -> None:
    chain = [(1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 2, 2), (3, 3, 1, 1, 2, 2), (3, 3, 4, 4, 2, 2)]
    documents = [Document(i, i, float(i), places) for i, places in enumerate(chain)]
    assert found(tmp_path, [documents], NEAR) == [(0, 3, "near"), (1, 3, "near"), (2, 3, "near")]


def test_a_shared_band_alone_makes_no_duplicates(tmp_path: Path) -> None:
    documents = [Document(0, 0, None, (1, 1, 2, 3, 4, 5)), Document(1, 1, None, (1, 1, 6, 7, 8, 9))]
    assert found(tmp_path, [documents], NEAR) == []


def test_documents_without_a_signature_are_only_exact_duplicates(tmp_path: Path) -> None:
    documents = [Document(i, i // 2, None, None) for i in range(4)]
    assert found(tmp_path, [documents], NEAR) == [(1, 0, "exact"), (3, 2, "exact")]


@pytest.mark.parametrize("settings", [EXACT, NEAR])
@pytest.mark.parametrize("files", [[], [[]], [[], [Document(5, 5)], []]])
def test_no_documents_and_a_single_one_have_no_duplicates(
    tmp_path: Path, settings: DuplicateSettings, files: list[list[Document]]
) -> None:
    assert found(tmp_path, files, settings) == []


def test_a_large_corpus_gives_the_same_bytes_in_any_split_and_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    texts = rng.integers(0, 150_000, 200_000)
    families = rng.integers(0, 1 << 32, (20_000, 6), dtype=np.uint32)
    places = families[texts % 20_000]
    places[:, 4:] = np.stack([texts, texts + 1], axis=1)  # two of three bands are the family's
    hashes = np.zeros((len(texts), 2), np.int64)
    hashes[:, 1] = texts
    whole = pa.table(
        {
            "position": pa.array(np.arange(len(texts))),
            "content_hash": pa.Array.from_buffers(pa.binary(16), len(texts), [None, pa.py_buffer(hashes)]),
            "quality": pa.array(rng.integers(0, 4, len(texts)).astype(np.float32)),
            "signature": pa.FixedSizeListArray.from_arrays(pa.array(places.reshape(-1)), 6),
        }
    )
    results = []
    for number, cuts in enumerate([(0, 200_000), (0, 70_001, 70_001, 199_999, 200_000)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths = []
        for start, stop in reversed(list(pairwise(cuts))):
            paths.append(folder / f"{start}-{stop}.parquet")
            pq.write_table(whole.slice(start, stop - start).take(rng.permutation(stop - start)), paths[-1])
        out = folder / "out.parquet"
        counts = find_duplicates(paths, out, NEAR, scratch=folder / "scratch", memory_limit=100 * 2**20)
        assert counts.documents == 200_000
        # One of each family that occurs is kept.
        assert counts.exact + counts.near == 200_000 - len(np.unique(texts % 20_000))
        assert counts.exact == 200_000 - len(np.unique(texts))
        results.append(out.read_bytes())
    assert results[0] == results[1]


def test_a_crowded_key_costs_a_fixed_number_of_comparisons_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    compare = Clusters._compare
    monkeypatch.setattr(
        Clusters,
        "_compare",
        lambda self, left, right: (compared.append(len(left)), compare(self, left, right)),
    )
    size = 1000
    with SignatureFile(tmp_path / "signatures", 4) as signatures:
        # All share the first band and are unlike; then all are alike.
        signatures.append(np.arange(4 * size, dtype=np.uint32).reshape(size, 4))
        clusters = Clusters(signatures, 1.0)
        clusters.join_equal_keys(iter([(np.zeros(size, np.uint64), np.arange(size))]))
        assert sum(compared) == LEADERS * size - LEADERS * (LEADERS + 1) // 2
        assert [len(rows) for rows, _ in clusters.joined()] == [0]
    compared.clear()
    with SignatureFile(tmp_path / "signatures", 4) as signatures:
        signatures.append(np.ones((size, 4), np.uint32))
        clusters = Clusters(signatures, 1.0)
        for _ in range(3):
            clusters.join_equal_keys(iter([(np.zeros(size, np.uint64), np.arange(size))]))
        assert sum(compared) == size - 1
        ((rows, roots),) = clusters.joined()
        assert (rows.tolist(), set(roots.tolist())) == (list(range(size)), {0})


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 40), max_size=4), st.integers(1, 4))
def test_batches_of_sorted_keys_may_end_anywhere(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], cuts: list[int], leaders: int
) -> None:
    keys.sort()
    ends = [0, *sorted(min(cut, len(keys)) for cut in cuts), len(keys)]
    results = []
    for edges in ([0, len(keys)], ends):
        with SignatureFile(tmp_path_factory.mktemp("clusters") / "signatures", 2) as signatures:
            signatures.append(
                np.random.default_rng(len(keys)).integers(0, 3, (len(keys), 2)).astype(np.uint32)
            )
            clusters = Clusters(signatures, 0.5, leaders)
            rows = np.arange(len(keys))
            ordered = np.array(keys, np.uint64)
            clusters.join_equal_keys((ordered[a:b], rows[a:b]) for a, b in pairwise(edges))
            results.append([(rows.tolist(), roots.tolist()) for rows, roots in clusters.joined()])
    assert results[0] == results[1]


@given(st.lists(st.integers(0, 29), min_size=1, max_size=60))
def test_signatures_are_read_back_by_row(tmp_path_factory: pytest.TempPathFactory, rows: list[int]) -> None:
    places = np.arange(90, dtype=np.uint32).reshape(30, 3)
    with SignatureFile(tmp_path_factory.mktemp("signatures") / "file", 3) as signatures:
        assert signatures.append(places[:7]).tolist() == list(range(7))
        assert signatures.append(places[7:]).tolist() == list(range(7, 30))
        assert signatures.read(np.array(rows)).tolist() == places[rows].tolist()


def test_a_share_that_is_exactly_reached_is_enough(tmp_path: Path) -> None:
    with SignatureFile(tmp_path / "signatures", 10) as signatures:
        assert [Clusters(signatures, share / 10).enough for share in range(1, 11)] == list(range(1, 11))


def test_what_an_unfinished_run_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "groups.duckdb").write_text("torn")
    assert found(tmp_path, [[Document(0, 0), Document(1, 0)]], EXACT) == [(1, 0, "exact")]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_stops_the_reading_is_raised_as_it_is_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = write(tmp_path / "in.parquet", [Document(0, 0)])

    def stopped(*_: object) -> Iterator[pa.RecordBatch]:
        yield from ()
        raise error

    monkeypatch.setattr(duplicates, "_batches", stopped)
    with pytest.raises(type(error)) as caught:
        find_duplicates([path], tmp_path / "out.parquet", EXACT, scratch=tmp_path / "scratch")
    assert caught.value is error
    assert [one.name for one in tmp_path.iterdir()] == ["in.parquet"]


def test_too_little_memory_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "FEW", 0)
    path = write(tmp_path / "in.parquet", [Document(i, i) for i in range(50)])
    with pytest.raises(
        CleanfeedError, match=r"^cannot group duplicates: .*scratch: got .* run the same command again\.$"
    ) as error:
        find_duplicates([path], tmp_path / "out.parquet", EXACT, scratch=tmp_path / "scratch", memory_limit=1)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out.parquet").exists()


def test_off_finds_nothing_and_is_not_asked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="off"):
        find_duplicates([], tmp_path / "out", DuplicateSettings(method="off"), scratch=tmp_path / "scratch")


def test_settings_that_would_miss_most_of_what_they_look_for_are_refused() -> None:
    with pytest.raises(ValueError, match=r"14 bands of 8 rows compare only 5.3 % of the documents"):
        DuplicateSettings(bands=14, rows=8)
    with pytest.raises(ValueError, match="at most 4096, got 16384"):
        DuplicateSettings(bands=256, rows=64, min_similarity=1.0)
    assert DuplicateSettings(bands=14, rows=8, min_similarity=0.75).compared(0.75) == pytest.approx(
        0.7716, abs=1e-4
    )
