"""A command line goes in; a command is run, and its exit code or a one-line error comes out."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from cleanfeed import __version__
from cleanfeed.cli.backtest import backtest
from cleanfeed.cli.build import build
from cleanfeed.cli.explain import explain
from cleanfeed.cli.ledger import ledger
from cleanfeed.cli.options import Invocation, debug_option
from cleanfeed.cli.quarantine import quarantine
from cleanfeed.cli.stopping import Stopped, stopped_once
from cleanfeed.cli.verify import verify
from cleanfeed.errors import CleanfeedError, one_line

CLOSED_PIPE = 128 + 13
"""Exit code of a shell for a process that SIGPIPE ends."""
EPILOG = """\
Exit codes: 0 done; 1 failed; 2 misuse; 3 finished, but an input file was damaged; 130 interrupted (Ctrl-C);
141 whoever read stdout closed it; 143 terminated (SIGTERM).
Results go to stdout, progress and errors to stderr.
"""


class Closed(BaseException):
    """Nobody reads the output any more; click and rich would end the process with exit code 1."""


class Commands(click.Group):
    """The commands, which tell a closed pipe from other ends."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise Closed from error
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # how rich answers it
                raise Closed from end
            raise


@click.group(cls=Commands, epilog=EPILOG, context_settings={"max_content_width": 110})
@click.version_option(__version__, prog_name="cleanfeed", message="%(prog)s %(version)s")
@debug_option
def cli() -> None:
    """Clean and order text for pretraining language models."""


for _command in (build, verify, explain, quarantine, ledger, backtest):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every error becomes one line on stderr.

    Args:
        arguments: The words after ``cleanfeed``; by default those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal without UTF-8 must not turn a printed document into a failed command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    invocation = Invocation(own_process=arguments is None)
    try:
        with stopped_once():
            code = cli.main(arguments, prog_name="cleanfeed", standalone_mode=False, obj=invocation)
            if sys.stdout is not None:
                sys.stdout.flush()
    except (Closed, BrokenPipeError):
        return _closed(invocation)
    except Stopped as stopped:
        if sys.stderr.isatty():
            click.echo(err=True)  # the terminal has written ^C
        _say(invocation.stopped(str(stopped)), invocation)
        return stopped.exit_code
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message())
        return 2
    except click.Abort:
        _say(invocation.stopped("interrupted"), invocation)
        return 130
    except click.ClickException as error:
        _say(_misuse(error), invocation)
        return error.exit_code
    except CleanfeedError as error:
        _say(str(error), invocation)
        return error.exit_code
    except OSError as error:
        _say(_system(error, invocation), invocation)
        return 1
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback reaches a user unasked
        _say(_unexpected(error, invocation), invocation)
        return 1
    return code if isinstance(code, int) else 0


def _closed(invocation: Invocation) -> int:
    """Return the exit code of a command whose output nobody reads any more, as after ``| head``; nothing is said."""
    if invocation.own_process:
        # What is still to be written when Python ends must not fail again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    return CLOSED_PIPE


def _say(line: str, invocation: Invocation) -> None:
    """Print the one line of an error, after the traceback where it was asked for."""
    if invocation.debug:
        traceback.print_exc()
    line = " ".join(line.split())
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    click.echo(click.style(line, fg="red") if coloured else line, err=True)


def _misuse(error: click.ClickException) -> str:
    """Return a click error as one line that names the help page."""
    message = error.format_message().rstrip()
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "cleanfeed"
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See '{path} --help'."


def _system(error: OSError, invocation: Invocation) -> str:
    """Return an error of the operating system as one line with the file it is about."""
    # A file is first written under another name, which the user never gave.
    named = str(error.filename).removesuffix(".unfinished") if error.filename is not None else None
    where = named if named is not None else invocation.where()
    todo = "" if error.filename is not None else "Run again with --debug to see where."
    return one_line("cannot read or write", where, got=error.strerror or str(error), todo=todo)


def _unexpected(error: Exception, invocation: Invocation) -> str:
    """Return an error that no part of cleanfeed foresaw as one line."""
    got = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return one_line(
        "unexpected error", invocation.where(), got=got, todo="Run again with --debug to see where."
    )
