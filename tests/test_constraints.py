"""constraints.txt pins every package the repository asks for, within the bounds it asks for."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ASKED = [
    *PROJECT["dependencies"],
    *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = (re.fullmatch(r"([\w.-]+)==([\w.]+)( ; .+)?", line) for line in lines if not line.startswith("#"))
    return {canonicalize_name(pin[1]): pin[2] for pin in pins if pin is not None}


@pytest.mark.parametrize("asked", ASKED)
def test_every_package_asked_for_is_pinned_within_its_bounds(asked: str) -> None:
    requirement = Requirement(asked)
    version = pinned()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version)


def test_every_line_is_a_pin_or_a_comment() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert len(pinned()) == sum(not line.startswith("#") for line in lines)
