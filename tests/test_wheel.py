"""The wheel holds everything a build outside the checkout needs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel, far from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder / "dist"), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, code: str) -> str:
    # -P and an empty cwd: nothing but the unpacked wheel may answer for `cleanfeed`.
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=installed.parent, env=environment
    ).stdout.strip()


def test_every_preset_is_inside(installed: Path) -> None:
    in_repository = sorted(path.name for path in (ROOT / "pipelines").glob("*.yaml"))
    assert (
        sorted(path.name for path in (installed / "cleanfeed" / "pipelines").glob("*.yaml")) == in_repository
    )
    assert "web_text.yaml" in in_repository


def test_presets_are_read_from_the_wheel(installed: Path) -> None:
    code = (
        "import cleanfeed; from cleanfeed.rules.pipeline import load_pipeline, preset_names\n"
        "print(cleanfeed.__file__); print(*[load_pipeline(name).name for name in preset_names()])"
    )
    where, names = run(installed, code).splitlines()
    assert Path(where).is_relative_to(installed)
    assert names.split() == sorted(path.stem for path in (ROOT / "pipelines").glob("*.yaml"))


def test_the_page_of_a_report_is_inside(installed: Path) -> None:
    code = (
        "from pathlib import Path; from cleanfeed.cli.incident_page import page\n"
        "from cleanfeed.quarantine.report import make_report; from cleanfeed.runs.layout import RunDir\n"
        "Path('run/ledger').mkdir(parents=True); print(page(make_report(RunDir(Path('run'))))[:15])"
    )
    assert run(installed, code) == "<!doctype html>"


def test_nothing_of_the_repository_but_the_package_is_installed(installed: Path) -> None:
    top = {path.name for path in installed.iterdir()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"cleanfeed"}


def test_the_licence_comes_with_it(installed: Path) -> None:
    assert [path.name for path in installed.glob("*.dist-info/licenses/*")] == ["LICENSE"]
