"""An output folder that is not empty goes in; the right to use it, or a refusal that says why not, comes out.

An old build stays whole until the new one has read its inputs; only then is it removed, and exactly what its manifest
lists. All of this is done by the process that holds the folder's lock.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from cleanfeed.build.journal import JOURNAL_NAME, request_of
from cleanfeed.build.lock import LOCK_NAME
from cleanfeed.build.manifest import MANIFEST_NAME, read_manifest
from cleanfeed.build.tasks import work_folder
from cleanfeed.errors import CleanfeedError, MisuseError, one_line

OLD_MANIFEST_NAME = "old-manifest.json"
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
                "the folder holds a finished build of other inputs or settings, or by another version",
                str(out),
                todo="Give another --out, or replace it with --overwrite.",
            )
        )
    if not (work_folder(out) / JOURNAL_NAME).exists() and (others := strangers(out)):
        raise MisuseError(
            one_line(
                "the folder is not empty and holds no build",
                str(out),
                ", ".join(others[:5]),
                "an empty or new folder",
                "Give another --out; --overwrite builds beside these files.",
            )
        )


def strangers(out: Path) -> list[str]:
    """Return the names of the files in ``out`` that neither its manifest lists nor an unfinished build holds."""
    work = work_folder(out)
    listed = {entry["path"] for entry in (finished_build(out, overwrite=True) or {}).get("files", ())}
    files = (path for path in out.rglob("*") if path.is_file() and work not in path.parents)
    names = sorted(path.relative_to(out).as_posix() for path in files)
    return [name for name in names if name not in listed and name != MANIFEST_NAME]


def drop_unfinished(out: Path, request: str) -> None:
    """Remove an unfinished build of another request, and the parts it has already written."""
    work = work_folder(out)
    if request_of(work) in (None, request):
        return
    if not (out / MANIFEST_NAME).exists():
        # It had begun to write, so what it was to replace was already being removed.
        for pattern in PARTS:
            for path in out.glob(pattern):
                path.unlink()
        remove_old(out)
    for path in work.iterdir():
        if path.name != LOCK_NAME:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_old(out: Path) -> None:
    """Remove the finished build in ``out``, as its manifest lists it.

    The manifest is put aside first and removed last: from then on the folder counts as unfinished, and a removal that
    was interrupted is taken up again.
    """
    aside = work_folder(out) / OLD_MANIFEST_NAME
    if (out / MANIFEST_NAME).exists():
        (out / MANIFEST_NAME).replace(aside)
    if not aside.exists():
        return
    with suppress(ValueError, TypeError, KeyError):
        for entry in json.loads(aside.read_bytes())["files"]:
            (out / entry["path"]).unlink(missing_ok=True)
    work = work_folder(out)
    for folder in sorted((path for path in out.rglob("*") if path.is_dir() and path != work), reverse=True):
        with suppress(OSError):
            folder.rmdir()
    aside.unlink()


def forget(out: Path) -> None:
    """Leave ``out`` without the work folder of a build that has written nothing else, and without itself if empty."""
    shutil.rmtree(work_folder(out))
    with suppress(OSError):
        out.rmdir()
