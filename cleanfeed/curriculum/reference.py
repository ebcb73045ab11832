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

from functools import lru_cache
from typing import Any

import numba as nb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cleanfeed.documents.plan import plan_inputs
from cleanfeed.documents.read import read_piece
from cleanfeed.errors import MisuseError, one_line
from cleanfeed.settings import DocumentSettings
from cleanfeed.signals.tables import CJK, LETTER, MARK, NUMBER, PUNCT, SPACELESS, SYMBOL, tables

_WORD = LETTER | MARK | NUMBER
_SIGN = PUNCT | SYMBOL
_ALONE = CJK | SPACELESS
_UNDERSCORE = 0x5F
_SEED = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = np.uint64(0x100000001B3)

_PLAIN = DocumentSettings()

_Table = NDArray[Any]


def count_features(texts: pa.LargeStringArray, buckets: int) -> NDArray[np.int64]:
    """Count the hashed words and pairs of words of some documents.

    Args:
        texts: The documents; a pair never spans two of them.
        buckets: Number of buckets.

    Returns:
        How often each bucket was met; the sum of two such arrays is the count of both parts.
    """
    data, offsets = _buffers(texts)
    counts = np.zeros(buckets, np.int64)
    _count(data, offsets, _lookup(), _scratch(offsets), counts)
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

    @classmethod
    def from_file(cls, path: str, corpus: NDArray[np.int64], settings: DocumentSettings = _PLAIN) -> LogRatio:
        """Count the reference at a path and compare it with the counts of the corpus.

        Raises:
            MisuseError: As :func:`reference_counts`.
        """
        return cls(reference_counts(path, corpus.size, settings), corpus)

    def mean_ratios(self, texts: pa.LargeStringArray) -> NDArray[np.float64]:
        """Return the mean log ratio (nats a feature) of each document; NaN where it has no word."""
        data, offsets = _buffers(texts)
        out = np.full(len(texts), np.nan)
        _score(data, offsets, _lookup(), _scratch(offsets), self.weights, out)
        return out

    def scores(self, texts: pa.LargeStringArray) -> NDArray[np.float32]:
        """Return the likeness of each document to the reference, in [0, 1]."""
        with np.errstate(over="ignore"):
            likeness = 1.0 / (1.0 + np.exp(-self.mean_ratios(texts)))
        return np.nan_to_num(likeness, nan=0.0).astype(np.float32)


@lru_cache(maxsize=1)
def reference_counts(path: str, buckets: int, settings: DocumentSettings) -> NDArray[np.int64]:
    """Count a reference: a file, folder or pattern of any kind the build reads. Read once a process.

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


def _buffers(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the UTF-8 bytes of the texts and the n + 1 places where they start and end."""
    if len(texts) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    _, places, data = texts.buffers()
    offsets = np.frombuffer(places, np.int64, len(texts) + 1, texts.offset * 8)
    return (np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)), offsets


def _scratch(offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    longest = int(np.diff(offsets).max()) if offsets.size > 1 else 0
    return np.empty(max(longest, 1), np.uint64)


@lru_cache(maxsize=1)
def _lookup() -> tuple[_Table, _Table, _Table, _Table]:
    """Return the class tables and the lower-case form of every character of the first plane."""
    found = tables()
    lower = np.arange(0x10000, dtype=np.int32)
    for point in range(0x10000):
        small = chr(point).lower()
        if len(small) == 1:
            lower[point] = ord(small)
    return found.blocks, found.classes, found.flags, lower


@nb.njit(nogil=True, cache=True)
def _mix(value: Any) -> Any:
    """Spread a hash over all bits (the finaliser of SplitMix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@nb.njit(nogil=True, cache=True)
def _decode(data: Any, at: Any) -> Any:
    """Return the code point at a byte of valid UTF-8 and the number of its bytes."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    if first < 0xE0:
        return ((first & 0x1F) << 6) | (np.int64(data[at + 1]) & 0x3F), 2
    if first < 0xF0:
        middle = (np.int64(data[at + 1]) & 0x3F) << 6
        return ((first & 0x0F) << 12) | middle | (np.int64(data[at + 2]) & 0x3F), 3
    upper = ((np.int64(data[at + 1]) & 0x3F) << 12) | ((np.int64(data[at + 2]) & 0x3F) << 6)
    return ((first & 0x07) << 18) | upper | (np.int64(data[at + 3]) & 0x3F), 4


@nb.njit(nogil=True, cache=True)
def _hash_words(data: Any, start: Any, stop: Any, lookup: Any, out: Any) -> Any:
    """Write the hash of each word of one document, return their number."""
    blocks, classes, flags, lower = lookup
    count = 0
    kind = 0  # of the word being read: 0 none, 1 letters and digits, 2 signs
    value = _SEED
    at = start
    while at < stop:
        point, size = _decode(data, at)
        at += size
        bits = flags[classes[blocks[point >> 8] * 256 + (point & 255)]]
        if (bits & _WORD) != 0 or point == _UNDERSCORE:
            now = 3 if (bits & _ALONE) != 0 else 1
        else:
            now = 2 if (bits & _SIGN) != 0 else 0
        if kind != 0 and now != kind:
            out[count] = _mix(value)
            count += 1
            kind = 0
        if now == 0:
            continue
        if point < 0x10000:
            point = np.int64(lower[point])
        if kind == 0:
            value = _SEED
        value = (value ^ np.uint64(point)) * _FACTOR
        kind = now
        if now == 3:
            out[count] = _mix(value)
            count += 1
            kind = 0
    if kind != 0:
        out[count] = _mix(value)
        count += 1
    return count


@nb.njit(nogil=True, cache=True)
def _pair(left: Any, right: Any) -> Any:
    return _mix(left * _FACTOR + right)


@nb.njit(nogil=True, cache=True)
def _count(data: Any, offsets: Any, lookup: Any, words: Any, counts: Any) -> None:
    buckets = np.uint64(counts.size)
    for doc in range(offsets.size - 1):
        found = _hash_words(data, offsets[doc], offsets[doc + 1], lookup, words)
        for i in range(found):
            counts[np.int64(words[i] % buckets)] += 1
            if i > 0:
                counts[np.int64(_pair(words[i - 1], words[i]) % buckets)] += 1


@nb.njit(nogil=True, cache=True)
def _score(data: Any, offsets: Any, lookup: Any, words: Any, weights: Any, out: Any) -> None:
    buckets = np.uint64(weights.size)
    for doc in range(offsets.size - 1):
        found = _hash_words(data, offsets[doc], offsets[doc + 1], lookup, words)
        total = 0.0
        for i in range(found):
            total += weights[np.int64(words[i] % buckets)]
            if i > 0:
                total += weights[np.int64(_pair(words[i - 1], words[i]) % buckets)]
        if found > 0:
            out[doc] = total / (2 * found - 1)
