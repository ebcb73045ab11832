"""Arbitrary bytes go in; nothing comes out of a reader or a kernel but what is promised, or this ends with the input.

Run by hand, for as long as wanted::

    python -m tests.fuzz readers --seconds 900
    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=/tmp/checked python -m tests.fuzz kernels --seconds 900

Where ``atheris`` can be imported it looks for inputs that reach new code of the readers; elsewhere, and for the
compiled kernels, seeds are changed at random. Every input is written to ``--last`` before it is tried, so that one that
ends the process is there afterwards; ``--again FILE`` tries it alone.
"""
