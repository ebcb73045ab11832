"""The house keeps its shape: who imports whom, what a bare import loads, and how long a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cleanfeed

PACKAGE = Path(cleanfeed.__file__).parent
PARTS = (
    "kernel_cache",
    "kernel_instructions",
    "kernel_code",
    "kernel",
    "errors",
    "arguments",
    "settings",
    "documents",
    "signals",
    "rules",
    "curriculum",
    "build",
    "feed",
    "runs",
    "quarantine",
    "training",
    "cli",
)
FACES = ("__init__", "__main__")
HEAVY = {"torch", "numba", "duckdb"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("cleanfeed.")} & set(PARTS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_nothing_to_its_right(path: Path) -> None:
    part = part_of(path)
    if part in FACES:
        return
    right = PARTS[PARTS.index(part) + 1 :]
    assert imported_parts(path) & set(right) == set()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_shorter_than_500_lines(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) < 500


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_opens_with_one_sentence(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert docstring is not None
    assert docstring.split("\n\n")[0].rstrip().endswith((".", "::"))


@pytest.mark.parametrize(
    "statement",
    [
        "import cleanfeed",
        "from cleanfeed.cli.main import main; main(['--help'])",
        "from cleanfeed.cli.main import main; main(['build', '--help'])",
        "from cleanfeed.cli.main import main; main(['verify', '--help'])",
        "from cleanfeed.cli.main import main; main(['explain', '--help'])",
        "from cleanfeed.cli.main import main; main(['quarantine', 'report', '--help'])",
    ],
)
def test_help_loads_neither_torch_nor_numba_nor_duckdb(statement: str) -> None:
    code = f"import sys\n{statement}\nprint(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_declarations_of_signals_are_read_without_numba() -> None:
    code = "import sys, cleanfeed.signals.registry\nprint('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
