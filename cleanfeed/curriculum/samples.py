"""Kept documents go in; samples, each a whole document or one part of it, come out as ranges of their flat values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cleanfeed.curriculum.codepoints import after_code_points, code_points, last_cut
from cleanfeed.curriculum.tokenizer import INSIDE_WORD, STARTS_LINE, STARTS_WORD

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

    def narrowed(self, *, units_are_elements: bool) -> Cutter:
        """Return the cutter for one document, which may know that each of its elements is a unit."""

    def reach(self, start: int, stop: int, units: int) -> int:
        """Return the element after ``units`` units from ``start``, at most ``stop``."""

    def units(self, start: int, stop: int) -> int:
        """Return how many units the elements ``start`` to ``stop - 1`` are."""

    def cut(self, low: int, high: int) -> int:
        """Return the last place in ``[low, high]`` where a line starts, else a word, else a character."""

    def chars(self, start: int, stop: int, units: int) -> int:
        """Return how many code points the elements ``start`` to ``stop - 1``, which are ``units`` units, hold."""


@dataclass(frozen=True, slots=True)
class TokenCutter:
    """Ids of documents in a row; a unit is one id."""

    ids: npt.NDArray[np.int32]
    starts: Kinds
    """What each id of the vocabulary starts: :attr:`TextEncoder.token_starts`."""
    token_chars: npt.NDArray[np.int32]
    """Code points that begin in each id of the vocabulary."""

    def narrowed(self, *, units_are_elements: bool) -> TokenCutter:
        """Return itself: ids are always units."""
        return self

    def reach(self, start: int, stop: int, units: int) -> int:
        """Return ``start`` + ``units``, at most ``stop``."""
        return min(start + units, stop)

    def units(self, start: int, stop: int) -> int:
        """Return ``stop`` - ``start``."""
        return stop - start

    def cut(self, low: int, high: int) -> int:
        """Return the last place where an id starts a line, else a word, else a character."""
        kinds = self.starts[self.ids[low : high + 1]]
        for wanted in (STARTS_LINE, STARTS_WORD, INSIDE_WORD):
            found = np.flatnonzero(kinds == wanted)
            if len(found):
                return low + int(found[-1])
        return high

    def chars(self, start: int, stop: int, units: int) -> int:
        """Return the code points that begin in these ids."""
        return int(self.token_chars[self.ids[start:stop]].sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class ByteCutter:
    """UTF-8 of documents in a row; a unit is one code point."""

    data: npt.NDArray[np.uint8]
    ascii: bool = False

    def narrowed(self, *, units_are_elements: bool) -> ByteCutter:
        """Return a cutter that need not look at the bytes of a document in ASCII to count them."""
        return ByteCutter(self.data, ascii=units_are_elements)

    def reach(self, start: int, stop: int, units: int) -> int:
        """Return the byte after ``units`` code points."""
        return (
            min(start + units, stop) if self.ascii else int(after_code_points(self.data, start, stop, units))
        )

    def units(self, start: int, stop: int) -> int:
        """Return the code points of these bytes."""
        return stop - start if self.ascii else int(code_points(self.data, start, stop))

    def cut(self, low: int, high: int) -> int:
        """Return the last byte where a line starts, else a space is, else a code point starts."""
        return int(last_cut(self.data, low, high))

    def chars(self, start: int, stop: int, units: int) -> int:
        """Return ``units``."""
        return units


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
        low, high, left = int(starts[number]), int(stops[number]), int(chars[number])
        if units[number] <= limit:
            rows.append((number, 0, low, high - low, left))
            continue
        one = cutter.narrowed(units_are_elements=high - low == units[number])
        for part, (start, stop, size) in enumerate(_parts(low, high, int(units[number]), limit, one)):
            # The last part takes what is left, so that the parts of a document always add up to it.
            held = left if stop == high else min(left, cutter.chars(start, stop, size))
            left -= held
            rows.append((number, part, start, stop - start, held))
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return SampleRanges(table[:, 0], table[:, 1].astype(np.int32), table[:, 2], table[:, 3], table[:, 4])


def first_chars(ranges: SampleRanges) -> Int64:
    """Return how many code points of its document lie before each sample."""
    before = np.cumsum(ranges.chars) - ranges.chars
    opens = np.maximum.accumulate(np.where(ranges.part == 0, np.arange(len(before)), 0))
    return np.asarray(before - before[opens])


def _parts(low: int, high: int, units: int, limit: int, cutter: Cutter) -> Iterator[tuple[int, int, int]]:
    """Yield start, stop and units of the parts of one document."""
    start = low
    # Cutting back makes later parts longer: the number of parts is worked out anew for what remains.
    while units > limit:
        even = -(-units // -(-units // limit))
        least = max(1, even - even // SEARCH_PART)
        earliest = cutter.reach(start, high, least)
        cut = cutter.cut(earliest, cutter.reach(earliest, high, even - least))
        size = least + cutter.units(earliest, cut)
        yield start, cut, size
        units -= size
        start = cut
    yield start, high, units
