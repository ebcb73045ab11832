"""Quarantine stores, Parquet files and lists of hashes go in; one set of hashes to leave out comes out."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cleanfeed.arguments import is_hash
from cleanfeed.errors import MisuseError, one_line

HASH_BYTES = 16
COLUMNS = ("sample_hash", "content_hash")
QUARANTINED = "quarantined"
STORE_NAME = "quarantine.duckdb"
EXPECTED = "a quarantine store, a Parquet file with sample_hash or content_hash, or a text file of hashes"

Halves = npt.NDArray[np.uint64]


class HashSet:
    """A set of 128-bit hashes: 16 bytes each, looked up by bisection.

    Args:
        halves: Both halves of each hash, shape [hashes, 2], sorted and without repeats.
    """

    def __init__(self, halves: Halves) -> None:
        self.halves = halves
        first = halves[:, 0]
        _, sizes = np.unique(first, return_counts=True)
        # Hashes that share their first half are rare; a lookup tries as many places as the largest such group.
        self._tries = int(sizes.max(initial=0))

    @classmethod
    def of(cls, hashes: Iterable[bytes]) -> HashSet:
        """Return the set of some hashes."""
        return cls(np.unique(_halves(np.frombuffer(b"".join(hashes), dtype=np.uint8)), axis=0))

    def __len__(self) -> int:
        """Return how many hashes there are."""
        return len(self.halves)

    def contains(self, hashes: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Return which of these hashes, shape [n, 16], are in the set."""
        wanted = _halves(hashes)
        found = np.zeros(len(wanted), dtype=np.bool_)
        if len(self):
            place = np.searchsorted(self.halves[:, 0], wanted[:, 0])
            for step in range(self._tries):
                here = self.halves[np.minimum(place + step, len(self) - 1)]
                found |= (here == wanted).all(axis=1)
        return found


def _halves(hashes: npt.NDArray[np.uint8]) -> Halves:
    return np.ascontiguousarray(hashes).reshape(-1, HASH_BYTES).view(">u8").astype(np.uint64)


def read_exclusions(stores: Sequence[str], hashes: Sequence[str] = ()) -> HashSet:
    """Return every hash that is to be left out by itself or because a store says so.

    Args:
        stores: A run directory or a DuckDB store (hashes whose state is ``quarantined``), a Parquet file (columns
            ``sample_hash`` and ``content_hash``, 16 bytes or hex, rows whose ``state``, if any, is ``quarantined``),
            or a text file (one hash in hex a line; blank lines and lines that begin with ``#`` are passed over).
        hashes: Hashes in hex.

    Raises:
        MisuseError: A store does not exist or is none of these; the message names the line or column.
    """
    given = (_from_hex(text, text) for text in hashes)
    return HashSet.of(chain(given, (found for store in stores for found in _read(store))))


def _read(store: str) -> Iterator[bytes]:
    path = Path(store)
    if path.is_dir() and (path / STORE_NAME).is_file():
        path = path / STORE_NAME
    if not path.is_file():
        raise MisuseError(one_line("no such store", f"--exclude {store}", expected=EXPECTED))
    with path.open("rb") as handle:
        head = handle.read(12)
    if head[8:12] == b"DUCK":
        return _read_duckdb(path)
    return _read_parquet(path) if head[:4] == b"PAR1" else _read_text(path)


def _read_duckdb(path: Path) -> Iterator[bytes]:
    import duckdb  # a tenth of a second, and few builds need it

    try:
        with duckdb.connect(str(path), read_only=True) as store:
            rows = store.execute("SELECT sample_hash FROM samples WHERE state = ?", [QUARANTINED]).fetchall()
    except duckdb.Error as error:
        said = str(error).splitlines()[0]
        if "Could not set lock" in said:
            todo = "Wait for the process that holds it, or give what 'cleanfeed quarantine export' wrote."
            raise MisuseError(
                one_line("the store is in use", f"--exclude {path}", said, todo=todo)
            ) from error
        raise MisuseError(one_line("not a quarantine store", f"--exclude {path}", said, EXPECTED)) from error
    for (text,) in rows:
        yield _from_hex(text, str(path))


def _read_parquet(path: Path) -> Iterator[bytes]:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise MisuseError(
            one_line("cannot read the store", f"--exclude {path}", str(error), EXPECTED)
        ) from error
    names = [name for name in COLUMNS if name in file.schema_arrow.names]
    if not names:
        got = "the columns " + ", ".join(file.schema_arrow.names)
        raise MisuseError(one_line("no column of hashes", f"--exclude {path}", got, " or ".join(COLUMNS)))
    state = ["state"] if "state" in file.schema_arrow.names else []
    for batch in file.iter_batches(columns=names + state):
        for row in batch.to_pylist():
            if row.get("state", QUARANTINED) == QUARANTINED:
                for name in names:
                    if row[name] is not None:
                        yield row[name] if _is_raw(row[name]) else _from_hex(row[name], f"{path}, {name}")


def _is_raw(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == HASH_BYTES


def _read_text(path: Path) -> Iterator[bytes]:
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    for number, line in enumerate(data.splitlines(), start=1):
        text = line.strip()
        if text and not text.startswith(b"#"):
            yield _from_hex(text.decode("utf-8", "replace"), f"{path}, line {number}")


def _from_hex(text: object, where: str) -> bytes:
    if is_hash(text):
        return bytes.fromhex(text)
    got = repr(text) if len(repr(text)) < 60 else repr(text)[:60] + "..."
    raise MisuseError(one_line("not a hash", f"--exclude {where}", got, "32 hexadecimal digits"))
