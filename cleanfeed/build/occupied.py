"""An output folder that is not empty goes in; the right to use it, or a refusal that says why not, comes out.

An old build stays whole until the new one has read its inputs; only then is it removed, and exactly what its manifest
lists. All of this is done by the process that holds the folder's lock.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cleanfeed.build.finished import MANIFEST_NAME
from cleanfeed.build.journal import drop_journal, has_entered, has_journal, request_of
from cleanfeed.build.lock import LOCK_NAME
from cleanfeed.build.manifest import read_manifest
from cleanfeed.build.tasks import work_folder
from cleanfeed.curriculum.durable import ASIDE_SUFFIX, move, remove_tree, sync, write_bytes
from cleanfeed.curriculum.paths import AnyPath, ObjectPath, sizes_below
from cleanfeed.errors import CleanfeedError, MisuseError, one_line

OLD_MANIFEST_NAME = "old-manifest.json"
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_BEGUN = "tokenizer"
"""What a journal says of a build that is about to write that file, which may also be someone else's."""
PARTS = (
    "curriculum/*/part-*.parquet",
    "rejected/part-*.parquet",
    "unreadable/part-*.parquet",
    "signals/part-*.parquet",
)


def finished_build(out: AnyPath, *, overwrite: bool) -> dict[str, Any] | None:
    """Return the manifest of the build in ``out``, or None; one that cannot be read stops only who would keep it."""
    try:
        return read_manifest(out)
    except CleanfeedError:
        if overwrite:
            return None
        raise


def refuse_occupied(out: AnyPath, finished: dict[str, Any] | None) -> None:
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
    if not has_journal(work_folder(out)) and (others := strangers(out)):
        raise MisuseError(
            one_line(
                "the folder is not empty and holds no build",
                str(out),
                ", ".join(others[:5]),
                "an empty or new folder",
                "Give another --out; --overwrite builds beside these files.",
            )
        )


def strangers(out: AnyPath) -> list[str]:
    """Return the names of the files in ``out`` that neither its manifest lists nor an unfinished build holds."""
    work = work_folder(out).name + "/"
    listed = {MANIFEST_NAME, *_listed(out / MANIFEST_NAME)}
    return [name for name in sizes_below(out) if name not in listed and not name.startswith(work)]


def drop_asides(out: AnyPath) -> None:
    """Remove what writers that were killed have left under names of their own; in a store they leave nothing."""
    if isinstance(out, Path):
        for pattern in (work_folder(out).name + "/*", *PARTS, MANIFEST_NAME):
            for left in out.glob(pattern + ASIDE_SUFFIX):
                left.unlink()


def drop_unfinished(out: AnyPath, request: str) -> None:
    """Remove an unfinished build of another request, and the parts it has already written.

    Killed, it leaves a list of what is still to be removed: :func:`take_up_removal` goes on with that.
    """
    work = work_folder(out)
    if request_of(work) in (None, request):
        return
    aside = work / OLD_MANIFEST_NAME
    if (out / MANIFEST_NAME).exists():
        aside.unlink(missing_ok=True)
    else:
        # It had begun to write, so what it was to replace was already being removed.
        parts = [name for name in sizes_below(out) if any(fnmatchcase(name, part) for part in PARTS)]
        if has_entered(work, TOKENIZER_BEGUN):
            parts.append(TOKENIZER_NAME)
        files = [{"path": name} for name in sorted({*parts, *_listed(aside)})]
        write_bytes(aside, json.dumps({"files": files}).encode())
    drop_journal(work)
    _empty(work, but=(LOCK_NAME, OLD_MANIFEST_NAME))


def take_up_removal(out: AnyPath) -> None:
    """Remove what an unfinished build that was dropped has left, where that was interrupted or has not begun."""
    work = work_folder(out)
    if (work / OLD_MANIFEST_NAME).exists() and not has_journal(work):
        remove_old(out)


def _empty(work: AnyPath, but: tuple[str, ...]) -> None:
    """Remove what is in a work folder, except what has a name that begins like one of ``but``."""
    if isinstance(work, ObjectPath):
        work.remove_below(name for name in work.sizes() if not name.startswith(but))
        return
    for path in work.iterdir():
        if not path.name.startswith(but):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _listed(manifest: AnyPath) -> list[str]:
    """Return the files that a manifest lists; none where there is none, or none that can be read."""
    if manifest.exists():
        with suppress(ValueError, TypeError, KeyError):
            return [entry["path"] for entry in json.loads(manifest.read_bytes())["files"]]
    return []


def remove_old(out: AnyPath) -> None:
    """Remove the finished build in ``out``, as its manifest lists it.

    The manifest is put aside first and removed last: from then on the folder counts as unfinished, and a removal that
    was interrupted is taken up again.
    """
    work = work_folder(out)
    aside = work / OLD_MANIFEST_NAME
    if (out / MANIFEST_NAME).exists():
        move(out / MANIFEST_NAME, aside)
        sync([aside])
    if not aside.exists():
        return
    _remove(out, _listed(aside))
    if isinstance(out, Path):
        for folder in sorted(
            (path for path in out.rglob("*") if path.is_dir() and path != work), reverse=True
        ):
            with suppress(OSError):
                folder.rmdir()
    sync([aside])
    aside.unlink()


def _remove(out: AnyPath, names: list[str]) -> None:
    """Remove files of a build; those that are gone already do not matter."""
    if isinstance(out, ObjectPath):
        out.remove_below(names)
        return
    for name in names:
        (out / name).unlink(missing_ok=True)


def forget(out: AnyPath) -> None:
    """Leave ``out`` without the work folder of a build that has written nothing else, and without itself if empty."""
    remove_work(out)
    if isinstance(out, Path):
        with suppress(OSError):
            out.rmdir()


def remove_work(out: AnyPath) -> None:
    """Remove the work folder. Killed, it leaves no unfinished build, only files that the next one removes."""
    drop_journal(work_folder(out))
    remove_tree(work_folder(out))
