"""Lengths and qualities of samples go in; the stage of each, and the order of the stages, come out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from cleanfeed.settings import CurriculumSettings

QUALITY_BITS = 20
"""The quality histogram keeps this many leading bits of a float32: steps of at most 1/2048 of the value."""


class Stage(Struct, frozen=True):
    """A step of the curriculum: one band of lengths and one tier of quality."""

    index: int
    name: str
    band: int
    tier: int


def stages_of(settings: CurriculumSettings) -> tuple[Stage, ...]:
    """Return the stages by difficulty, which is band index + tier index; the better tier first among equals."""
    pairs = [(band, tier) for band in range(len(settings.bands)) for tier in range(len(settings.tiers))]
    pairs.sort(key=lambda pair: (sum(pair), pair[1]))
    return tuple(
        Stage(index, f"{settings.bands[band].name}_{settings.tiers[tier].name}", band, tier)
        for index, (band, tier) in enumerate(pairs)
    )


def band_limits(settings: CurriculumSettings, *, tokens: bool) -> npt.NDArray[np.int64]:
    """Return the longest sample of each band, in tokens or in code points."""
    return np.array(
        [band.max_tokens if tokens else band.max_chars for band in settings.bands], dtype=np.int64
    )


def bands(lengths: npt.NDArray[np.int64], limits: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
    """Return the band of each sample: the first whose limit it does not exceed."""
    return np.searchsorted(limits, lengths, side="left").astype(np.int16)


def quality_bins(quality: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return bins of the qualities that rise with them, whatever their range."""
    bits = np.ascontiguousarray(quality + np.float32(0.0)).view(np.uint32).astype(np.int64)
    # Floats of equal sign sort like their bits; negative ones the other way round.
    ordered = np.where(bits & 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000)
    return ordered >> (32 - QUALITY_BITS)


class Tiers:
    """Decides the tier of a sample from its quality.

    Args:
        settings: The tiers of the pipeline.
        histogram: Samples in each quality bin over the whole corpus; needed where tiers are given by ``share``.
    """

    def __init__(self, settings: CurriculumSettings, histogram: Mapping[int, int]) -> None:
        tiers = settings.tiers[:-1]
        self.by_bin = any(tier.share is not None for tier in tiers)
        if self.by_bin:
            shares = np.cumsum([tier.share for tier in tiers])
            self.cuts: list[float] = _bins_at(histogram, shares)
        else:
            self.cuts = [
                float(np.float32(tier.min_quality)) for tier in tiers if tier.min_quality is not None
            ]

    def of(self, quality: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
        """Return the tier of each sample, 0 the best; quality equal to a limit belongs to the better tier."""
        # A comparison with NaN, an unknown quality, is false: such samples end in the last tier.
        values = quality.astype(np.float64)
        if self.by_bin:
            values = np.where(np.isnan(values), np.nan, quality_bins(quality).astype(np.float64))
        tier = np.zeros(len(quality), dtype=np.int16)
        for cut in self.cuts:
            tier += ~(values >= cut)
        return tier


def _bins_at(histogram: Mapping[int, int], shares: npt.NDArray[np.float64]) -> list[float]:
    """Return for each share the highest bin such that the samples from it upwards are at least that share."""
    places = sorted(histogram, reverse=True)
    reached = np.cumsum([histogram[place] for place in places])
    if not len(places):
        return [0.0] * len(shares)
    # Shares are decimal fractions, and their sums in binary may be a hair above what was meant.
    wanted = np.ceil(shares * int(reached[-1]) - 1e-9).astype(np.int64)
    return [float(places[int(place)]) for place in np.searchsorted(reached, wanted, side="left")]
