"""Explaining rules: the words say what the verdict of the rule set is, and what would have changed it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.rules.explain import explain_rules, number
from cleanfeed.rules.ruleset import RuleSet
from cleanfeed.settings import Bound, RuleSettings
from cleanfeed.signals.signal import Signal

SIGNALS = {
    "blob_share": Signal("blob_share", "float", 0, 1, "A test.", 0, "", "test"),
    "mean_word_chars": Signal("mean_word_chars", "float", 0, math.inf, "A test.", None, "No words.", "test"),
    "unk_share": Signal("unk_share", "float", 0, 1, "A test.", None, "", "test", needs_tokenizer=True),
    "words": Signal("words", "int", 0, math.inf, "A test.", 0, "", "test"),
}
BLOB = RuleSettings(
    name="blob",
    signal="blob_share",
    above=0.1,
    extreme=0.5,
    evidence=(Bound(signal="words", below=3), Bound(signal="mean_word_chars", above=20)),
    because="Noise.",
    source="A paper.",
)


def words_of(rule: RuleSettings, **values: float | None) -> tuple[str, str]:
    (reading,) = explain_rules([rule], values, SIGNALS)
    return reading.outcome, reading.words


def test_each_outcome_is_said_with_the_values_that_led_to_it():
    assert words_of(BLOB, blob_share=0.05) == ("passes", "passes: blob_share is 0.05, not above 0.1")
    assert words_of(BLOB, blob_share=0.3, words=9, mean_word_chars=None) == (
        "flags",
        "flags: blob_share is 0.3, above 0.1; to reject it would also need blob_share above 0.5 (0.3) or "
        "words below 3 (9) or mean_word_chars above 20 (null)",
    )
    assert words_of(BLOB, blob_share=0.3, words=1, mean_word_chars=1200.4) == (
        "rejects",
        "rejects: blob_share is 0.3, above 0.1; and words is 1, below 3; and mean_word_chars is 1,200, "
        "above 20",
    )
    assert words_of(BLOB, blob_share=0.7, words=9) == (
        "rejects",
        "rejects: blob_share is 0.7, beyond the extreme of 0.5",
    )


def test_a_rule_that_does_not_speak_says_why():
    long_words = RuleSettings(name="long_words", signal="mean_word_chars", above=10)
    unknown = RuleSettings(name="unknown", signal="unk_share", above=0.1)
    short_blob = RuleSettings(
        name="short_blob", signal="blob_share", above=0.1, where=(Bound(signal="words", below=100),)
    )
    assert words_of(long_words, mean_word_chars=None) == (
        "silent",
        "does not speak: mean_word_chars is null (No words)",
    )
    assert words_of(unknown) == ("silent", "does not speak: unk_share is null (there is no tokenizer)")
    assert words_of(short_blob, blob_share=0.2, words=2500) == (
        "silent",
        "does not speak: words is 2,500, and the rule is for words below 100",
    )


def test_a_rule_without_proof_and_one_that_flags_say_the_limit():
    assert words_of(RuleSettings(name="r", signal="words", below=1), words=0) == (
        "rejects",
        "rejects: words is 0, below 1",
    )
    assert words_of(RuleSettings(name="r", signal="words", below=3, action="flag"), words=0) == (
        "flags",
        "flags: words is 0, below 3",
    )


def test_a_reading_as_plain_data_holds_all_there_is():
    (reading,) = explain_rules(
        [BLOB], {"blob_share": 0.3, "words": 9.0, "mean_word_chars": math.nan}, SIGNALS
    )

    def bound(signal: str, value: float | None, side: str, limit: float, crossed: bool) -> dict[str, object]:
        return {"signal": signal, "value": value, "side": side, "limit": limit, "crossed": crossed}

    plain = reading.plain()
    assert plain.pop("words").startswith("flags: ")
    assert plain == {
        "rule": "blob",
        "action": "reject",
        "limit": bound("blob_share", 0.3, "above", 0.1, True),
        "extreme": bound("blob_share", 0.3, "above", 0.5, False),
        "where": (),
        "evidence": (
            bound("words", 9.0, "below", 3.0, False),
            bound("mean_word_chars", None, "above", 20.0, False),
        ),
        "outcome": "flags",
        "because": "Noise.",
        "source": "A paper.",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (31, "31"), (1000000, "1,000,000"), (0.12345, "0.123"), (1234.5, "1,234"), (-0.5, "-0.5")],
)
def test_numbers_are_written_for_people(value: float, text: str):
    assert number(value) == text


VALUES = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 1.0]))


@given(VALUES, VALUES, VALUES)
def test_the_explanation_never_contradicts_the_verdict(
    blob: float | None, words: float | None, mean: float | None
):
    values = {"blob_share": blob, "words": words, "mean_word_chars": mean}
    columns = {name: np.array([math.nan if value is None else value]) for name, value in values.items()}
    judged = RuleSet([BLOB], signals=SIGNALS).evaluate(columns)
    (reading,) = explain_rules([BLOB], values, SIGNALS)
    assert (reading.outcome == "rejects") == bool(judged.fired)
    assert (reading.outcome == "flags") == bool(judged.flagged)
