"""Declarations of the signals about lines, in column order."""

from __future__ import annotations

import math

from cleanfeed.signals.signal import Signal, count, share
from cleanfeed.signals.words_signals import SPACELESS

_NO_LINE = "there is no line with a word"
_GOPHER = "Gopher (Rae et al. 2021), A.1.1"
_TABLE = "Gopher (Rae et al. 2021), table A1; all copies but the first, as in datatrove"
_FINEWEB = "FineWeb (Penedo et al. 2024), 3.6"


def _lines(name: str, what: str, source: str) -> Signal:
    return share(name, f"Share of lines that {what}.", null_when=_NO_LINE, source=source)


LINE_SIGNALS: tuple[Signal, ...] = (
    count("lines", "Lines with at least one word; only a line feed ends a line."),
    count("paragraphs", "Groups of lines between blank lines."),
    Signal(
        "mean_line_chars", "float", 1.0, math.inf,
        "Characters a line, on average, without white space around it.", None,
        _NO_LINE, "cleanfeed",
    ),
    count("longest_line", "Characters of the longest line, without white space around it."),
    _lines("bullet_lines", "begin with a list mark; -, * and + must stand alone", _GOPHER),
    _lines("ellipsis_lines", "end with three full stops or an ellipsis", _GOPHER),
    share(
        "terminal_lines",
        "Share of lines that end with a terminal mark of any script, before closing quotes or brackets.",
        null_when=f"{_NO_LINE}, or {SPACELESS}",
        source=_FINEWEB,
    ),
    _lines("colon_lines", "end with a colon", "cleanfeed"),
    _lines("short_lines", "have 30 characters or fewer", _FINEWEB),
    Signal(
        "newline_word_ratio", "float", 0.0, math.inf, "Line feeds over words.", None,
        f"there is no word, or {SPACELESS}", _FINEWEB,
    ),
    _lines("dup_line_share", "equal an earlier line, word by word", _TABLE),
    share(
        "dup_line_chars", "Characters of lines that equal an earlier one, over characters of lines.",
        null_when=_NO_LINE, source=_TABLE,
    ),
    share(
        "dup_para_share", "Share of paragraphs that equal an earlier one, line by line.", null_when=_NO_LINE,
        source=_TABLE,
    ),
    share(
        "dup_para_chars", "Characters of lines in paragraphs that equal an earlier one, over characters of lines.",
        null_when=_NO_LINE, source=_TABLE,
    ),
    share(
        "template_line_share",
        "Characters of lines that equal an earlier one when each run of ASCII digits is taken as one digit, over "
        "characters of lines.",
        null_when=_NO_LINE,
    ),
    share(
        "fineweb_dup_chars", "Characters of lines that equal an earlier one, over all characters but line feeds.",
        null_when=_NO_LINE, source=_FINEWEB,
    ),
)  # fmt: skip
