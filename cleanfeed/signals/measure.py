"""Texts in an Arrow array go in; one column for each signal that needs no tokenizer comes out.

The loops over documents are compiled too, and read the Arrow buffers in place: one over words and lines, and one each
for what looks at bytes alone, so that they can be compiled side by side. Scratch is made once a call, for the longest
document in it.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import cleanfeed
from cleanfeed.kernel import Kernel
from cleanfeed.kernel_cache import cache_folder, toolchain
from cleanfeed.kernel_code import fingerprint
from cleanfeed.signals.blobs import BLOB_COUNTS, scan_blobs
from cleanfeed.signals.buffers import text_buffers
from cleanfeed.signals.byte_formulas import byte_columns
from cleanfeed.signals.characters import CHARACTER_COUNTS, characters
from cleanfeed.signals.formulas import view_columns
from cleanfeed.signals.lines import LINE_COUNTS, lines
from cleanfeed.signals.mojibake import MOJIBAKE_COUNTS, scan_mojibake
from cleanfeed.signals.page import PAGE_COUNTS, page
from cleanfeed.signals.periods import PERIOD_COUNTS, make_period_scratch, scan_periods
from cleanfeed.signals.reading import CHARS, COUNT_NAMES, KEPT_LINES, KEPT_WORDS, LONGEST_WORD
from cleanfeed.signals.registry import TEXT_SIGNALS
from cleanfeed.signals.repetition import REPETITION_COUNTS, repetition
from cleanfeed.signals.tables import packed_tables
from cleanfeed.signals.view import View, make_view, scan
from cleanfeed.signals.words import WORD_COUNTS, Grams, make_grams, number_words

Scratch = tuple[int, View, Grams, npt.NDArray[np.int32]]
"""The longest document it serves, in bytes, and the arrays."""

_NAMES = (
    (*COUNT_NAMES, *CHARACTER_COUNTS, *WORD_COUNTS, *PAGE_COUNTS, *LINE_COUNTS, *REPETITION_COUNTS),
    PERIOD_COUNTS, BLOB_COUNTS, MOJIBAKE_COUNTS,
)  # fmt: skip
"""What each kernel writes."""
_CHARACTERS = len(COUNT_NAMES)
_WORDS = _CHARACTERS + len(CHARACTER_COUNTS)
_PAGE = _WORDS + len(WORD_COUNTS)
_LINES = _PAGE + len(PAGE_COUNTS)
_REPETITION = _LINES + len(LINE_COUNTS)


_kept: list[Scratch] = []
"""Scratch no call is using now. Made anew for each call it costs a tenth of the time: the system clears its pages.

It does not grow beyond bounds: words past ``MAX_WORDS`` have no place in it.
"""

_UNLISTED = np.empty((0, 3), np.int64)
"""The kernels over bytes can list what they find; here nobody asks."""


@Kernel
def _loop(
    data: Any, offsets: Any, table: Any, view: View, grams: Grams, out: Any
) -> None:  # pragma: no cover - compiled
    (
        counts, seen, classes, letters, start, stop, hashes, total,
        line_stop, line_word, line_chars, line_sentences, line_bits, line_hash, line_template,
    ) = view  # fmt: skip
    space, key_of, sieve, numbers, first, often, marks, at, gram = grams
    for d in range(len(offsets) - 1):
        text = data[offsets[d] : offsets[d + 1]]
        row = out[d]
        scan(
            text, table, counts, seen, classes, letters, start, stop, hashes, total,
            line_stop, line_word, line_chars, line_sentences, line_bits, line_hash, line_template,
        )  # fmt: skip
        for k in range(_CHARACTERS):  # numba compiles an assignment of arrays for seconds
            row[k] = counts[k]
        words, rows = counts[KEPT_WORDS], counts[KEPT_LINES]
        characters(table, seen, classes, letters, row[_CHARACTERS:_WORDS])
        every = number_words(
            text,
            words,
            start,
            stop,
            hashes,
            space,
            numbers,
            first,
            often,
            marks,
            row[_WORDS:_PAGE],
        )
        page(
            text, rows, line_stop, line_word, line_chars, line_sentences, numbers, marks, total, every,
            counts[LONGEST_WORD], seen[60] + seen[91], row[_PAGE:_LINES],
        )  # fmt: skip
        lines(rows, line_chars, line_bits, line_hash, line_template, space, row[_LINES:_REPETITION])
        repetition(words, numbers, total, space, key_of, sieve, at, gram, first, often, row[_REPETITION:])


def measure_texts(texts: pa.LargeStringArray) -> dict[str, npt.NDArray[np.float64]]:
    """Return every signal of each text, by name; NaN where a signal is null.

    Args:
        texts: Valid UTF-8 without nulls; may be a slice of a larger array.
    """
    size = len(texts)
    if texts.null_count:
        raise ValueError("texts must not hold nulls")
    data, offsets = text_buffers(texts)
    longest = int(np.diff(offsets).max()) if size else 0
    parts = [np.empty((size, len(names)), np.float64) for names in _NAMES]
    scratch = _scratch(longest)
    _, view, grams, periods = scratch
    _loop(data, offsets, packed_tables(), view, grams, parts[0])
    chars = parts[0][:, CHARS].astype(np.int64)
    scan_periods(data, offsets, chars, periods, parts[1])
    scan_blobs(data, offsets, _UNLISTED, parts[2])
    scan_mojibake(data, offsets, chars, _UNLISTED, parts[3])
    _kept.append(scratch)
    rows = np.concatenate([part.T for part in parts])
    counted = dict(zip(itertools.chain.from_iterable(_NAMES), rows, strict=True))
    found = view_columns(counted) | byte_columns(counted)
    return {signal.name: found[signal.name] for signal in TEXT_SIGNALS}


def _scratch(longest: int) -> Scratch:
    """Take scratch for documents of up to ``longest`` bytes out of what is kept, or make it."""
    with contextlib.suppress(IndexError):
        # Popped, not looked at: another thread may be measuring too.
        scratch = _kept.pop()
        if scratch[0] >= longest:
            return scratch
        del scratch  # before the larger one is made, which may take its place
    # Sizes by powers of two: texts a little longer than those before do not need it made anew.
    size = 1 << max(longest - 1, 2**16 - 1).bit_length()
    return size, make_view(size), make_grams(size), make_period_scratch(size)


def warm_up() -> None:
    """Compile the loop over words and lines, or load it from the cache on disk."""
    data, offsets = text_buffers(pa.array([""], pa.large_string()))
    _, view, grams, _ = _scratch(0)
    _loop(data, offsets, packed_tables(), view, grams, np.empty((1, len(_NAMES[0]))))


def warm_up_scans() -> None:
    """Compile the kernels that look at bytes alone, or load them from the cache on disk."""
    data, offsets = text_buffers(pa.array([""], pa.large_string()))
    no_chars = np.zeros(1, np.int64)
    scan_periods(data, offsets, no_chars, make_period_scratch(1), np.empty((1, len(PERIOD_COUNTS))))
    scan_blobs(data, offsets, _UNLISTED, np.empty((1, len(BLOB_COUNTS))))
    scan_mojibake(data, offsets, no_chars, _UNLISTED, np.empty((1, len(MOJIBAKE_COUNTS))))


def mark_compiled(part: str) -> None:
    """Remember beside the cache on disk that it holds some kernels."""
    marker = _marker(part)
    with contextlib.suppress(OSError):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def compiled(part: str = "text") -> bool:
    """Tell whether the cache on disk holds some kernels for this code, interpreter and processor.

    Args:
        part: What was given to :func:`mark_compiled`; ``text`` for the loop of this module.
    """
    return _marker(part).exists()


def _marker(part: str) -> Path:
    """Return the file that says so; it lies with the cache, so that they go together."""
    parts = (part, fingerprint("signals"), toolchain())
    folder = cache_folder(Path(cleanfeed.__file__).parent)
    return folder / ("cleanfeed-" + "-".join(str(part) for part in parts) + ".compiled")
