"""The code on the pages about training, quarantine and exclusions works as it stands, one page after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from cleanfeed.runs.audit import audit
from cleanfeed.runs.layout import RunDir
from tests.training.world import VOCABULARY, make_curriculum

ROOT = Path(__file__).parents[2]


class Model(torch.nn.Module):
    """What the pages call ``model``: takes ids and labels, returns the mean loss of a token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 8)
        self.head = torch.nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.embedding(input_ids))[:, :-1]
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())


def blocks(page: str) -> list[str]:
    """Return the Python code of a page, a block each."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


def run(block: str) -> dict[str, Any]:
    """Run a block with what its page takes for given, and return the names it leaves."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    names = {"model": model, "optimizer": optimizer}
    names["scheduler"] = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    exec(block, names)
    return names


@pytest.mark.parametrize("page", ["README.md", "docs/training.md"])
def test_the_code_on_a_page_trains_on_every_sample_and_what_follows_it_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curriculum = make_curriculum(tmp_path / "data", documents=256)
    (tmp_path / "out").symlink_to(curriculum)
    monkeypatch.chdir(tmp_path)
    loop, *others = [*blocks(page), *blocks("docs/quarantine.md"), *blocks("docs/exclusions.md")]
    run(loop)
    for block in others:
        run(block)
    found = audit(RunDir(Path("runs/a")), "out")
    assert found.problems == []
    assert [epoch.trained for epoch in found.epochs] == [256]
    assert pq.read_schema("dull.parquet").names == ["sample_hash"]
