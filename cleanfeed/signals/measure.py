"""Texts in an Arrow array go in; one column for each signal that needs no tokenizer comes out.

The loop over documents is compiled too, and reads the Arrow buffers in place. Its scratch is made once a call, for the
longest document in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from cleanfeed.signals.characters import characters
from cleanfeed.signals.characters_signals import CHARACTER_SIGNALS
from cleanfeed.signals.lines import lines
from cleanfeed.signals.lines_signals import LINE_SIGNALS
from cleanfeed.signals.page import page
from cleanfeed.signals.page_signals import PAGE_SIGNALS
from cleanfeed.signals.registry import TEXT_SIGNALS
from cleanfeed.signals.repetition import repetition
from cleanfeed.signals.repetition_signals import REPETITION_SIGNALS
from cleanfeed.signals.tables import Tables, tables
from cleanfeed.signals.view import View, make_view, scan
from cleanfeed.signals.words import Grams, make_grams, number_words, words
from cleanfeed.signals.words_signals import WORD_SIGNALS

_WORDS = len(CHARACTER_SIGNALS)
_LINES = _WORDS + len(WORD_SIGNALS)
_PAGE = _LINES + len(LINE_SIGNALS)
_REPETITION = _PAGE + len(PAGE_SIGNALS)
_BYTES = _REPETITION + len(REPETITION_SIGNALS)


def _fingerprint() -> int:
    """Return a number that changes with any file of this package.

    numba looks only at the file of a kernel when it decides whether what it has on disk is still good. The loop below
    holds code of many files, so their contents are part of its key.
    """
    digest = hashlib.blake2b(digest_size=7)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest(), "little")


def _make_loop(fingerprint: int) -> Any:
    """Return the compiled loop over documents."""

    @njit(nogil=True, cache=True)
    def loop(
        data: Any, offsets: Any, tables: Tables, view: View, grams: Grams, out: Any
    ) -> int:  # pragma: no cover - compiled
        for d in range(len(offsets) - 1):
            text = data[offsets[d] : offsets[d + 1]]
            scan(text, tables, view)
            spaced = characters(tables, view, out[d, :_WORDS])
            distinct = number_words(text, view, grams)
            words(tables, view, grams, distinct, spaced, out[d, _WORDS:_LINES])
            lines(text, tables, view, grams, spaced, out[d, _LINES:_PAGE])
            page(text, view, grams, spaced, out[d, _PAGE:_REPETITION])
            repetition(view, grams, spaced, out[d, _REPETITION:_BYTES])
        return fingerprint

    return loop


_FINGERPRINT = _fingerprint()
_loop = _make_loop(_FINGERPRINT)


def measure_texts(texts: pa.LargeStringArray) -> dict[str, npt.NDArray[np.float64]]:
    """Return every signal of each text, by name; NaN where a signal is null.

    Args:
        texts: Valid UTF-8 without nulls; may be a slice of a larger array.
    """
    size = len(texts)
    if texts.null_count:
        raise ValueError("texts must not hold nulls")
    _, offset_buffer, data_buffer = texts.buffers()
    if size == 0 or offset_buffer is None:
        offsets = np.zeros(size + 1, np.int64)
    else:
        offsets = np.frombuffer(offset_buffer, np.int64, size + 1, texts.offset * 8)
    # One byte stands in for no bytes: an Arrow array of empty strings may have no data buffer.
    data = np.frombuffer(data_buffer if data_buffer is not None and data_buffer.size else b"\0", np.uint8)
    # Writable and read-only arrays are two types to numba, and each would be compiled.
    data.flags.writeable = False
    offsets.flags.writeable = False
    longest = int(np.diff(offsets).max()) if size else 0
    classes = tables()
    out = np.empty((size, len(TEXT_SIGNALS)), np.float64)
    _loop(data, offsets, classes, make_view(longest, len(classes.flags)), make_grams(longest), out)
    columns = np.ascontiguousarray(out.T)
    return {signal.name: columns[k] for k, signal in enumerate(TEXT_SIGNALS)}


def warm_up(*, tokens: bool = False) -> None:
    """Compile the kernels, or load them from the cache on disk.

    Args:
        tokens: Whether those over token ids are needed too.
    """
    measure_texts(pa.array([""], pa.large_string()))
    with contextlib.suppress(OSError):
        _marker().touch()


def compiled() -> bool:
    """Tell whether :func:`warm_up` has filled the cache on disk for this code, interpreter and processor."""
    return _marker().exists()


def _marker() -> Path:
    """Return the file that says so; it lies with the cache, so that they go together."""
    parts = (_FINGERPRINT, sys.implementation.cache_tag, numba.__version__, llvmlite.binding.get_host_cpu_name())
    return Path(_loop.stats.cache_path) / ("cleanfeed-" + "-".join(str(part) for part in parts) + ".compiled")
