"""What the benchmark relies on: prepared text stays like the text it is made of, and processes are watched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from prepare import rotated
from processes import MIB, run


@given(st.text(), st.integers(0, 20))
def test_rotating_a_text_keeps_every_character(text: str, turns: int) -> None:
    assert sorted(rotated(text, turns)) == sorted(text)


@pytest.mark.parametrize(
    ("text", "turned"),
    [
        ("a\n\nb\n\nc", "b\n\nc\n\na"),
        ("a\nb", "b\na"),
        ("One. Two.", "Two.. One"),
        ("one two", "two one"),
        ("xyz", "yzx"),
        ("", ""),
    ],
)
def test_a_text_is_rotated_by_its_largest_parts(text: str, turned: str) -> None:
    assert rotated(text, 1) == turned
    assert rotated(text, 0) == text


def test_a_run_reports_output_time_and_the_peak_of_each_process() -> None:
    child = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True); print('done')"
    )
    inner = (
        "block = bytearray(64 * 2**20); block[::4096] = bytes([1]) * (len(block) // 4096); sum(range(10**7))"
    )
    result = run([sys.executable, "-c", child.format(inner=inner)])
    assert result.output == "done\n"
    assert result.seconds > 0
    assert result.processor_seconds > 0
    assert len(result.peaks) == 2
    assert result.peaks[0] >= 64 * MIB > result.peaks[1]


def test_a_failing_command_ends_the_benchmark_with_its_words() -> None:
    with pytest.raises(SystemExit, match="ended with 3:\nno luck"):
        run([sys.executable, "-c", "import sys; sys.stderr.write('no luck'); sys.exit(3)"])
