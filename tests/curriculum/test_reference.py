"""Likeness to a reference sample: what is counted, and that like texts score higher than unlike ones."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.curriculum.reference import LogRatio, count_features, reference_counts
from cleanfeed.errors import MisuseError
from cleanfeed.settings import DocumentSettings

BUCKETS = 1 << 14
PROSE = ["The lamp had been lit before anyone came down.", "The cat had taken the warm chair by the lamp."]
LOGS = ["ERROR 17:03 worker=4 retry=1 timeout", "INFO 17:04 worker=2 retry=0 ok"]


def texts(*items: str) -> pa.LargeStringArray:
    return pa.array(items, pa.large_string())


def features(*items: str) -> int:
    return int(count_features(texts(*items), BUCKETS).sum())


def same(left: str, right: str) -> bool:
    return count_features(texts(left), BUCKETS).tolist() == count_features(texts(right), BUCKETS).tolist()


def test_words_and_pairs_of_words_are_counted():
    assert features("") == 0
    assert features(" \n ") == 0
    assert features("one") == 1
    assert features("one two three") == 3 + 2
    assert features("one", "two") == 2  # a pair never spans two documents


def test_signs_are_words_and_case_and_space_do_not_matter():
    assert features("well, yes!") == 4 + 3
    assert features("a_b2") == 1
    assert same("Der MÜLLER  kommt", "der müller\nkommt")
    assert not same("der müller", "müller der")


def test_text_without_spaces_is_counted_by_character():
    assert features("今天下午") == 4 + 3
    assert features("ไทยดี") == 5 + 4
    assert same("GPU很快", "GPU 很 快")


def test_a_slice_of_an_array_is_counted_as_itself():
    whole = texts("one two", "three", "four five six")
    assert (
        count_features(whole.slice(1, 1), BUCKETS).tolist()
        == count_features(texts("three"), BUCKETS).tolist()
    )
    assert count_features(whole.slice(0, 0), BUCKETS).sum() == 0


@given(st.lists(st.text(max_size=20), max_size=6), st.integers(0, 6))
def test_counts_of_parts_add_up_to_the_count_of_the_whole(items: list[str], cut: int):
    parts = count_features(texts(*items[:cut]), 64) + count_features(texts(*items[cut:]), 64)
    assert parts.tolist() == count_features(texts(*items), 64).tolist()


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=50))
def test_any_text_is_counted(text: str):
    counted = features(text)
    assert counted == 0 or counted % 2 == 1  # w words and w - 1 pairs


def test_a_text_scores_by_its_mean_log_ratio():
    reference = np.array([3, 0], dtype=np.int64)
    corpus = np.array([1, 2], dtype=np.int64)
    ratio = LogRatio(reference, corpus)
    assert ratio.weights == pytest.approx([math.log(4 / 2), math.log(1 / 3)])
    bucket = int(count_features(texts("word"), 2).argmax())
    assert ratio.mean_ratios(texts("word", ""))[0] == pytest.approx(ratio.weights[bucket])
    assert math.isnan(ratio.mean_ratios(texts(""))[0])
    odds = math.exp(ratio.weights[bucket])
    assert ratio.scores(texts("word", "")).tolist() == pytest.approx([odds / (1 + odds), 0.0])


def test_like_texts_score_above_the_middle_and_unlike_ones_below():
    corpus = count_features(texts(*PROSE, *LOGS), BUCKETS)
    ratio = LogRatio(count_features(texts(*PROSE), BUCKETS), corpus)
    found = ratio.scores(texts("The cat had come down before the lamp.", "INFO 17:05 worker=4 retry=0 ok"))
    assert found[0] > 0.5 > found[1]


def test_the_same_counts_on_both_sides_leave_every_text_in_the_middle():
    counts = count_features(texts(*PROSE), 16)
    assert LogRatio(counts, counts).scores(texts("anything", "at all")).tolist() == [0.5, 0.5]


def test_counts_over_different_buckets_are_refused():
    with pytest.raises(ValueError, match="16 and 32 buckets"):
        LogRatio(np.zeros(16, np.int64), np.zeros(32, np.int64))


def test_a_reference_is_read_from_any_kind_of_input_and_field(tmp_path: Path):
    (tmp_path / "good.txt").write_text(PROSE[0])
    with gzip.open(tmp_path / "more.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": PROSE[1], "body": LOGS[0]}) + "\n")
    found = reference_counts(str(tmp_path), BUCKETS, DocumentSettings())
    assert found.tolist() == count_features(texts(*PROSE), BUCKETS).tolist()
    assert reference_counts(f"{tmp_path}/*", BUCKETS, DocumentSettings()).tolist() == found.tolist()
    body = reference_counts(str(tmp_path / "more.jsonl.gz"), BUCKETS, DocumentSettings(text_field="body"))
    assert body.tolist() == count_features(texts(LOGS[0]), BUCKETS).tolist()


def test_a_reference_that_is_damaged_or_has_no_words_is_refused(tmp_path: Path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": " "}\n')
    with pytest.raises(MisuseError) as error:
        reference_counts(str(empty), 16, DocumentSettings())
    assert str(error.value) == (
        f"cannot use the reference: {empty}: got no words, expected sample text. Its documents are taken from the "
        "field 'text'."
    )
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b'{"text": "whole"}\n' * 99)[:-4])
    with pytest.raises(MisuseError) as error:
        reference_counts(str(cut), 16, DocumentSettings())
    assert str(error.value) == f"cannot use the reference: {cut}: got truncated, expected a whole file."
