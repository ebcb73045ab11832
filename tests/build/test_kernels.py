"""Everything a build needs is compiled before its workers start."""

from pathlib import Path

import numba.core.dispatcher as dispatcher

from cleanfeed.build.kernels import load_kernels
from cleanfeed.curriculum import codepoints, gather
from cleanfeed.signals import corpus, measure, tokens

from .conftest import TOKENIZER, Build, prose, write_jsonl


def compiled() -> dict[str, int]:
    return {
        f"{module.__name__}.{name}": len(kernel.signatures)
        for module in (codepoints, gather, corpus, measure, tokens)
        for name, kernel in vars(module).items()
        if isinstance(kernel, dispatcher.Dispatcher)
    }


def test_a_build_compiles_nothing_that_load_kernels_did_not(tmp_path: Path, run: Build):
    load_kernels(tokens=True)
    before = compiled()
    records = [{"id": n, "text": prose(n, sentences=400 if n == 0 else 5)} for n in range(5)]
    source = write_jsonl(tmp_path / "a.jsonl", records)
    run(source, out=tmp_path / "text")
    run(source, out=tmp_path / "ids", tokenizer=TOKENIZER)
    assert compiled() == before
    assert sum(before.values()) >= 7
