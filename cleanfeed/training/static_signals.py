"""The rows of suspect batches go in; how strange their documents are among those of the curriculum comes out.

A build measures every document. Where a document is stranger than a share p of all (see `Corpus.strangeness`), a batch
of n has one like it with probability 1 − pⁿ by chance. The evidence against a batch is the normal
quantile of pⁿ for its strangest document: in scales, like a loss, and never so many that it counts as an outlier.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from cleanfeed.errors import CleanfeedError

MOST_ROWS = 4096
"""Rows whose documents are looked up at most."""
log = logging.getLogger("cleanfeed.training")


@dataclass(frozen=True, slots=True)
class Strangeness:
    """What the signals of the build say of suspect batches; empty where there are none."""

    slots: Mapping[int, float] = field(default_factory=dict)
    """Evidence against a batch, in scales."""
    rows: Mapping[int, float] = field(default_factory=dict)
    """The same for one sample among samples."""


def strangeness(curriculum: Any, batches: Mapping[int, npt.NDArray[np.int64]]) -> Strangeness:
    """Return how strange the documents of some batches are.

    Args:
        curriculum: The `Curriculum`.
        batches: Rows by slot, the most suspect first; those beyond `MOST_ROWS` rows are left out.
    """
    chosen: dict[int, list[int]] = {}
    count = 0
    for slot, rows in batches.items():
        count += len(rows)
        if count > MOST_ROWS and chosen:
            break
        chosen[slot] = rows.tolist()
    every = sorted({row for rows in chosen.values() for row in rows})[:MOST_ROWS]
    if not every:
        return Strangeness()
    from cleanfeed.quarantine.corpus import Corpus

    try:
        table = curriculum.columns(np.array(every, dtype=np.int64), ["source", "source_row"])
        keys = list(zip(table["source"].to_pylist(), table["source_row"].to_pylist(), strict=True))
        found, reference = Corpus(str(curriculum.catalog.path)).strangeness(keys)
    except (CleanfeedError, OSError, duckdb.Error) as error:
        log.warning("the signals of the build say nothing of the suspects: %s", error)
        return Strangeness()
    if not len(reference):
        return Strangeness()
    share = {row: _share(found[key], reference) for row, key in zip(every, keys, strict=True) if key in found}
    slots = {
        slot: _scales(max(known) ** len(known))
        for slot, rows in chosen.items()
        if (known := [share[row] for row in rows if row in share])
    }
    return Strangeness(slots, {row: _scales(p) for row, p in share.items()})


def _share(distance: float, reference: npt.NDArray[np.float64]) -> float:
    """Return the share of the documents that are less strange; never 0 or 1, which nobody can know."""
    size = len(reference)
    return min(max(int(np.searchsorted(reference, distance)) / size, 0.5 / size), 1.0 - 0.5 / size)


def _scales(p: float) -> float:
    return NormalDist().inv_cdf(max(p, 1e-9))
