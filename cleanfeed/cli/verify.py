"""``cleanfeed verify``: a finished build goes in; proof that files, counts and manifest agree comes out."""

from __future__ import annotations

import click

from cleanfeed.cli.options import debug_option, enter, json_option


@click.command(short_help="Prove from the files that a build is whole.")
@click.argument("out", metavar="DIR")
@json_option
@debug_option
def verify(out: str, as_json: bool) -> int:
    """Read every file of the build in DIR again and compare rows, counts and checksums with its manifest.

    With exit code 1 it names the files and counts that are wrong, up to five of them.
    """
    enter("verify", out)
    from cleanfeed.build.verify import verify as run
    from cleanfeed.cli.summary import show_verify, verify_result
    from cleanfeed.cli.terminal import print_json

    result = verify_result(run(out), out)
    print_json(result) if as_json else show_verify(result)
    return 0
