"""Everything a build needs is compiled before its workers start."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cleanfeed.build import kernels
from cleanfeed.build.budget import Lost
from cleanfeed.build.engine import Call
from cleanfeed.build.kernels import load_kernels
from cleanfeed.curriculum import clusters, gather, reference, samples
from cleanfeed.documents import json_blocks
from cleanfeed.kernel import Kernel
from cleanfeed.signals import corpus, measure, minhash, tokens

from .conftest import TOKENIZER, Build, prose, write_jsonl


def compiled() -> dict[str, int]:
    """Return for how many kinds of arguments each kernel is compiled, or was loaded."""
    return {
        kernel.name: len(kernel.kinds)
        for module in (json_blocks, clusters, gather, reference, samples, corpus, measure, minhash, tokens)
        for kernel in vars(module).values()
        if isinstance(kernel, Kernel)
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
    assert len(before) >= 15
    assert all(before.values()), before


def test_what_is_not_compiled_is_compiled_by_other_processes_and_remembered():
    load_kernels()
    marker = measure._marker(kernels._marker("samples"))
    marker.unlink()
    assert not kernels.kernels_ready()
    kernels.compile_kernels(2)
    assert marker.exists()
    assert kernels.kernels_ready()


def test_a_process_that_is_killed_while_it_compiles_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "_missing", lambda **_: iter(["samples", "no such part"]))
    made: list[str] = []

    class Losing:
        def __init__(self, workers: int) -> None:
            assert workers == 2

        def run(
            self, function: Callable[..., None], calls: list[Call], report: object
        ) -> Iterator[tuple[int, object]]:
            yield 1, Lost(None, overrun=False, how="killed by signal 9")
            yield 0, None

        def close(self, *, at_once: bool = False) -> None:
            assert not at_once

    monkeypatch.setattr(kernels, "LocalEngine", Losing)
    monkeypatch.setattr(kernels, "load_part", made.append)
    kernels.compile_kernels(8)
    assert made == ["no such part"]
