"""Curricula that the tests of the guard share."""

from __future__ import annotations

from pathlib import Path

import pytest

from .world import make_curriculum


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A curriculum of 320 healthy samples."""
    return make_curriculum(tmp_path_factory.mktemp("clean"))
