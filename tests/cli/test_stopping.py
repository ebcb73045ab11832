"""Ctrl-C and SIGTERM end the command with one line and its exit code, however often they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from cleanfeed.build.engine import children_deaf_to_ctrl_c
from cleanfeed.cli.main import main
from cleanfeed.cli.stopping import Stopped, stopped_once

COMMAND = """
import signal
import sys
import click
from cleanfeed.cli import main
from cleanfeed.cli.options import enter

@main.cli.command()
def wait() -> None:
    enter("wait", "OUT", go_on="Run it again.")
    try:
        print("waiting", flush=True)
        sys.stdin.readline()
    finally:
        print("cleaning up", flush=True)
        sys.stdin.readline()

# A shell ignores it for what it starts in the background, and what is ignored stays so.
signal.signal(signal.SIGINT, signal.default_int_handler)
code = main.main(["wait"])
print("at the end", flush=True)
sys.stdin.readline()
sys.exit(code)
"""
"""A command that waits, cleans up and ends when it is told to, so that signals come at known places."""


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("sent", "code", "how"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
    ids=["SIGINT", "SIGTERM"],
)
def test_the_first_signal_ends_the_command_and_further_ones_change_nothing(
    waiting: subprocess.Popen[str], sent: signal.Signals, code: int, how: str
) -> None:
    assert waiting.stdin is not None
    assert waiting.stdout is not None
    assert waiting.stderr is not None
    waiting.send_signal(sent)
    for place in ("cleaning up\n", "at the end\n"):
        assert waiting.stdout.readline() == place
        for again in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            waiting.send_signal(again)
        waiting.stdin.write("\n")
    assert waiting.wait() == code
    assert waiting.stderr.read() == f"{how}: cleanfeed wait OUT. Run it again.\n"


def _turn_into_error() -> None:
    with stopped_once():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Stopped as error:
            raise RuntimeError("query interrupted") from error


def test_an_error_the_signal_was_turned_into_is_still_a_stop() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Stopped, match="terminated") as stopped:
            _turn_into_error()
        assert stopped.value.exit_code == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_without_a_signal_the_handlers_are_as_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main(["--version"]) == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopped_once():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_changed() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def run() -> None:
        with stopped_once():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_ctrl_c_does_nothing_in_processes_that_were_started_deaf_and_is_not_lost_here() -> None:
    ended: list[subprocess.CompletedProcess[str]] = []

    def run() -> None:
        with children_deaf_to_ctrl_c():
            # To this thread: one that a library started would take it at once.
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            child = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('whole')"
            command = [sys.executable, "-c", child]
            ended.append(subprocess.run(command, capture_output=True, text=True, check=False))

    with pytest.raises(KeyboardInterrupt):
        run()
    assert [(one.returncode, one.stdout, one.stderr) for one in ended] == [(0, "whole\n", "")]


def test_importing_the_library_changes_no_handler() -> None:
    script = (
        "import signal\n"
        "before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]\n"
        "import cleanfeed.build.runner, cleanfeed.cli.main\n"
        "assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


PIPED = """
import sys
from cleanfeed.cli import main

@main.cli.command()
def much() -> None:
    if HOW == "rich":
        from cleanfeed.cli.terminal import stdout
        for _ in range(9999):
            stdout().print("a line")
    elif HOW == "click":
        import click
        for _ in range(9999):
            click.echo("a line")
    else:
        print("a line")  # so little that it is written at the end

HOW = sys.argv[1]
sys.stdin.readline()  # until nobody reads any more
sys.argv = ["cleanfeed", "much"]
sys.exit(main.main())
"""


@pytest.mark.parametrize("how", ["rich", "click", "little"])
def test_a_command_whose_output_nobody_reads_ends_without_a_word(how: str) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PIPED, how], stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate(b"\n")
    assert (process.returncode, said) == (141, b"")
