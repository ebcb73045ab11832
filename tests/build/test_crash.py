"""A build killed between any two of its effects goes on where it stopped, and ends in the same bytes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanfeed.build.verify import verify

from .conftest import TOKENIZER, prose, tree, write_jsonl

BUILDS = """
import json, os, signal, sys
from cleanfeed.build import spool, tasks
from cleanfeed.build.kernels import load_kernels
from cleanfeed.build.runner import BuildRequest, build
from cleanfeed.rules.pipeline import load_pipeline

tasks.TASK_BYTES = tasks.TOKENISED_TASK_BYTES = 4096
spool.SEGMENT_DOCUMENTS = 5
CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir"}
fsync, done = os.fsync, []


class Silent:
    compiling = phase = advance = note = lambda self, *arguments: None


def counting(out, kill_at):
    def happens(event, arguments):
        # Note an effect that is about to happen, and die instead at the one asked for.
        if event == "open":
            path, mode, flags = arguments
            counts = str(path).startswith(out) and flags & (os.O_WRONLY | os.O_RDWR)
        else:
            # What removes a tree names files by their folder's descriptor.
            counts = event in CHANGES and (str(arguments[0]).startswith(out) or arguments[-1] != -1)
        if counts or event == "fsync":
            done.append(event)
            if len(done) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def counted(handle):
        happens("fsync", ())
        fsync(handle)

    os.fsync = counted
    sys.addaudithook(happens)


def make(source, out, tokenizer, seed, kill_at, overwrite):
    pipeline = load_pipeline("web_text", [f"curriculum.seed={seed}"])
    counting(out, kill_at)
    build(BuildRequest((source,), out, pipeline, tokenizer=tokenizer, overwrite=overwrite), Silent())
    print(json.dumps(len(done)), flush=True)
    os._exit(0)


load_kernels(tokens=True, near=False)
for line in sys.stdin:
    child = os.fork()
    if not child:
        make(*json.loads(line))
    if status := os.waitpid(child, 0)[1]:
        print(json.dumps(-os.waitstatus_to_exitcode(status)), flush=True)
"""

EVERY_POINT = int(os.environ.get("CLEANFEED_KILLS", "2")) >= 10
"""Kill builds at each of their effects, not only at some."""


def points(effects: int, some: int) -> list[int]:
    """Return the effects to kill a build at: some of them from the first to the last, or every one."""
    if EVERY_POINT:
        return list(range(1, effects + 1))
    return sorted({1 + number * (effects - 1) // (some - 1) for number in range(some)})


class Builds:
    """Makes builds, each in a process of its own, and kills those that are to be killed."""

    def __init__(self, source: Path, process: subprocess.Popen[str]) -> None:
        self.source, self._process = source, process

    def __call__(self, out: Path, seed: int = 0, *, overwrite: bool = False) -> int:
        """Make a build and return how many effects it had."""
        return self._made(out, seed, 0, overwrite)

    def killed(self, out: Path, point: int, seed: int = 0, *, overwrite: bool = False) -> None:
        """Begin a build that is killed just before an effect."""
        assert self._made(out, seed, point, overwrite) == signal.SIGKILL

    def _made(self, out: Path, seed: int, kill_at: int, overwrite: bool) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        call = [str(self.source), str(out), TOKENIZER, seed, kill_at, overwrite]
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline()))


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    source = tmp_path_factory.mktemp("crash") / "in"
    for number in range(3):
        records = [{"id": f"{number}-{n}", "text": prose(100 * number + n)} for n in range(12)]
        write_jsonl(source / f"{number}.jsonl", [*records, b"{broken", {"id": "b", "text": "g4OD" * 999}])
    command = [sys.executable, "-c", BUILDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Builds(source, process)


Finished = tuple[Path, dict[str, bytes], int]


def finished(builds: Builds, out: Path, seed: int) -> Finished:
    effects = builds(out, seed)
    assert effects > 100
    return out, tree(out), effects


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, builds: Builds) -> Finished:
    """A finished build, its files, and how many effects it had."""
    return finished(builds, tmp_path_factory.mktemp("undisturbed") / "out", 0)


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory, builds: Builds) -> Finished:
    """The same of the same source with another seed."""
    return finished(builds, tmp_path_factory.mktemp("another") / "out", 1)


def test_a_full_disk_is_one_line_and_the_same_command_ends_well_once_there_is_room(
    tmp_path: Path, builds: Builds
):
    source = builds.source
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


def test_a_killed_build_ends_in_the_bytes_of_an_undisturbed_one(
    tmp_path: Path, builds: Builds, undisturbed: Finished
):
    _, expected, effects = undisturbed
    for point in points(effects, 8):
        out = tmp_path / str(point)
        builds.killed(out, point)
        assert builds(out) < effects or point < effects // 4
        assert tree(out) == expected, point
    verify(str(out))


@pytest.mark.parametrize("old", ["undisturbed", "another"])
def test_a_killed_overwrite_of_a_finished_build_ends_in_the_bytes_of_an_undisturbed_one(
    tmp_path: Path, builds: Builds, undisturbed: Finished, request: pytest.FixtureRequest, old: str
):
    _, expected, _ = undisturbed
    there: Path = request.getfixturevalue(old)[0]
    effects = builds(shutil.copytree(there, tmp_path / "0"), overwrite=True)
    # The last ones remove the work folder, when there is a manifest already: some of them are tried always.
    for point in sorted({*points(effects, 4), effects - 10, effects - 40}):
        out = shutil.copytree(there, tmp_path / str(point))
        builds.killed(out, point, overwrite=True)
        builds(out, overwrite=True)
        assert tree(out) == expected, point
    verify(str(out))


@pytest.mark.parametrize("begun", [0.4, 0.85])
def test_an_unfinished_build_that_is_dropped_is_never_gone_on_with(
    tmp_path: Path, builds: Builds, undisturbed: Finished, another: Finished, begun: float
):
    there = tmp_path / "begun"
    builds.killed(there, round(begun * undisturbed[2]))
    # Either nothing but work is there yet, or parts of the curriculum are, and no manifest.
    assert any(there.glob("curriculum/*/*.parquet")) == (begun > 0.5)
    effects = builds(shutil.copytree(there, tmp_path / "0"), 1, overwrite=True)
    assert tree(tmp_path / "0") == another[1]
    # What was begun is dropped first.
    for point in [point for point in points(effects, 10) if point < effects / 2]:
        out = shutil.copytree(there, tmp_path / str(point))
        builds.killed(out, point, 1, overwrite=True)
        # Whichever of the two commands comes next.
        same = shutil.copytree(out, tmp_path / f"{point}-again")
        builds(out, overwrite=True)
        builds(same, 1, overwrite=True)
        assert tree(out) == undisturbed[1], point
        assert tree(same) == another[1], point
