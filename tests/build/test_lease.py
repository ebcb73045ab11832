"""A prefix in a store has one builder at a time, as far as the store lets one know."""

import json
from collections.abc import Iterator
from uuid import uuid4

import fsspec
import pytest

from cleanfeed.build import lease
from cleanfeed.build.lease import leased
from cleanfeed.curriculum.paths import ObjectPath, path_of
from cleanfeed.errors import BusyError


@pytest.fixture
def folder() -> Iterator[ObjectPath]:
    name = f"memory://{uuid4().hex}"
    place = path_of(f"{name}/out/.work/lock")
    assert isinstance(place, ObjectPath)
    yield place
    store, key = fsspec.core.url_to_fs(name)
    if store.exists(key):
        store.rm(key, recursive=True)


def elsewhere(folder: ObjectPath, number: int = 1) -> None:
    """Let a process of another machine hold the prefix."""
    who = {"pid": 7, "host": "far", "since": "noon", "machine": "other", "started": "1", "token": "theirs"}
    (folder / f"{number:06d}.json").put(json.dumps(who).encode())


def test_a_prefix_is_free_again_once_its_builder_is_done(folder: ObjectPath):
    for _ in range(2):
        with leased(folder) as still_ours:
            still_ours()
            assert list(folder.sizes()) == ["000001.json"]
        assert folder.sizes() == {}


def test_a_second_builder_is_told_who_runs(folder: ObjectPath):
    with (
        leased(folder),
        pytest.raises(
            BusyError, match=rf"another build is running: {folder.parent.parent}: got process \d+ on "
        ),
        leased(folder),
    ):
        pass
    assert folder.sizes() == {}


def test_a_builder_elsewhere_is_alive_for_as_long_as_it_shows_life(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
):
    elsewhere(folder)
    with (
        pytest.raises(BusyError, match=r"process 7 on far since noon, last sign of life 0 s ago"),
        leased(folder),
    ):
        pass
    assert list(folder.sizes()) == ["000001.json"]
    monkeypatch.setattr(lease, "DEAD_AFTER", -1.0)
    with leased(folder):
        assert list(folder.sizes()) == ["000002.json"]
    assert folder.sizes() == {}


def test_a_process_of_this_machine_that_is_gone_is_passed_over_at_once(folder: ObjectPath):
    if not lease._machine():
        pytest.skip("no way here to tell whether a process is gone")
    who = {**lease.owner(), "machine": lease._machine(), "started": "long ago", "token": "theirs"}
    (folder / "000004.json").put(json.dumps(who).encode())
    with leased(folder):
        assert list(folder.sizes()) == ["000005.json"]


def test_who_lost_the_prefix_is_told_so_and_leaves_the_other_alone(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
):
    ours = lease._Lease(folder)
    ours.take()
    elsewhere(folder, 2)
    monkeypatch.setattr(lease, "BEAT", 0.0)
    ours.beat()
    with pytest.raises(BusyError, match=r"another build has taken over: .*process 7 on far since noon"):
        ours.still_ours()
    ours.give_back()
    assert list(folder.sizes()) == ["000002.json"]


def test_life_is_shown_until_the_end(folder: ObjectPath, monkeypatch: pytest.MonkeyPatch):
    ours = lease._Lease(folder)
    ours.take()
    before = ours.own.modified()
    answers = iter([False, True])
    monkeypatch.setattr(ours.ended, "wait", lambda seconds: next(answers))
    ours.beat()
    assert ours.own.modified() > before
    ours.still_ours()
    ours.give_back()


def test_of_two_that_saw_the_same_dead_builder_one_takes_its_place(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
):
    late, quick = lease._Lease(folder), lease._Lease(folder)
    quick.take()
    # The late one looked when nobody was there.
    seen = [set(), *[{1}] * 4]
    monkeypatch.setattr(late, "_numbers", lambda: seen.pop(0))
    with pytest.raises(BusyError, match="another build is running"):
        late.take()
    quick.still_ours()
    assert list(folder.sizes()) == ["000001.json"]
    quick.give_back()


def test_a_late_one_whose_number_is_free_again_gives_way_to_who_began_anew(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
):
    late, quick = lease._Lease(folder), lease._Lease(folder)
    quick.take()
    # The late one saw a dead 000007, which others have passed over and removed since.
    seen = [{7}, {1, 8}]
    monkeypatch.setattr(late, "_numbers", lambda: seen.pop(0))
    with pytest.raises(BusyError, match="another build is running"):
        late.take()
    assert list(folder.sizes()) == ["000001.json"]
    quick.give_back()
