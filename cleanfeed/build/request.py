"""What the user asked for goes in; the plan, and a digest of everything that decides the result, come out."""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash
from msgspec import Struct
from msgspec.structs import replace

from cleanfeed import __version__
from cleanfeed.build.finished import FORMAT_VERSION
from cleanfeed.build.tasks import Context, scales_of, stamp, task_bytes
from cleanfeed.curriculum.exclusions import HashSet, read_exclusions
from cleanfeed.curriculum.paths import AnyPath, path_of, whereabouts
from cleanfeed.curriculum.reference import reference_counts
from cleanfeed.curriculum.writer import RESERVED
from cleanfeed.documents.codecs import open_raw
from cleanfeed.documents.hub import is_hub_name
from cleanfeed.documents.patterns import split_pattern, would_match
from cleanfeed.documents.plan import InputFile, Plan, check_columns, plan_inputs
from cleanfeed.errors import MisuseError, one_line
from cleanfeed.kernel_code import fingerprint as code_version
from cleanfeed.rules.pipeline import resolved
from cleanfeed.settings import Pipeline

BUILT = (
    "manifest.json",
    "tokenizer.json",
    "curriculum/00-stage/part-00000.parquet",
    "rejected/part-00000.parquet",
    "unreadable/part-00000.parquet",
    "signals/part-00000.parquet",
)
"""A file of each kind that a build writes."""

FINGERPRINT_BLOCKS, FINGERPRINT_BLOCK = 64, 16 * 1024


class BuildRequest(Struct, frozen=True):
    """One call of ``cleanfeed build``."""

    inputs: tuple[str, ...]
    out: str
    pipeline: Pipeline
    tokenizer: str | None = None
    workers: int = 1
    """Calls that are made at a time; for ``ray``, 0 is as many as the cluster has CPUs."""
    isolated: bool = False
    """Work in processes of its own with one worker too: what a document does to one cannot end the build then."""
    keep_text: bool = False
    limit: int | None = None
    overwrite: bool = False
    exclude: tuple[str, ...] = ()
    """Stores of hashes to leave out."""
    exclude_hashes: tuple[str, ...] = ()
    """Further hashes to leave out, in hex."""
    engine: str = "local"
    """``local`` or ``ray``."""


class Progress(Protocol):
    """Who wants to know how far a build is."""

    def compiling(self) -> None:
        """Kernels are compiled, once per installation; it takes some seconds."""

    def phase(self, name: str, total: int, unit: str) -> None:
        """A phase begins; ``unit`` is ``bytes``, ``segments`` or ``files``."""

    def advance(self, amount: int) -> None:
        """Some more of the phase is done."""

    def note(self, text: str) -> None:
        """Something the user should see; the build goes on."""


class Prepared(Struct, frozen=True):
    """A request whose inputs exist and whose settings hold."""

    request: BuildRequest
    plan: Plan
    context: Context
    fingerprints: dict[int, str]
    excluded: HashSet
    reference: npt.NDArray[np.int64] | None
    """How often each hashed n-gram occurs in the reference sample."""
    digest: str
    """Of everything that decides the result."""
    journal_key: str
    """The same and when the input files were changed last: an unfinished build goes on only from the same files."""


def prepare(request: BuildRequest) -> Prepared:
    """Find the inputs and check everything that can be checked before anything is written.

    Raises:
        MisuseError: An input does not exist, lies in OUT or holds it, or the pipeline or tokenizer is wrong.
    """
    if request.engine == "ray":
        from cleanfeed.build.ray_engine import check_ray

        check_ray()
    out = _out(request)
    _refuse_names(request, out)
    _refuse_nesting(request.inputs, out)
    context = Context(request.pipeline, out, request.tokenizer, request.keep_text)
    encoder = context.encoder()
    context.rules()
    size = task_bytes(tokenizer=request.tokenizer is not None)
    plan = plan_inputs(request.inputs, piece_bytes=size)
    if request.engine == "ray":
        plan = _absolute(plan)
    _refuse_own_output(plan, out)
    scale, task_scale = scales_of(plan.pieces, tokenizer=request.tokenizer is not None)
    context = replace(context, scale=scale, task_scale=task_scale)
    check_columns(plan, request.pipeline.documents, request.pipeline.quality.column)
    excluded = read_exclusions(request.exclude, request.exclude_hashes)
    fingerprints = {file.index: fingerprint(file) for file in plan.files}
    reference = _reference(request.pipeline)
    identity = {
        "format": [FORMAT_VERSION, __version__, code_version("signals")],
        "pipeline": resolved(request.pipeline),
        "tokenizer": encoder.digest if encoder else None,
        "keep_text": request.keep_text,
        "limit": request.limit,
        "reference": None if reference is None else xxhash.xxh3_128_hexdigest(reference.tobytes()),
        "excluded": xxhash.xxh3_128_hexdigest(excluded.halves.tobytes()) if len(excluded) else None,
        "inputs": [[file.source, file.kind, file.size, fingerprints[file.index]] for file in plan.files],
    }
    digest = xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())
    changed = [stamp(file.path) for file in plan.files]
    key = xxhash.xxh3_128_hexdigest(json.dumps([digest, changed]).encode())
    return Prepared(request, plan, context, fingerprints, excluded, reference, digest, key)


def _reference(pipeline: Pipeline) -> npt.NDArray[np.int64] | None:
    """Return the counts of the reference sample, which is read like an input."""
    quality = pipeline.quality
    if quality.reference is None:
        return None
    try:
        return reference_counts(quality.reference, quality.reference_buckets, pipeline.documents)
    except MisuseError as error:
        raise MisuseError(f"quality.reference: {error}") from error


def _out(request: BuildRequest) -> AnyPath:
    """Return where to build; workers on other machines know nothing of this process' folder."""
    out = path_of(request.out)
    return out.absolute() if isinstance(out, Path) and request.engine == "ray" else out


def _absolute(plan: Plan) -> Plan:
    """Return the plan with paths that mean the same from any folder."""
    files = tuple(
        file if "://" in file.path else replace(file, path=str(Path(file.path).absolute()))
        for file in plan.files
    )
    pieces = tuple(replace(piece, file=files[piece.file.index]) for piece in plan.pieces)
    return replace(plan, files=files, pieces=pieces)


def _refuse_names(request: BuildRequest, out: AnyPath) -> None:
    """Refuse an OUT that can be no folder, and kept fields whose columns would be two of a name."""
    there = (
        next((path for path in (out, *out.parents) if path.exists()), Path())
        if isinstance(out, Path)
        else None
    )
    if there is not None and not there.is_dir():
        raise MisuseError(
            one_line("--out is not a folder", request.out, f"a file at {there}", "a folder or a new name")
        )
    taken = [name for name in request.pipeline.documents.keep_fields if name in RESERVED]
    if taken:
        expected = "a name that is no column of the curriculum: " + ", ".join(RESERVED)
        todo = "Rename the field in the input."
        raise MisuseError(
            one_line("--keep-field has the name of a column", ", ".join(taken), "", expected, todo)
        )


def _refuse_nesting(inputs: tuple[str, ...], out: AnyPath) -> None:
    target = whereabouts(str(out))
    for name in inputs:
        if is_hub_name(name):
            continue
        name = name if "://" in name else str(Path(name).expanduser())
        source = whereabouts(name)
        inside = (target == source or source in target.parents) and ("://" in name or Path(name).is_dir())
        if inside or _would_take(name, target):
            raise MisuseError(
                one_line("--out lies inside an input", str(out), todo=f"Choose a folder outside {name}.")
            )
        if target == source or target in source.parents:
            raise MisuseError(
                one_line("an input lies inside --out", name, todo=f"Choose a folder other than {out}.")
            )


def _would_take(name: str, target: PurePosixPath) -> bool:
    """Return whether an input is a glob that would match OUT, or a file that a build writes there, once it is there.

    Told before the first build: one that goes on after a kill would read what the first has written.
    """
    split = split_pattern(name)
    if split is None or split[0].endswith("://") or ("://" not in name and os.path.lexists(name)):
        return False
    folder, pattern = split
    base = whereabouts(folder or ".")
    if base not in target.parents:
        return False
    files = [(*target.relative_to(base).parts, *PurePosixPath(name).parts) for name in BUILT]
    # What lies in a folder that matches is read, but not by a glob of addresses or by a recursive one.
    walks = "://" not in folder and "**" not in pattern
    folders = {file[:depth] for file in files for depth in range(1, len(file)) if walks}
    return any(would_match(pattern, path) for path in [*files, *folders])


def _refuse_own_output(plan: Plan, out: AnyPath) -> None:
    """Refuse inputs, however they were named, that are files of OUT."""
    target = whereabouts(str(out))
    for file in plan.files:
        if target in whereabouts(file.path).parents:
            raise MisuseError(
                one_line("an input lies inside --out", file.path, todo=f"Choose a folder other than {out}.")
            )


def fingerprint(file: InputFile) -> str:
    """Return a digest that notices almost any change of a file without reading all of it.

    xxh3-128 over its size and 64 blocks of 16 KiB spread evenly over it; of a file up to 1 MiB, over all of it.
    """
    digest = xxhash.xxh3_128(str(file.size).encode())
    with open_raw(file.path, jumps=True) as handle:
        if file.size <= FINGERPRINT_BLOCKS * FINGERPRINT_BLOCK:
            digest.update(handle.read())
        else:
            for block in range(FINGERPRINT_BLOCKS):
                handle.seek(block * (file.size - FINGERPRINT_BLOCK) // (FINGERPRINT_BLOCKS - 1))
                digest.update(handle.read(FINGERPRINT_BLOCK))
    return digest.hexdigest()


def describe(file: InputFile, fingerprints: dict[int, str]) -> dict[str, Any]:
    """Return what the manifest says of an input file."""
    return {
        "input": file.input,
        "source": file.source,
        "kind": file.kind,
        "compression": file.compression,
        "bytes": file.size,
        "fingerprint": fingerprints[file.index],
    }
