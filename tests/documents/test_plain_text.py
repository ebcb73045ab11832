from __future__ import annotations

import bz2
import gzip
from typing import Any

import pytest

from cleanfeed.documents.record import Damage

Read = Any
TEXT = "One document.\r\n\nIt is a whole file: naïve, 中文, \u2028, \0."


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", TEXT.encode()),
        ("a.txt", b"\xef\xbb\xbf" + TEXT.encode()),
        ("a.txt.gz", gzip.compress(TEXT.encode())),
        ("a.txt", bz2.compress(TEXT.encode()[:20]) + bz2.compress(TEXT.encode()[20:])),
    ],
)
def test_a_text_file_is_one_document(read: Read, name: str, data: bytes) -> None:
    outcome = read(data, name, keep_fields=("lang",), quality="score")
    assert (outcome.texts, outcome.ids, outcome.rows, outcome.records) == ([TEXT], [None], [0], 1)
    assert outcome.columns == {"lone_surrogates": [0], "lang": [None], "quality_column": [None]}


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", gzip.compress(b"")])
def test_an_empty_text_file_has_no_document(read: Read, data: bytes) -> None:
    assert (read(data, "a.txt").records, read(data, "a.txt").damage) == (0, [])


def test_a_text_that_is_no_utf8_is_unreadable(read: Read) -> None:
    [bad] = read(b"caf\xe9 au lait", "a.txt").unreadable
    assert (bad.row, bad.line_format, bad.byte_offset, bad.reason) == (0, False, 0, "bad_utf8")
    assert (bad.detail, bad.excerpt) == ("byte 0xe9 at byte 3 is no UTF-8", "caf\ufffd au lait")


def test_a_text_in_a_wide_encoding_is_damage(read: Read) -> None:
    outcome = read(TEXT.encode("utf-16"), "a.txt")
    assert (outcome.records, outcome.damage[0].reason) == (0, "utf16")


def test_a_text_over_the_limit_is_unreadable(read: Read) -> None:
    data = gzip.compress(b"x" * 5_000_000)
    [bad] = read(data, "a.txt", max_record_bytes=1024).unreadable
    assert (bad.reason, bad.detail) == ("record_too_large", "5000000 bytes")
    assert read(b"x" * 1024, "a.txt", max_record_bytes=1024).records == 1


def test_of_a_text_that_is_cut_the_part_before_is_used(read: Read) -> None:
    whole = gzip.compress(("word 中 " * 5000).encode(), 0)
    for cut in (4000, 4001, 4002):
        outcome = read(whole[:cut], "a.txt")
        assert outcome.damage == [Damage("truncated", cut, "the file ends inside a gzip stream")]
        [text] = outcome.texts
        assert ("word 中 " * 5000).startswith(text)
        assert len(text) > 400
