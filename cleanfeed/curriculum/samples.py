"""Kept documents go in; samples, each a whole document or one part of it, come out as ranges of their flat values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cleanfeed.curriculum.codepoints import after_code_points, code_points
from cleanfeed.curriculum.tokenizer import INSIDE_CHARACTER, INSIDE_WORD, STARTS_LINE, STARTS_WORD

Int64 = npt.NDArray[np.int64]
Kinds = npt.NDArray[np.uint8]

SEARCH_PART = 4
"""A cut may move back by this fraction (a quarter) of an even part to reach the start of a line or a word."""


@dataclass(frozen=True, slots=True)
class SampleRanges:
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


class Cutter(Protocol):
    """Flat values that can be cut: ids or bytes. A *unit* is what the limit of a sample counts."""

    def reach(self, start: int, stop: int, units: int) -> int:
        """Return the element after ``units`` units from ``start``, at most ``stop``."""

    def units(self, start: int, stop: int) -> int:
        """Return how many units the elements ``start`` to ``stop - 1`` are."""

    def kinds(self, low: int, high: int) -> Kinds:
        """Return for the elements ``low`` to ``high - 1`` what each starts: a character, a word, a line."""

    def chars(self, start: int, stop: int) -> int:
        """Return how many code points begin in the elements ``start`` to ``stop - 1``."""


@dataclass(frozen=True, slots=True)
class TokenCutter:
    """Ids of documents in a row; a unit is one id."""

    ids: npt.NDArray[np.int32]
    starts: Kinds
    """What each id of the vocabulary starts: :attr:`TextEncoder.token_starts`."""
    token_chars: npt.NDArray[np.int32]
    """Code points that begin in each id of the vocabulary."""

    def reach(self, start: int, stop: int, units: int) -> int:
        """Return ``start`` + ``units``, at most ``stop``."""
        return min(start + units, stop)

    def units(self, start: int, stop: int) -> int:
        """Return ``stop`` - ``start``."""
        return stop - start

    def kinds(self, low: int, high: int) -> Kinds:
        """Return what each id starts."""
        return self.starts[self.ids[low:high]]

    def chars(self, start: int, stop: int) -> int:
        """Return the code points that begin in these ids."""
        return int(self.token_chars[self.ids[start:stop]].sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class ByteCutter:
    """UTF-8 of documents in a row; a unit is one code point."""

    data: npt.NDArray[np.uint8]

    def reach(self, start: int, stop: int, units: int) -> int:
        """Return the byte after ``units`` code points."""
        return int(after_code_points(self.data, start, stop, units))

    def units(self, start: int, stop: int) -> int:
        """Return the code points of these bytes."""
        return self.chars(start, stop)

    def kinds(self, low: int, high: int) -> Kinds:
        """Return what each byte starts; a line begins after U+000A, a word with a space."""
        window = self.data[low:high]
        kinds = np.full(len(window), INSIDE_WORD, dtype=np.uint8)
        kinds[window == 0x20] = STARTS_WORD
        kinds[self.data[low - 1 : high - 1] == 0x0A] = STARTS_LINE
        kinds[(window & 0xC0) == 0x80] = INSIDE_CHARACTER
        return kinds

    def chars(self, start: int, stop: int) -> int:
        """Return the code points of these bytes."""
        return int(code_points(self.data, start, stop))


def split(
    starts: Int64, stops: Int64, chars: Int64, units: Int64, limit: int, cutter: Cutter
) -> SampleRanges:
    """Return the samples of a batch; a document of more than ``limit`` units is cut into parts, others stay whole.

    The parts of a document are about equally long, so that none is a useless remainder. A cut lies where a line
    starts, else a word, else a character, within a quarter before the even place.

    Args:
        starts: First element of each document.
        stops: The element after its last.
        chars: Code points of each document.
        units: Units of each document: ids, end-of-text included, or code points.
        limit: Most units in a sample.
        cutter: The flat values.
    """
    count = len(units)
    if not np.any(units > limit):
        return SampleRanges(
            np.arange(count, dtype=np.int64), np.zeros(count, np.int32), starts, stops - starts, chars
        )
    rows: list[tuple[int, int, int, int, int]] = []
    for number in range(count):
        low, high, total = int(starts[number]), int(stops[number]), int(chars[number])
        if units[number] <= limit:
            rows.append((number, 0, low, high - low, total))
            continue
        left = total
        for part, (start, stop) in enumerate(_parts(low, high, int(units[number]), limit, cutter)):
            # The last part takes what is left, so that the parts of a document always add up to it.
            size = left if stop == high else min(left, cutter.chars(start, stop))
            left -= size
            rows.append((number, part, start, stop - start, size))
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return SampleRanges(table[:, 0], table[:, 1].astype(np.int32), table[:, 2], table[:, 3], table[:, 4])


def _parts(low: int, high: int, units: int, limit: int, cutter: Cutter) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the parts of one document."""
    start = low
    # Cutting back makes later parts longer: the number of parts is worked out anew for what remains.
    while units > limit:
        even = -(-units // -(-units // limit))
        earliest = cutter.reach(start, high, max(1, even - even // SEARCH_PART))
        cut = _best_cut(cutter, start, earliest, cutter.reach(start, high, even))
        units -= cutter.units(start, cut)
        yield start, cut
        start = cut
    yield start, high


def _best_cut(cutter: Cutter, start: int, earliest: int, latest: int) -> int:
    """Return the last place from ``earliest`` to ``latest`` of the best kind there is."""
    kinds = cutter.kinds(earliest, latest + 1)
    for wanted in (STARTS_LINE, STARTS_WORD, INSIDE_WORD):
        found = np.flatnonzero(kinds == wanted)
        if len(found):
            return earliest + int(found[-1])
    return latest if latest > start else earliest
