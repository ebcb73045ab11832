"""A finished build goes in; rows of samples by hash, their texts, and signals beside those of the corpus, come out.

All reading is bounded: so many rows of hashes, so many documents for the percentiles. What was read is said, not what
was hoped for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanfeed.build.finished import MANIFEST_NAME, parse_manifest
from cleanfeed.curriculum.exclusions import HASH_BYTES, HashSet
from cleanfeed.errors import CleanfeedError, one_line
from cleanfeed.feed.catalog import read_catalog, storage
from cleanfeed.feed.pages import Files
from cleanfeed.quarantine.model import Unusual
from cleanfeed.signals.registry import SIGNALS

if TYPE_CHECKING:
    from cleanfeed.curriculum.tokenizer import TextEncoder

HASH_ROWS = 50_000_000
"""Rows whose hashes a report reads at most: 16 bytes each, about two seconds on a local disk."""
PERCENTILE_DOCUMENTS = 100_000
"""Documents that percentiles are taken over, evenly spread over the files of signals."""
STRANGENESS_DOCUMENTS = 20_000
"""Documents that strangeness is compared with."""
STRANGENESS_FILES = 256
"""Files of signals beyond which it is not looked for: training waits for it."""
UNUSUAL = 0.95
"""A signal is unusual where more than this share of the documents lies on one side of it."""
MOST_UNUSUAL = 5

Int64 = npt.NDArray[np.int64]
DocumentKey = tuple[str, int]
"""Source and source row."""


class Corpus:
    """A finished build, opened for reading; nothing is read before it is asked for.

    Args:
        path: Folder or fsspec address of the build.

    Raises:
        CleanfeedError: There is no finished build, or it was altered.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.catalog = read_catalog(path)
        self.tokens = self.catalog.tokenizer_digest is not None
        self._files = Files(self.catalog, "input_ids" if self.tokens else "text")

    def rows_of(
        self, hashes: Sequence[str], most: int | None = HASH_ROWS
    ) -> tuple[dict[str, list[int]], int]:
        """Return the rows that have one of these sample hashes, by hash, and how many rows were looked at.

        Args:
            hashes: Sample hashes in hex.
            most: Rows that are looked at, about; None looks at all.
        """
        found: dict[str, list[int]] = {}
        wanted = HashSet.of(bytes.fromhex(text) for text in hashes)
        seen = 0
        for number in range(self.catalog.groups if len(wanted) else 0):
            if most is not None and seen >= most:
                break
            place = self.catalog.row_group(number)
            column = self._files.table(place, ["sample_hash"]).column(0).combine_chunks()
            here = _raw(column)
            for index in np.flatnonzero(wanted.contains(here)):
                found.setdefault(here[index].tobytes().hex(), []).append(place.first_row + int(index))
            seen += place.rows
        return found, seen

    def columns(self, rows: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
        """Return some columns of some rows, in their order."""
        groups, places = self.catalog.groups_at(np.array(rows, dtype=np.int64))
        out: list[dict[str, Any]] = [{} for _ in rows]
        for group in np.unique(groups):
            table = self._files.table(self.catalog.row_group(int(group)), names)
            for at in np.flatnonzero(groups == group):
                out[at] = table.slice(int(places[at]), 1).to_pylist()[0]
        return out

    def contents(self, rows: Int64) -> Iterator[tuple[Int64, pa.Table]]:
        """Yield what some rows are trained on, a row group at a time, with their row numbers."""
        groups, places = self.catalog.groups_at(rows)
        for group in dict.fromkeys(groups.tolist()):
            here = groups == group
            table = self._files.table(self.catalog.row_group(group), [self.content_column, "sample_hash"])
            yield rows[here], table.take(places[here])

    @property
    def content_column(self) -> str:
        """Column that holds what is trained on."""
        return "input_ids" if self.tokens else "text"

    def text(self, row: int, most_tokens: int) -> str | None:
        """Return the text of a row, of at most so many tokens; None where there is nothing to decode it with."""
        value = self.columns([row], [self.content_column])[0][self.content_column]
        if not self.tokens:
            return str(value)
        return self._encoder.decode(value[:most_tokens]) if self._encoder is not None else None

    @cached_property
    def _encoder(self) -> TextEncoder | None:
        # It brings numba, which a report of a run whose curriculum is gone has no use for.
        from cleanfeed.curriculum.tokenizer import TextEncoder

        path = Path(self.path) / "tokenizer.json"
        try:
            return TextEncoder(str(path)) if path.is_file() else None
        except CleanfeedError:
            return None

    def unusual_signals(
        self, documents: Sequence[DocumentKey], on_note: Callable[[str], None]
    ) -> tuple[dict[DocumentKey, list[Unusual]], int, int]:
        """Return the most unusual signals of some documents, and how many of how many documents were compared."""
        system, root, local = storage(self.path)
        if not local:
            on_note(f"signals of {self.path} are not read: they lie in a store, not in a folder")
            return {}, 0, 0
        manifest = parse_manifest(system.cat_file(f"{root}/{MANIFEST_NAME}"), f"{self.path}/{MANIFEST_NAME}")
        kept = int(manifest["counts"]["kept"])
        listed = [file for file in manifest["files"] if file["path"].startswith("signals/") and file["rows"]]
        files = [f"{root}/{file['path']}" for file in listed]
        some = [files[i] for i in _spread([int(file["rows"]) for file in listed], PERCENTILE_DOCUMENTS)]
        if not files or not documents:
            return {}, 0, kept
        names = [signal.name for signal in SIGNALS]
        try:
            own = _values_of(files, documents, names)
            others = _values(some, names)
        except duckdb.Error as error:
            on_note(one_line("cannot read the signals", f"{root}/signals", str(error).splitlines()[0]))
            return {}, 0, kept
        compared = len(next(iter(others.values()), ()))
        return {key: _most_unusual(values, others) for key, values in own.items()}, compared, kept

    def strangeness(
        self, documents: Sequence[DocumentKey]
    ) -> tuple[dict[DocumentKey, float], npt.NDArray[np.float64]]:
        """Return how strange some documents are, and the same of other documents of the corpus, ascending.

        Sum over the signals of −log10 of the share of documents that lie at least as far out on the same side, as far
        as that exceeds 1: what every tenth document has is not strange.

        Args:
            documents: Source and source row of each; those without signals are missing in the answer.

        Returns:
            Empty where the build has no signals that can be read at once.
        """
        nothing: tuple[dict[DocumentKey, float], npt.NDArray[np.float64]] = {}, np.zeros(0)
        system, root, local = storage(self.path)
        if not local or not documents:
            return nothing
        manifest = parse_manifest(system.cat_file(f"{root}/{MANIFEST_NAME}"), f"{self.path}/{MANIFEST_NAME}")
        listed = [file for file in manifest["files"] if file["path"].startswith("signals/") and file["rows"]]
        if not listed or len(listed) > STRANGENESS_FILES:
            return nothing
        files = [f"{root}/{file['path']}" for file in listed]
        some = [files[i] for i in _spread([int(file["rows"]) for file in listed], STRANGENESS_DOCUMENTS)]
        names = [signal.name for signal in SIGNALS]
        own = _values_of(files, documents, names)
        others = _values(some, names, STRANGENESS_DOCUMENTS)
        if not own or not len(next(iter(others.values()))):
            return nothing
        out, reference = np.zeros(len(own)), np.zeros(len(next(iter(others.values()))))
        for name, values in others.items():
            known = np.sort(values[~np.isnan(values)])
            if len(known):
                found = np.array([one.get(name, np.nan) for one in own.values()])
                out += _strange(found, known)
                reference += _strange(values, known)
        return dict(zip(own, out.tolist(), strict=True)), np.sort(reference)


def _raw(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of a column of hashes, shape [rows, 16]."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    data = np.frombuffer(column.buffers()[1], dtype=np.uint8)
    start = column.offset * HASH_BYTES
    return data[start : start + len(column) * HASH_BYTES].reshape(-1, HASH_BYTES)


def _spread(sizes: Sequence[int], most: int) -> list[int]:
    """Return which parts, evenly spread, together have about ``most`` rows; one at least."""
    wanted = max(1, min(len(sizes), len(sizes) * most // max(1, sum(sizes))))
    return sorted({i * len(sizes) // wanted for i in range(wanted)}) if sizes else []


def _values_of(
    files: Sequence[str], documents: Sequence[DocumentKey], names: Sequence[str]
) -> dict[DocumentKey, dict[str, float]]:
    """Return the signals of some documents; null ones are left out."""
    found: dict[DocumentKey, dict[str, float]] = {}
    by_source: dict[str, list[int]] = {}
    for source, row in documents:
        by_source.setdefault(source, []).append(row)
    with duckdb.connect() as store:
        for source, rows in by_source.items():
            # Constants, so that the statistics of row groups rule most of the files out.
            listed = ", ".join(str(int(row)) for row in sorted(set(rows)))
            query = (
                f"SELECT source_row, {', '.join(names)} FROM read_parquet($files) "
                f"WHERE source = $source AND source_row IN ({listed}) "
                f"AND source_row BETWEEN {min(rows)} AND {max(rows)}"
            )
            result = store.execute(query, {"files": list(files), "source": source})
            for number, *numbers in result.fetchall():
                values = dict(zip(names, numbers, strict=True))
                found[source, number] = {n: float(v) for n, v in values.items() if v is not None}
    return found


def _values(
    files: Sequence[str], names: Sequence[str], most: int = 2 * PERCENTILE_DOCUMENTS
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the signals of the kept documents of some files; NaN where null."""
    listed = ", ".join(f"{name}::DOUBLE AS {name}" for name in names)
    with duckdb.connect() as store:
        result = store.execute(
            f"SELECT {listed} FROM read_parquet($files) WHERE verdict IN ('keep', 'flag') LIMIT $most",
            {"files": list(files), "most": most},
        ).fetchnumpy()
    return {
        name: np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan) for name, values in result.items()
    }


def _strange(values: npt.NDArray[np.float64], known: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return how strange values are among known ones, ascending; 0 where null."""
    size = len(known)
    above, below = size - np.searchsorted(known, values, "left"), np.searchsorted(known, values, "right")
    share = np.maximum(np.minimum(above, below), 0.5) / size
    return np.where(np.isnan(values), 0.0, np.maximum(0.0, -np.log10(share) - 1.0))


def _most_unusual(values: dict[str, float], others: dict[str, npt.NDArray[np.float64]]) -> list[Unusual]:
    """Return the signals in which a document lies furthest out, among those that most documents have."""
    found: list[tuple[tuple[float, float], Unusual]] = []
    for name, value in values.items():
        known = others[name][~np.isnan(others[name])]
        if not len(known):
            continue
        below, above = float(np.mean(known < value)), float(np.mean(known > value))
        if max(below, above) <= UNUSUAL:
            continue
        low, median, high = np.quantile(known, (0.25, 0.5, 0.75))
        distance = abs(value - float(median)) / max(float(high - low), 1e-9 + 0.05 * abs(float(median)))
        found.append(((max(below, above), distance), Unusual(name, value, float(median), below, above)))
    families: dict[str, Unusual] = {}
    for _, unusual in sorted(found, key=lambda item: item[0], reverse=True):
        # Shares of repeated 5-grams, 6-grams, … say the same: the furthest out speaks for them.
        families.setdefault(re.sub(r"\d+", "", unusual.signal), unusual)
    return list(families.values())[:MOST_UNUSUAL]
