"""Periods and compressibility, against slow and simple searches."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanfeed.signals import periods
from cleanfeed.signals.periods import PERIOD_COUNTS, make_period_scratch, period_runs, scan_periods

PROSE = (
    "The lamp had been lit before anyone came down to the kitchen, and the cat had taken the warm chair by the stove. "
    "Nobody spoke of the letter; it lay where the postman had put it, under the clock, and the clock had stopped."
)


def measured(text, scratch=None):
    data = np.frombuffer(text.encode(), np.uint8)
    scratch = make_period_scratch(len(data)) if scratch is None else scratch
    out = np.empty((1, len(PERIOD_COUNTS)))
    found = scan_periods(data, np.array([0, len(data)]), np.array([len(text)]), scratch, out)
    return dict(zip(PERIOD_COUNTS, out[0].tolist(), strict=True)), period_runs(scratch, found)


def slow_parse(text):
    """The same greedy parse with a dictionary for a table."""
    data, wide = text.encode(), len(text.encode()) / max(len(text), 1)
    table, parsed, copied, copies = {}, 0, 0, 0
    for i in range(len(data) - 7):
        word = data[i : i + 8]
        slot = (int.from_bytes(word, "little") * 0x9E3779B97F4A7C15 % 2**64) >> (64 - periods.TABLE_BITS)
        seen, table[slot] = table.get(slot), i
        if i < parsed or seen is None or data[seen : seen + 8] != word:
            continue
        stop = i + 8
        while stop < len(data) and data[stop] == data[stop - (i - seen)]:
            stop += 1
        if stop - i >= int(8 * wide):
            copied, copies, parsed = copied + stop - i, copies + 1, stop
    return copied, copies


def all_runs(data):
    """Every stretch of any period, as a set of places, and the most repeats."""
    places, most = set(), 0
    for period in range(1, len(data) // 3 + 1):
        start = period
        for i in range(period, len(data) + 1):
            if i < len(data) and data[i] == data[i - period]:
                continue
            span = i - start + period
            if span >= max(3 * period, periods.MIN_RUN):
                places |= set(range(i - span, i))
                most = max(most, span // period)
            start = i + 1
    return places, most


@pytest.mark.parametrize(
    ("text", "period", "repeats"),
    [
        ("abc" * 5000, 3, 5000),
        ("=-" * 4000, 2, 4000),
        ("ha" * 3000, 2, 3000),
        ("Accept all cookies to continue. " * 60, 32, 60),
        ("a" * 1_000_000, 1, 1_000_000),
        ("😀" * 250_000, 1, 250_000),
        ("今天天气很好。" * 50, 7, 50),
        ("นี่คือข้อความ" * 20, 13, 20),
    ],
)
def test_a_unit_that_follows_itself_is_one_run(text, period, repeats):
    counts, runs = measured(text)
    assert runs == [(0, len(text.encode()))]
    assert counts["periodic_chars"] == counts["periodic_longest"] == len(text)
    assert (counts["periodic_period"], counts["periodic_repeats"]) == (period, repeats)
    assert counts["copied_bytes"] > len(text.encode()) - 8 * period - 32
    assert counts["copies"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "abcdefg",
        PROSE,
        "Chapter One\n" + "-" * 80 + "\n" + PROSE + "\n" + "=" * 80,
        "\n".join(f"{name} {'.' * 60} {page}" for name, page in (("One", 3), ("Two", 19))),
        "─" * 100 + PROSE,
        PROSE + " " * 5000 + PROSE,
        PROSE + "\n\t\n\t\n\t" * 50 + PROSE,
        "no, no, no, no, no! " + PROSE,
    ],
)
def test_prose_rulers_and_white_space_are_not_periodic(text):
    counts, runs = measured(text)
    assert runs == []
    assert [counts[name] for name in PERIOD_COUNTS[2:]] == [0, 0, 0, 0]


def test_a_ruler_longer_than_a_line_counts():
    assert measured(PROSE + "-" * 129)[0]["periodic_chars"] == 129


def test_a_run_inside_text_is_found_to_the_character():
    text = PROSE + "привет " * 12 + PROSE
    counts, runs = measured(text)
    start = len(PROSE.encode())
    assert runs == [(start, start + len("привет ".encode()) * 12)]
    assert counts["periodic_chars"] == 7 * 12


def test_a_copied_run_counts_again():
    text = PROSE + "tra la" * 40 + PROSE + "tra la" * 40
    assert measured(text)[0]["periodic_chars"] == pytest.approx(480, abs=32)


def test_runs_of_runs_count_each_character_once():
    unit = "x" * 200 + PROSE
    counts, runs = measured(unit * 4)
    assert runs == [(0, len(unit) * 4)]
    assert counts["periodic_chars"] == counts["periodic_longest"] == len(unit) * 4
    assert counts["periodic_repeats"] == 200


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(["ab", "abc", "xyxxy", "0123456789", "é", "今", " ", "-", "\n"]), max_size=60)
)
def test_parse_and_runs_agree_with_slow_ones(parts):
    text = "".join(parts)
    counts, runs = measured(text)
    assert (counts["copied_bytes"], counts["copies"]) == slow_parse(text)
    places, most = all_runs(text.encode())
    found = {place for start, stop in runs for place in range(start, stop)}
    assert found <= places
    assert counts["periodic_repeats"] <= most
    assert all(a < b for a, b in runs)
    assert all(runs[k][1] < runs[k + 1][0] for k in range(len(runs) - 1))
    assert counts["periodic_longest"] <= counts["periodic_chars"] <= len(text)


@settings(max_examples=300)
@given(st.randoms(use_true_random=False), st.integers(1, 60), st.integers(3, 9), st.booleans())
def test_every_planted_run_is_found(rng, period, repeats, twice):
    letters = "abcdefghijklmnopqrstuvwxyzабвгд"
    unit = "".join(rng.choice(letters) for _ in range(period))
    run = unit * max(repeats, -(-48 // period))
    around = ["".join(rng.choice(letters) for _ in range(50)) for _ in range(3)]
    text = around[0] + run + around[1] + (run + around[2] if twice else "")
    counts, runs = measured(text)
    start = len(around[0].encode())
    assert any(a <= start and start + len(run.encode()) <= b for a, b in runs)
    assert counts["periodic_chars"] >= len(run)


@settings(max_examples=50)
@given(
    st.lists(st.text(alphabet="ab \n今", max_size=80), max_size=6), st.sampled_from([0, 2**31 - 2**20 - 50])
)
def test_scratch_of_earlier_documents_changes_nothing(texts, base):
    shared = make_period_scratch(400)
    shared[1 << periods.TABLE_BITS] = base
    assert [measured(text, shared) for text in texts] == [measured(text) for text in texts]


def test_work_stays_linear_on_words_made_against_the_search():
    words = ["a"]
    for letter in "bcdefghijklmnopq":
        words.append(words[-1] + letter + words[-1])
    counts, _ = measured(words[-1] * 2)
    assert counts["periodic_repeats"] == 0
    fibonacci = ["b", "a"]
    while len(fibonacci[-1]) < 200_000:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    assert 0 < measured(fibonacci[-1])[0]["periodic_chars"] <= len(fibonacci[-1])


def test_random_text_copies_nothing():
    rng = random.Random(0)
    text = "".join(chr(rng.randrange(33, 127)) for _ in range(20_000))
    assert measured(text)[0]["copied_bytes"] == 0
