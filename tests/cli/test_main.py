"""Every error is one line with its exit code, and a traceback comes only when asked for."""

from __future__ import annotations

import click
import pytest

from cleanfeed import __version__
from cleanfeed.cli import main as main_module
from cleanfeed.cli.main import main
from cleanfeed.cli.options import enter
from cleanfeed.errors import BusyError, CleanfeedError, MisuseError, VerifyError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command ``fail`` that raises what the test puts into the list."""
    raised: list[BaseException] = []

    @click.command()
    @main_module.debug_option
    def fail() -> None:
        enter("fail", "OUT", go_on="Run it again.")
        raise raised[0]

    monkeypatch.setitem(main_module.cli.commands, "fail", fail)
    return raised


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MisuseError("unknown key: p.yaml: rulez."), 2, "unknown key: p.yaml: rulez."),
        (CleanfeedError("not UTF-8: a.txt."), 1, "not UTF-8: a.txt."),
        (BusyError("in use: OUT."), 1, "in use: OUT."),
        (VerifyError("wrong digest: a."), 1, "wrong digest: a."),
        (
            OSError(28, "No space left on device", "OUT/a.parquet"),
            1,
            "cannot read or write: OUT/a.parquet: got No space left on device.",
        ),
        (
            OSError(5, "Input/output error"),
            1,
            "cannot read or write: cleanfeed fail OUT: got Input/output error. "
            "Run again with --debug to see where.",
        ),
        (
            ZeroDivisionError("division\nby zero"),
            1,
            "unexpected error: cleanfeed fail OUT: got ZeroDivisionError: division by zero. "
            "Run again with --debug to see where.",
        ),
        (KeyboardInterrupt(), 130, "interrupted: cleanfeed fail OUT. Run it again."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_is_one_line_on_stderr_with_its_exit_code(
    failing: list[BaseException],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    failing.append(error)
    assert main(["fail"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip().splitlines() == [line]


@pytest.mark.parametrize("words", [["--debug", "fail"], ["fail", "--debug"]], ids=["before", "after"])
def test_debug_adds_the_traceback(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    failing.append(MisuseError("unknown key: p.yaml: rulez."))
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "unknown key: p.yaml: rulez."


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["build", "a.jsonl"], "Missing option '--out'. See 'cleanfeed build --help'."),
        (["build", "--out", "OUT"], "Missing argument 'INPUT...'. See 'cleanfeed build --help'."),
        (
            ["build", "a.jsonl", "--out", "OUT", "--workers", "0"],
            "Invalid value for '--workers': 0 is not in the range x>=1. See 'cleanfeed build --help'.",
        ),
        *(
            (
                ["build", "a.jsonl", "--out", "OUT", option, ""],
                f"Invalid value for '{option}': got '', expected a name. See 'cleanfeed build --help'.",
            )
            for option in ("--out", "--tokenizer", "--text-field", "--id-field", "--keep-field")
        ),
        (
            ["build", "", "--out", "OUT"],
            "Invalid value for 'INPUT...': got '', expected a name. See 'cleanfeed build --help'.",
        ),
        (["verify"], "Missing argument 'DIR'. See 'cleanfeed verify --help'."),
        (
            ["explain", "OUT"],
            "no document to explain: arguments: got DIR OUT alone, expected DIR and DOC_ID, or --text. "
            "Use 'cleanfeed explain DIR DOC_ID' or 'cleanfeed explain --text FILE'.",
        ),
        (
            ["explain", "OUT", "a", "--text", "f"],
            "two documents to explain: arguments: got --text and OUT, expected one of them. "
            "Use 'cleanfeed explain DIR DOC_ID' or 'cleanfeed explain --text FILE'.",
        ),
        (
            ["explain", "OUT", "a", "--set", "b=1"],
            "--set goes with --text only: arguments: expected the pipeline and tokenizer of the build. "
            "Leave it out, or give the text with --text.",
        ),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", line + "\n")


def test_an_unknown_option_names_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "a", "--out", "OUT", "--worker", "2"]) == 2
    assert "--workers" in capsys.readouterr().err


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"cleanfeed {__version__}\n"


def test_no_command_prints_the_commands_and_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "build" in capsys.readouterr().out
