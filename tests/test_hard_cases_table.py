"""The table of hard inputs names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NAMED = sorted(set(re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", (TESTS / "HARD_CASES.md").read_text())))


def test_the_table_names_tests_for_every_case():
    lines = (TESTS / "HARD_CASES.md").read_text().splitlines()
    cases = [line for line in lines if re.match(r"\| [A-J]\d\d", line)]
    assert len(cases) >= 70
    assert [line for line in cases if "::test_" not in line] == []


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_every_named_test_exists(path: str):
    tree = ast.parse((TESTS / path).read_text())
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert {name for named, name in NAMED if named == path} - there == set()
