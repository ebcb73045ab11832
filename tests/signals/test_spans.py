"""Where in a text each signal's worst stretches are."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanfeed.signals.registry import by_name
from cleanfeed.signals.spans import _FINDERS, MOST_SPANS, worst_spans

BLOB = base64.b64encode(random.Random(5).randbytes(60)).decode()


@pytest.mark.parametrize(
    ("name", "text", "stretches"),
    [
        ("periodic_share", "Größe " + "ha" * 40 + " und so.", ["ha" * 40]),
        ("blob_share", f"今天 {BLOB} und " + "f0" * 20, [BLOB, "f0" * 20]),
        ("base64_share", f"今天 {BLOB} und " + "f0" * 20, [BLOB]),
        ("id_share", f"今天 {BLOB} und " + "f0" * 20, ["f0" * 20]),
        ("mojibake_share", "Ein MÃ¼ller grÃ¼ÃŸt.", ["Ã¼ÃŸ", "Ã¼"]),
        ("longest_char_run", "今" * 11 + " and " + "-" * 12 + " " * 30 + "." * 9, ["-" * 12, "今" * 11]),
        ("longest_word", "a bbb cc 今天今天", ["bbb", "cc", "a"]),
        ("longest_run", "a bbb cc ราคา", ["bbb", "cc", "a"]),
        ("longest_line", "one\n  a longer line \n", ["a longer line", "one"]),
        ("symbol_word_share", "well -- ;; ok !!", ["-- ;;", "!!"]),
        ("space_share", "a" + " " * 9 + "b  c", [" " * 9]),
        ("replacement_share", "a\ufffd\ufffdb\ufffd", ["\ufffd\ufffd", "\ufffd"]),
        ("control_share", "a\x00\x01b", ["\x00\x01"]),
        ("private_unassigned_share", "a\ue000b", ["\ue000"]),
        ("bidi_overrides", "GRANTED \u202eDENIED \u2066", ["\u202e"]),
        ("bidi_controls", "GRANTED \u202eDENIED \u2066", ["\u202e", "\u2066"]),
        ("tag_chars", "🏴\U000e0067\U000e007f soup\U000e0068\U000e0069.", ["\U000e0068\U000e0069"]),
        ("invisible_share", "so\u200bup\U000e0068\U000e0069.", ["\U000e0068\U000e0069", "\u200b"]),
        ("mark_stack_share", "the e" + "\u0301" * 9 + "nd é", ["e" + "\u0301" * 9]),
        ("special_token_text", "the <|endoftext|>, </s> and [MASK] <b>", ["<|endoftext|>", "[MASK]", "</s>"]),
        ("policy_lines", "Our Privacy Policy says", ["Privacy Policy"]),
        ("lorem_ipsum", "x Lorem ipsum y", ["Lorem ipsum"]),
        ("javascript_lines", "Please enable JavaScript.\nThanks", ["Please enable JavaScript."]),
        ("curly_braces", "f(){}", ["{"]),
        ("ellipsis_lines", "read on ...\nno.\nso…", ["read on ...", "so…"]),
        ("colon_lines", "as follows:\nx", ["as follows:"]),
        ("dup_line_chars", "ab\ncd\nab\n\ncd\nef", ["ab\n\ncd"]),
        ("template_line_share", "at 10:02 ok\nat 9:15 ok", ["at 9:15 ok"]),
        ("dup_para_chars", "a\nb\n\nc\n\na\nb", ["a\nb"]),
        ("dup_5gram_chars", "a b c d e f X a b c d e f", ["a b c d e f"]),
        ("top_2gram_chars", "a b X a b Y c d Z c d a b", ["a b", "a b", "a b"]),
        ("dup_5gram_chars", "今天天气好，今天天气好", ["今天天气好"]),
    ],
)
def test_the_stretches_of_a_signal_come_longest_first(name, text, stretches):
    spans = worst_spans(text, [name])
    assert [text[span.start : span.end] for span in spans] == stretches
    assert {span.signal for span in spans} == {name}


def test_signals_keep_their_order_and_those_without_a_place_are_passed_over():
    spans = worst_spans("a {b", ["curly_braces", "letter_share", "no_such_signal", "longest_word"])
    assert [span.signal for span in spans] == ["curly_braces", "longest_word", "longest_word"]


def test_at_most_a_few_spans_are_given():
    spans = worst_spans("{ " * 100, ["curly_braces"])
    assert [span.start for span in spans] == [0, 2, 4, 6, 8]


def test_every_name_is_a_signal_there_is():
    assert set(_FINDERS) <= set(by_name())


@settings(max_examples=100)
@given(
    st.lists(
        st.text(max_size=8) | st.sampled_from([BLOB, "ha" * 20, "a b c d e ", "\n", "é\n", "Ã¼"]), max_size=12
    )
)
def test_spans_lie_in_the_text_and_have_a_size(parts):
    text = "".join(parts).encode("utf-8", "ignore").decode()
    for span in worst_spans(text, list(_FINDERS)):
        assert 0 <= span.start < span.end <= len(text)
    for name in _FINDERS:
        spans = worst_spans(text, [name])
        sizes = [span.end - span.start for span in spans]
        assert sizes == sorted(sizes, reverse=True)
        assert len(sizes) <= MOST_SPANS
