"""The curriculum of a finished build goes in; the samples that say otherwise than their place and values come out.

What put a sample where it lies is worked out anew from the files alone, a row group at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cleanfeed.build.finished import MANIFEST_NAME
from cleanfeed.build.judge import raw_hashes
from cleanfeed.build.spool import hashes
from cleanfeed.curriculum.order import shuffle_keys
from cleanfeed.curriculum.paths import AnyPath, opened
from cleanfeed.curriculum.stages import Stage, Tiers, band_limits, bands, quality_bins, stages_of
from cleanfeed.rules.pipeline import from_resolved
from cleanfeed.settings import CurriculumSettings
from cleanfeed.signals.buffers import text_buffers

Bools = npt.NDArray[np.bool_]

COLUMNS = "sample_hash", "source", "source_row", "part", "n_tokens", "n_chars", "quality", "input_ids", "text"
"""What is read of a sample."""

MEAN_DIGITS = 1e-6
"""A mean quality is written with six digits; the last may differ with the order of the sum."""


def misplaced(out: AnyPath, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the samples of a build whose files are those of its manifest.

    Of every sample: its hash is that of its ids or text, its lengths are theirs, its band and tier are those of its
    stage, and its shuffle key, from hash, seed and place in the input, is not below that of the sample before it.
    """
    settings = from_resolved(manifest["pipeline"], str(out / MANIFEST_NAME)).curriculum
    stages = stages_of(settings)
    if [entry["name"] for entry in manifest["stages"]] != [stage.name for stage in stages]:
        yield "manifest.json: its stages are not those of its pipeline"
        return
    tracer = _Tracer(out, manifest, settings)
    for stage, entry in zip(stages, manifest["stages"], strict=True):
        yield from tracer.wrong(stage, entry)


class _Tracer:
    def __init__(self, out: AnyPath, manifest: Mapping[str, Any], settings: CurriculumSettings) -> None:
        self.out, self.settings = out, settings
        self.tokens = manifest["tokenizer"] is not None
        self.limits = band_limits(settings, tokens=self.tokens)
        self.sources = pa.array([entry["source"] for entry in manifest["inputs"]], pa.string())
        names = [name for entry in manifest["stages"] for name in entry["files"]]
        by_share = any(tier.share is not None for tier in settings.tiers)
        self.tiers = Tiers(settings, self._histogram(names) if by_share else {})

    def _tables(self, names: Sequence[str], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the row groups of some files, with those of the columns that they have."""
        for name in names:
            file = pq.ParquetFile(opened(self.out / name))
            there = [column for column in columns if column in file.schema_arrow.names]
            for group in range(file.metadata.num_row_groups):
                yield file.read_row_group(group, there).combine_chunks()

    def _histogram(self, names: Sequence[str]) -> dict[int, int]:
        total: Counter[int] = Counter()
        for table in self._tables(names, ["quality"]):
            quality = _quality(table)
            bins, numbers = np.unique(quality_bins(quality[~np.isnan(quality)]), return_counts=True)
            total.update(dict(zip(bins.tolist(), numbers.tolist(), strict=True)))
        return dict(total)

    def wrong(self, stage: Stage, entry: Mapping[str, Any]) -> Iterator[str]:
        """Yield what is wrong with the samples of a stage."""
        found: Counter[str] = Counter()
        before, total, rated = np.zeros(1, dtype=np.uint64), 0.0, 0
        for table in self._tables(entry["files"], COLUMNS):
            keys, quality = np.concatenate([before, self._keys(table)]), _quality(table)
            for what, hit in {
                "have the hash of other content": self._other_hash(table),
                "have other lengths than they say": self._other_lengths(table),
                "are of another length than their band": self._bands(table) != stage.band,
                "are of another quality than their tier": self.tiers.of(quality) != stage.tier,
                "lie before one they belong behind": keys[1:] < keys[:-1],
            }.items():
                found[what] += int(np.count_nonzero(hit))
            before = keys[-1:]
            known = quality[~np.isnan(quality)].astype(np.float64)
            total, rated = total + float(known.sum()), rated + len(known)
        where = f"stage {stage.index} ({stage.name})"
        for what, number in found.items():
            if number:
                yield f"{where}: {number} samples {what}"
        mean, said = total / rated if rated else None, entry["mean_quality"]
        if (mean is None) != (said is None) or (mean is not None and abs(mean - said) > MEAN_DIGITS):
            yield f"{where}: the samples are of another mean quality than the manifest says"

    def _keys(self, table: pa.Table) -> npt.NDArray[np.uint64]:
        return shuffle_keys(
            raw_hashes(_only(table, "sample_hash")),
            self.settings.seed,
            pc.index_in(_only(table, "source"), value_set=self.sources).to_numpy(),
            _only(table, "source_row").to_numpy(),
            _only(table, "part").to_numpy(),
        )

    def _other_hash(self, table: pa.Table) -> Bools:
        if self.tokens:
            ids = _only(table, "input_ids")
            data, places = ids.values.to_numpy().view(np.uint8), ids.offsets.to_numpy().astype(np.int64) * 4
        else:
            data, places = text_buffers(_only(table, "text"))
        anew = raw_hashes(hashes(data.data, places[:-1], places[1:]))
        return np.asarray((anew != raw_hashes(_only(table, "sample_hash"))).any(axis=1))

    def _other_lengths(self, table: pa.Table) -> Bools:
        other = np.zeros(table.num_rows, dtype=np.bool_)
        if self.tokens:
            other |= pc.list_value_length(_only(table, "input_ids")).to_numpy() != self._lengths(table)
        if "text" in table.schema.names:
            other |= pc.utf8_length(_only(table, "text")).to_numpy() != _only(table, "n_chars").to_numpy()
        return other

    def _bands(self, table: pa.Table) -> npt.NDArray[np.int16]:
        return bands(self._lengths(table), self.limits)

    def _lengths(self, table: pa.Table) -> npt.NDArray[np.int64]:
        lengths = _only(table, "n_tokens" if self.tokens else "n_chars").to_numpy(zero_copy_only=False)
        return np.asarray(lengths).astype(np.int64)


def _only(table: pa.Table, name: str) -> Any:
    """Return a column of a row group, which is one array."""
    return table.column(name).chunk(0)


def _quality(table: pa.Table) -> npt.NDArray[np.float32]:
    """Return the qualities of samples; NaN where they are unknown."""
    return np.asarray(_only(table, "quality").to_numpy(zero_copy_only=False), dtype=np.float32)
