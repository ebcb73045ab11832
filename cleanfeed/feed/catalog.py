"""The address of a finished build goes in; what its manifest says of the curriculum comes out, in a few kilobytes."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from fsspec.implementations.local import LocalFileSystem

from cleanfeed.build.finished import (
    MANIFEST_NAME,
    curriculum_digest,
    manifest_digest,
    parse_manifest,
)
from cleanfeed.documents.addresses import reached
from cleanfeed.errors import CurriculumError, one_line

Int64 = npt.NDArray[np.int64]
REBUILD = "Restore the build from where it was copied, or build anew with --overwrite."


@dataclass(frozen=True, slots=True)
class StageEntry:
    """One stage: a run of row groups, all full but the last, cut into files of equally many."""

    index: int
    name: str
    band: str
    tier: str
    samples: int
    group_rows: int
    """R: samples in a full row group."""
    file_groups: int
    """Row groups in a full file."""
    first_row: int
    """Row number, over the whole curriculum, of its first sample."""
    first_group: int
    """Number, over the whole curriculum, of its first row group."""
    max_length: int
    """Longest sample of its band: tokens where there is a tokenizer, else code points."""
    tokens: int = 0
    """Tokens of its samples; 0 without a tokenizer."""

    @property
    def groups(self) -> int:
        """Row groups of the stage."""
        return -(-self.samples // self.group_rows)

    @property
    def files(self) -> int:
        """Files of the stage; one, without rows, where it has no samples."""
        return max(1, -(-self.groups // self.file_groups))

    def file_name(self, number: int) -> str:
        """Return the name of a file of the stage, from the folder of the build."""
        return f"curriculum/{self.index:02d}-{self.name}/part-{number:05d}.parquet"

    def file_rows(self, number: int) -> int:
        """Return the rows of a file of the stage."""
        step = self.group_rows * self.file_groups
        return max(0, min(step, self.samples - number * step))


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Where one row group lies."""

    stage: int
    """Place of its stage in the catalog."""
    file: str
    """Name of its file, from the folder of the build."""
    index: int
    """Its number in the file."""
    rows: int
    first_row: int
    """Row number, over the whole curriculum, of its first sample."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a manifest says about a curriculum. Row numbers count its samples from 0, stages in order."""

    path: str
    """Folder or fsspec address, as given."""
    digest: str
    """Digest of the curriculum, 32 hex digits."""
    tokenizer_digest: str | None
    end_of_text_id: int | None
    stages: tuple[StageEntry, ...]
    vocab_size: int | None = None
    """Ids of the tokenizer, added ones included: the rows a model's embedding needs."""

    @property
    def samples(self) -> int:
        """Samples of the curriculum."""
        return self.stages[-1].first_row + self.stages[-1].samples

    @property
    def groups(self) -> int:
        """Row groups of the curriculum."""
        return self.stages[-1].first_group + self.stages[-1].groups

    def file_groups(self) -> list[range]:
        """Return the row groups of each file that has any, as numbers over the whole curriculum."""
        return [
            range(first, min(first + stage.file_groups, stage.first_group + stage.groups))
            for stage in self.stages
            for first in range(stage.first_group, stage.first_group + stage.groups, stage.file_groups)
        ]

    def stages_at(self, rows: Int64) -> Int64:
        """Return the place in ``stages`` of each row number, shape [n]."""
        firsts = np.array([stage.first_row for stage in self.stages], dtype=np.int64)
        # Of stages that begin at the same row, all but the last are empty.
        return np.searchsorted(firsts, rows, side="right").astype(np.int64) - 1

    def groups_at(self, rows: Int64) -> tuple[Int64, Int64]:
        """Return the row group of each row number and its place in it, both of shape [n]."""
        columns = np.array(
            [(one.first_row, one.group_rows, one.first_group) for one in self.stages], dtype=np.int64
        )
        first_row, group_rows, first_group = columns[self.stages_at(rows)].T
        group, place = np.divmod(rows - first_row, group_rows)
        return first_group + group, place

    def row_group(self, number: int) -> RowGroup:
        """Return where a row group of the curriculum lies."""
        at = bisect_right([stage.first_group for stage in self.stages], number) - 1
        stage = self.stages[at]
        group = number - stage.first_group
        first = group * stage.group_rows
        return RowGroup(
            stage=at,
            file=stage.file_name(group // stage.file_groups),
            index=group % stage.file_groups,
            rows=min(stage.group_rows, stage.samples - first),
            first_row=stage.first_row + first,
        )


def storage(path: str) -> tuple[Any, str, bool]:
    """Return the file system of a build, its folder there, and whether that is a folder of this machine.

    A file system may hold threads and sockets: never hand it to another process, ask anew there.
    """
    system, root = reached(path)
    return system, root.rstrip("/"), isinstance(system, LocalFileSystem)


def read_catalog(path: str) -> Catalog:
    """Return the catalog of a finished build.

    Names, rows and sizes of the files are held against the manifest here; their contents are checked, page by page,
    when they are read.

    Args:
        path: Folder that ``cleanfeed build`` wrote, or its fsspec address.

    Raises:
        CurriculumError: There is no finished build, or it was altered since it was written.
    """
    system, root, local = storage(path)
    place = f"{root}/{MANIFEST_NAME}"
    if not system.exists(place):
        unfinished = system.exists(f"{root}/.work")
        todo = (
            "Run the same build command again to finish it." if unfinished else "Run cleanfeed build first."
        )
        raise CurriculumError(
            one_line("the folder holds no finished build", path, "no manifest.json", todo=todo)
        )
    manifest = parse_manifest(system.cat_file(place), f"{path}/{MANIFEST_NAME}")
    if manifest_digest(manifest) != manifest["manifest_digest"]:
        raise CurriculumError(one_line("the manifest was altered since it was written", path, todo=REBUILD))
    catalog = catalog_of(manifest, path)
    _check_sizes(catalog, manifest, _local_size(root) if local else _listed_size(system, root))
    return catalog


def catalog_of(manifest: Mapping[str, Any], path: str) -> Catalog:
    """Return the catalog of a manifest whose own digest is right.

    Raises:
        CurriculumError: Its stages and files do not belong together.
    """
    if curriculum_digest(manifest["stages"], manifest["files"]) != manifest["digest"]:
        raise CurriculumError(one_line("digest and files of the manifest disagree", path, todo=REBUILD))
    settings, tokenizer = manifest["pipeline"]["curriculum"], manifest["tokenizer"]
    unit = "max_chars" if tokenizer is None else "max_tokens"
    longest = {band["name"]: band[unit] for band in settings["bands"]}
    stages: list[StageEntry] = []
    row = group = 0
    for entry in manifest["stages"]:
        stage = StageEntry(
            index=entry["index"],
            name=entry["name"],
            band=entry["band"],
            tier=entry["tier"],
            samples=entry["samples"],
            group_rows=entry["row_group_samples"],
            file_groups=settings["file_row_groups"],
            first_row=row,
            first_group=group,
            max_length=longest[entry["band"]],
            tokens=entry.get("tokens") or 0,
        )
        stages.append(stage)
        row, group = row + stage.samples, group + stage.groups
    if not row:
        raise CurriculumError(
            one_line("the curriculum holds no samples", path, todo="Nothing can be trained on it.")
        )
    catalog = Catalog(
        path=path,
        digest=manifest["digest"],
        tokenizer_digest=tokenizer and tokenizer["digest"],
        end_of_text_id=tokenizer and tokenizer["end_of_text_id"],
        stages=tuple(stages),
        vocab_size=tokenizer and tokenizer["vocab_size"],
    )
    _check_cut(catalog, manifest)
    return catalog


def _check_cut(catalog: Catalog, manifest: Mapping[str, Any]) -> None:
    """Check that the files are those that follow from the stages: only then is a row found without a list."""
    rows = {
        file["path"]: file["rows"] for file in manifest["files"] if file["path"].startswith("curriculum/")
    }
    for stage in catalog.stages:
        for number in range(stage.files):
            name = stage.file_name(number)
            got, expected = rows.pop(name, None), stage.file_rows(number)
            if got != expected:
                found = "no such file" if got is None else f"{got} rows"
                raise CurriculumError(
                    one_line(
                        "the files of a stage are not cut as its size says",
                        f"{catalog.path}: {name}",
                        found,
                        f"{expected} rows",
                        REBUILD,
                    )
                )
    if rows:
        raise CurriculumError(one_line("a file of no stage", f"{catalog.path}: {min(rows)}", todo=REBUILD))


def _local_size(root: str) -> Callable[[str], int | None]:
    def size(name: str) -> int | None:
        try:
            return os.stat(f"{root}/{name}").st_size  # noqa: PTH116, a path object costs more than the call
        except FileNotFoundError:
            return None

    return size


def _listed_size(system: Any, root: str) -> Callable[[str], int | None]:
    # A store is asked once for all of them, which at 30,000 files is the difference between seconds and hours.
    sizes = {name: info["size"] for name, info in system.find(f"{root}/curriculum", detail=True).items()}
    return lambda name: sizes.get(f"{root}/{name}")


def _check_sizes(catalog: Catalog, manifest: Mapping[str, Any], size: Callable[[str], int | None]) -> None:
    for file in manifest["files"]:
        if not file["path"].startswith("curriculum/"):
            continue
        got = size(file["path"])
        if got != file["bytes"]:
            raise CurriculumError(
                one_line(
                    "a file of the curriculum is missing"
                    if got is None
                    else "a file of the curriculum was altered",
                    f"{catalog.path}: {file['path']}",
                    "" if got is None else f"{got} bytes",
                    "" if got is None else f"{file['bytes']} bytes",
                    REBUILD,
                )
            )
