"""The public names are there when asked for, and a bare import brings none of what they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cleanfeed


def test_every_public_name_of_the_feed_is_exported() -> None:
    from cleanfeed.feed.collators import FlattenCollator, PadCollator
    from cleanfeed.feed.dataset import Curriculum
    from cleanfeed.feed.sampler import CurriculumSampler

    assert cleanfeed.Curriculum is Curriculum
    assert cleanfeed.CurriculumSampler is CurriculumSampler
    assert cleanfeed.PadCollator is PadCollator
    assert cleanfeed.FlattenCollator is FlattenCollator
    assert {name for name in cleanfeed.__all__ if not hasattr(cleanfeed, name)} == set()
    assert set(cleanfeed.__all__) <= set(dir(cleanfeed))


def test_another_name_is_an_attribute_error() -> None:
    name = "Curricula"
    with pytest.raises(AttributeError, match="module 'cleanfeed' has no attribute 'Curricula'"):
        getattr(cleanfeed, name)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_without_torch_the_error_says_what_to_install() -> None:
    assert (
        run(
            "import sys; sys.modules['torch'] = None\n"
            "import cleanfeed\n"
            "try: cleanfeed.CurriculumSampler\n"
            "except ImportError as error: print(error)"
        )
        == "cleanfeed.CurriculumSampler needs torch. Run pip install 'cleanfeed[train]'."
    )


def test_the_pure_order_needs_neither_torch_nor_pyarrow_nor_numba() -> None:
    assert (
        run(
            "import sys, cleanfeed.feed.token_schedule, cleanfeed.feed.exclusions, cleanfeed.feed.state\n"
            "print({'torch', 'pyarrow', 'numba', 'duckdb', 'tokenizers'} & set(sys.modules))"
        )
        == "set()"
    )


def test_type_checkers_see_every_name() -> None:
    text = Path(cleanfeed.__file__).read_text("utf-8")
    for name in set(cleanfeed.__all__) - {"__version__"}:
        assert f"import {name} as {name}\n" in text
