"""Quality: a documented number from signals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.curriculum.quality import quality_scores, ramp_values
from cleanfeed.settings import QualitySettings, Ramp

NAN = math.nan
RISING = Ramp(signal="letter_share", bad=0.5, good=0.9, weight=3)
FALLING = Ramp(signal="digit_share", bad=0.2, good=0.0, weight=1)
SCORE = QualitySettings(score=(RISING, FALLING))


def columns(**values: list[float]) -> dict[str, np.ndarray]:
    return {name: np.array(items, dtype=float) for name, items in values.items()}


def test_a_ramp_rises_from_bad_to_good_and_is_clipped_outside():
    values = np.array([0.4, 0.5, 0.7, 0.9, 1.0, NAN])
    assert ramp_values(RISING, values) == pytest.approx([0, 0, 0.5, 1, 1, NAN], nan_ok=True)


def test_a_ramp_may_fall():
    assert ramp_values(FALLING, np.array([0.3, 0.2, 0.05, 0.0])) == pytest.approx([0, 0, 0.75, 1])


def test_the_score_is_the_mean_by_weight():
    found = quality_scores(SCORE, columns(letter_share=[0.7, 1.0], digit_share=[0.0, 0.2]), 2)
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx([(3 * 0.5 + 1) / 4, 3 / 4])


def test_a_null_signal_is_left_out_of_the_mean_and_a_document_without_any_is_zero():
    found = quality_scores(SCORE, columns(letter_share=[NAN, NAN], digit_share=[0.1, NAN]), 2)
    assert found.tolist() == pytest.approx([0.5, 0.0])


def test_a_missing_signal_is_an_error():
    with pytest.raises(KeyError, match="digit_share"):
        quality_scores(SCORE, columns(letter_share=[1.0]), 1)


@given(
    st.lists(st.one_of(st.just(NAN), st.floats(0, 1)), min_size=1, max_size=9),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(1e-3, 1e3),
)
def test_the_score_lies_between_zero_and_one(values: list[float], bad: float, good: float, weight: float):
    if bad == good:
        return
    ramp = Ramp(signal="letter_share", bad=bad, good=good, weight=weight)
    with np.errstate(over="ignore"):
        found = quality_scores(
            QualitySettings(score=(ramp, RISING)), columns(letter_share=values), len(values)
        )
    assert ((found >= 0) & (found <= 1)).all()
