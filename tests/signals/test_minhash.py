"""Signatures: equal places are as frequent as common n-grams, whatever the script, the length and the batch."""

from __future__ import annotations

import random
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.signals.minhash import band_keys, equal_places, signature_array, signatures

words = st.lists(st.sampled_from(["a", "b", "c", "Ä", "9", "今", "天", "ไ"]), max_size=12)
any_text = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40)


def texts(*items: str) -> pa.LargeStringArray:
    return pa.array(items, pa.large_string())


def signed(*items: str, ngram: int = 5, hashes: int = 64) -> np.ndarray:
    found, has = signatures(texts(*items), ngram=ngram, hashes=hashes)
    assert has.all()
    return found


def similarity(left: str, right: str, ngram: int = 5, hashes: int = 4096) -> float:
    one, two = signed(left, right, ngram=ngram, hashes=hashes)
    return float((one == two).mean())


def grams(text: str, ngram: int) -> set[tuple[str, ...]]:
    """By regular expression: words in lower case, characters alone in Han and Thai."""
    found = re.findall(r"[\u4e00-\u9fff\u0e00-\u0e7f]|[^\W\u4e00-\u9fff\u0e00-\u0e7f]+", text.lower())
    return {tuple(found[i : i + ngram]) for i in range(max(1, len(found) - ngram + 1))} if found else set()


def jaccard(left: str, right: str, ngram: int) -> float:
    one, two = grams(left, ngram), grams(right, ngram)
    return len(one & two) / len(one | two)


@pytest.mark.parametrize(
    ("left", "right", "ngram"),
    [
        ("a b c d e f g h", "a b c d e f g x", 5),
        ("a b c d e f g h", "x a b c d e f g h", 3),
        ("the cat sat on the mat and the cat sat", "the cat sat on the mat", 2),
        ("今天下午我们去公园散步", "今天上午我们去公园散步", 5),
        ("ประเทศไทยสวยงาม", "ประเทศลาวสวยงาม", 5),
        ("a b", "a b c", 5),
        (" ".join(map(str, range(3000))), " ".join(map(str, range(1000, 4000))), 5),
        (" ".join(map(str, range(70_000))), " ".join(map(str, range(35_000, 105_000))), 5),
    ],
)
def test_equal_places_are_as_frequent_as_common_n_grams(left: str, right: str, ngram: int):
    true = jaccard(left, right, ngram)
    # Four standard deviations of 4,096 independent places.
    assert similarity(left, right, ngram) == pytest.approx(true, abs=4 * (true * (1 - true) / 4096) ** 0.5)


def test_errors_of_the_estimate_are_those_of_as_many_independent_hashes():
    chance = random.Random(1)
    for size in (8, 60, 600):
        errors = []
        for _ in range(300):
            base = [str(chance.getrandbits(60)) for _ in range(size)]
            other = [*base[: size // 2], *(str(chance.getrandbits(60)) for _ in range(size - size // 2))]
            true = jaccard(" ".join(base), " ".join(other), 1)
            errors.append(similarity(" ".join(base), " ".join(other), 1, 128) - true)
        assert abs(np.mean(errors)) < 0.01
        assert np.std(errors) < 1.2 * (true * (1 - true) / 128) ** 0.5


def test_case_signs_and_white_space_do_not_count():
    left, right = signed("Der MÜLLER kommt, heute: um 9!", "der müller\n\nkommt heute (um) 9")
    assert left.tolist() == right.tolist()


def test_order_of_words_counts():
    left, right = signed("one two three four five", "five four three two one")
    assert not (left == right).any()


def test_a_text_shorter_than_an_n_gram_has_one_of_all_its_words():
    assert signed("one two").tolist() == signed("One, two.").tolist()
    assert similarity("one two", "one two three") == 0.0
    assert similarity("one two three", "three two one") == 0.0


def test_a_text_without_words_has_no_signature():
    found, has = signatures(texts("", " \n", "?!…", "word"), ngram=5, hashes=8)
    assert has.tolist() == [False, False, False, True]
    assert not found[:3].any()
    assert signature_array(found, has).is_valid().to_pylist() == has.tolist()


def test_no_texts_have_no_signatures():
    found, has = signatures(texts(), ngram=5, hashes=8)
    assert (found.shape, has.shape) == ((0, 8), (0,))
    assert band_keys(found, 2).shape == (0, 2)


def test_a_slice_of_an_array_is_signed_as_itself():
    whole = texts("one two", "three", "four five six")
    found, _ = signatures(whole.slice(1, 1), ngram=5, hashes=16)
    assert found.tolist() == signed("three", hashes=16).tolist()


@given(st.lists(any_text, max_size=5), st.integers(1, 6), st.integers(1, 40))
def test_a_signature_depends_on_nothing_but_its_text(items: list[str], ngram: int, hashes: int):
    together, has = signatures(texts(*items), ngram=ngram, hashes=hashes)
    alone = [signatures(texts(item), ngram=ngram, hashes=hashes) for item in items]
    assert together.tolist() == [found[0].tolist() for found, _ in alone]
    assert has.tolist() == [bool(one[0]) for _, one in alone]


@given(words, words, st.integers(1, 6))
def test_signatures_are_equal_exactly_when_the_n_grams_are(left: list[str], right: list[str], ngram: int):
    one, two = " ".join(left), " ".join(right)
    found, has = signatures(texts(one, two), ngram=ngram, hashes=512)
    assert has.tolist() == [bool(left), bool(right)]
    if left and right:
        same = grams(one, ngram) == grams(two, ngram)
        # 12 words have 12 n-grams at most: that one of them wins none of 512 places has a chance of 1e-19.
        assert (found[0] == found[1]).all() == same


@given(any_text)
def test_a_text_said_twice_adds_only_the_n_grams_of_the_seam(text: str):
    once = f"{text} x"
    found, _ = signatures(texts(once, f"{once} {once}", f"{once} {once} {once}"), ngram=1, hashes=32)
    assert found[1].tolist() == found[0].tolist()
    assert found[2].tolist() == found[0].tolist()


def test_one_word_repeated_is_one_n_gram():
    assert signed("a " * 100_000, "a " * 5).tolist()[0] == signed("a a a a a").tolist()[0]


def test_a_band_key_is_equal_exactly_when_all_places_of_the_band_are():
    places = np.array([[1, 2, 3, 4], [1, 2, 9, 4], [2, 1, 3, 4], [3, 4, 1, 2]], np.uint32)
    keys = band_keys(places, 2)
    assert keys.shape == (4, 2)
    assert keys[0, 0] == keys[1, 0] != keys[2, 0]
    assert keys[0, 1] == keys[2, 1] != keys[1, 1]
    assert len(np.unique(keys)) == 6  # the same places in another band are another key


def test_keys_of_read_only_and_sliced_signatures_are_the_same():
    found = signed("one", "two", "three", "four")
    frozen = found.copy()
    frozen.flags.writeable = False
    assert band_keys(frozen, 4).tolist() == band_keys(found, 4).tolist()
    assert band_keys(found[::2], 4).tolist() == band_keys(found, 4)[::2].tolist()


def test_equal_places_are_counted_by_pair():
    left = np.array([[1, 2, 3], [4, 5, 6]], np.uint32)
    right = np.array([[1, 0, 3], [6, 5, 4]], np.uint32)
    assert equal_places(left, right).tolist() == [2, 1]


def test_signatures_become_a_column_and_come_back():
    found, has = signatures(texts("one", "", "two"), ngram=5, hashes=4)
    column = signature_array(found, has)
    assert column.type == pa.list_(pa.uint32(), 4)
    assert column.to_pylist() == [found[0].tolist(), None, found[2].tolist()]


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="nulls"):
        signatures(pa.array([None], pa.large_string()), ngram=5, hashes=4)
    with pytest.raises(ValueError, match="0 places over 5-grams"):
        signatures(texts("a"), ngram=5, hashes=0)
    with pytest.raises(ValueError, match="5 places cannot be cut into 2 bands"):
        band_keys(np.zeros((1, 5), np.uint32), 2)


def test_signatures_are_the_same_on_every_machine():
    found = signed("The quick brown fox jumps over the lazy dog.", "今天下午", hashes=4)
    assert found.tolist() == [
        [3990196378, 617897034, 1088463952, 1618842533],
        [471491940, 952790430, 2877693816, 981369142],
    ]
