"""The sample indexes of all tasks go in; for every file of the curriculum, which samples it holds comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from cleanfeed.curriculum.order import BUCKET_BITS, buckets
from cleanfeed.curriculum.paths import AnyPath, fetched
from cleanfeed.curriculum.stages import Stage, Tiers, stages_of
from cleanfeed.settings import MOST_IN_A_FILE, CurriculumSettings

Int64 = npt.NDArray[np.int64]

FILE_ROWS = 1 << 18
"""Most samples in one file. A file is put together in memory, where a sample takes half a kilobyte beside its ids or
text: of samples of a few words a file has fewer row groups than it may have."""


class StageTotals(Struct):
    """What one stage holds."""

    stage: Stage
    by_bucket: Int64
    """Samples in each bucket of shuffle keys."""
    units: int = 0
    """Tokens with a tokenizer, else code points."""
    chars: int = 0
    quality_sum: float = 0.0
    rated: int = 0
    """Samples that have a quality."""

    @property
    def samples(self) -> int:
        """Samples of the stage."""
        return int(self.by_bucket.sum())


class FileSpec(Struct, frozen=True):
    """One curriculum file: a run of its stage's samples in shuffled order."""

    name: str
    stage: Stage
    first_bucket: int
    last_bucket: int
    skip: int
    """Samples of the first bucket that belong to the file before."""
    rows: int
    row_group_rows: int


def read_index(path: AnyPath) -> pa.Table:
    """Map a task's index of samples."""
    with pa.memory_map(str(fetched(path))) as source:
        return pa.ipc.open_file(source).read_all()


def column(index: pa.Table, name: str) -> npt.NDArray[Any]:
    """Return a fixed-width column of an index as one array."""
    values: npt.NDArray[Any] = index.column(name).to_numpy()
    return values


def stage_rows(index: pa.Table, stage: Stage, tiers: Tiers) -> npt.NDArray[np.bool_]:
    """Return which samples of an index belong to a stage."""
    wanted = column(index, "band") == stage.band
    wanted &= tiers.of(column(index, "quality").astype(np.float32)) == stage.tier
    return np.asarray(wanted)


def add_up(
    settings: CurriculumSettings, tiers: Tiers, indexes: Iterator[pa.Table], *, tokens: bool
) -> list[StageTotals]:
    """Return what each stage holds over all tasks."""
    stages = stages_of(settings)
    number_of = np.zeros((len(settings.bands), len(settings.tiers)), dtype=np.int64)
    for stage in stages:
        number_of[stage.band, stage.tier] = stage.index
    totals = [StageTotals(stage, np.zeros(1 << BUCKET_BITS, dtype=np.int64)) for stage in stages]
    for index in indexes:
        quality = column(index, "quality").astype(np.float32)
        number = number_of[column(index, "band"), tiers.of(quality)]
        bucket = buckets(column(index, "key").astype(np.uint64))
        length, chars = column(index, "length" if tokens else "n_chars"), column(index, "n_chars")
        for total in totals:
            here = number == total.stage.index
            total.by_bucket += np.bincount(bucket[here], minlength=1 << BUCKET_BITS)
            total.units += int(length[here].sum())
            total.chars += int(chars[here].sum())
            rated = quality[here & ~np.isnan(quality)].astype(np.float64)
            total.quality_sum += float(rated.sum())
            total.rated += len(rated)
    return totals


def row_group_rows(settings: CurriculumSettings, total: StageTotals, *, tokens: bool) -> int:
    """Return the samples in a full row group of a stage: about 1 MiB of values at its mean length."""
    wanted = settings.row_group_tokens if tokens else settings.row_group_chars
    return max(1, min(wanted * total.samples // max(1, total.units), FILE_ROWS))


def files_of(settings: CurriculumSettings, total: StageTotals, *, tokens: bool) -> Iterator[FileSpec]:
    """Yield the files of a stage; a stage without samples has one empty file."""
    stage, samples = total.stage, total.samples
    group = row_group_rows(settings, total, tokens=tokens)
    # A sample may be longer than a row group is to be: then fewer of them fill a file.
    rows = min(FILE_ROWS, MOST_IN_A_FILE * samples // max(1, total.units))
    step = group * max(1, min(settings.file_row_groups, rows // group))
    ends = np.cumsum(total.by_bucket)
    for number, first in enumerate(range(0, max(samples, 1), step)):
        last = min(first + step, samples)
        name = f"curriculum/{stage.index:02d}-{stage.name}/part-{number:05d}.parquet"
        if not samples:
            yield FileSpec(name, stage, 0, 0, 0, 0, group)
            continue
        low = int(np.searchsorted(ends, first, side="right"))
        high = int(np.searchsorted(ends, last, side="left"))
        before = int(ends[low - 1]) if low else 0
        yield FileSpec(name, stage, low, high + 1, first - before, last - first, group)
