"""Every signal of the decoded view equals what the plain way finds, whatever the text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cleanfeed.signals import plain as blocks
from cleanfeed.signals.measure import measure_texts
from cleanfeed.signals.registry import VIEW_SIGNALS
from cleanfeed.signals.tables import CLOSER, COLON, ELLIPSIS, SPACE, TERMINAL, WIDE, packed_tables
from tests.signals import plain

VISIBLE = (
    "a b c A é 1 2 . . . ! ? … 。 ！ , : ： ; - * + • · \" ' ) ] ” # { } < > | [ / 天 地 か ー ꀀ 가 나 ก า ་ མ अ ि "
    "ж א ع ሀ ፡ ۔ ։ । ◌ 〇 々 𝒳 😀 ½ ٣"
).split()
WHITE = [" ", " ", " ", "\n", "\n", "\r", "\t", "\v", "\x85", "\xa0", "\u2028", "\u3000"]
ODD = list(
    "\x00\x07\x7f\x80\u00ad\u0301\u0316\u20dd\u034f\u200b\u200c\u200d\u2060\ufe0f\ufe00\ufeff\ufffd\ue000\u0378\ufffe"
    "\u202a\u202e\u202d\u2066\u200f\U000e0001\U000e0067\U000e007f\U0001f3f4\U000e0100\U0010ffff"
)
SIGNS = st.sampled_from([*VISIBLE, *WHITE, *ODD])
PIECES = st.sampled_from(
    "the The AND be to of that have with a bb ccc dd1 dd22 dd333 1 22 x. y! z... (w.) “v.” - * • 天地 天。地 かな12 "
    "กา กา. ... … privacy Privacy policy policy. cookie cookies uses use reuses terms terms (lorem Ipsum ipsum, "
    "javascript: NoJavaScript javascrip <|endoftext|> <s> </s> [MASK] <|x <||> aaaaaaaaaaaa ------------ {".split()
)
GAPS = st.sampled_from([" ", " ", " ", "  ", "\n", "\n", "\n\n", "\r\n", "\t", "\n \n"])
MESS = st.text(SIGNS, max_size=80) | st.text(max_size=60)
PROSE = st.lists(st.tuples(PIECES, GAPS), max_size=60).map(lambda parts: "".join(map("".join, parts)))
FEW = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([" ", " ", " ", "\n"])), max_size=50).map(
    lambda parts: "".join(map("".join, parts))
)
TEXTS = MESS | PROSE | FEW


def assert_as_plain(texts: Sequence[str]) -> None:
    """Compare all signals of several texts measured in one call with the plain way, text by text."""
    columns = measure_texts(pa.array(texts, pa.large_string()))
    for k, text in enumerate(texts):
        expected = plain.measure(text)
        found = {signal.name: float(columns[signal.name][k]) for signal in VIEW_SIGNALS}
        assert set(found) == set(expected)
        wrong = {
            name: (value, expected[name])
            for name, value in found.items()
            if (expected[name] is None) != math.isnan(value)
            or (expected[name] is not None and value != pytest.approx(expected[name], rel=1e-12, abs=1e-12))
        }
        assert wrong == {}, text


@settings(max_examples=400)
@given(st.lists(TEXTS, min_size=1, max_size=3))
@example([""])
@example(["\n"])
@example(["a"])
@example(["\u200d"])
@example(["ab c a bc " * 8])
@example(["天" * 30 + "\n" + "天" * 30])
@example(["a\n\nb\n\na\n\nb"])
def test_every_signal_equals_the_plain_count(texts: list[str]) -> None:
    assert_as_plain(texts)


ASCII_WORDS = st.one_of(
    st.sampled_from(
        'the a I to privacy policy x. y? end.) (w.) "v." - * + -- a: 12 1.5 dd22 aa bbb ... :) {'.split()
    ),
    st.text("abcXYZ01.,-:!?)'\"", min_size=1, max_size=90),
)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(ASCII_WORDS, GAPS), min_size=8, max_size=60),
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from([*VISIBLE, *WHITE, *ODD, "ddd"])), max_size=3),
)
def test_blocks_of_ascii_are_read_like_any_other_text(
    words: list[tuple[str, str]], others: list[tuple[int, str]]
) -> None:
    text = "".join(map("".join, words))
    for at, other in others:
        text = text[:at] + other + text[at:]
    # The longer text has the same words, read in blocks up to its end too.
    assert_as_plain([text, text + " z" * 60])


def test_the_classes_that_blocks_are_read_by_are_those_of_the_tables() -> None:
    flags = packed_tables()[:128]
    classes = ((blocks.WHITE, SPACE), (blocks.TERMINALS, TERMINAL), (blocks.CLOSERS, CLOSER))
    for ranges, bit in classes:
        named = {code for low, high in ranges for code in range(low, high + 1)}
        assert named == set(np.flatnonzero(flags & bit).tolist())
    assert not np.any(flags & (ELLIPSIS | WIDE))
    assert np.flatnonzero(flags & COLON).tolist() == [58]


@settings(max_examples=150)
@given(TEXTS)
def test_every_value_is_within_the_declared_range(text: str) -> None:
    columns = measure_texts(pa.array([text], pa.large_string()))
    for signal in VIEW_SIGNALS:
        value = float(columns[signal.name][0])
        assert math.isnan(value) or signal.low <= value <= signal.high, signal.name
        assert not math.isnan(value) or signal.null_when, signal.name
        assert math.isnan(value) or signal.type == "float" or value == int(value), signal.name
