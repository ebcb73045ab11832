"""A Python function goes in; a compiled one that only compiled code calls comes out."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from numba import njit

inner = njit(nogil=True, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Without the ways in from Python, which take a good part of the time a small function needs to compile."""


@lru_cache(maxsize=1)
def fingerprint() -> int:
    """Return a number that changes with any file of this package.

    numba looks only at the file of a kernel when it decides whether what it has on disk is still good. A loop that
    holds code of other files takes this number in a closure, which makes it a part of the loop's key.
    """
    digest = hashlib.blake2b(digest_size=7)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest(), "little")
