"""Texts in an Arrow array go in; a signature of each comes out, and two signatures agree as often as two texts do.

What is compared is the set of a text's n-grams of words (:mod:`cleanfeed.signals.word_hashes`; signs do not count).
The share of equal places in two signatures estimates the Jaccard similarity of the two sets. A text with fewer words
than an n-gram has one n-gram of all its words; a text without words has no signature.

Signatures are made as in Dahlgaard, Knudsen and Thorup 2017, "Fast Similarity Sketching": in the first round each
n-gram falls into one place, by one hash, and each place keeps the least. Long texts fill every place so, and an n-gram
costs one hash whatever the number of places. Where places stay empty further rounds follow, each with a hash of its
own, over the distinct n-grams, which are few then: t places take about t ln t steps, and the estimate is as good as
with t hashes for each n-gram. Round t + i puts every n-gram in place i, so there is an end.

What is ours: only the first ``16 t`` distinct n-grams are kept for further rounds, so that memory does not grow with
the text. That more are there and a place is empty still has a chance of ``t exp(-16)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanfeed.kernel import Kernel, inner
from cleanfeed.signals.buffers import text_buffers
from cleanfeed.signals.word_hashes import END, SIGNS, next_word, spread, word_table

UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_KEPT = 16
"""Distinct n-grams kept for further rounds, for each place of a signature."""
_BASE = np.uint64(0xD1342543DE82EF95)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)


def signatures(texts: pa.LargeStringArray, *, ngram: int, hashes: int) -> tuple[UInt32, Bools]:
    """Return the signature of each text and whether it has one.

    Args:
        texts: Valid UTF-8 without nulls; may be a slice of a larger array.
        ngram: Words in an n-gram.
        hashes: Places in a signature.

    Returns:
        Signatures of shape [n, hashes], zero where there is none, and for each text whether it has a word.
    """
    if texts.null_count:
        raise ValueError("texts must not hold nulls")
    if ngram < 1 or not 1 <= hashes <= 1 << 16:
        raise ValueError(f"there are no signatures of {hashes} places over {ngram}-grams")
    data, offsets = text_buffers(texts)
    out = np.zeros((len(texts), hashes), np.uint32)
    has = np.zeros(len(texts), np.bool_)
    kept = _KEPT * hashes
    index = np.zeros(1 << (2 * kept - 1).bit_length(), np.int32)
    ring, grams, keys = (np.empty(size, np.uint64) for size in (ngram, kept, hashes))
    _sign(data, offsets, word_table(), ngram, ring, grams, keys, index, out, has)
    return out, has


def band_keys(signatures: UInt32, bands: int) -> UInt64:
    """Return one key for each band of each signature: equal where all places of the band are.

    Args:
        signatures: Shape [n, hashes], with hashes a multiple of the bands.
        bands: Number of bands.

    Returns:
        Keys of shape [n, bands]; keys of different bands are unlike even where their places are equal.
    """
    if bands < 1 or signatures.shape[1] % bands:
        raise ValueError(f"{signatures.shape[1]} places cannot be cut into {bands} bands")
    keys = np.empty((len(signatures), bands), np.uint64)
    if len(signatures):
        _fold(np.ascontiguousarray(signatures), keys)
    return keys


def equal_places(left: UInt32, right: UInt32) -> npt.NDArray[np.int32]:
    """Return in how many places each pair of signatures agrees; both have shape [n, hashes]."""
    counts: npt.NDArray[np.int32] = (left == right).sum(axis=1, dtype=np.int32)
    return counts


def signature_array(signatures: UInt32, has: Bools) -> pa.FixedSizeListArray:
    """Return signatures as an Arrow column, null where there is none."""
    values = pa.array(np.ascontiguousarray(signatures).reshape(-1), pa.uint32())
    return pa.FixedSizeListArray.from_arrays(values, signatures.shape[1], mask=pa.array(~has))


def warm_up_minhash() -> None:
    """Compile the kernels, or load them from the cache on disk."""
    found, _ = signatures(pa.array(["one word"], pa.large_string()), ngram=1, hashes=2)
    band_keys(found, 1)


@inner
def _put(keys: Any, place: Any, key: Any) -> Any:  # pragma: no cover - compiled
    """Keep the least key of a place; return 1 if the place was empty."""
    before = keys[np.int64(place)]
    # Without a branch: which of the two is less cannot be foretold.
    keys[np.int64(place)] = min(key, before)
    return np.int64(before == _EMPTY)


@inner
def _put_hash(keys: Any, value: Any, round_: Any) -> Any:  # pragma: no cover - compiled
    """Let a hash fall into the place its upper half says, with its lower half as key, after all earlier rounds."""
    place = ((value >> _HALF) * np.uint64(len(keys))) >> _HALF
    return _put(keys, place, round_ << _HALF | (value & _LOW))


@inner
def _keep(gram: Any, kept: Any, size: Any, index: Any) -> Any:  # pragma: no cover - compiled
    """Add an n-gram to those kept, unless it is there; return their number. ``index`` finds them by hash."""
    mask = np.uint64(len(index) - 1)
    at = gram & mask
    while True:
        found = np.int64(index[np.int64(at)])
        if found == 0:
            kept[size] = gram
            index[np.int64(at)] = size + 1
            return size + 1
        if kept[found - 1] == gram:
            return size
        at = (at + _ONE) & mask


@inner
def _forget(kept: Any, size: Any, index: Any) -> None:  # pragma: no cover - compiled
    """Clear the index in as many steps as n-grams were kept."""
    mask = np.uint64(len(index) - 1)
    for k in range(size):
        at = kept[k] & mask
        # Whatever follows without a gap was kept as well.
        while index[np.int64(at)] != 0:
            index[np.int64(at)] = 0
            at = (at + _ONE) & mask


@inner
def _fill(kept: Any, size: Any, keys: Any, filled: Any) -> None:  # pragma: no cover - compiled
    """Go on with rounds over the kept n-grams until no place is empty."""
    places = len(keys)
    round_ = 0
    while filled < places:
        round_ += 1
        last = np.uint64(round_)
        for k in range(size):
            value = spread(kept[k] + last * _STEP)
            if round_ < places:
                filled += _put_hash(keys, value, last)
            else:
                filled += _put(keys, round_ - places, last << _HALF | (value & _LOW))


@Kernel
def _sign(
    data: Any,
    offsets: Any,
    table: Any,
    ngram: Any,
    ring: Any,
    kept: Any,
    keys: Any,
    index: Any,
    out: Any,
    has: Any,
) -> None:  # pragma: no cover - compiled
    gone = _ONE
    for _ in range(ngram):
        gone *= _BASE
    for doc in range(len(offsets) - 1):
        keys[:] = _EMPTY
        ring[:ngram] = _ZERO
        rolled = _ZERO
        words = size = filled = turn = np.int64(0)
        at, stop = offsets[doc], offsets[doc + 1]
        while True:
            word, kind, at = next_word(data, at, stop, table)
            if kind == SIGNS:
                continue
            if kind != END:
                # A polynomial over the last n words: the newest comes in, the oldest goes.
                rolled = rolled * _BASE + word - ring[turn] * gone
                ring[turn] = word
                turn = turn + 1 if turn + 1 < ngram else np.int64(0)
                words += 1
                if words < ngram:
                    continue
            elif words == 0 or words >= ngram:
                break
            gram = spread(rolled)
            filled += _put_hash(keys, gram, _ZERO)
            if size < len(kept):
                size = _keep(gram, kept, size, index)
            if kind == END:
                break
        if words == 0:
            continue
        has[doc] = True
        _fill(kept, size, keys, filled)
        _forget(kept, size, index)
        for k in range(len(keys)):
            out[doc, k] = keys[k] & _LOW


@Kernel
def _fold(signatures: Any, keys: Any) -> None:  # pragma: no cover - compiled
    rows = signatures.shape[1] // keys.shape[1]
    for doc in range(len(signatures)):
        for band in range(keys.shape[1]):
            key = spread(np.uint64(band + 1) * _STEP)
            for k in range(band * rows, band * rows + rows):
                key = spread(key ^ np.uint64(signatures[doc, k]))
            keys[doc, band] = key
