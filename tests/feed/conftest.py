"""Two small builds of the same documents, with and without a tokenizer, made once for all tests of the feed."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cleanfeed.build.runner import BuildRequest, build
from cleanfeed.feed.dataset import Curriculum
from cleanfeed.rules.pipeline import load_pipeline

from ..build.conftest import TOKENIZER, Silent, prose

torch.set_num_threads(1)

DOCUMENTS = 300
SETS = ("curriculum.row_group_tokens=2000", "curriculum.row_group_chars=8000", "curriculum.file_row_groups=3")


def small_build(folder: Path, tokenizer: str | None) -> Path:
    """Build documents of one to sixty sentences: several stages, files and row groups, the last ones short."""
    dice = random.Random(1)
    source = folder / "texts.jsonl"
    with source.open("w") as file:
        for number in range(DOCUMENTS):
            text = prose(number, dice.choice((1, 3, 8, 20, 60)))
            file.write(json.dumps({"id": f"d{number}", "text": text}) + "\n")
    request = BuildRequest(
        inputs=(str(source),),
        out=str(folder / "out"),
        pipeline=load_pipeline("web_text", SETS),
        tokenizer=tokenizer,
    )
    build(request, Silent())
    return folder / "out"


@pytest.fixture(scope="session")
def tokens_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a build with a tokenizer; not to be altered."""
    return small_build(tmp_path_factory.mktemp("tokens"), TOKENIZER)


@pytest.fixture(scope="session")
def text_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a build without a tokenizer; not to be altered."""
    return small_build(tmp_path_factory.mktemp("text"), None)


@pytest.fixture
def copied(tokens_build: Path, tmp_path: Path) -> Path:
    """Give a copy of the build with a tokenizer, to be damaged."""
    return Path(shutil.copytree(tokens_build, tmp_path / "copied"))


@pytest.fixture
def curriculum(tokens_build: Path) -> Curriculum:
    return Curriculum(tokens_build)


@pytest.fixture(scope="session")
def table(tokens_build: Path) -> pa.Table:
    """Give all samples of the build with a tokenizer in stage order, read by pyarrow alone."""
    return read_all(tokens_build)


def read_all(out: Path) -> pa.Table:
    """Return all rows of a build in stage order."""
    manifest = json.loads((out / "manifest.json").read_text())
    names = [name for stage in manifest["stages"] for name in stage["files"]]
    return pa.concat_tables(pq.read_table(out / name) for name in names)


def ids_of(table: pa.Table) -> list[np.ndarray]:
    """Return the token ids of each row."""
    return [np.array(row, dtype=np.int32) for row in table.column("input_ids").to_pylist()]
