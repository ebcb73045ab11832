"""A rule set: which documents it keeps, flags and rejects, and with which reasons."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.errors import MisuseError
from cleanfeed.rules.ruleset import FLAG, KEEP, REASON_TYPE, REJECT, RuleSet
from cleanfeed.settings import Bound, RuleSettings
from cleanfeed.signals.signal import Signal

NAN = math.nan


def signal(name: str, high: float = 1.0, needs_tokenizer: bool = False) -> Signal:
    return Signal(name, "float", 0.0, high, "A test.", None, "", "test", needs_tokenizer)


SIGNALS = {
    item.name: item
    for item in (
        signal("blob_share"),
        signal("letter_share"),
        signal("words", math.inf),
        signal("token_periods", math.inf, needs_tokenizer=True),
        signal("unk_share", 1.0, needs_tokenizer=True),
    )
}

BLOB = RuleSettings(
    name="blob",
    signal="blob_share",
    above=0.1,
    extreme=0.5,
    evidence=(Bound(signal="letter_share", below=0.4),),
)
SHORT = RuleSettings(name="short", signal="words", below=3, action="flag")


def rule_set(*rules: RuleSettings, tokenizer: bool = False) -> RuleSet:
    return RuleSet(rules, tokenizer=tokenizer, signals=SIGNALS)


def columns(**values: list[float]) -> dict[str, np.ndarray]:
    return {name: np.array(items, dtype=float) for name, items in values.items()}


def reason(rule: str, signal: str, value: float, limit: float) -> dict[str, object]:
    return {"rule": rule, "signal": signal, "value": value, "limit": limit}


def test_a_value_at_the_limit_passes_and_one_beyond_it_is_rejected():
    rules = rule_set(RuleSettings(name="empty", signal="words", below=1))
    found = rules.evaluate(columns(words=[1, 0]))
    assert found.verdict.tolist() == [KEEP, REJECT]
    assert found.reasons.to_pylist() == [[], [reason("empty", "words", 0, 1)]]
    assert found.flags.to_pylist() == [[], []]
    assert {name: hit.tolist() for name, hit in found.fired.items()} == {"empty": [False, True]}
    assert found.flagged == {}


def test_null_never_speaks_neither_as_limit_nor_as_evidence():
    found = rule_set(BLOB, SHORT).evaluate(
        columns(blob_share=[NAN, 0.2], letter_share=[0.0, NAN], words=[NAN, 9])
    )
    assert found.verdict.tolist() == [KEEP, FLAG]
    assert found.reasons.to_pylist() == [[], [reason("blob", "blob_share", 0.2, 0.1)]]


def test_a_crossed_limit_without_evidence_flags():
    found = rule_set(BLOB).evaluate(columns(blob_share=[0.3], letter_share=[0.9]))
    assert found.verdict.tolist() == [FLAG]
    assert found.reasons.to_pylist() == [[reason("blob", "blob_share", 0.3, 0.1)]]
    assert found.flags.to_pylist() == [["blob"]]
    assert list(found.flagged) == ["blob"]


def test_evidence_rejects_and_is_recorded_as_a_reason_of_the_same_rule():
    found = rule_set(BLOB).evaluate(columns(blob_share=[0.3], letter_share=[0.2]))
    assert found.verdict.tolist() == [REJECT]
    assert found.reasons.to_pylist() == [
        [reason("blob", "blob_share", 0.3, 0.1), reason("blob", "letter_share", 0.2, 0.4)]
    ]
    assert found.flags.to_pylist() == [[]]


def test_an_extreme_value_rejects_by_itself_and_the_extreme_is_the_limit_recorded():
    found = rule_set(BLOB).evaluate(columns(blob_share=[0.6, 0.5], letter_share=[0.9, 0.9]))
    assert found.verdict.tolist() == [REJECT, FLAG]
    assert found.reasons.to_pylist() == [
        [reason("blob", "blob_share", 0.6, 0.5)],
        [reason("blob", "blob_share", 0.5, 0.1)],
    ]


def test_a_rule_with_an_extreme_and_no_evidence_flags_up_to_the_extreme():
    rules = rule_set(RuleSettings(name="blob", signal="blob_share", above=0.1, extreme=0.5))
    assert rules.evaluate(columns(blob_share=[0.1, 0.4, 0.7])).verdict.tolist() == [KEEP, FLAG, REJECT]


def test_a_rule_speaks_only_where_all_its_conditions_hold():
    where = (Bound(signal="words", above=10), Bound(signal="letter_share", below=0.5))
    rules = rule_set(RuleSettings(name="blob", signal="blob_share", above=0.1, where=where))
    found = rules.evaluate(
        columns(blob_share=[0.2] * 4, words=[11, 10, 11, NAN], letter_share=[0.4, 0.4, 0.5, 0.1])
    )
    assert found.verdict.tolist() == [REJECT, KEEP, KEEP, KEEP]


def test_rejecting_reasons_come_first_then_the_order_of_the_rules():
    rules = rule_set(SHORT, BLOB, RuleSettings(name="few_letters", signal="letter_share", below=0.5))
    found = rules.evaluate(columns(words=[1, 9], blob_share=[0.2, 0.0], letter_share=[0.1, 0.1]))
    assert [[item["rule"] for item in doc] for doc in found.reasons.to_pylist()] == [
        ["blob", "blob", "few_letters", "short"],
        ["few_letters"],
    ]
    assert found.flags.to_pylist() == [["short"], []]


def test_no_documents_give_empty_lists_of_the_right_type():
    found = rule_set(BLOB).evaluate(columns(blob_share=[], letter_share=[]))
    assert found.verdict.tolist() == []
    assert found.reasons.to_pylist() == []
    assert found.reasons.type.value_type == REASON_TYPE
    assert found.flags.type == pa.list_(pa.string())


def test_a_signal_that_was_not_measured_is_an_error_and_never_a_pass():
    with pytest.raises(KeyError, match="letter_share"):
        rule_set(BLOB).evaluate(columns(blob_share=[0.3]))


def test_rules_on_tokens_are_silent_without_a_tokenizer():
    tokens = RuleSettings(name="repeated_tokens", signal="token_periods", above=31)
    evidence = RuleSettings(
        name="blob", signal="blob_share", above=0.1, evidence=(Bound(signal="unk_share", above=0.1),)
    )
    rules = rule_set(tokens, evidence)
    assert rules.signals == ("blob_share",)
    # The evidence that cannot be had does not reject: the rule still flags.
    assert rules.evaluate(columns(blob_share=[0.2])).verdict.tolist() == [FLAG]


def test_rules_that_all_need_a_tokenizer_are_refused_without_one():
    with pytest.raises(MisuseError) as error:
        RuleSet(
            [RuleSettings(name="repeated_tokens", signal="token_periods", above=31)],
            signals=SIGNALS,
            where="olmo_repetition",
        )
    assert str(error.value) == (
        "every rule needs a tokenizer: olmo_repetition: rules.repeated_tokens: got none, expected a "
        "tokenizer to "
        "measure 'token_periods' with. Give one with --tokenizer, or take another pipeline."
    )


def test_what_the_rules_on_text_reject_all_rules_reject():
    tokens = RuleSettings(name="repeated_tokens", signal="token_periods", above=31)
    rules = rule_set(tokens, BLOB, tokenizer=True)
    text = rules.without_tokens()
    assert text.signals == ("blob_share", "letter_share")
    values = columns(blob_share=[0.6, 0.0], letter_share=[0.9, 0.9], token_periods=[NAN, 40])
    assert text.evaluate(values).verdict.tolist() == [REJECT, KEEP]
    assert rules.evaluate(values).verdict.tolist() == [REJECT, REJECT]


def test_only_rules_on_tokens_leave_an_empty_set_for_the_text():
    rules = rule_set(RuleSettings(name="r", signal="token_periods", above=31), tokenizer=True)
    assert rules.without_tokens().evaluate(columns(blob_share=[1.0, 1.0])).verdict.tolist() == [KEEP, KEEP]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"signal": "blobshare", "above": 0.1},
            "unknown signal: pipeline: rules.r.signal: got 'blobshare', expected the name of a signal. "
            "Did you mean 'blob_share'?",
        ),
        (
            {"signal": "blob_share", "above": 2},
            "a limit outside the signal's range: pipeline: rules.r.above: got 2, expected 0 to 1, the "
            "range of "
            "'blob_share'.",
        ),
        (
            {"signal": "blob_share", "above": 0.3, "extreme": 0.2},
            "the extreme lies on the wrong side: pipeline: rules.r.extreme: got 0.2, expected more than "
            "'above', "
            "which is 0.3.",
        ),
        (
            {"signal": "blob_share", "below": 0.3, "extreme": 0.3},
            "the extreme lies on the wrong side: pipeline: rules.r.extreme: got 0.3, expected less than "
            "'below', "
            "which is 0.3.",
        ),
        (
            {"signal": "blob_share", "above": 0.3, "action": "flag", "extreme": 0.4},
            "a rule that only flags needs no proof: pipeline: rules.r.extreme: got 'extreme', expected none. "
            "Remove 'extreme', or make the action reject.",
        ),
        (
            {"signal": "blob_share", "above": 0.3, "where": (Bound(signal="word", above=1),)},
            "unknown signal: pipeline: rules.r.where.0.signal: got 'word', expected the name of a signal. "
            "Did you mean 'words'?",
        ),
        (
            {"signal": "blob_share", "above": 0.3, "evidence": (Bound(signal="letter_share", above=-1),)},
            "a limit outside the signal's range: pipeline: rules.r.evidence.0.above: got -1, expected 0 "
            "to 1, the "
            "range of 'letter_share'.",
        ),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule: dict[str, object], message: str):
    with pytest.raises(MisuseError) as error:
        rule_set(RuleSettings(name="r", **rule))
    assert str(error.value) == message


SHARES = st.one_of(st.just(NAN), st.sampled_from([0.0, 0.1, 0.3, 0.4, 0.5, 1.0]))


@given(st.lists(st.tuples(SHARES, SHARES, SHARES), max_size=20))
def test_judging_many_at_once_is_judging_one_at_a_time(documents: list[tuple[float, float, float]]):
    rules = rule_set(SHORT, BLOB, RuleSettings(name="few_letters", signal="letter_share", below=0.3))
    together = rules.evaluate(columns(**{
        name: [doc[i] for doc in documents] for i, name in enumerate(("words", "blob_share", "letter_share"))
    }))  # fmt: skip
    together.reasons.validate(full=True)
    for place, (words, blob, letters) in enumerate(documents):
        alone = rules.evaluate(columns(words=[words], blob_share=[blob], letter_share=[letters]))
        assert alone.verdict[0] == together.verdict[place]
        assert alone.reasons[0].as_py() == together.reasons[place].as_py()
        assert alone.flags[0].as_py() == together.flags[place].as_py()
        # Every reason lies beyond its limit, and the verdict follows from the reasons.
        assert (alone.verdict[0] == KEEP) == (alone.reasons[0].as_py() == [])
        assert (alone.verdict[0] == REJECT) == bool(alone.fired)
