"""One small curriculum with poison and a run on it, shared by the tests that only read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cleanfeed.runs.layout import RunDir
from tests.quarantine.runs import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A finished incident in epoch 3 of 10; leave it as it is."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def copied(world: World, tmp_path: Path) -> World:
    """The same, to change."""
    shutil.copytree(world.run.root, tmp_path / "run")
    return World(world.out, RunDir(tmp_path / "run"), world.poison, world.slot)
