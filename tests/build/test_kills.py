"""Whatever is killed, filled or taken away while a build runs, the build ends in the bytes of an undisturbed one."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cleanfeed.build.verify import verify

from .conftest import TOKENIZER, prose, tree, write_jsonl

MOMENTS = int(os.environ.get("CLEANFEED_KILLS", "2"))
"""Random moments at which a build is killed; more, and more of the other ways to stop it, with the variable."""

QUICK = MOMENTS < 10
PHASES = ["measure", "compare", "settle", "write"]

OBEDIENT = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Runs a command in which root may not write where modes say that nobody may."""

BUILD = """
import os, signal, subprocess, sys
from multiprocessing import forkserver
from pathlib import Path
from cleanfeed.build import tasks
from cleanfeed.build.runner import BuildRequest, build
from cleanfeed.errors import CleanfeedError
from cleanfeed.rules.pipeline import load_pipeline

source, out, tokenizer, phase, count, action = sys.argv[1:]
tasks.TASK_BYTES = tasks.TOKENISED_TASK_BYTES = 4096


def workers():
    server = str(forkserver._forkserver._forkserver_pid)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if parent == server:
            yield int(stat.parent.name)


def act():
    if action == "kill a worker":
        os.kill(next(workers()), signal.SIGKILL)
    elif action == "kill all workers":
        for worker in list(workers()):
            os.kill(worker, signal.SIGKILL)
    elif action == "take permission":
        for folder in [*Path(out).rglob("*/"), Path(out)]:
            folder.chmod(0o500)


class Acting:
    compiling = note = lambda self, *arguments: None

    def phase(self, name, total, unit):
        self.name, self.seen = name, 0

    def advance(self, amount):
        self.seen += 1
        if (self.name, self.seen) == (phase, int(count)):
            act()
            print("acted", flush=True)


try:
    build(BuildRequest((source,), out, load_pipeline("web_text"), tokenizer=tokenizer, workers=2), Acting())
except CleanfeedError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
"""

INTERRUPTED = """
import os, signal, sys
from contextlib import contextmanager
from cleanfeed.build import tasks
from cleanfeed.cli import progress
from cleanfeed.cli.main import main

phase, *words = sys.argv[1:]
tasks.TASK_BYTES = tasks.TOKENISED_TASK_BYTES = 4096
sys.argv[1:] = words


class Acting:
    compiling = note = lambda self, *arguments: None

    def phase(self, name, total, unit):
        self.name = name

    def advance(self, amount):
        if self.name == phase:
            os.killpg(0, signal.SIGINT)


@contextmanager
def acting():
    yield Acting()


progress.progress = acting
# Whoever runs the tests in the background may have them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
"""The command, at a terminal where Ctrl-C is pressed: all of its processes get the signal, again and again."""

Undisturbed = tuple[Path, dict[str, bytes]]


def run(
    source: Path, out: Path, phase: str = "", count: int = 0, action: str = "", prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    command = [
        *prefix,
        sys.executable,
        "-c",
        BUILD,
        str(source),
        str(out),
        TOKENIZER,
        phase,
        str(count),
        action,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def finished(source: Path, out: Path, expected: dict[str, bytes]) -> None:
    done = run(source, out)
    assert done.returncode == 0, done.stderr
    assert tree(out) == expected
    verify(str(out))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("kills")
    for number in range(5):
        records = [{"id": f"{number}-{n}", "text": prose(100 * number + n)} for n in range(12)]
        write_jsonl(
            folder / "in" / f"{number}.jsonl", [*records, b"{broken", {"id": "b", "text": "g4OD" * 999}]
        )
    done = run(folder / "in", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "in", tree(folder / "out")


@pytest.mark.parametrize(
    ("phase", "action"),
    [(phase, "kill a worker") for phase in PHASES]
    + [(phase, "kill all workers") for phase in PHASES[2 * QUICK : 4 - QUICK]],
)
def test_workers_killed_in_any_phase_cost_nothing(
    tmp_path: Path, undisturbed: Undisturbed, phase: str, action: str
):
    source, expected = undisturbed
    done = run(source, tmp_path / "out", phase, 3, action)
    assert (done.returncode, done.stdout) == (0, "acted\n"), done.stderr
    assert tree(tmp_path / "out") == expected
    verify(str(tmp_path / "out"))


@pytest.mark.parametrize("number", range(MOMENTS))
def test_a_build_killed_at_a_random_moment_ends_the_same(
    tmp_path: Path, undisturbed: Undisturbed, number: int
):
    source, expected = undisturbed
    out, dice = tmp_path / "out", random.Random(number)
    for _ in range(dice.randint(1, 3)):
        command = [sys.executable, "-c", BUILD, str(source), str(out), TOKENIZER, "", "0", ""]
        with subprocess.Popen(command, start_new_session=True) as process:
            try:
                process.wait(timeout=dice.uniform(0.3, 3.0))
            except subprocess.TimeoutExpired:
                # Half the time with its workers, half the time alone: then they must see that it is gone.
                os.killpg(process.pid, signal.SIGKILL) if number % 2 else process.kill()
    finished(source, out, expected)


@pytest.mark.parametrize("phase", ["settle"] if QUICK else PHASES)
def test_ctrl_c_ends_a_build_in_a_line_and_the_same_command_goes_on(
    tmp_path: Path, undisturbed: Undisturbed, phase: str
):
    source, expected = undisturbed
    out = tmp_path / "out"
    words = ["build", str(source), "--out", str(out), "--tokenizer", TOKENIZER, "--workers", "2"]
    command = [sys.executable, "-c", INTERRUPTED, phase, *words]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, check=False)
    said = f"interrupted: cleanfeed build {out}. Run the same command again to go on where it stopped.\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)
    assert not (out / "manifest.json").exists()
    assert (out / ".work" / "journal.jsonl").exists()
    finished(source, out, expected)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """A file system of its own at ``tmp_path/disk``, mounted anew with the options given."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mounting a file system is not allowed here")
    try:
        yield lambda options: _remount(folder, options)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


SIZES = [f"size={kibibytes}k" for kibibytes in ([4, 48, 260] if QUICK else range(4, 620, 4))]
INODES = [f"size=64m,nr_inodes={number}" for number in ([2, 30] if QUICK else range(1, 140))]


@pytest.mark.parametrize("room", SIZES + INODES)
def test_a_build_on_a_full_disk_goes_on_when_there_is_room(
    tmp_path: Path, undisturbed: Undisturbed, disk: Callable[[str], None], room: str
):
    source, expected = undisturbed
    out = tmp_path / "disk" / "out"
    disk(room)
    full = run(source, out)
    if not QUICK and full.returncode == 0:
        assert tree(out) == expected
        return
    assert full.returncode == 1
    assert full.stderr.count("\n") == 1, full.stderr
    assert full.stderr.startswith(("cannot go on writing: ", "cannot begin to write: "))
    assert "When that is mended, run the same command again" in full.stderr
    assert not (out / "manifest.json").exists()
    disk("size=64m,nr_inodes=9999")
    finished(source, out, expected)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="root writes everywhere here")
@pytest.mark.parametrize("phase", ["settle"] if QUICK else PHASES)
def test_permission_lost_in_the_middle_ends_the_build_in_a_line(
    tmp_path: Path, undisturbed: Undisturbed, phase: str
):
    source, expected = undisturbed
    out = tmp_path / "out"
    prefix = () if os.geteuid() else OBEDIENT
    stopped = run(source, out, phase, 2, "take permission", prefix)
    assert (stopped.returncode, stopped.stdout) == (1, "acted\n"), stopped.stderr
    assert stopped.stderr.startswith("cannot go on writing: ")
    assert stopped.stderr.count("\n") == 1
    for folder in (out, out / ".work", *(path for path in out.iterdir() if path.is_dir())):
        folder.chmod(0o700)
    for folder in out.rglob("*/"):
        folder.chmod(0o700)
    finished(source, out, expected)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="root writes everywhere here")
@pytest.mark.parametrize(
    "out", ["closed", "closed/out"] if QUICK else ["closed", "closed/out", "closed/a/out"]
)
def test_a_folder_that_may_not_be_written_is_said_before_anything_is_done(
    tmp_path: Path, undisturbed: Undisturbed, out: str
):
    source, expected = undisturbed
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    refused = run(source, tmp_path / out, prefix=() if os.geteuid() else OBEDIENT)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1), refused.stderr
    assert refused.stderr.startswith(f"cannot begin to write: {closed}")
    assert refused.stderr.endswith(
        "got Permission denied. When that is mended, run the same command again.\n"
    )
    assert list(closed.iterdir()) == []
    closed.chmod(0o700)
    finished(source, tmp_path / out, expected)
