"""Splitting documents into samples: nothing lost, nothing over the limit, no cut inside a character."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.curriculum.samples import split_ids, split_text
from cleanfeed.curriculum.tokenizer import INSIDE_CHARACTER, INSIDE_WORD, STARTS_LINE, STARTS_WORD

TEXTS = st.lists(st.text(alphabet="ab \n日é\U0001f600", max_size=60), min_size=1, max_size=6)


def by_chars(texts: list[str], limit: int) -> list[tuple[int, int, str, int]]:
    raw = [text.encode() for text in texts]
    ends = np.cumsum([len(data) for data in raw], dtype=np.int64)
    starts = ends - [len(data) for data in raw]
    chars = np.array([len(text) for text in texts], dtype=np.int64)
    data = np.frombuffer(b"".join(raw), dtype=np.uint8)
    found = split_text(data, starts, ends, chars, limit)
    whole = data.tobytes()
    return [
        (int(d), int(p), whole[s : s + n].decode(), int(c))
        for d, p, s, n, c in zip(
            found.document, found.part, found.start, found.length, found.chars, strict=True
        )
    ]


@given(TEXTS, st.integers(1, 12))
def test_parts_of_a_text_join_to_the_text_and_none_is_longer_than_the_limit(texts: list[str], limit: int):
    rows = by_chars(texts, limit)
    assert ["".join(part for d, _, part, _ in rows if d == number) for number in range(len(texts))] == texts
    assert all(len(part) == chars <= limit for _, _, part, chars in rows)
    for number in range(len(texts)):
        parts = [place for d, place, _, _ in rows if d == number]
        assert parts == list(range(len(parts)))


def test_a_text_is_cut_into_even_parts_at_line_starts():
    rows = by_chars(["one line\n" * 10], 40)
    assert rows == [
        (0, 0, "one line\n" * 3, 27),
        (0, 1, "one line\n" * 3, 27),
        (0, 2, "one line\n" * 4, 36),
    ]


def test_a_document_at_the_limit_stays_whole_and_an_empty_one_is_one_empty_sample():
    assert by_chars(["abcd", ""], 4) == [(0, 0, "abcd", 4), (1, 0, "", 0)]


KINDS = np.array([INSIDE_CHARACTER, INSIDE_WORD, STARTS_WORD, STARTS_LINE], dtype=np.uint8)


@given(st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=5), st.integers(1, 9))
def test_parts_of_ids_join_to_the_document_and_their_characters_add_up(
    documents: list[list[int]], limit: int
):
    ids = np.array([token for document in documents for token in document], dtype=np.int32)
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    token_chars = np.array([0, 1, 2, 1], dtype=np.int32)
    chars = np.array([int(token_chars[document].sum()) for document in documents], dtype=np.int64)
    found = split_ids(ids, KINDS, token_chars, starts, starts + lengths, chars, limit)
    assert found.length.max(initial=0) <= limit
    for number, document in enumerate(documents):
        here = found.document == number
        parts = [ids[s : s + n] for s, n in zip(found.start[here], found.length[here], strict=True)]
        assert np.concatenate(parts).tolist() == document
        assert int(found.chars[here].sum()) == chars[number]


def test_ids_are_cut_before_a_word_rather_than_inside_one():
    ids = np.array([1, 1, 1, 2, 1, 1, 1, 1], dtype=np.int32)
    ends = np.array([8], dtype=np.int64)
    found = split_ids(ids, KINDS, np.ones(4, dtype=np.int32), ends - 8, ends, ends, 5)
    assert found.length.tolist() == [3, 5]
