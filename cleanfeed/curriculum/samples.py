"""Kept documents go in; samples, each a whole document or one part of it, come out as ranges of their flat values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from cleanfeed.curriculum.codepoints import after_code_points, code_points, last_cut
from cleanfeed.curriculum.tokenizer import INSIDE_WORD, STARTS_LINE, STARTS_WORD
from cleanfeed.kernel import Kernel, inner

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int32]

SEARCH_PART = 4
"""A cut may move back by this fraction (a quarter) of an even part to reach the start of a line or a word."""


class SampleRanges(Struct, frozen=True):
    """Samples of a batch of documents, in document order, parts ascending; all arrays have one entry a sample."""

    document: Int64
    """Which document of the batch."""
    part: npt.NDArray[np.int32]
    start: Int64
    """First element in the flat values: an int32 id with a tokenizer, else a byte."""
    length: Int64
    """Elements."""
    chars: Int64
    """Code points."""


def split_text(data: Bytes, starts: Int64, stops: Int64, chars: Int64, limit: int) -> SampleRanges:
    """Return the samples of a batch of texts; one of more than ``limit`` code points is cut into parts.

    The parts of a document are about equally long, so that none is a useless remainder. A cut lies where a line
    starts, else where a space is, else where a character starts, within a quarter before the even place.

    Args:
        data: UTF-8 of all documents.
        starts: First byte of each document.
        stops: The byte after its last.
        chars: Code points of each document.
        limit: Most code points in a sample, at least 1.
    """
    if not np.any(chars > limit):
        return _whole(starts, stops, chars)
    rows = _rows(chars, limit)
    return _ranges(rows[: _cut_text(data, starts, stops, chars, limit, rows)])


def split_ids(
    ids: Ids, kinds: Bytes, token_chars: Ids, starts: Int64, stops: Int64, chars: Int64, limit: int
) -> SampleRanges:
    """Return the samples of a batch of tokenised documents; one of more than ``limit`` ids is cut into parts.

    They are cut as :func:`split_text` cuts, before an id that starts a line, else a word, else a character.

    Args:
        ids: Those of all documents, end-of-text included.
        kinds: What each id of the vocabulary starts: :attr:`TextEncoder.token_starts`.
        token_chars: Code points that begin in each id of the vocabulary.
        starts: First id of each document.
        stops: The id after its last.
        chars: Code points of each document.
        limit: Most ids in a sample, at least 1.
    """
    if not np.any(stops - starts > limit):
        return _whole(starts, stops, chars)
    rows = _rows(stops - starts, limit)
    return _ranges(rows[: _cut_ids(ids, kinds, token_chars, starts, stops, chars, limit, rows)])


def warm_up_samples() -> None:
    """Compile the kernels, or load them from the cache on disk."""
    no, two = np.zeros(1, np.int64), np.full(1, 2)
    split_text(np.zeros(2, np.uint8), no, two, two, 1)
    split_ids(np.zeros(2, np.int32), np.zeros(1, np.uint8), np.ones(1, np.int32), no, two, two, 1)


def _whole(starts: Int64, stops: Int64, chars: Int64) -> SampleRanges:
    """Return the samples of documents of which none is cut."""
    count = len(starts)
    return SampleRanges(
        np.arange(count, dtype=np.int64), np.zeros(count, np.int32), starts, stops - starts, chars
    )


def _rows(units: Int64, limit: int) -> Int64:
    """Return room for what :class:`SampleRanges` holds of all samples of documents of so many units."""
    # A part is longer than three quarters of half the limit.
    return np.empty((int((2 + 8 * units // (3 * limit)).sum()), 5), np.int64)


def _ranges(rows: Int64) -> SampleRanges:
    document, part, start, length, chars = rows.T
    return SampleRanges(document, part.astype(np.int32), start, length, chars)


@inner
def _steps(units: Any, limit: Any) -> Any:  # pragma: no cover - compiled
    """Return how many units the next part of a document has at least, and how many more at most."""
    # Cutting back makes later parts longer: the number of parts is worked out anew for what remains.
    even = -(-units // -(-units // limit))
    least = max(1, even - even // SEARCH_PART)
    return least, even - least


@inner
def _note(
    rows: Any, count: Any, document: Any, part: Any, start: Any, stop: Any, chars: Any
) -> Any:  # pragma: no cover - compiled
    """Write a sample into its row; return how many there are."""
    row = rows[count]
    row[0], row[1], row[2], row[3], row[4] = document, part, start, stop - start, chars
    return count + 1


@Kernel
def _cut_text(
    data: Any, starts: Any, stops: Any, chars: Any, limit: Any, rows: Any
) -> int:  # pragma: no cover - compiled
    """Write document, part, start, length and characters of each sample; return how many there are."""
    count = 0
    for document in range(len(starts)):
        start, stop, left, part = starts[document], stops[document], chars[document], 0
        ascii_only = stop - start == left
        while left > limit:
            least, more = _steps(left, limit)
            if ascii_only:
                cut = last_cut(data, start + least, start + least + more)
                size = cut - start
            else:
                first = after_code_points(data, start, stop, least)
                cut = last_cut(data, first, after_code_points(data, first, stop, more))
                size = least + code_points(data, first, cut)
            count = _note(rows, count, document, part, start, cut, size)
            part, start, left = part + 1, cut, left - size
        count = _note(rows, count, document, part, start, stop, left)
    return count


@Kernel
def _cut_ids(
    ids: Any, kinds: Any, token_chars: Any, starts: Any, stops: Any, chars: Any, limit: Any, rows: Any
) -> int:  # pragma: no cover - compiled
    """Write document, part, start, length and characters of each sample; return how many there are."""
    count = 0
    for document in range(len(starts)):
        start, stop, left, part = starts[document], stops[document], chars[document], 0
        while stop - start > limit:
            least, more = _steps(stop - start, limit)
            cut = _last_start(ids, kinds, start + least, start + least + more)
            size = 0
            for place in range(start, cut):
                size += token_chars[ids[place]]
            # The last part takes what is left, so that the parts of a document always add up to it.
            size = min(size, left)
            count = _note(rows, count, document, part, start, cut, size)
            part, start, left = part + 1, cut, left - size
        count = _note(rows, count, document, part, start, stop, left)
    return count


@inner
def _last_start(ids: Any, kinds: Any, low: Any, high: Any) -> Any:  # pragma: no cover - compiled
    """Return the last place in ``[low, high]`` where an id starts a line, else a word, else a character."""
    word = character = np.int64(-1)
    for place in range(high, low - 1, -1):
        kind = kinds[ids[place]]
        if kind == STARTS_LINE:
            return place
        if word < 0 and kind == STARTS_WORD:
            word = place
        elif character < 0 and kind == INSIDE_WORD:
            character = place
    if word >= 0:
        return word
    return character if character >= 0 else high


def first_chars(ranges: SampleRanges) -> Int64:
    """Return how many code points of its document lie before each sample."""
    before = np.cumsum(ranges.chars) - ranges.chars
    opens = np.maximum.accumulate(np.where(ranges.part == 0, np.arange(len(before)), 0))
    return np.asarray(before - before[opens])
