"""Bands, tiers and stages: which sample comes when."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.curriculum.stages import Tiers, band_limits, bands, quality_bins, stages_of
from cleanfeed.settings import Band, CurriculumSettings, Tier


def settings(*tiers: Tier) -> CurriculumSettings:
    return CurriculumSettings(
        bands=(
            Band(name="short", max_tokens=4, max_chars=16),
            Band(name="medium", max_tokens=8, max_chars=32),
            Band(name="long", max_tokens=16, max_chars=64),
        ),
        tiers=(*tiers, Tier(name="rest")),
    )


GOOD_FAIR = (Tier(name="good", min_quality=0.7), Tier(name="fair", min_quality=0.4))


def test_stages_come_by_difficulty_the_better_tier_first():
    assert [stage.name for stage in stages_of(settings(*GOOD_FAIR))] == [
        "short_good",
        "medium_good",
        "short_fair",
        "long_good",
        "medium_fair",
        "short_rest",
        "long_fair",
        "medium_rest",
        "long_rest",
    ]


def test_a_sample_at_a_limit_is_in_the_shorter_band():
    limits = band_limits(settings(), tokens=True)
    assert bands(np.array([0, 4, 5, 8, 16]), limits).tolist() == [0, 0, 1, 1, 2]
    assert band_limits(settings(), tokens=False).tolist() == [16, 32, 64]


def test_a_quality_at_a_limit_is_in_the_better_tier_and_an_unknown_one_in_the_last():
    tiers = Tiers(settings(*GOOD_FAIR), {})
    quality = np.array([1.0, 0.7, 0.69, 0.4, 0.1, np.nan], dtype=np.float32)
    assert tiers.of(quality).tolist() == [0, 0, 1, 1, 2, 2]


def test_tiers_by_share_take_that_part_of_the_samples():
    quality = np.array([5, -3, 100, 7, 7.5, 0, 2, -50, 1, np.nan], dtype=np.float32)
    known = quality_bins(quality[~np.isnan(quality)])
    histogram = {int(place): int((known == place).sum()) for place in known}
    tiers = Tiers(settings(Tier(name="top", share=0.34), Tier(name="next", share=0.33)), histogram)
    # 9 rated samples: the best ceil(3.06) = 4, then up to ceil(6.03) = 7, then the rest and the unrated one.
    assert tiers.of(quality).tolist() == [0, 2, 0, 0, 0, 1, 1, 2, 1, 2]


def test_tiers_by_share_do_not_lose_or_gain_a_sample_to_rounding():
    quality = np.arange(10, dtype=np.float32)
    histogram = {int(place): 1 for place in quality_bins(quality)}
    tiers = Tiers(settings(Tier(name="top", share=0.1), Tier(name="next", share=0.2)), histogram)
    assert np.bincount(tiers.of(quality)).tolist() == [7, 2, 1][::-1]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2))
def test_quality_bins_rise_with_the_quality(values: list[float]):
    ordered = quality_bins(np.array(sorted(values), dtype=np.float32))
    assert (np.diff(ordered) >= 0).all()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_share_of_no_samples_is_no_error(share: float):
    tiers = Tiers(settings(Tier(name="top", share=share)), {})
    assert tiers.of(np.empty(0, dtype=np.float32)).tolist() == []
