"""Everything a build needs is compiled before its workers start."""

from pathlib import Path

from cleanfeed.build.kernels import load_kernels
from cleanfeed.curriculum import clusters, codepoints, gather, reference
from cleanfeed.documents import json_blocks
from cleanfeed.kernel import Deferred
from cleanfeed.signals import corpus, measure, minhash, tokens

from .conftest import TOKENIZER, Build, prose, write_jsonl


def compiled() -> dict[str, int]:
    return {
        f"{module.__name__}.{name}": len(kernel.made.signatures)
        for module in (json_blocks, clusters, codepoints, gather, reference, corpus, measure, minhash, tokens)
        for name, kernel in vars(module).items()
        if isinstance(kernel, Deferred) and "made" in vars(kernel)
    }


def test_a_build_compiles_nothing_that_load_kernels_did_not(tmp_path: Path, run: Build):
    load_kernels(tokens=True, near=True, reference=True, blocks=True)
    before = compiled()
    records = [{"id": n, "text": prose(n, sentences=400 if n == 0 else 5)} for n in range(5)]
    source = write_jsonl(tmp_path / "a.jsonl", records)
    run(source, out=tmp_path / "text")
    run(source, out=tmp_path / "ids", tokenizer=TOKENIZER)
    run(source, out=tmp_path / "near", sets=["duplicates={method: near}"])
    run(source, out=tmp_path / "like", sets=[f"quality={{reference: {source}}}"])
    assert compiled() == before
    assert sum(before.values()) >= 7
