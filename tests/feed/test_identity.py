"""A batch is known by what it holds; a sample is found by its hash."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import xxhash

from cleanfeed import Curriculum
from cleanfeed.errors import MisuseError
from cleanfeed.feed.identity import SampleHashes, batch_hash, hash_bytes
from cleanfeed.feed.samples import FILLER

from .builds import sample_hash, write_build

SIZES = ((7, 2), (0, 1), (1, 9), (5, 5))


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory: pytest.TempPathFactory) -> Curriculum:
    return Curriculum(write_build(tmp_path_factory.mktemp("build") / "out", *SIZES, twins=[(2, 11)]))


def test_golden_batch_hash() -> None:
    hashes = np.arange(48, dtype=np.uint8).reshape(3, 16)
    hashes[1] = 0
    assert (
        batch_hash(hashes)
        == xxhash.xxh3_128_hexdigest(bytes(hashes.tobytes()))
        == "913351e1fce97eaaf93c3a51a203b545"
    )


def test_hashes_come_in_the_order_of_the_rows_and_zeros_for_pad_rows(curriculum: Curriculum) -> None:
    found = SampleHashes(curriculum).of(np.array([12, 0, ~3, 6, FILLER, 0], dtype=np.int64))
    expected = [sample_hash(12), sample_hash(0), bytes(16), sample_hash(6), bytes(16), sample_hash(0)]
    assert [one.tobytes() for one in found] == expected


def test_any_number_of_hashes_is_found_and_twins_twice(curriculum: Curriculum) -> None:
    hashes = SampleHashes(curriculum)
    asked = [sample_hash(row) for row in (12, 2, 900, 7)]
    expected = {asked[0]: (12,), asked[1]: (2, 11), asked[2]: (), asked[3]: (7,)}
    assert hashes.rows_of(asked) == expected
    assert hashes.rows_of(reversed(asked)) == expected
    assert hashes.rows_of([]) == {}


def test_what_was_looked_up_or_is_known_is_not_searched_again(curriculum: Curriculum) -> None:
    hashes = SampleHashes(curriculum)
    hashes.know({sample_hash(900): (3,)})
    hashes._search = None  # type: ignore[assignment, method-assign]
    assert hashes.rows_of([sample_hash(900)]) == {sample_hash(900): (3,)}


def test_a_text_curriculum_has_hashes_too(tmp_path: Path) -> None:
    curriculum = Curriculum(write_build(tmp_path / "out", (5, 2), tokens=False))
    last = sample_hash(4, tokens=False)
    assert SampleHashes(curriculum).rows_of([last]) == {last: (4,)}


def test_what_can_be_read_again_does_not_travel(curriculum: Curriculum) -> None:
    hashes = SampleHashes(curriculum)
    before = len(pickle.dumps(hashes))
    hashes.of(np.arange(13, dtype=np.int64))
    hashes.rows_of([sample_hash(1)])
    assert len(pickle.dumps(hashes)) == before
    assert pickle.loads(pickle.dumps(hashes)).rows_of([sample_hash(1)]) == {sample_hash(1): (1,)}


def test_a_hash_is_hex_in_either_case_or_bytes() -> None:
    assert hash_bytes("AB" * 16) == hash_bytes("ab" * 16) == hash_bytes(b"\xab" * 16) == b"\xab" * 16


@pytest.mark.parametrize("wrong", ["", "ab" * 15, "ab" * 17, "zz" * 16, "٣" * 32, b"x" * 15, 7, None])
def test_anything_else_is_refused_in_one_line(wrong: object) -> None:
    with pytest.raises(MisuseError) as caught:
        hash_bytes(wrong)  # type: ignore[arg-type]
    assert str(caught.value) == f"not a sample hash: hashes: got {wrong!r:.60}, expected 32 hex digits."
