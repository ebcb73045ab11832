"""Nothing goes in; a process that has imported and loaded all a worker needs, ready to be forked, comes out.

Imported once, by the fork server: its copies, the workers, start in milliseconds. It has one thread and has read no
file, so forking it is safe where forking a process in its midst would not be.
"""

from __future__ import annotations

from cleanfeed.build.lean import hide_pandas, loading

hide_pandas()

# numba takes both where they are, the one for kernels in C, the other to look for a file of settings.
with loading("cffi", "yaml"):
    from cleanfeed.build import candidates, measure, place, settle
    from cleanfeed.build.kernels import kernels_ready, load_kernels

    # What is not compiled yet is compiled by the process that started this one; workers load it when they need it.
    if kernels_ready():
        load_kernels(blocks=kernels_ready(blocks=True))

__all__ = ["candidates", "measure", "place", "settle"]
