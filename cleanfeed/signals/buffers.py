"""A text column goes in; its bytes and the places of the texts in them, as kernels take them, come out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def text_buffers(texts: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the UTF-8 bytes of the texts and the n + 1 places where they start and end, read-only."""
    size = len(texts)
    _, places, data = texts.buffers()
    if size == 0 or places is None:
        offsets = np.zeros(size + 1, np.int64)
    else:
        offsets = np.frombuffer(places, np.int64, size + 1, texts.offset * 8)
    # One byte stands in for no bytes: an Arrow array of empty strings may have no data buffer.
    found = np.frombuffer(data if data is not None and data.size else b"\0", np.uint8)
    return found, offsets
