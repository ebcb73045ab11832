"""Text and a sample of what text should be like go in, the likeness of each document to the sample comes out.

The measure of DSIR (Xie et al. 2023, "Data Selection for Language Models via Importance Resampling"): words
and pairs of words are hashed into buckets, the buckets are counted over the reference and over the corpus,
and a document is judged by the logarithm of the ratio of the two distributions at its own words and pairs.

What is ours:

* A word is a run of letters, marks, digits and underscores, in lower case; a run of punctuation or symbols
  is a word of its own. In scripts without spaces between words each character is a word, so that the pairs
  are character bigrams.
* Counts are smoothed by one a bucket: ``p = (count + 1) / (total + buckets)``.
* The mean over a document's words and pairs is taken, not the sum, so that length does not decide; it is
  mapped to [0, 1] by ``1 / (1 + exp(-mean))``: 0.5 where reference and corpus are equally likely to say it.
  A document without any word is 0. Differences are small numbers; tiers by ``share`` suit them better than
  ``min_quality``.

Counts of parts of a corpus add up to the counts of the whole: parts may be counted anywhere, in any order.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cleanfeed.documents.plan import plan_inputs
from cleanfeed.documents.read import read_piece
from cleanfeed.errors import MisuseError, one_line
from cleanfeed.kernel import Kernel, inner
from cleanfeed.settings import DocumentSettings
from cleanfeed.signals.buffers import text_buffers
from cleanfeed.signals.word_hashes import END, next_word, spread, word_table

_FACTOR = np.uint64(0x100000001B3)


def count_features(texts: pa.LargeStringArray, buckets: int) -> NDArray[np.int64]:
    """Count the hashed words and pairs of words of some documents.

    Args:
        texts: The documents; a pair never spans two of them.
        buckets: Number of buckets.

    Returns:
        How often each bucket was met; the sum of two such arrays is the count of both parts.
    """
    data, offsets = text_buffers(texts)
    counts = np.zeros(buckets, np.int64)
    _count(data, offsets, word_table(), counts)
    return counts


class LogRatio:
    """The smoothed log ratio of two distributions over buckets, ready to judge documents."""

    def __init__(self, reference: NDArray[np.int64], corpus: NDArray[np.int64]) -> None:
        """Take the counts of both sides.

        Raises:
            ValueError: They have different numbers of buckets.
        """
        if reference.shape != corpus.shape:
            raise ValueError(f"counts over {reference.size} and {corpus.size} buckets cannot be compared")
        self.weights: NDArray[np.float64] = _log_share(reference) - _log_share(corpus)

    def mean_ratios(self, texts: pa.LargeStringArray) -> NDArray[np.float64]:
        """Return the mean log ratio (nats a feature) of each document; NaN where it has no word."""
        data, offsets = text_buffers(texts)
        out = np.full(len(texts), np.nan)
        _score(data, offsets, word_table(), self.weights, out)
        return out

    def scores(self, texts: pa.LargeStringArray) -> NDArray[np.float32]:
        """Return the likeness of each document to the reference, in [0, 1]."""
        with np.errstate(over="ignore"):
            likeness = 1.0 / (1.0 + np.exp(-self.mean_ratios(texts)))
        return np.nan_to_num(likeness, nan=0.0).astype(np.float32)


def reference_counts(path: str, buckets: int, settings: DocumentSettings) -> NDArray[np.int64]:
    """Count a reference: a file, folder or pattern of any kind the build reads.

    Raises:
        MisuseError: There is nothing to read, a file is damaged, or no word is in it.
    """
    total = np.zeros(buckets, np.int64)
    for piece in plan_inputs([path]).pieces:
        batches, result = read_piece(piece, settings)
        for batch in batches:
            total += count_features(batch.table.column("text"), buckets)
        if result.damage is not None:
            raise MisuseError(
                one_line("cannot use the reference", path, result.damage.reason, "a whole file")
            )
    if not total.any():
        todo = f"Its documents are taken from the field '{settings.text_field}'."
        raise MisuseError(one_line("cannot use the reference", path, "no words", "sample text", todo))
    return total


def _log_share(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = np.log((counts + 1.0) / (counts.sum() + counts.size))
    return shares


@partial(Kernel, parts=["signals"])
def _count(data: Any, offsets: Any, table: Any, counts: Any) -> None:  # pragma: no cover - compiled
    buckets = np.uint64(counts.size)
    for doc in range(offsets.size - 1):
        before, found = np.uint64(0), 0
        word, kind, at = next_word(data, offsets[doc], offsets[doc + 1], table)
        while kind != END:
            counts[np.int64(word % buckets)] += 1
            if found > 0:
                counts[np.int64(_pair(before, word) % buckets)] += 1
            before, found = word, found + 1
            word, kind, at = next_word(data, at, offsets[doc + 1], table)


@partial(Kernel, parts=["signals"])
def _score(
    data: Any, offsets: Any, table: Any, weights: Any, out: Any
) -> None:  # pragma: no cover - compiled
    buckets = np.uint64(weights.size)
    for doc in range(offsets.size - 1):
        before, found, total = np.uint64(0), 0, 0.0
        word, kind, at = next_word(data, offsets[doc], offsets[doc + 1], table)
        while kind != END:
            total += weights[np.int64(word % buckets)]
            if found > 0:
                total += weights[np.int64(_pair(before, word) % buckets)]
            before, found = word, found + 1
            word, kind, at = next_word(data, at, offsets[doc + 1], table)
        if found > 0:
            out[doc] = total / (2 * found - 1)


@inner
def _pair(left: Any, right: Any) -> Any:  # pragma: no cover - compiled
    return spread(left * _FACTOR + right)


def warm_up_reference() -> None:
    """Compile the kernels, or load them from the cache on disk."""
    text, one = pa.array([""], pa.large_string()), np.zeros(1, dtype=np.int64)
    count_features(text, 1)
    LogRatio(one, one).scores(text)
