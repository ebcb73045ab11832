"""``cleanfeed backtest``: the log of a finished run goes in; which rules would have fired in it comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cleanfeed.cli.options import debug_option, enter, json_option

if TYPE_CHECKING:
    from cleanfeed.training.backtest import Backtest
    from cleanfeed.training.logs import Log

MOST_ROWS = 200
"""Rows a table shows; --json has them all."""


@click.command(short_help="Show which rules would have fired in the log of a finished run.")
@click.argument("log", metavar="LOG")
@click.option(
    "--policy", metavar="FILE", help="Policy as YAML or JSON, or an incident.json; by default Policy()."
)
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change one value of the policy: z_act=12, sustained.steps=7, ratio=true, stall=null. Repeatable.",
)
@click.option("--loss", metavar="NAME", help="Column or tag of the loss, where the guess is wrong.")
@click.option("--grad-norm", metavar="NAME", help="Column or tag of the gradient norm.")
@click.option("--step", metavar="NAME", help="Column of the step.")
@click.option("--observations", is_flag=True, help="Show outliers that opened no incident as well.")
@json_option
@debug_option
def backtest(
    log: str,
    policy: str | None,
    overrides: tuple[str, ...],
    loss: str | None,
    grad_norm: str | None,
    step: str | None,
    observations: bool,
    as_json: bool,
) -> int:
    """Run the detectors over LOG and show what would have fired, at which step and why.

    LOG is a run directory, a ledger, a CSV or JSON Lines file, or a TensorBoard event file or folder (extra
    tensorboard). Columns are found by their common names. Every step counts as taken: an incident that the guard
    would have ended by not stepping goes on here as it did in the run.
    """
    enter("backtest", log)
    from cleanfeed.cli.terminal import print_json
    from cleanfeed.training.backtest import backtest as run
    from cleanfeed.training.logs import read_log
    from cleanfeed.training.policy_file import load_policy

    rules = load_policy(policy, overrides)
    read = read_log(log, {"loss": loss, "grad_norm": grad_norm, "step": step})
    result = run(read, rules)
    if as_json:
        source = {"log": log, "kind": read.kind, "names": read.names, "left_out": read.left_out}
        print_json({**source, **result.to_dict(), "policy": rules.to_dict()})
    else:
        _show(log, read, result, observations)
    return 0


def _show(log: str, read: Log, result: Backtest, observations: bool) -> None:
    from cleanfeed.cli.terminal import count, stdout, visible

    console = stdout()
    names = ", ".join(
        f"{ours} from '{visible(theirs)}'" for ours, theirs in read.names.items() if ours != theirs
    )
    console.print(
        f"{visible(log)}: {read.kind}, {count(result.steps)} lines, steps {count(result.first_step)} to "
        f"{count(result.last_step)}" + (f"; {names}" if names else "")
    )
    if result.stride > 1:
        console.print(f"one line every {count(result.stride)} steps: the policy's windows count lines")
    if result.restarts:
        console.print(f"the steps go back {count(result.restarts)} times: judged from what was known there")
    if read.left_out:
        console.print(f"{count(read.left_out)} lines without a step or a loss were left out")
    if result.in_grace or result.in_new_context:
        console.print(
            f"{count(result.in_grace)} lines lie in the grace and {count(result.in_new_context)} in a stage that is "
            "new: of these only NaN and Inf are judged"
        )
    if result.not_finite:
        every = "all of them" if result.not_finite == result.steps else count(result.not_finite)
        console.print(f"lines whose loss or norm is not finite: {every}")
    console.print(
        f"incidents: {count(len(result.incidents))}; outliers that opened none: {count(len(result.observations))}"
    )
    _rules(result, observations)


def _rules(result: Backtest, observations: bool) -> None:
    """Print one row a rule that fired: incidents in their order, then outliers where they are asked for."""
    from cleanfeed.cli.terminal import count, measure, row, stdout, table

    rows = [(str(number), trip) for number, found in enumerate(result.incidents, 1) for trip in found.trips]
    rows += [("", trip) for trip in result.observations] if observations else []
    if not rows:
        return
    grid = table("incident", "rule", "signal", "step", "onset", "value", "limit", "z", left=3)
    for number, trip in rows[:MOST_ROWS]:
        value = "not finite" if trip.value is None else measure(trip.value)
        cells = (count(trip.step), count(trip.onset_step), value, measure(trip.limit), measure(trip.z, 3))
        row(grid, number, trip.rule, trip.signal, *cells, style="" if number else "dim")
    stdout().print(grid)
    if len(rows) > MOST_ROWS:
        stdout().print(f"… {count(len(rows) - MOST_ROWS)} more; --json has them all")
