"""A catalog says where every row lies, is small, and belongs to an unaltered build."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from cleanfeed.errors import CleanfeedError, CurriculumError
from cleanfeed.feed.catalog import RowGroup, read_catalog

from .builds import catalog_of_sizes, write_build, write_manifest

SIZES = ((7, 2), (0, 1), (1, 9), (5, 5))


@pytest.fixture
def build(tmp_path: Path) -> Path:
    return write_build(tmp_path / "out", *SIZES)


def change(build: Path, **changes: Any) -> None:
    """Write another manifest, as one who alters it on purpose would."""
    manifest = json.loads((build / "manifest.json").read_text())
    write_manifest(build, {**manifest, **changes})


def refusal(build: Path) -> str:
    with pytest.raises(CurriculumError) as caught:
        read_catalog(str(build))
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(build), "OUT")


def test_every_row_lies_where_the_catalog_says(build: Path) -> None:
    catalog = read_catalog(str(build))
    rows = np.arange(catalog.samples, dtype=np.int64)
    groups, places = catalog.groups_at(rows)
    for row, number, place in zip(rows.tolist(), groups.tolist(), places.tolist(), strict=True):
        group = catalog.row_group(number)
        table = pq.ParquetFile(build / group.file).read_row_group(group.index)
        assert group.first_row + place == row
        assert table.num_rows == group.rows
        assert table["source_row"][place].as_py() == row
        assert table["stage"][place].as_py() == catalog.stages[group.stage].index
    assert catalog.groups == int(groups[-1]) + 1 == 6


def test_empty_stages_hold_no_row() -> None:
    catalog = catalog_of_sizes((0, 3), (2, 3), (0, 3), (0, 1), (4, 3), (0, 2))
    assert catalog.stages_at(np.arange(6)).tolist() == [1, 1, 4, 4, 4, 4]
    assert catalog.row_group(1) == RowGroup(4, "curriculum/04-stage4/part-00000.parquet", 0, 3, 2)
    assert (catalog.samples, catalog.groups) == (6, 3)


def test_it_is_small_for_any_number_of_samples() -> None:
    catalog = catalog_of_sizes(*[(10**9 // 9, 500)] * 9, file_groups=64)
    assert catalog.samples == 999_999_999
    assert len(pickle.dumps(catalog)) < 3000
    last = catalog.row_group(catalog.groups - 1)
    assert last.first_row + last.rows == catalog.samples


def test_an_address_is_read_as_a_folder_is(build: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(build), "/catalog-test", recursive=True)
    try:
        assert read_catalog("memory://catalog-test").stages == read_catalog(str(build)).stages
    finally:
        memory.rm("/catalog-test", recursive=True)


def test_no_build_or_an_unfinished_one_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == (
        "the folder holds no finished build: OUT: got no manifest.json. Run cleanfeed build first."
    )
    (tmp_path / "begun" / ".work").mkdir(parents=True)
    assert refusal(tmp_path / "begun") == (
        "the folder holds no finished build: OUT: got no manifest.json. Run the same build command again to finish it."
    )


def test_an_altered_manifest_is_refused(build: Path) -> None:
    text = (build / "manifest.json").read_text()
    (build / "manifest.json").write_text(text.replace('"samples": 7', '"samples": 6'))
    assert refusal(build).startswith("the manifest was altered since it was written: OUT.")
    (build / "manifest.json").write_text("{}")
    with pytest.raises(CleanfeedError, match="not a manifest"):
        read_catalog(str(build))


def test_stages_that_do_not_belong_to_the_digest_are_refused(build: Path) -> None:
    stages = json.loads((build / "manifest.json").read_text())["stages"]
    stages[0]["samples"] = 6
    change(build, stages=stages)
    assert refusal(build).startswith("digest and files of the manifest disagree: OUT.")


def test_files_cut_otherwise_are_refused(build: Path) -> None:
    change(build, pipeline={**json.loads((build / "manifest.json").read_text())["pipeline"]})
    pipeline = json.loads((build / "manifest.json").read_text())["pipeline"]
    pipeline["curriculum"]["file_row_groups"] = 3
    change(build, pipeline=pipeline)
    assert refusal(build).startswith(
        "the files of a stage are not cut as its size says: OUT: curriculum/00-stage0/part-00000.parquet: "
        "got 4 rows, expected 6 rows."
    )


def test_a_missing_file_and_one_of_another_size_are_refused(build: Path) -> None:
    path = build / "curriculum/00-stage0/part-00001.parquet"
    data = path.read_bytes()
    path.write_bytes(data + b"x")
    assert refusal(build).startswith(
        f"a file of the curriculum was altered: OUT: curriculum/00-stage0/part-00001.parquet: "
        f"got {len(data) + 1} bytes, expected {len(data)} bytes."
    )
    path.unlink()
    assert refusal(build).startswith(
        "a file of the curriculum is missing: OUT: curriculum/00-stage0/part-00001.parquet."
    )


def test_a_curriculum_without_samples_is_refused(tmp_path: Path) -> None:
    assert refusal(write_build(tmp_path / "out", (0, 1))) == (
        "the curriculum holds no samples: OUT. Nothing can be trained on it."
    )
