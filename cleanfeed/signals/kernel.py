"""A Python function goes in; a compiled one that only compiled code calls comes out."""

from __future__ import annotations

from numba import njit

inner = njit(nogil=True, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Without the ways in from Python, which take a good part of the time a small function needs to compile."""
