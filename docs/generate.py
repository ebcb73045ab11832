"""Signals, presets and every ``--help`` go in; docs/cli.md, docs/rules.md and docs/signals.md come out.

Run ``make docs`` after changing one of them. ``--check`` writes nothing and fails when a page is out of date.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from cleanfeed.cli.main import cli
from cleanfeed.rules.pipeline import load_pipeline, preset_names
from cleanfeed.settings import Bound, Pipeline, RuleSettings
from cleanfeed.signals.registry import SIGNALS
from cleanfeed.signals.signal import Signal

FOLDER = Path(__file__).parent
HELP_WIDTH = 100
NOTE = "<!-- Written by docs/generate.py from the code; change it there and run `make docs`. -->"
FIRST = "web_text"
"""The default preset, which a reader of the rules wants first."""

CLI_HEAD = """\
# Commands

Results go to stdout, progress and errors to stderr, so `cleanfeed build … --json | jq .counts` works while
the bars move. An error is one line, `what is wrong: where: got X, expected Y. What to do.`; `--debug` adds
the traceback. The first Ctrl-C or SIGTERM ends the workers and the command with one line; further ones change
nothing.

| exit code | meaning |
|---|---|
| 0 | done; single unreadable records are counted and said, and do not change this |
| 1 | failed on data or environment; for `verify`, files and manifest disagree |
| 2 | misuse: a wrong option or key in a pipeline file, an input that does not exist; nothing was changed |
| 3 | finished, but an input file was damaged: what could be read was used, the manifest says where it broke |
| 130 | interrupted (Ctrl-C); the same `build` command goes on where it stopped |
| 143 | terminated (SIGTERM); likewise |

`python -m cleanfeed` is the same as `cleanfeed`.
"""

RULES_HEAD = """\
# Rules

A rule is data: a bound on one [signal](signals.md), what follows when a document lies beyond it, the evidence
it needs and the documents it speaks for. A signal that is null never fires a rule. Every reason is recorded,
not only the first.

- *rejects*: the document goes to `rejected/` with all its reasons.
- *flags*: the document is kept, and the name of the rule travels with its samples in the column `flags`.
- *evidence*: the rule rejects only when one of these bounds is crossed as well, or its own value is beyond
  *extreme*; otherwise it flags.
- *speaks where*: for other documents the rule is silent.

Any limit is changed with `--set`, for example `--set rules.NAME.above=VALUE`, or in a pipeline file of your
own: [pipelines.md](pipelines.md).
"""

SIGNALS_HEAD = """\
# Signals

A signal is one measured number of a text. Every document read has one row in `signals/` with all of them,
whatever its verdict. Shares and ratios are null where they would be noise, and null never fires a
[rule](rules.md).
"""


def cli_page() -> str:
    """Return the page of all commands with their help."""
    parts = [CLI_HEAD]
    for path, command in commands():
        context = command.make_context(path, [], resilient_parsing=True, terminal_width=HELP_WIDTH)
        parts.append(f"## {path}\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield the program and each of its commands, also those in groups, with the words that call it."""

    def below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            for name in sorted(command.commands):
                yield from below(f"{path} {name}", command.commands[name])

    return below("cleanfeed", cli)


def rules_page() -> str:
    """Return the page of all rules of all presets."""
    presets = sorted(preset_names(), key=lambda name: (name != FIRST, name))
    return "\n".join([RULES_HEAD, *(preset_part(load_pipeline(name)) for name in presets)])


def preset_part(pipeline: Pipeline) -> str:
    """Return the part of one preset: what it is for, then each of its rules under the same headings."""
    lines = [f"## Preset `{pipeline.name}`", "", " ".join(pipeline.description.split()), ""]
    for rule in pipeline.rules:
        lines += [f"### {rule.name}", "", *rule_lines(rule), ""]
    return "\n".join(lines)


def rule_lines(rule: RuleSettings) -> list[str]:
    """Return what one rule does, as the lines of a list."""
    verb = "Rejects" if rule.action == "reject" else "Flags"
    lines = [f"- {verb} when {bound_words(rule)}."]
    if rule.evidence:
        lines.append(f"- Evidence, one of: {'; '.join(map(bound_words, rule.evidence))}.")
    if rule.extreme is not None:
        sign = ">" if rule.above is not None else "<"
        lines.append(f"- Extreme: {sign} {number(rule.extreme)} rejects without evidence.")
    if rule.where:
        lines.append(f"- Speaks where: {' and '.join(map(bound_words, rule.where))}.")
    if rule.because:
        lines.append(f"- Why: {' '.join(rule.because.split())}")
    if rule.source:
        lines.append(f"- Source: {' '.join(rule.source.split())}")
    return lines


def bound_words(bound: Bound | RuleSettings) -> str:
    """Return a bound as a person reads it."""
    if bound.above is not None:
        return f"`{bound.signal}` > {number(bound.above)}"
    assert bound.below is not None  # the settings refuse a bound without a side
    return f"`{bound.signal}` < {number(bound.below)}"


def signals_page() -> str:
    """Return the page of all signals, those of every build first."""
    return "\n".join(
        [
            SIGNALS_HEAD,
            "## Of every text\n",
            signal_table(s for s in SIGNALS if not s.needs_tokenizer and not s.needs_corpus),
            "## With a tokenizer\n",
            signal_table(s for s in SIGNALS if s.needs_tokenizer and not s.needs_corpus),
            "## Against the whole corpus\n",
            "Known when every document is read; null in `cleanfeed explain --text`.\n",
            signal_table(s for s in SIGNALS if s.needs_corpus),
        ]
    )


def signal_table(signals: Iterable[Signal]) -> str:
    """Return one line a signal, in the order of the columns of ``signals/``."""
    lines = [
        "| signal | meaning | type, range | empty text | null when | source |",
        "|---|---|---|---|---|---|",
    ]
    for signal in signals:
        empty = "null" if signal.empty is None else number(signal.empty)
        span = f"{signal.type}, {number(signal.low)} to {number(signal.high)}"
        cells = (f"`{signal.name}`", signal.meaning, span, empty, signal.null_when or "never", signal.source)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Return a number without a needless fraction."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


PAGES: dict[str, Callable[[], str]] = {"cli.md": cli_page, "rules.md": rules_page, "signals.md": signals_page}


def page(name: str) -> str:
    """Return the text a generated page must have."""
    title, rest = PAGES[name]().split("\n", 1)
    return f"{title}\n\n{NOTE}\n{rest}".rstrip() + "\n"


def stale() -> list[str]:
    """Return the names of the pages that differ from what the code says."""
    return [
        name
        for name in PAGES
        if not (FOLDER / name).exists() or (FOLDER / name).read_text("utf-8") != page(name)
    ]


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` compare them, and return the exit code."""
    names = stale()
    if arguments == ["--check"]:
        for name in names:
            print(f"out of date: docs/{name}. Run 'make docs'.", file=sys.stderr)
        return 1 if names else 0
    for name in names:
        (FOLDER / name).write_text(page(name), "utf-8")
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
