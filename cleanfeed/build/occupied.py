"""An output folder that is not empty goes in; the right to use it, or a refusal that says why not, comes out.

An old build stays whole until the new one has read its inputs; only then is it removed, and exactly what its manifest
lists.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from cleanfeed.build.journal import request_of
from cleanfeed.build.lock import LOCK_NAME
from cleanfeed.build.manifest import MANIFEST_NAME, read_manifest
from cleanfeed.build.tasks import work_folder
from cleanfeed.errors import CleanfeedError, MisuseError, one_line

PARTS = (
    "curriculum/*/part-*.parquet",
    "rejected/part-*.parquet",
    "unreadable/part-*.parquet",
    "signals/part-*.parquet",
)


def finished_build(out: Path, *, overwrite: bool) -> dict[str, Any] | None:
    """Return the manifest of the build in ``out``, or None; one that cannot be read stops only who would keep it."""
    try:
        return read_manifest(out)
    except CleanfeedError:
        if overwrite:
            return None
        raise


def refuse_occupied(out: Path, finished: dict[str, Any] | None) -> None:
    """Refuse a folder that holds another build or something else.

    Raises:
        MisuseError: The folder holds a finished build, or files and no build.
    """
    if finished is not None:
        raise MisuseError(
            one_line(
                "the folder holds a finished build of other inputs or settings",
                str(out),
                todo="Give another --out, or replace it with --overwrite.",
            )
        )
    if not out.exists() or work_folder(out).exists():
        return
    if others := sorted(path.name for path in out.iterdir()):
        raise MisuseError(
            one_line(
                "the folder is not empty and holds no build",
                str(out),
                ", ".join(others[:5]),
                "an empty or new folder",
                "Give another --out; --overwrite builds beside these files.",
            )
        )


def drop_unfinished(out: Path, request: str) -> None:
    """Remove an unfinished build of another request, and the parts it has already written."""
    work = work_folder(out)
    if request_of(work) in (None, request):
        return
    if not (out / MANIFEST_NAME).exists():
        for pattern in PARTS:
            for path in out.glob(pattern):
                path.unlink()
    for path in work.iterdir():
        if path.name != LOCK_NAME:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_old(out: Path) -> list[str]:
    """Remove the finished build in ``out``, as its manifest lists it; return the names of the files that are left."""
    finished = finished_build(out, overwrite=True)
    # Without its manifest the rest counts as unfinished, whenever this is interrupted.
    (out / MANIFEST_NAME).unlink(missing_ok=True)
    for entry in (finished or {}).get("files", ()):
        (out / entry["path"]).unlink(missing_ok=True)
    work = work_folder(out)
    for folder in sorted((path for path in out.rglob("*") if path.is_dir() and path != work), reverse=True):
        with suppress(OSError):
            folder.rmdir()
    return sorted(
        path.relative_to(out).as_posix()
        for path in out.rglob("*")
        if path.is_file() and work not in path.parents
    )


def forget(out: Path) -> None:
    """Leave ``out`` as it was before a build that has written nothing but its work folder."""
    shutil.rmtree(work_folder(out))
    with suppress(OSError):
        out.rmdir()
