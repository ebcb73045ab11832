"""How a stage is cut into files: every sample in one of them, and none that memory cannot hold."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cleanfeed.build.layout import FILE_ROWS, FileSpec, StageTotals, files_of
from cleanfeed.curriculum.order import BUCKET_BITS
from cleanfeed.curriculum.stages import stages_of
from cleanfeed.rules.pipeline import load_pipeline
from cleanfeed.settings import MOST_IN_A_FILE

SETTINGS = load_pipeline("web_text", ()).curriculum


def cut(samples: int, units: int, file_row_groups: int = 64) -> list[FileSpec]:
    """Return the files of a stage whose shuffle keys are spread evenly."""
    edges = np.linspace(0, samples, (1 << BUCKET_BITS) + 1).astype(np.int64)
    total = StageTotals(stages_of(SETTINGS)[0], np.diff(edges), units=units)
    most = MOST_IN_A_FILE // file_row_groups
    settings = replace(
        SETTINGS,
        file_row_groups=file_row_groups,
        row_group_tokens=min(SETTINGS.row_group_tokens, most),
        row_group_chars=min(SETTINGS.row_group_chars, most),
    )
    return list(files_of(settings, total, tokens=True))


@given(st.integers(0, 3 * FILE_ROWS), st.integers(0, 4000), st.integers(1, 200))
def test_every_sample_of_a_stage_is_in_one_file_of_full_row_groups(
    samples: int, length: int, file_row_groups: int
):
    files = cut(samples, samples * length, file_row_groups)
    assert sum(spec.rows for spec in files) == samples
    assert all(0 < spec.rows <= FILE_ROWS for spec in files if samples)
    assert all(spec.rows % spec.row_group_rows == 0 for spec in files[:-1])
    assert all(spec.rows <= file_row_groups * spec.row_group_rows for spec in files)
    edges = np.linspace(0, samples, (1 << BUCKET_BITS) + 1).astype(np.int64)
    starts = [int(edges[spec.first_bucket]) + spec.skip for spec in files]
    assert starts == np.cumsum([0, *(spec.rows for spec in files[:-1])]).tolist()
    for spec, after in pairwise(files):
        assert edges[spec.first_bucket] <= after.skip + edges[after.first_bucket] <= edges[spec.last_bucket]


@given(st.integers(1, 3000), st.integers(1, 2**31 - 1), st.integers(1, 2**15 - 1))
def test_no_file_holds_more_than_the_limit_however_long_the_samples_are(
    samples: int, length: int, file_row_groups: int
):
    files = cut(samples, samples * length, file_row_groups)
    assert sum(spec.rows for spec in files) == samples
    assert all(spec.rows == 1 or spec.rows * length <= MOST_IN_A_FILE for spec in files)


def test_samples_of_a_few_words_fill_no_file_beyond_its_rows():
    assert [spec.rows for spec in cut(1_000_000, 12_000_000)][:-1] == 3 * [12 * 21_845]
    assert [spec.rows for spec in cut(600_000, 600_000)] == [FILE_ROWS, FILE_ROWS, 600_000 - 2 * FILE_ROWS]


def test_samples_of_ordinary_length_fill_all_the_row_groups_of_a_file():
    assert [spec.rows for spec in cut(200_000, 100_000_000)][:-1] == 5 * [64 * 524]
