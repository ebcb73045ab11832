"""``cleanfeed ledger``: a training run goes in; proof of what it trained comes out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from cleanfeed.cli.options import debug_option, enter, finished_build, json_option

if TYPE_CHECKING:
    from cleanfeed.runs.audit import Audit


@click.group(short_help="Ask the ledger of a training run.")
def ledger() -> None:
    """Ask the ledger of a training run."""


@ledger.command(short_help="Prove which samples a run trained.")
@click.argument("run", metavar="RUN")
@click.option(
    "--curriculum", metavar="DIR", callback=finished_build, help="The curriculum, where it has moved since."
)
@json_option
@debug_option
def audit(run: str, curriculum: str | None, as_json: bool) -> int:
    """Work out the batch of every step of RUN again and prove which samples were trained.

    Each sample once an epoch, none missing, none twice, excluded ones absent; exit code 1 and the places where it does
    not hold. Steps that a rollback undid are checked and not counted.
    """
    enter("ledger audit", run)
    from pathlib import Path

    from cleanfeed.cli.terminal import print_json
    from cleanfeed.runs.audit import audit as prove
    from cleanfeed.runs.layout import RunDir

    result = prove(RunDir(Path(run)), curriculum)
    print_json(audit_result(result)) if as_json else _show(result)
    return 1 if result.problem_count else 0


def audit_result(result: Audit) -> dict[str, Any]:
    """Return an audit as values JSON can hold."""
    return {"proved": not result.problem_count, **dataclasses.asdict(result)}


def _show(result: Audit) -> None:
    from cleanfeed.cli.terminal import count, row, stdout, table, visible
    from cleanfeed.cli.wording import plural

    console = stdout()
    console.print(
        f"{visible(result.run)}: {plural(result.steps, 'step')} in {plural(result.attempts, 'attempt')}, "
        f"{count(result.undone)} undone, {count(result.steps - result.accepted)} not accepted",
        markup=False,
    )
    columns = [
        ("trained", [one.trained for one in result.epochs], True),
        ("blanked", [one.blanked for one in result.epochs], True),
        ("not accepted", [one.not_accepted for one in result.epochs], True),
        ("skipped", [one.skipped for one in result.epochs], True),
        ("unproved", [one.unproved for one in result.epochs], False),
        ("still to come", [one.left for one in result.epochs], True),
        ("left out by drop_last", [one.dropped for one in result.epochs], False),
    ]
    shown = [(name, numbers) for name, numbers, always in columns if always or any(numbers)]
    grid = table("epoch", *(name for name, _ in shown))
    for at, one in enumerate(result.epochs):
        row(grid, str(one.epoch), *(count(numbers[at]) for _, numbers in shown))
    console.print(grid)
    for problem in result.problems:
        console.print(f"wrong: {visible(problem)}", markup=False)
    further = result.problem_count - len(result.problems)
    if further:
        console.print(f"wrong: {count(further)} more", markup=False)
    if not result.problem_count:
        console.print("Proved: each sample once an epoch, none twice, excluded ones absent.", markup=False)
