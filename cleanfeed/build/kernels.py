"""Nothing goes in; every numba kernel a build uses, compiled or loaded from the cache, comes out."""

from __future__ import annotations

import numpy as np

from cleanfeed.curriculum.gather import scatter
from cleanfeed.signals.corpus import count_documents, rare_token_share
from cleanfeed.signals.measure import compiled, warm_up


def kernels_ready() -> bool:
    """Return whether the compiled kernels of an earlier build can be loaded."""
    return compiled()


def load_kernels(*, tokens: bool) -> None:
    """Compile or load the kernels, so that workers find them compiled.

    Args:
        tokens: Whether there is a tokenizer, so that the kernels over ids are needed too.
    """
    warm_up()
    one = np.zeros(1, dtype=np.int64)
    scatter(np.zeros(1, np.uint8), one, one, np.zeros(1, np.uint8), one)
    if tokens:
        ids = np.zeros(1, dtype=np.int32)
        scatter(ids, one, one, ids, one)
        count_documents(ids, np.array([0, 1]), np.zeros(1, dtype=np.int64))
        rare_token_share(ids, np.array([0, 1]), np.zeros(1, dtype=np.int64), 10_000)
