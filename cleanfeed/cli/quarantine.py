"""``cleanfeed quarantine …``: a run or a store goes in; its report, its rows, or a changed store comes out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cleanfeed.cli.options import debug_option, enter, finished_build, json_option, named, refuse_folder
from cleanfeed.errors import MisuseError, one_line

if TYPE_CHECKING:
    from cleanfeed.quarantine.store import Quarantine

RUN_OR_STORE = click.argument("place", metavar="RUN_OR_STORE", callback=named)
STORE = click.argument("place", metavar="STORE", callback=named)
HASHES = click.argument("hashes", metavar="HASH...", nargs=-1, required=True, callback=named)
INCIDENT = click.option(
    "--incident", metavar="N", type=click.IntRange(min=1), help="Only the incident of this number."
)
REASON = click.option(
    "--reason", metavar="R", required=True, callback=named, help="Why; kept with the samples."
)
BY = click.option("--by", metavar="NAME", callback=named, help="Who decides; by default the user.")


@click.group(short_help="Report incidents of a training run; decide what is left out.")
@debug_option
def quarantine() -> None:
    """Report what happened in a training run, and decide which samples are left out from now on.

    RUN_OR_STORE is a run directory, or a DuckDB store, which several runs may share. Reading never changes it and works
    while training goes on: a store another process holds is tried again for a moment, then what it would say is
    read from the incident files beside it.
    """


@quarantine.command(short_help="Explain the incidents of a run.")
@RUN_OR_STORE
@INCIDENT
@click.option("--html", "html", metavar="FILE", callback=named, help="Write a page that needs no other file.")
@click.option("--curriculum", metavar="DIR", callback=finished_build, help="Where the curriculum lies now.")
@click.option(
    "--look-ahead",
    metavar="N",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    help="Samples ahead that are compared for near copies of the suspects.",
)
@json_option
@debug_option
def report(
    place: str, incident: int | None, html: str | None, curriculum: str | None, look_ahead: int, as_json: bool
) -> int:
    """Show what happened in each incident, for the engineer on call.

    The timeline, the rule that fired with its numbers, loss and gradient norm around it and over the whole run, the
    suspects with excerpts and their most unusual signals, copies of them that are still ahead, the checkpoint that was
    chosen and why, what was lost, and what became of it.
    """
    enter("quarantine report", place)
    from cleanfeed.cli.quarantine_store import report_of
    from cleanfeed.cli.terminal import print_json

    if html is not None:
        refuse_folder("--html", html)
    found = report_of(place, incident, look_ahead, curriculum)
    if html is not None:
        from cleanfeed.cli.incident_page import page
        from cleanfeed.curriculum.durable import written_aside

        with written_aside(Path(html)) as aside:
            aside.write_text(page(found), "utf-8")
    if as_json:
        from msgspec import to_builtins

        print_json(to_builtins(found))
    elif html is not None:
        click.echo(f"wrote {html}")
    else:
        from cleanfeed.cli.incident import show_report

        show_report(found)
    return 0


@quarantine.command("list", short_help="List incidents, and count samples by state.")
@RUN_OR_STORE
@json_option
@debug_option
def list_(place: str, as_json: bool) -> int:
    """List the incidents of a run or store in a line each, and count the samples in each state."""
    enter("quarantine list", place)
    from cleanfeed.cli.quarantine_store import existing, listing, show_listing
    from cleanfeed.cli.terminal import print_json

    result = listing(existing(place))
    print_json(result) if as_json else show_listing(result)
    return 0


@quarantine.command(short_help="Show every row the store has.")
@RUN_OR_STORE
@INCIDENT
@json_option
@debug_option
def show(place: str, incident: int | None, as_json: bool) -> int:
    """Show every suspect batch, sample and skip range of the store, or of one incident."""
    enter("quarantine show", place)
    from cleanfeed.cli.quarantine_store import contents, existing, show_contents
    from cleanfeed.cli.terminal import print_json

    result = contents(existing(place), incident)
    print_json(result) if as_json else show_contents(result)
    return 0


@quarantine.command(short_help="Quarantine samples by hand.")
@STORE
@HASHES
@REASON
@BY
@click.option(
    "--curriculum",
    metavar="DIR",
    callback=finished_build,
    help="Build the samples are in: documents are noted with them, and a hash of no sample is refused.",
)
@json_option
@debug_option
def add(
    place: str, hashes: tuple[str, ...], reason: str, by: str | None, curriculum: str | None, as_json: bool
) -> int:
    """Quarantine samples by their sample_hash; the store is made if there is none.

    They are left out of training by every run that uses the store, and of a build with --exclude.
    """
    enter("quarantine add", place)
    from cleanfeed.cli.quarantine_store import places_in, say_change
    from cleanfeed.quarantine.store import checked_hashes

    wanted = checked_hashes(hashes)
    known = {} if curriculum is None else places_in(curriculum, wanted)
    store = _store(place)
    store.add(wanted, reason, by=by, places=known)
    say_change("quarantined", wanted, store, as_json)
    return 0


@quarantine.command(short_help="Release samples by hand.")
@STORE
@HASHES
@REASON
@BY
@json_option
@debug_option
def release(place: str, hashes: tuple[str, ...], reason: str, by: str | None, as_json: bool) -> int:
    """Release samples of the store: they are trained again, unless a later incident quarantines them anew."""
    enter("quarantine release", place)
    from cleanfeed.cli.quarantine_store import existing, say_change
    from cleanfeed.quarantine.store import checked_hashes

    wanted, store = checked_hashes(hashes), existing(place)
    store.release(wanted, reason, by=by)
    say_change("released", wanted, store, as_json)
    return 0


@quarantine.command(short_help="Write the quarantined samples for build --exclude.")
@RUN_OR_STORE
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    callback=named,
    help="FILE.parquet: all that is known of them; FILE.txt: one hash a line.",
)
@json_option
@debug_option
def export(place: str, out: str, as_json: bool) -> int:
    """Write the samples whose state is quarantined to a file that build --exclude takes."""
    enter("quarantine export", place)
    from cleanfeed.cli.quarantine_store import existing
    from cleanfeed.cli.terminal import print_json
    from cleanfeed.cli.wording import plural

    refuse_folder("--out", out)
    written = existing(place).export(out)
    if as_json:
        print_json({"out": out, "samples": written})
    else:
        click.echo(f"wrote {plural(written, 'quarantined sample')} to {out}")
    return 0


@quarantine.command(short_help="Make the store anew from its files.")
@RUN_OR_STORE
@click.option(
    "--run",
    "runs",
    metavar="RUN",
    multiple=True,
    callback=named,
    help="A run to take in as well. Repeatable.",
)
@json_option
@debug_option
def rebuild(place: str, runs: tuple[str, ...], as_json: bool) -> int:
    """Make the store anew from the incident files of its runs and the decisions made by hand.

    Incidents of runs whose directory is gone are taken over from the store before.
    """
    enter("quarantine rebuild", place)
    from cleanfeed.cli.quarantine_store import existing, readable_run
    from cleanfeed.cli.terminal import print_json
    from cleanfeed.cli.wording import plural

    store = _store(place) if runs else existing(place)
    counts = store.rebuild([readable_run(run) for run in runs])
    if as_json:
        print_json({"store": str(store.path), **counts})
    else:
        incidents, decisions = counts["incidents"], counts["decisions"]
        click.echo(f"{store.path}: {plural(incidents, 'incident')}, {plural(decisions, 'decision')} by hand")
    return 0


def _store(place: str) -> Quarantine:
    from cleanfeed.cli.quarantine_store import say_note
    from cleanfeed.quarantine.store import Quarantine

    if (Path(place) / "manifest.json").is_file():
        raise MisuseError(
            one_line(
                "a build keeps no quarantine",
                place,
                expected="a run directory or a store",
                todo="Name a store of its own, such as quarantine.duckdb.",
            )
        )
    return Quarantine(place, on_note=say_note)
