"""Values go in; text that is safe and easy to read on a terminal comes out, on stdout or stderr."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120
"""Columns of a table that goes to a file or a pipe, where no terminal says how wide it is."""

# Control, format (zero-width, bidi, tags), surrogate, private and unassigned characters, line separators:
# printed raw they move the cursor, turn lines around or hide text.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def stdout() -> Console:
    """Return the console for results."""
    return _console(stderr=False)


def stderr() -> Console:
    """Return the console for progress."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(
            stderr=stderr, highlight=False, emoji=False, markup=False, soft_wrap=False, width=PIPE_WIDTH
        )
    return console


def visible(text: str) -> str:
    """Return the text with every character that a terminal would act on written as an escape."""
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if unicodedata.category(char) not in _UNSAFE:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str, width: int) -> str:
    """Return the text cut in the middle to at most ``width`` characters."""
    if len(text) <= width:
        return text
    left = (width - 1) // 2
    return f"{text[:left]}…{text[len(text) - (width - 1 - left) :]}"


def count(value: int | None) -> str:
    """Return a whole number with its thousands set apart; a dash where there is none."""
    return "–" if value is None else f"{value:,}"


def measure(value: float | int | None, digits: int = 4) -> str:
    """Return a measured value in few digits; a dash where it is null."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Return a time as a person would write it: ``0.8 s``, ``2 min 5 s``, ``1 h 12 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def volume(size: float) -> str:
    """Return a number of bytes in kB or MB, of a thousand and a million bytes."""
    if size < 1e6:
        return f"{size / 1e3:,.1f} kB"
    return f"{size / 1e6:,.1f} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"


def table(title: str, *headings: str, left: int = 1) -> Table:
    """Return an empty table: the first ``left`` columns hold words, the others numbers.

    Args:
        title: What the table shows; it takes the place of the first heading.
        headings: The other headings.
        left: Columns that are set to the left.
    """
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, heading in enumerate((title, *headings)):
        grid.add_column(
            heading, justify="left" if index < left else "right", no_wrap=index >= left, overflow="fold"
        )
    return grid


def row(grid: Table, *cells: str, style: str = "") -> None:
    """Add a row of words that are shown as they are, whatever brackets they hold."""
    grid.add_row(*(Text(cell) for cell in cells), style=style)


def print_json(result: Mapping[str, Any]) -> None:
    """Print a result for a program: ASCII, so that no terminal setting can change it, and no NaN."""
    click.echo(json.dumps(result, indent=2, allow_nan=False))
