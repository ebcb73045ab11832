"""``cleanfeed build``: inputs and a pipeline go in; a curriculum in OUT and a table on stdout come out."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from cleanfeed.cli.options import Invocation, debug_option, enter, json_option, named, pipeline_options

if TYPE_CHECKING:
    from cleanfeed.settings import Pipeline


def available_cpus() -> int:
    """Return the number of CPUs this process may run on.

    A process bound to some of the machine's CPUs sees only those. A quota of CPU time, which a container may have
    instead, is not seen: there ``--workers`` says better.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


NOTHING_EXCLUDED = (
    "note: --exclude left nothing out: no document or sample has a listed hash. "
    "Sample hashes are those of one tokenizer and of one choice of bands."
)


@click.command(short_help="Measure, clean and order raw text into a curriculum.")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, callback=named)
@click.option(
    "--out",
    metavar="DIR",
    required=True,
    callback=named,
    help="Folder to write, made when it does not exist, or an fsspec address (s3://BUCKET/PREFIX).",
)
@pipeline_options
@click.option(
    "--text-field",
    metavar="F",
    callback=named,
    help="Field with the text; dots reach into records (meta.text).",
)
@click.option("--id-field", metavar="F", callback=named, help="Field with the document's id.")
@click.option(
    "--keep-field",
    "keep_fields",
    metavar="F",
    multiple=True,
    callback=named,
    help="Other field that travels to the curriculum, as text: numbers as written, lists and records as JSON, "
    "bytes as hex, NaN as null. Repeatable.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Processes to use; by default one for each CPU. The result does not depend on it.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where the work is done: in processes on this machine, or as tasks of the Ray cluster that RAY_ADDRESS names, "
    "without it of one started here (docs/cluster.md). The result does not depend on it.",
)
@click.option(
    "--exclude",
    metavar="STORE",
    multiple=True,
    help="Leave out documents whose content_hash, or the sample_hash of any of their samples, is listed: in a "
    "quarantine store or run directory, a Parquet file with such columns, or a text file with one hash a line "
    "(docs/exclusions.md). Repeatable.",
)
@click.option("--keep-text", is_flag=True, help="Keep the text beside the token ids.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Read only the first N records.")
@click.option("--overwrite", is_flag=True, help="Replace a build of other inputs or another pipeline in DIR.")
@json_option
@debug_option
def build(
    inputs: tuple[str, ...],
    out: str,
    pipeline: str,
    tokenizer: str | None,
    overrides: tuple[str, ...],
    text_field: str | None,
    id_field: str | None,
    keep_fields: tuple[str, ...],
    workers: int | None,
    engine: str,
    exclude: tuple[str, ...],
    keep_text: bool,
    limit: int | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Measure every document of INPUT, set aside the pathological ones, and order the rest into stages.

    INPUT is a file, a folder, a glob or an fsspec address; JSON Lines (plain, gzip, zstd, bz2, xz), Parquet,
    Arrow, a folder saved by Hugging Face datasets, or plain text. Killed and run again, a build goes on where
    it was. Inputs are recognised again by name, size and 64 sampled blocks of each file, and while a build is
    unfinished also by their time of change.
    """
    enter("build", out, go_on="Run the same command again to go on where it stopped.")
    from cleanfeed.build.engine import start_server
    from cleanfeed.build.lean import hide_pandas, loading
    from cleanfeed.documents.hub import is_hub_name

    invocation = click.get_current_context().ensure_object(Invocation)
    # Only reading from the hub needs pandas.
    lean = invocation.own_process and not any(map(is_hub_name, inputs))
    if lean:
        hide_pandas()
    if engine == "local":
        workers = workers or available_cpus()
        start_server()
    with loading() if invocation.own_process else nullcontext():
        from cleanfeed.build.request import BuildRequest
        from cleanfeed.build.runner import build as run
        from cleanfeed.cli.progress import progress
        from cleanfeed.cli.summary import build_result, show_build
        from cleanfeed.cli.terminal import print_json
        from cleanfeed.rules.pipeline import load_pipeline

    lists, hashes = _exclusions(exclude)
    request = BuildRequest(
        inputs=inputs,
        out=out,
        pipeline=with_fields(load_pipeline(pipeline, overrides), text_field, id_field, keep_fields),
        tokenizer=tokenizer,
        workers=workers or 0,
        engine=engine,
        isolated=True,
        keep_text=keep_text,
        limit=limit,
        overwrite=overwrite,
        exclude=lists,
        exclude_hashes=hashes,
    )
    with progress() as watcher:
        report = run(request, watcher)
    result = build_result(report, out)
    print_json(result) if as_json else show_build(result)
    if (lists or hashes) and not result["counts"]["excluded"]:
        click.echo(NOTHING_EXCLUDED, err=True)
    return report.exit_code


def _exclusions(stores: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lists among some stores, and the hashes of the others."""
    if not stores:
        return (), ()
    from cleanfeed.cli.exclusion import exclusions

    found = exclusions(stores)
    return found.lists, found.hashes


def with_fields(
    pipeline: Pipeline, text_field: str | None, id_field: str | None, keep_fields: tuple[str, ...]
) -> Pipeline:
    """Return the pipeline with the field names given on the command line in place of its own."""
    from msgspec.structs import replace

    documents = pipeline.documents
    changed = replace(
        documents,
        text_field=text_field or documents.text_field,
        id_field=id_field or documents.id_field,
        keep_fields=tuple(dict.fromkeys(documents.keep_fields + keep_fields)),
    )
    return replace(pipeline, documents=changed)
