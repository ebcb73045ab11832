"""A build killed between any two of its effects goes on where it stopped, and ends in the same bytes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cleanfeed.build.verify import verify

from .conftest import TOKENIZER, prose, tree, write_jsonl

BUILD = """
import os, signal, sys
from pathlib import Path
from cleanfeed.build import spool, tasks
from cleanfeed.build.runner import BuildRequest, build
from cleanfeed.rules.pipeline import load_pipeline

source, out, tokenizer, kill_at = sys.argv[1:]
tasks.TASK_BYTES = tasks.TOKENISED_TASK_BYTES = 4096
spool.SEGMENT_DOCUMENTS = 5
left = int(kill_at)
replace, fsync, done = Path.replace, os.fsync, []


def effect(function):
    def call(*arguments):
        done.append(function.__name__)
        if len(done) == left:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return call


Path.replace, os.fsync = effect(replace), effect(fsync)


class Silent:
    compiling = phase = advance = note = lambda self, *arguments: None


request = BuildRequest((source,), out, load_pipeline("web_text"), tokenizer=tokenizer)
report = build(request, Silent())
print(len(done), report.already_done)
"""


def run(source: Path, out: Path, kill_at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BUILD, str(source), str(out), TOKENIZER, str(kill_at)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes], int]:
    folder = tmp_path_factory.mktemp("crash")
    for number in range(3):
        records = [{"id": f"{number}-{n}", "text": prose(100 * number + n)} for n in range(12)]
        write_jsonl(
            folder / "in" / f"{number}.jsonl", [*records, b"{broken", {"id": "b", "text": "g4OD" * 999}]
        )
    done = run(folder / "in", folder / "out", 0)
    assert done.returncode == 0, done.stderr
    effects, again = done.stdout.split()
    assert again == "False"
    return folder / "in", tree(folder / "out"), int(effects)


def test_a_full_disk_is_one_line_and_the_same_command_ends_well_once_there_is_room(
    tmp_path: Path, undisturbed: tuple[Path, dict[str, bytes], int]
):
    source, _, _ = undisturbed
    out = tmp_path / "out"
    command = [sys.executable, "-m", "cleanfeed", "build", str(source), "--out", str(out), "--workers", "2"]
    command += ["--tokenizer", TOKENIZER]
    # No file may grow beyond 16 KiB: what a full disk does, on a path of one's own.
    limited = f"import resource, os; resource.setrlimit(resource.RLIMIT_FSIZE, ({1 << 14}, {1 << 14})); "
    limited += (
        f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); os.execv(sys.executable, {command!r})"
    )
    full = subprocess.run(
        [sys.executable, "-c", "import sys; " + limited], capture_output=True, text=True, check=False
    )
    assert (full.returncode, full.stdout) == (1, "")
    message = full.stderr.strip().splitlines()[-1]
    assert message.startswith("cannot go on writing: ")
    assert message.endswith("run the same command again: it goes on where it stopped.")
    assert not list(out.rglob("*.parquet"))
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert not list(out.rglob("*.unfinished"))
    verify(str(out))


@pytest.mark.parametrize("part", [0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0])
def test_a_killed_build_ends_in_the_bytes_of_an_undisturbed_one(
    tmp_path: Path, undisturbed: tuple[Path, dict[str, bytes], int], part: float
):
    source, expected, effects = undisturbed
    out = tmp_path / "out"
    assert run(source, out, max(1, round(part * effects))).returncode == -signal.SIGKILL
    resumed = run(source, out, 0)
    assert resumed.returncode == 0, resumed.stderr
    assert tree(out) == expected
    assert int(resumed.stdout.split()[0]) < effects or part == 0.0
    verify(str(out))
