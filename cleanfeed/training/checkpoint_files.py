"""What a checkpoint folder must hold goes in; a folder that is whole or has another name, and the proof, comes out.

::

    checkpoints/step-00000250/
      ...                          what the user's or the built-in `save` wrote
      cleanfeed/rng-0000.json      random states of rank 0, 1, …
      cleanfeed/checkpoint.json    written last: every other file with size and digest, and the guard's state
      cleanfeed/safe.json          written later, once healthy steps have followed

A folder is written under another name, synced and renamed. So a name without a suffix is whole unless its files were
damaged afterwards, which the digests tell.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cleanfeed.curriculum.durable import file_digest, sync, write_bytes
from cleanfeed.errors import CheckpointError, one_line
from cleanfeed.runs.layout import RunDir

OWN = "cleanfeed"
RECORD = f"{OWN}/checkpoint.json"
SAFE = f"{OWN}/safe.json"
UNFINISHED = ".unfinished"
REPLACED = ".replaced"


class CheckpointRecord(msgspec.Struct, frozen=True):
    """What ``cleanfeed/checkpoint.json`` holds."""

    format: int
    step: int
    """Optimizer steps done."""
    attempt: int
    """Attempt that wrote it."""
    saved_at: float
    world_size: int
    finite: bool | None
    """Whether all weights and moments were finite; null where nobody could tell."""
    files: dict[str, tuple[int, str]]
    """Size and xxh3-128 of every other file, by its path inside the folder."""
    guard: dict[str, Any]
    """The guard's own state: sampler, detectors, counters."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that could be read as one; its digests may still be wrong."""

    path: Path
    record: CheckpointRecord
    safe: bool

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.record.step


def begin(run: RunDir, step: int) -> Path:
    """Return a new, empty folder to write a checkpoint into, of a name that no reader takes for one."""
    aside = run.checkpoint(step).with_name(run.checkpoint(step).name + UNFINISHED)
    if aside.exists():
        shutil.rmtree(aside)
    (aside / OWN).mkdir(parents=True)
    return aside


def seal(run: RunDir, aside: Path, record: CheckpointRecord) -> Path:
    """List and sync what the folder holds, and give it its name; an older checkpoint of that step is replaced."""
    paths = [path for path in sorted(aside.rglob("*")) if path.is_file()]
    files = {
        path.relative_to(aside).as_posix(): (path.stat().st_size, file_digest(path))
        for path in paths
        if path != aside / RECORD
    }
    sync(paths)
    (aside / RECORD).write_bytes(msgspec.json.encode(msgspec.structs.replace(record, files=files)))
    sync([aside / RECORD])
    final = run.checkpoint(record.step)
    if final.exists():
        old = final.with_name(final.name + REPLACED)
        if old.exists():
            shutil.rmtree(old)
        final.rename(old)
        aside.rename(final)
        shutil.rmtree(old)
    else:
        aside.rename(final)
    _sync_folder(final.parent)
    return final


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clean(run: RunDir) -> None:
    """Remove what a killed process left; a checkpoint that was just being replaced gets its name back."""
    if not run.checkpoints.is_dir():
        return
    for old in sorted(run.checkpoints.glob("*" + REPLACED)):
        final = old.with_name(old.name.removesuffix(REPLACED))
        shutil.rmtree(old) if final.exists() else old.rename(final)
    for aside in sorted(run.checkpoints.glob("*" + UNFINISHED)):
        shutil.rmtree(aside)
    for mark in sorted(run.checkpoints.glob(f"*/{SAFE}*{UNFINISHED}")):
        mark.unlink()


def find(run: RunDir, step: int) -> Found:
    """Return the checkpoint of a step.

    Raises:
        CheckpointError: There is none, or it is not complete.
    """
    path = run.checkpoint(step)
    try:
        record = msgspec.json.decode((path / RECORD).read_bytes(), type=CheckpointRecord)
    except FileNotFoundError:
        raise CheckpointError(
            one_line("the checkpoint is not complete", str(path), got=f"no {RECORD}", todo="It is not used.")
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(
            one_line(
                "the checkpoint cannot be read", str(path / RECORD), got=str(error), todo="It is not used."
            )
        ) from error
    return Found(path, record, (path / SAFE).exists())


def verify(found: Found, *, digests: bool = True) -> None:
    """Read every file of a checkpoint again.

    Raises:
        CheckpointError: A file is missing, of another size, or of other content.
    """
    for name, (size, digest) in found.record.files.items():
        path = found.path / name
        got = path.stat().st_size if path.is_file() else None
        if got != size:
            wrong = "no such file" if got is None else f"{got:,} bytes"
            raise _damaged(path, wrong, f"{size:,} bytes")
        if digests and (now := file_digest(path)) != digest:
            raise _damaged(path, f"digest {now}", digest)


def _damaged(path: Path, got: str, expected: str) -> CheckpointError:
    return CheckpointError(
        one_line(
            "the checkpoint is damaged", str(path), got, expected, "It is not used: restore or remove it."
        )
    )


def mark_safe(found: Found, at_step: int, attempt: int) -> None:
    """Record that healthy steps have followed this checkpoint."""
    write_bytes(found.path / SAFE, msgspec.json.encode({"at_step": at_step, "attempt": attempt}))


def remove(run: RunDir, step: int) -> None:
    """Remove a checkpoint: it loses its name first, so that half of one is never taken for a whole."""
    path = run.checkpoint(step)
    if path.exists():
        aside = path.with_name(path.name + UNFINISHED)
        if aside.exists():
            shutil.rmtree(aside)
        path.rename(aside)
        shutil.rmtree(aside)
