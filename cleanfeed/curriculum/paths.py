"""A path or an address goes in; a place to write, read and list files, the same to whoever uses it, comes out.

A place on a local file system is a :class:`~pathlib.Path`. Any other is an :class:`ObjectPath`: an object, or the
prefix of many, in a store that fsspec reaches. Nothing can be renamed there, so a file is made on this machine first
and put whole; what the machine wrote or read stays for a while as a copy (:mod:`cleanfeed.curriculum.copies`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias
from uuid import uuid4

from msgspec import Struct

from cleanfeed.curriculum.copies import copies_folder, copy_path, drop_copies, fetched_once
from cleanfeed.documents.addresses import is_local, open_address, reached
from cleanfeed.errors import MisuseError, one_line


class ObjectPath(Struct, frozen=True):
    """An object in a store, or the prefix of many; small and picklable, with the methods of a path that are needed.

    Whole objects are put and deleted, nothing else: a reader sees all of an object or none of it, as S3, Google Cloud
    Storage and Azure Blob Storage promise.
    """

    address: str
    """With its protocol and without a slash at the end."""
    copies: str
    """Name of the folder, on each machine, in which copies of objects lie."""

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.address}/{name}", self.copies)

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.address.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The address without its last part."""
        return ObjectPath(self.address.rpartition("/")[0], self.copies)

    def exists(self) -> bool:
        """Whether there is an object at the address or below it."""
        with self._store() as (store, key):
            return bool(store.exists(key))

    def is_file(self) -> bool:
        """Whether there is an object at the address."""
        with self._store() as (store, key):
            return bool(store.isfile(key))

    def is_dir(self) -> bool:
        """Whether there is an object below the address."""
        return bool(self.sizes())

    def read_bytes(self) -> bytes:
        """Return the object."""
        with self._store() as (store, key):
            data: bytes = store.cat_file(key)
            return data

    def open(self, *, jumps: bool = False) -> IO[bytes]:
        """Open the object for reading; ``jumps`` where it is not read from front to back."""
        return open_address(self.address, jumps=jumps)

    def put(self, data: bytes) -> None:
        """Write the object, whole, over what is there."""
        with self._store() as (store, key):
            store.pipe_file(key, data)

    def create(self, data: bytes) -> bool:
        """Write the object if there is none and say whether there was none.

        Where the store can (S3, Google Cloud Storage, memory), it decides in one step. Where it cannot, two that
        create the same object at the same moment may both be told yes.
        """
        with self._store() as (store, key):
            if store.exists(key):
                return False
            try:
                store.pipe_file(key, data, mode="create")
            except FileExistsError:
                return False
            return True

    def upload(self, file: Path) -> None:
        """Write the object from a file of this machine, over what is there."""
        with self._store() as (store, key):
            store.put_file(str(file), key)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object."""
        with self._store() as (store, key):
            try:
                store.rm_file(key)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def modified(self) -> datetime:
        """Return when the object was last written, by the clock of the store."""
        with self._store() as (store, key):
            when: datetime = store.modified(key)
            return when

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every object below the address, by its name from here on, in sorted order."""
        with self._store() as (store, key):
            found = store.find(key, detail=True)
        sizes = {
            str(PurePosixPath(name).relative_to(key)): int(found[name]["size"]) for name in sorted(found)
        }
        sizes.pop(".", None)  # an object at the address itself
        return sizes

    def read_below(self) -> dict[str, bytes]:
        """Return every object below the address by its name from here on; a store may fetch many at a time."""
        names = list(self.sizes())
        with self._store() as (store, key):
            found = store.cat([f"{key}/{name}" for name in names]) if names else {}
            return {name: found[f"{key}/{name}"] for name in names}

    def remove_below(self, names: Iterable[str]) -> None:
        """Delete objects below the address by name; those that are not there do not matter."""
        present = set(names) & self.sizes().keys()
        with self._store() as (store, key):
            if present:
                store.rm([f"{key}/{name}" for name in sorted(present)])

    def aside(self) -> Path:
        """Return a new path on this machine to write the content of the object to."""
        return copies_folder(self.copies) / f"{uuid4().hex}-{self.name}"

    def copy(self) -> Path:
        """Return where the copy of the object lies on this machine, or would."""
        return copy_path(self.copies, self.address)

    def fetched(self) -> Path:
        """Return a copy on this machine, made once: for objects that do not change while the copies are kept."""
        with self._store() as (store, key):
            return fetched_once(self.copies, self.address, lambda path: store.get_file(key, str(path)))

    def filesystem(self) -> Any:
        """Return the fsspec file system of the store."""
        # Others write too: what was listed before says nothing.
        options: dict[str, Any] = {"use_listings_cache": False}
        if self.address.startswith(("s3://", "s3a://")):
            # Who reads through it asks for ranges; what lies between is not to be fetched.
            options["default_cache_type"] = "none"
        return reached(self.address, **options)[0]

    @contextmanager
    def _store(self) -> Iterator[tuple[Any, str]]:
        """Give the store and the key in it; what its client raises becomes an OSError that names the address."""
        store, key = reached(self.address, use_listings_cache=False)
        try:
            yield store, key
        except FileExistsError:
            raise
        except FileNotFoundError as error:
            cause = error.strerror or str(error) or "not there"
            raise FileNotFoundError(errno.ENOENT, cause, self.address) from error
        except OSError as error:
            cause = error.strerror or " ".join(str(error).split())
            raise OSError(error.errno or errno.EIO, cause, error.filename or self.address) from error
        except Exception as error:  # each store's client has a tree of exceptions of its own
            cause = " ".join(str(error).split()) or type(error).__name__
            raise OSError(errno.EIO, cause, self.address) from error


AnyPath: TypeAlias = Path | ObjectPath


def path_of(given: str) -> AnyPath:
    """Return the place that a path or an fsspec address means.

    Raises:
        MisuseError: The address cannot be reached, or means more than one place.
    """
    if "://" not in given:
        return Path(given).expanduser()
    if "::" in given or any(letter in given for letter in "*?["):
        raise MisuseError(
            one_line("not the address of one place", given, expected="PROTOCOL://PATH without * ? [ and ::")
        )
    store, path = reached(given)
    if is_local(store):
        return Path(path)
    return ObjectPath(given.rstrip("/"), uuid4().hex)


def whereabouts(given: str) -> PurePosixPath:
    """Return what tells whether two paths or addresses mean the same place, or one lies in the other."""
    if "://" in given:
        store, key = reached(given)
        if not is_local(store):
            return PurePosixPath(store.unstrip_protocol(key))
        given = key
    return PurePosixPath(Path(given).expanduser().resolve())


def fetched(place: AnyPath) -> Path:
    """Return a path on this machine with the content of a file that will not change any more."""
    return place if isinstance(place, Path) else place.fetched()


@contextmanager
def copies_dropped(place: AnyPath) -> Iterator[None]:
    """Remove at the end what copies this machine has of the objects at and below a place."""
    try:
        yield
    finally:
        if isinstance(place, ObjectPath):
            drop_copies(place.copies)


def opened(place: AnyPath) -> Path | IO[bytes]:
    """Return what pyarrow can read from; ranges of an object are fetched as they are asked for."""
    return place if isinstance(place, Path) else place.open(jumps=True)


def sizes_below(folder: AnyPath) -> dict[str, int]:
    """Return the bytes of every file below a folder, by its name from there on, in sorted order."""
    if not isinstance(folder, Path):
        return folder.sizes()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: files[name].stat().st_size for name in sorted(files)}


def sizes_of(folder: AnyPath, names: Iterable[str]) -> dict[str, int]:
    """Return the bytes of some files below a folder; a store is asked once for all of them."""
    if isinstance(folder, Path):
        return {name: (folder / name).stat().st_size for name in names}
    sizes = folder.sizes()
    if missing := [name for name in names if name not in sizes]:
        raise FileNotFoundError(errno.ENOENT, "an object is gone", str(folder / missing[0]))
    return {name: sizes[name] for name in names}
