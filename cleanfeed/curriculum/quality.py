"""Signals of documents and the ``score`` of a pipeline's quality go in, one number a document comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cleanfeed.settings import QualitySettings, Ramp

Columns = Mapping[str, NDArray[np.float64]]


def quality_scores(settings: QualitySettings, columns: Columns, n: int) -> NDArray[np.float32]:
    """Return the score of ``n`` documents.

    It is the weighted mean of the ramps, each clipped to [0, 1]; a ramp whose signal is null is left out of a
    document's mean, and a document without any is 0.

    Args:
        settings: The ramps of ``score``; ``column`` and ``reference`` are not looked at.
        columns: Signals by name, NaN where null.
        n: Number of documents.

    Raises:
        KeyError: A signal was not measured.
    """
    return _weighted_mean(settings.score, columns, n)


def ramp_values(ramp: Ramp, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one term of the score: 0 at ``bad``, 1 at ``good``, straight in between; NaN stays NaN."""
    slope: NDArray[np.float64] = (values - ramp.bad) / (ramp.good - ramp.bad)
    return np.clip(slope, 0.0, 1.0)


def _weighted_mean(ramps: Sequence[Ramp], columns: Columns, n: int) -> NDArray[np.float32]:
    total = np.zeros(n)
    weight = np.zeros(n)
    for ramp in ramps:
        term = ramp_values(ramp, columns[ramp.signal])
        known = ~np.isnan(term)
        total += np.where(known, term, 0.0) * ramp.weight
        weight += known * ramp.weight
    # Rounding the sums must not carry a mean over 1.
    mean = np.divide(total, weight, out=np.zeros(n), where=weight > 0)
    return np.minimum(mean, 1.0).astype(np.float32)
