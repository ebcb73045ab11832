"""What is printed is safe on a terminal and short enough to read."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.cli.terminal import count, duration, measure, shortened, visible, volume


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 中文, ñ", "plain text, 中文, ñ"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("nul\x00", r"nul\x00"),
        ("turned\u202eround", r"turned\u202eround"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("tag\U000e0041", r"tag\U000e0041"),
        ("line\u2028end", r"line\u2028end"),
        ("back\\slash", r"back\\slash"),
    ],
)
def test_characters_a_terminal_acts_on_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_nothing_shown_is_a_control_or_format_character(text: str) -> None:
    assert all(unicodedata.category(char) not in {"Cc", "Cf", "Zl", "Zp"} for char in visible(text))


@given(st.text(alphabet="\\nx01ab\n\x01\u202e"), st.text(alphabet="\\nx01ab\n\x01\u202e"))
def test_two_texts_are_never_shown_alike(one: str, other: str) -> None:
    assert (visible(one) == visible(other)) == (one == other)


@given(st.text(), st.integers(min_value=1, max_value=40))
def test_a_shortened_text_keeps_its_ends_and_its_width(text: str, width: int) -> None:
    short = shortened(text, width)
    assert len(short) <= max(width, 1)
    assert short == text or "…" in short


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0"),
        (12, "12"),
        (1234567.0, "1,234,567"),
        (0.123456, "0.1235"),
    ],
)
def test_a_measure_is_shown_in_four_digits_and_null_as_a_dash(value: float | None, shown: str) -> None:
    assert measure(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (125.2, "2 min 5 s"), (4320, "1 h 12 min")]
)
def test_a_duration_is_written_as_a_person_would(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_counts_have_thousands_and_bytes_are_decimal() -> None:
    assert (count(1234567), count(None)) == ("1,234,567", "–")
    assert [volume(size) for size in (1_234, 1_500_000, 342_000_000)] == ["1.2 kB", "1.5 MB", "342 MB"]
