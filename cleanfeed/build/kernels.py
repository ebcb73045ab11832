"""Nothing goes in; every numba kernel a build uses, compiled or loaded from the cache, comes out."""

from __future__ import annotations

import numpy as np

from cleanfeed.curriculum.clusters import warm_up_clusters
from cleanfeed.curriculum.codepoints import after_code_points, code_points, last_cut
from cleanfeed.curriculum.gather import scatter
from cleanfeed.curriculum.reference import warm_up_reference
from cleanfeed.kernel import fingerprint
from cleanfeed.signals.corpus import count_documents, rare_token_share
from cleanfeed.signals.measure import compiled, mark_compiled, warm_up
from cleanfeed.signals.minhash import warm_up_minhash
from cleanfeed.signals.tokens import TokenTables, measure_tokens

_BLOCKS = f"blocks-{fingerprint('documents'):x}"
"""Part of the kernels that changes with other files than those of the signals."""


def kernels_ready(
    *, tokens: bool = False, near: bool = False, reference: bool = False, blocks: bool = False
) -> bool:
    """Return whether an earlier build has compiled the kernels; arguments as for :func:`load_kernels`."""
    wanted = {"text": True, _BLOCKS: blocks, "tokens": tokens, "near": near, "reference": reference}
    return all(compiled(part) for part, needed in wanted.items() if needed)


def load_kernels(*, tokens: bool, near: bool = False, reference: bool = False, blocks: bool = False) -> None:
    """Compile or load the kernels, so that workers find them compiled.

    Args:
        tokens: Whether there is a tokenizer, so that the kernels over ids are needed too.
        near: Whether near-duplicates are looked for, so that signatures are.
        reference: Whether quality is likeness to a reference sample.
        blocks: Whether there are blocks of JSON Lines large enough for compiled code.
    """
    warm_up()
    one = np.zeros(1, dtype=np.int64)
    # Read-only and writable arrays are two types to numba: what a build reads from Arrow is read-only.
    data = np.frombuffer(bytes(4), dtype=np.uint8)
    scatter(one[:0], one[:0], np.zeros(1, dtype=np.uint8), one[:0])
    after_code_points(data, 0, code_points(data, 0, 1), 1)
    last_cut(data, 1, 2)
    if blocks:
        from cleanfeed.documents.json_blocks import BlockScanner  # here: where it is loaded it is used

        BlockScanner(["text", "id"]).read(b'{"text": ""}\n', 64)
        mark_compiled(_BLOCKS)
    if tokens:
        ids = np.zeros(1, dtype=np.int32)
        one_id = np.array([0, 1])
        measure_tokens(ids, one_id, one, TokenTables(np.zeros(1, dtype=np.uint8), -1))
        count_documents(ids, one_id, np.zeros(1, dtype=np.int64))
        rare_token_share(ids, one_id, np.zeros(1, dtype=np.int64), 10_000)
        mark_compiled("tokens")
    if near:
        warm_up_minhash()
        warm_up_clusters()
        mark_compiled("near")
    if reference:
        warm_up_reference()
        mark_compiled("reference")
