"""``make`` says what it can do, refuses an old Python in one line and leaves a right venv alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    # What `make test` hands down would make this a nested call with the outer one's flags.
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", "--no-print-directory", *words], cwd=ROOT, env=outside, capture_output=True, text=True
    )


def test_make_alone_lists_every_target() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    done = make()
    assert done.returncode == 0
    assert {line.split()[1] for line in done.stdout.splitlines()} == targets
    assert {"demo", "test", "lint", "bench", "docs"} <= targets


@pytest.mark.parametrize(
    ("script", "got"),
    [
        ("exit 127", "nothing"),
        ('if [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi', "Python 3.9.2"),
    ],
    ids=["missing", "old"],
)
def test_an_old_python_is_refused_with_its_version_and_the_way_out(
    tmp_path: Path, script: str, got: str
) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    done = make("venv", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode != 0
    assert (
        f"Python too old or missing: {python}: got {got}, expected Python 3.10 or newer. "
        "Name another one: make PYTHON=/path/to/python3\n"
    ) in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_venv_made_from_the_same_versions_is_not_installed_again(tmp_path: Path) -> None:
    first = make("--dry-run", "venv", f"VENV={tmp_path}")
    (stamp,) = re.findall(r"touch (\S+)", first.stdout)
    Path(stamp).touch()
    assert make("--dry-run", "venv", f"VENV={tmp_path}").stdout == "make: Nothing to be done for 'venv'.\n"
