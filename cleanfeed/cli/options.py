"""Options that several commands share: declared once here, read into the settings of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from cleanfeed.errors import MisuseError, one_line

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_PIPELINE = "web_text"
PRESETS = ("web_text", "multilingual", "code", "gopher", "c4", "fineweb", "olmo_repetition")
"""Named here as well as in the presets' folder, so that ``--help`` reads no file; a test compares the two."""


@dataclass(slots=True)
class Invocation:
    """What is known of this call where an error is turned into a line."""

    debug: bool = False
    own_process: bool = False
    """Whether the process was started for this command and ends with it."""
    command: str = "cleanfeed"
    subject: str = ""
    """The folder or file the command works on."""
    go_on: str = ""
    """What to do after an interrupt, as a sentence."""

    def where(self) -> str:
        """Return the place to name in an error that knows no better one."""
        return f"{self.command} {self.subject}".strip()

    def stopped(self, how: str) -> str:
        """Return the line of a command that was stopped from outside."""
        return f"{how}: {self.where()}. {self.go_on}".strip()


def _set_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Invocation).debug = True


debug_option: Callable[[Command], Command] = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_set_debug,
    help="Show the traceback of an error.",
)

json_option: Callable[[Command], Command] = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."
)


def named(_: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse an empty name, which a shell makes of a variable that is not set."""
    if value == "" or (isinstance(value, tuple) and "" in value):
        raise click.BadParameter("got '', expected a name", param=parameter)
    return value


def finished_build(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse a folder that holds no finished build; an address is left to whoever opens it."""
    named(context, parameter, value)
    if value is not None and "://" not in value and not (Path(value) / "manifest.json").is_file():
        raise MisuseError(
            one_line(
                "no finished build",
                f"--curriculum {value}",
                "no manifest.json",
                "a folder 'cleanfeed build' wrote",
            )
        )
    return value


def refuse_folder(option: str, name: str) -> None:
    """Refuse a folder where a file is to be written, before anything else is done.

    Raises:
        MisuseError: There is a folder of that name.
    """
    if Path(name).is_dir():
        raise MisuseError(
            one_line("cannot write a file there", f"{option} {name}", "a folder", "a file name")
        )


def pipeline_options(command: Command) -> Command:
    """Add the options that choose rules, signals and tokenizer."""
    for option in (
        click.option(
            "--set",
            "overrides",
            metavar="A.B=VALUE",
            multiple=True,
            help="Change one value of the pipeline, for example rules.too_long.above=5000000. Repeatable.",
        ),
        click.option(
            "--tokenizer",
            metavar="FILE",
            callback=named,
            help="tokenizer.json of the model; without one, lengths are counted in characters.",
        ),
        click.option(
            "--pipeline",
            metavar="NAME|FILE",
            default=DEFAULT_PIPELINE,
            show_default=True,
            help=f"Pipeline file, or one of {', '.join(PRESETS)}.",
        ),
    ):
        command = option(command)
    return command


def enter(command: str, subject: str = "", go_on: str = "") -> None:
    """Note what this call is about, for the line an error or an interrupt becomes."""
    invocation = click.get_current_context().ensure_object(Invocation)
    invocation.command, invocation.subject, invocation.go_on = f"cleanfeed {command}", subject, go_on
