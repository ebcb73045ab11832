"""``--exclude`` takes hashes from any store, and says what is wrong with the others."""

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.curriculum.exclusions import HashSet, read_exclusions
from cleanfeed.errors import MisuseError

A, B, C = (bytes([number]) * 16 for number in (1, 2, 200))
# Few values for each half, so that hashes share their first half.
HASHES = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(
    lambda pair: b"".join(n.to_bytes(8, "big") for n in pair)
)


def listed(found: HashSet) -> set[bytes]:
    return {b"".join(int(half).to_bytes(8, "big") for half in row) for row in found.halves}


@given(st.sets(HASHES), st.lists(HASHES))
def test_a_set_contains_what_was_put_in_and_nothing_else(inside: set[bytes], asked: list[bytes]):
    found = HashSet.of(inside)
    rows = np.frombuffer(b"".join(asked), dtype=np.uint8).reshape(-1, 16)
    assert found.contains(rows).tolist() == [hash_ in inside for hash_ in asked]
    assert (len(found), listed(found)) == (len(inside), inside)


def test_a_text_file_has_a_hash_a_line(tmp_path: Path):
    path = tmp_path / "list.txt"
    path.write_text(f"# bad samples\n{A.hex()}\n\n  {C.hex().upper()}\r\n")
    assert listed(read_exclusions([str(path)])) == {A, C}


def test_a_text_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    path = tmp_path / "list.txt"
    path.write_text(f"{A.hex()}\n{B.hex()}\n", "utf-8-sig")
    assert listed(read_exclusions([str(path)])) == {A, B}


def test_a_parquet_file_has_raw_or_hex_columns_and_perhaps_a_state(tmp_path: Path):
    table = {
        "sample_hash": pa.array([A, B, None], pa.binary(16)),
        "content_hash": [None, None, C.hex()],
        "state": ["quarantined", "released", "quarantined"],
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    assert listed(read_exclusions([str(tmp_path / "a.parquet")])) == {A, C}


def test_a_quarantine_store_gives_what_is_quarantined_by_file_or_by_run(tmp_path: Path):
    with duckdb.connect(str(tmp_path / "quarantine.duckdb")) as store:
        store.execute("CREATE TABLE samples (sample_hash VARCHAR, state VARCHAR)")
        rows = [[A.hex(), "quarantined"], [B.hex(), "suspected"], [C.hex(), "released"]]
        store.executemany("INSERT INTO samples VALUES (?, ?)", rows)
    for name in (tmp_path, tmp_path / "quarantine.duckdb"):
        assert listed(read_exclusions([str(name)])) == {A}


def test_what_is_no_store_is_misuse_and_named(tmp_path: Path):
    (tmp_path / "odd.txt").write_text(A.hex() + "\nnot a hash\n")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "other.parquet")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with duckdb.connect(str(tmp_path / "other.duckdb")) as store:
        store.execute("CREATE TABLE cats (name VARCHAR)")
    for name, message in (
        (
            "odd.txt",
            r"not a hash: --exclude .*odd\.txt, line 2: got 'not a hash', expected 32 hexadecimal digits",
        ),
        ("other.parquet", "no column of hashes: .* got the columns id, expected sample_hash or content_hash"),
        ("cut.parquet", "cannot read the store"),
        ("other.duckdb", "not a quarantine store"),
        ("missing", "no such store: --exclude .*missing"),
    ):
        with pytest.raises(MisuseError, match=message) as caught:
            read_exclusions([str(tmp_path / name)])
        assert "\n" not in str(caught.value)
