"""The code on the page about the feed works as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "feed.md"


def test_the_code_on_the_page_runs(tokens_build: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tokens_build.parent)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(block, names)
    sampler = names["sampler"]
    assert sampler.committed == sampler.n_slots  # type: ignore[attr-defined]
    assert set(names["inputs"]) == {"input_ids", "labels", "attention_mask"}  # type: ignore[call-overload]


def test_the_page_names_every_key_of_a_batch_and_of_an_item(tokens_build: Path, text_build: Path):
    from cleanfeed import Curriculum, FlattenCollator, PadCollator

    page = PAGE.read_text("utf-8")
    rows = Curriculum(tokens_build).__getitems__([0, 1])
    keys = {*PadCollator(0)(rows), *FlattenCollator(0)(rows), *rows[0], *Curriculum(text_build)[0]}
    assert {key for key in keys if f"`{key}`" not in page} == set()
