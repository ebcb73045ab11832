"""Ids of many documents go in; counts over the corpus, and measures of a document against them, come out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel import Kernel

Ids = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

RARE_SHARE = 1e-4
"""A token is rare when it occurs in at most this share of the corpus' documents, and in any case in at most one."""

FEWEST_DOCUMENTS = 1000
"""With fewer documents in the corpus nearly every token is rare, and the share says nothing."""


@Kernel
def _count(ids: Ids, offsets: Int64, counts: Int64, seen: Int64) -> None:
    for number in range(len(offsets) - 1):
        for place in range(offsets[number], offsets[number + 1]):
            token = ids[place]
            if seen[token] != number:
                seen[token] = number
                counts[token] += 1


@Kernel
def _rare(ids: Ids, offsets: Int64, counts: Int64, most: int, out: npt.NDArray[np.float64]) -> None:
    for number in range(len(out)):
        start, stop = offsets[number], offsets[number + 1]
        rare = 0
        for place in range(start, stop):
            rare += counts[ids[place]] <= most
        out[number] = rare / (stop - start) if stop > start else np.nan


def count_documents(ids: Ids, offsets: Int64, counts: Int64) -> None:
    """Add to ``counts`` (shape [vocabulary]) the number of these documents in which each token occurs.

    Args:
        ids: Documents in a row.
        offsets: Shape [documents + 1].
        counts: Changed in place.
    """
    _count(ids, offsets, counts, np.full(len(counts), -1, dtype=np.int64))


def rare_token_share(ids: Ids, offsets: Int64, counts: Int64, documents: int) -> npt.NDArray[np.float64]:
    """Return for each document the share of its tokens that are rare in the corpus; NaN where it has no tokens.

    A token is rare when at most ``max(1, RARE_SHARE * documents)`` documents of the corpus hold it: counted in
    documents, so that one document repeating a glitch token does not make it common.

    Args:
        ids: Documents in a row.
        offsets: Shape [documents + 1].
        counts: In how many documents of the corpus each token occurs.
        documents: Documents in the corpus; all NaN below ``FEWEST_DOCUMENTS``.
    """
    out = np.full(len(offsets) - 1, np.nan)
    if documents >= FEWEST_DOCUMENTS:
        _rare(ids, offsets, counts, max(1, int(RARE_SHARE * documents)), out)
    return out
