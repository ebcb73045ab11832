"""The journal, the lock and the engine: what a crash or a second build meets."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cleanfeed.build.journal import Journal
from cleanfeed.build.lock import only_build
from cleanfeed.errors import BusyError, MisuseError


def test_what_was_entered_is_there_after_reopening(tmp_path: Path):
    with Journal(tmp_path, "r") as journal:
        journal.enter("measure", 3, {"a": [1, 2]})
    with Journal(tmp_path, "r") as journal:
        assert journal.done("measure", 3, dict[str, list[int]]) == {"a": [1, 2]}
        assert journal.done("settle", 3, dict) is None


def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(tmp_path: Path):
    with Journal(tmp_path, "r") as journal:
        journal.enter("measure", 0, 10)
        journal.enter("measure", 1, 11)
    whole = (tmp_path / "journal.jsonl").read_bytes()
    second = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for cut in range(second, len(whole)):
        (tmp_path / "journal.jsonl").write_bytes(whole[:cut])
        with Journal(tmp_path, "r") as journal:
            assert [journal.done("measure", number, int) for number in (0, 1)] == [10, None]
            journal.enter("measure", 1, 12)
        with Journal(tmp_path, "r") as journal:
            assert journal.done("measure", 1, int) == 12


def test_a_journal_torn_in_its_first_line_starts_anew(tmp_path: Path):
    (tmp_path / "journal.jsonl").write_bytes(b'{"requ')
    with Journal(tmp_path, "r") as journal:
        journal.enter("measure", 0, 1)
    with Journal(tmp_path, "r") as journal:
        assert journal.done("measure", 0, int) == 1


def test_a_journal_of_another_request_is_refused(tmp_path: Path):
    with Journal(tmp_path, "one"):
        pass
    with pytest.raises(MisuseError, match="unfinished build of other inputs or settings"):
        Journal(tmp_path, "two")


HOLD = """
import sys
from pathlib import Path
from cleanfeed.build.lock import only_build
with only_build(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_build_is_refused_until_the_first_is_gone_however_it_went(tmp_path: Path):
    work = tmp_path / "out" / ".work"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(work)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(BusyError, match=rf"another build is running.*process {holder.pid} on "),
            only_build(work),
        ):
            pass
        os.kill(holder.pid, signal.SIGKILL)
    with only_build(work):
        assert json.loads((work / "lock").read_text())["pid"] == os.getpid()
