"""Files, folders, globs and addresses go in; the files they stand for come out, sorted, each with a stable name."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cleanfeed.documents.addresses import reached
from cleanfeed.documents.hub import hub_files, is_hub_name
from cleanfeed.documents.patterns import split_pattern
from cleanfeed.errors import MisuseError, one_line

LEFTOVERS = (".crc", ".tmp", ".temp", ".part", ".partial", ".lock", ".swp", ".bak", "~")
"""Ends of names that other programs give to files that are not finished or not data."""

COMPANIONS = frozenset(
    {
        "added_tokens.json",
        "config.json",
        "dataset_dict.json",
        "dataset_info.json",
        "dataset_infos.json",
        "generation_config.json",
        "manifest.json",
        "package.json",
        "special_tokens_map.json",
        "state.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    }
)
"""JSON files that lie beside documents and are none."""


class Found(Struct, frozen=True):
    """A file an input stands for."""

    input: str
    path: str
    source: str
    named: bool
    """Given by its own name, not found in a folder or by a glob."""
    arrow: bool = False
    """Listed as Arrow by the saved dataset it belongs to."""


class Discovery(Struct, frozen=True):
    """The files of all inputs, and those passed over."""

    files: tuple[Found, ...]
    ignored: tuple[str, ...]
    repeated: frozenset[str]
    """Inputs with a file that an earlier one had given already."""


def discover(inputs: Sequence[str]) -> Discovery:
    """Return the files behind the inputs, in the order of the inputs and sorted within each.

    Raises:
        MisuseError: An input stands for nothing or cannot be read.
    """
    files: list[Found] = []
    ignored: list[str] = []
    seen: set[str] = set()
    repeated: set[str] = set()
    for given in inputs:
        passed: list[str] = []
        found = [replace(item, source=_printable(item.source)) for item in _expand(given, passed)]
        for item in sorted(found, key=lambda item: item.source):
            place = item.path if "://" in item.path else os.path.realpath(item.path)
            if place in seen:
                ignored.append(f"{_printable(item.path)} (given twice)")
                repeated.add(given)
            else:
                seen.add(place)
                files.append(item)
        ignored += sorted(map(_printable, passed))
        if not found and not passed:
            raise MisuseError(one_line("no input file found", given, todo="Check the path or the pattern."))
    return Discovery(tuple(_distinct(files)), tuple(ignored), frozenset(repeated))


def _expand(given: str, passed: list[str]) -> Iterator[Found]:
    """Yield the files of one input and note in ``passed`` what is left out."""
    if not given:
        raise MisuseError(
            one_line("an input is empty", "INPUT", expected="a file, a folder, a glob or an address")
        )
    path = os.path.expanduser(given)  # noqa: PTH111 - an address must not become a Path
    if "://" in given and not is_hub_name(given):
        yield from _expand_address(given, passed)
    elif os.path.lexists(path):
        yield from _expand_local(given, Path(path), passed)
    elif (split := split_pattern(path)) and not is_hub_name(given):
        base, _ = split
        for match in sorted(glob.glob(path, recursive=True)):  # noqa: PTH207 - patterns may be absolute
            yield from _matched(given, Path(match), base, passed)
    elif is_hub_name(given):
        for number, (file, part) in enumerate(hub_files(given)):
            source = f"{given.removeprefix('hf://')}/{part}/{number:05d}.arrow"
            yield Found(given, file, source, named=True, arrow=True)
    else:
        raise MisuseError(one_line("an input does not exist", given, todo="Check the path."))


def _expand_local(given: str, path: Path, passed: list[str]) -> Iterator[Found]:
    if path.is_dir():
        yield from _folder(given, path, path, passed)
    elif not path.is_file():
        what = "a link that leads nowhere" if path.is_symlink() else "no regular file"
        raise MisuseError(one_line("an input cannot be read", given, got=what, expected="a file or a folder"))
    elif path.name == "_SUCCESS" or path.name.endswith(LEFTOVERS):
        passed.append(str(path))
    else:
        yield Found(given, str(path), path.name, named=True)


def _matched(given: str, path: Path, base: str, passed: list[str]) -> Iterator[Found]:
    """Yield what one match of a glob stands for."""
    if _left_out(path.name) or not path.exists():
        passed.append(str(path))
    elif path.is_dir():
        # A recursive glob matches folders and, by themselves, the files in them.
        if "**" not in given:
            yield from _folder(given, path, Path(base), passed)
    elif path.is_file():
        yield Found(given, str(path), _relative(path, base), named=False)
    else:
        passed.append(str(path))


def _folder(given: str, folder: Path, base: Path, passed: list[str]) -> Iterator[Found]:
    """Yield the files below a folder. Links are followed once; a saved dataset gives what its state lists."""
    walked: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=_refuse):
        real = os.path.realpath(place)
        if real in walked:
            folders.clear()
            continue
        walked.add(real)
        passed += [os.path.join(place, name) + "/" for name in folders if _left_out(name)]  # noqa: PTH118
        folders[:] = sorted(name for name in folders if not _left_out(name))
        saved = _saved_files(Path(place)) if "state.json" in names and "dataset_info.json" in names else None
        for name in sorted(names):
            path = Path(place) / name
            wanted = name in saved if saved is not None else not _left_out(name) and name not in COMPANIONS
            if wanted and (path.is_file() or path.is_symlink()):
                yield Found(given, str(path), _relative(path, base), named=False, arrow=saved is not None)
            else:
                passed.append(str(path))


def _saved_files(folder: Path) -> set[str]:
    """Return the Arrow files of a folder written by the ``save_to_disk`` of Hugging Face datasets."""
    try:
        names = {entry.filename for entry in _STATE.decode((folder / "state.json").read_bytes()).files}
    except (OSError, msgspec.DecodeError) as error:
        where = str(folder / "state.json")
        raise MisuseError(one_line("a saved dataset cannot be read", where, got=str(error))) from error
    for name in sorted(names):
        if not (folder / name).is_file():
            raise MisuseError(
                one_line(
                    "a saved dataset lacks a file", str(folder), expected=name, todo="Save the dataset again."
                )
            )
    return names


def _expand_address(given: str, passed: list[str]) -> Iterator[Found]:
    """Yield the files of an fsspec address: a file, a folder or a glob."""
    try:
        system, path = reached(given)
        if (split := split_pattern(path)) and not system.exists(path):
            base, _ = split
            matches: dict[str, Any] = system.glob(path, detail=True)
            files = sorted(name for name, about in matches.items() if about["type"] == "file")
        elif system.isdir(path):
            base, files = path, sorted(system.find(path))
        elif system.exists(path):
            yield Found(given, given, PurePosixPath(path).name, named=True)
            return
        else:
            raise MisuseError(one_line("an input does not exist", given, todo="Check the address."))
    except (OSError, ValueError) as error:
        raise MisuseError(one_line("an address cannot be read", given, got=str(error))) from error
    for file in files:
        source = _relative(PurePosixPath(file), base)
        names = PurePosixPath(source).parts
        if any(map(_left_out, names)) or names[-1] in COMPANIONS:
            passed.append(system.unstrip_protocol(file))
        else:
            yield Found(given, system.unstrip_protocol(file), source, named=False)


def _left_out(name: str) -> bool:
    return name.startswith((".", "_")) or name.endswith(LEFTOVERS)


def _printable(name: str) -> str:
    """Return a file name with the bytes that are no UTF-8 spelled out, so that it can be stored and shown."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _relative(path: Path | PurePosixPath, base: str | Path) -> str:
    pure = PurePosixPath(path.as_posix())
    root = PurePosixPath(Path(base).as_posix() if isinstance(base, Path) else base or ".")
    return str(pure.relative_to(root)) if pure.is_relative_to(root) else str(pure)


def _distinct(files: list[Found]) -> list[Found]:
    """Give files of the same name as many parent folders as tell them apart."""
    sources = [file.source for file in files]
    parents = [PurePosixPath(file.path.partition("://")[2] or file.path).parts for file in files]
    depth = {i: len(PurePosixPath(source).parts) for i, source in enumerate(sources)}
    while len(set(sources)) < len(sources):
        twice = {source for source, count in Counter(sources).items() if count > 1}
        changed = False
        for i, source in enumerate(sources):
            if source in twice and depth[i] < len(parents[i]):
                depth[i] += 1
                sources[i] = "/".join(part.strip("/") for part in parents[i][-depth[i] :])
                changed = True
        if not changed:
            sources = [f"{source}#{i}" if source in twice else source for i, source in enumerate(sources)]
    return [replace(file, source=source) for file, source in zip(files, sources, strict=True)]


def _refuse(error: OSError) -> None:
    raise MisuseError(
        one_line("a folder cannot be read", str(error.filename), got=str(error.strerror))
    ) from error


class _StateFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    files: list[_StateFile] = msgspec.field(name="_data_files")


_STATE = msgspec.json.Decoder(_State)
