"""The example that trains: with and without the guard it takes the same steps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cleanfeed import Curriculum, Policy

PIPELINES = Path(__file__).parents[2] / "pipelines"


@pytest.mark.parametrize("micro_batch", [8, 2])
def test_the_bare_loop_and_the_guarded_one_end_with_the_same_weights(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro_batch: int
) -> None:
    monkeypatch.syspath_prepend(PIPELINES)
    import train_gpt

    try:
        curriculum = Curriculum(clean)
        vocab = curriculum.catalog.vocab_size
        assert vocab is not None
        gpt = train_gpt.GPTConfig(vocab, context=32, width=16, layers=1, heads=2)
        config = train_gpt.TrainConfig(global_batch=8, micro_batch=micro_batch, warmup=2)
        ends = [
            train_gpt.train(
                curriculum,
                tmp_path / str(guarded),
                gpt,
                config,
                validation=curriculum,
                policy=Policy(actions=("record",)),
                guarded=guarded,
            )
            for guarded in (True, False)
        ]
        assert ends[0] == ends[1]
        assert ends[0].steps == len(curriculum) // 8
    finally:
        sys.modules.pop("train_gpt", None)
