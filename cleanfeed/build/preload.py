"""Nothing goes in; a process that has imported and loaded all a worker needs, ready to be forked, comes out.

Imported once by the fork server: its copies, the workers, start in milliseconds. The server itself has one thread and
has read no file, so forking it is safe where forking the caller would not be.
"""

from __future__ import annotations

from cleanfeed.build import measure, place, settle
from cleanfeed.build.kernels import load_kernels

__all__ = ["measure", "place", "settle"]

load_kernels(tokens=True)
