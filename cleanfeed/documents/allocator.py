"""Nothing goes in; the C allocator of this process keeps what reading frees, and reading gets faster.

Each block of a file is decoded into megabytes of strings that are freed a moment later. glibc gives such memory back
to the system and takes it again, page by page, for the next block, which costs a third of the time of reading. Arrow
has an allocator of its own, which does so with each large column; here it takes that of C.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

POOL = "ARROW_DEFAULT_MEMORY_POOL"
"""Names Arrow's allocator; what a user has set stands."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of the two settings in ``malloc.h``."""

KEPT_BYTES = 128 * 2**20
"""Free memory at the end of the heap that is kept."""

HEAP_BYTES = 32 * 2**20
"""Smaller pieces of memory come from the heap; glibc allows no more."""


def is_glibc() -> bool:
    """Return whether the C library is the one whose allocator can be told to keep memory."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):
        return False


@cache
def keep_freed_memory() -> bool:
    """Set the allocator, once in a process; False where it is another one, which is then left alone."""
    if not is_glibc() or os.environ.get(POOL, "system") != "system":
        return False
    import pyarrow as pa  # here: what is set for it before it is loaded is asked of this module

    set_option = ctypes.CDLL(None).mallopt
    kept = bool(set_option(_TRIM_THRESHOLD, KEPT_BYTES) and set_option(_MMAP_THRESHOLD, HEAP_BYTES))
    if kept:
        pa.set_memory_pool(pa.system_memory_pool())
    return kept
