"""A place is a path or an address, and whoever uses it need not know which."""

import fcntl
import os
import pickle
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from cleanfeed.curriculum import copies, durable
from cleanfeed.curriculum.copies import copies_folder, drop_copies
from cleanfeed.curriculum.durable import file_digest, move, remove_tree, sync, write_bytes, written_aside
from cleanfeed.curriculum.paths import (
    AnyPath,
    ObjectPath,
    copies_dropped,
    fetched,
    opened,
    path_of,
    sizes_below,
    sizes_of,
    whereabouts,
)
from cleanfeed.errors import MisuseError


@pytest.fixture(params=["path", "address"])
def place(request: pytest.FixtureRequest, tmp_path: Path):
    """An empty folder, and an empty prefix."""
    if request.param == "path":
        yield tmp_path / "out"
        return
    name = f"memory://{uuid4().hex}"
    with copies_dropped(found := path_of(name + "/out/")):
        yield found
    fsspec.filesystem("memory").store.clear()


def test_what_was_written_is_there_by_name(place: AnyPath):
    assert not place.exists()
    for name, data in (("b/two", b"22"), ("a", b"1"), ("b/c/three", b"333")):
        with written_aside(place / name) as aside:
            aside.write_bytes(data)
    assert place.exists()
    assert place.is_dir()
    assert sizes_below(place) == {"a": 1, "b/c/three": 3, "b/two": 2}
    assert sizes_of(place, ["b/two", "a"]) == {"a": 1, "b/two": 2}
    assert (place / "b/two").read_bytes() == fetched(place / "b/two").read_bytes() == b"22"
    assert (place / "b/two").is_file()
    assert not (place / "b").is_file()
    assert file_digest(place / "a") == file_digest(fetched(place / "a"))
    sync([place / "a"])
    with pytest.raises(FileNotFoundError):
        sizes_of(place, ["a", "gone"])


def test_what_was_not_written_whole_is_not_there(place: AnyPath):
    write_bytes(place / "a", b"before")
    with pytest.raises(ZeroDivisionError), written_aside(place / "a") as aside:
        assert aside.write_bytes(b"half") / 0
    assert (place / "a").read_bytes() == b"before"
    assert list(sizes_below(place)) == ["a"]
    assert not aside.exists()


def test_all_new_folders_above_a_file_are_synced_up_to_the_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: list[str] = []
    monkeypatch.setattr(
        durable.os, "fsync", lambda handle: synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
    )
    path = tmp_path / "out" / "curriculum" / "00" / "part"
    path.parent.mkdir(parents=True)
    path.touch()
    sync([path], below=tmp_path / "out")
    out = tmp_path / "out"
    assert sorted(synced) == [str(place) for place in (out, out / "curriculum", path.parent, path)]
    synced.clear()
    sync([path])
    assert sorted(synced) == [str(place) for place in (out / "curriculum", path.parent, path)]


def test_names_change_and_files_go(place: AnyPath):
    write_bytes(place / "a", b"1")
    write_bytes(place / "b/c", b"2")
    move(place / "a", place / "b/a")
    assert sizes_below(place) == {"b/a": 1, "b/c": 1}
    (place / "b/a").unlink()
    (place / "b/a").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (place / "b/a").unlink()
    remove_tree(place)
    assert not place.exists()


def test_a_copy_is_made_once_and_kept_where_it_was_written(monkeypatch: pytest.MonkeyPatch):
    with copies_dropped(place := path_of(f"memory://{uuid4().hex}")):
        assert isinstance(place, ObjectPath)
        with written_aside(place / "kept", keep=True) as aside:
            aside.write_bytes(b"k")
        write_bytes(place / "other", b"o")
        copy = fetched(place / "other")
        monkeypatch.setattr(type(place.filesystem()), "get_file", None)
        assert fetched(place / "other") == copy
        assert fetched(place / "kept").read_bytes() == b"k"
        assert pickle.loads(pickle.dumps(place / "kept")) == place / "kept"
    assert not copy.parent.exists()


def test_an_object_is_created_once(place: AnyPath):
    if isinstance(place, ObjectPath):
        assert (place / "a").create(b"first")
        assert not (place / "a").create(b"second")
        assert (place / "a").read_bytes() == b"first"


def test_folders_of_copies_that_nobody_holds_are_removed_by_who_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(copies.tempfile, "gettempdir", lambda: str(tmp_path))
    code = "import os, sys; from cleanfeed.curriculum.copies import copies_folder\n"
    code += "(copies_folder('left') / 'x').touch(); os._exit(1)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    root = tmp_path / f"cleanfeed-{os.getuid()}"
    assert [path.name for path in root.iterdir()] == ["left"]
    (root / "held").mkdir()
    held = os.open(root / "held" / copies.HOLD, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_SH)
    ours = copies_folder("ours")
    assert sorted(path.name for path in root.iterdir()) == ["held", "ours"]
    drop_copies("held")
    assert (root / "held").exists()
    os.close(held)
    drop_copies("ours")
    assert not ours.exists()


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(durable, "_alone", True)
    durable.among_others()
    with written_aside(tmp_path / "a") as one, written_aside(tmp_path / "a") as two:
        one.write_bytes(b"same")
        two.write_bytes(b"same")
    assert one != two
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("s3://bucket/*/x", "not the address of one place"),
        ("simplecache::memory://x", "not the address of one place"),
        ("nosuch://x", "an address cannot be read: nosuch://x: got Protocol not known: nosuch"),
    ],
)
def test_an_address_that_means_no_place_is_misuse(given: str, message: str):
    with pytest.raises(MisuseError, match="^" + message.replace("*", r"\*")):
        path_of(given)


def test_an_address_of_a_local_file_is_a_path(tmp_path: Path):
    assert path_of(f"file://{tmp_path}/a") == tmp_path / "a"
    assert opened(tmp_path / "a") == tmp_path / "a"
    assert whereabouts(f"file://{tmp_path}/a/") == whereabouts(str(tmp_path / "b" / ".." / "a"))
    assert whereabouts("memory://a/b") in whereabouts("memory://a/b/c/").parents


def test_what_a_store_raises_is_an_error_of_the_system_that_names_the_address(
    monkeypatch: pytest.MonkeyPatch,
):
    place = path_of("memory://a/b")
    assert isinstance(place, ObjectPath)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the store\nis on fire")

    monkeypatch.setattr(type(place.filesystem()), "pipe_file", broken)
    with pytest.raises(OSError, match="the store is on fire") as caught:
        place.put(b"x")
    assert caught.value.filename == "memory://a/b"
