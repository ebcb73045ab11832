"""What a build does goes in; every numba kernel it uses, compiled or loaded from the cache, comes out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cleanfeed.build.budget import Lost, Reporter
from cleanfeed.build.engine import LocalEngine
from cleanfeed.curriculum.clusters import warm_up_clusters
from cleanfeed.curriculum.gather import scatter
from cleanfeed.curriculum.reference import warm_up_reference
from cleanfeed.curriculum.samples import warm_up_samples
from cleanfeed.kernel_code import fingerprint
from cleanfeed.signals.corpus import count_documents, rare_token_share
from cleanfeed.signals.measure import compiled, mark_compiled, warm_up, warm_up_scans
from cleanfeed.signals.minhash import warm_up_minhash
from cleanfeed.signals.tokens import TokenTables, measure_tokens

AT_A_TIME = 2
"""Processes that compile. The kernels over text take most of the time: more would not be done sooner."""


def _parts(
    *, tokens: bool = False, near: bool = False, reference: bool = False, blocks: bool = False
) -> list[str]:
    """Return the parts that are needed, the one that takes longest first; arguments as for :func:`load_kernels`."""
    wanted = {
        "text": True,
        "text-scans": True,
        "tokens": tokens,
        "blocks": blocks,
        "samples": True,
        "near": near,
        "reference": reference,
    }
    return [part for part, needed in wanted.items() if needed]


def _marker(part: str) -> str:
    """Return what :func:`mark_compiled` remembers: it must change with the files of the part, as with the signals'."""
    return part if part.startswith("text") else f"{part}-{fingerprint('documents', 'curriculum'):x}"


def kernels_ready(**wanted: bool) -> bool:
    """Return whether an earlier build has compiled the kernels; arguments as for :func:`load_kernels`."""
    return not list(_missing(**wanted))


def _missing(**wanted: bool) -> Iterator[str]:
    return (part for part in _parts(**wanted) if not compiled(_marker(part)))


def load_kernels(**wanted: bool) -> None:
    """Compile or load the kernels in this process.

    Args:
        wanted: Which kernels, beside those every build needs: ``tokens`` where there is a tokenizer, ``near`` where
            near-duplicates are looked for, ``reference`` where quality is likeness to a reference sample, ``blocks``
            where there are blocks of JSON Lines large enough for compiled code.
    """
    for part in _parts(**wanted):
        load_part(part)


def compile_kernels(workers: int, **wanted: bool) -> None:
    """Compile what is not compiled yet, in processes of its own; later ones load it from disk.

    Args:
        workers: Processes that may be used.
        wanted: Which kernels, as for :func:`load_kernels`.
    """
    engine = LocalEngine(min(workers, AT_A_TIME))
    try:
        calls = [(number, (part,)) for number, part in enumerate(_missing(**wanted))]
        lost = [
            number for number, found in engine.run(load_part, calls, _unreported) if isinstance(found, Lost)
        ]
    except BaseException:
        engine.close(at_once=True)
        raise
    engine.close()
    # What kills a process that compiles, want of memory most likely, is more bearable alone.
    for number in lost:
        load_part(*calls[number][1])


def _unreported(amount: int) -> None:
    """Take what no part of this reports."""


def load_part(part: str, report: Reporter | None = None) -> None:
    """Compile or load some kernels and remember that they are on disk."""
    one = np.zeros(1, dtype=np.int64)
    if part == "text":
        warm_up()
    elif part == "text-scans":
        warm_up_scans()
    elif part == "samples":
        data = np.zeros(4, dtype=np.uint8)
        scatter(one[:0], one[:0], data, one[:0])
        warm_up_samples()
    elif part == "blocks":
        from cleanfeed.documents.json_blocks import BlockScanner  # here: where it is loaded it is used

        BlockScanner(["text", "id"]).read(b'{"text": ""}\n', 64)
    elif part == "tokens":
        ids = np.zeros(1, dtype=np.int32)
        one_id = np.array([0, 1])
        measure_tokens(ids, one_id, one, TokenTables(np.zeros(1, dtype=np.uint8), -1))
        count_documents(ids, one_id, np.zeros(1, dtype=np.int64))
        rare_token_share(ids, one_id, np.zeros(1, dtype=np.int64), 10_000)
    elif part == "near":
        warm_up_minhash()
        warm_up_clusters()
    else:
        warm_up_reference()
    mark_compiled(_marker(part))
