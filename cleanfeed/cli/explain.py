"""``cleanfeed explain``: one document goes in; its verdict, every signal and the worst spans come out."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cleanfeed.cli.options import debug_option, enter, json_option, pipeline_options
from cleanfeed.errors import CleanfeedError, MisuseError, one_line


@click.command(short_help="Show every signal of one document and the rules on it.")
@click.argument("out", metavar="[DIR", required=False)
@click.argument("doc_id", metavar="DOC_ID]", required=False)
@click.option("--text", "text_file", metavar="FILE", help="Explain this text instead; - reads stdin.")
@pipeline_options
@json_option
@debug_option
@click.pass_context
def explain(
    context: click.Context,
    out: str | None,
    doc_id: str | None,
    text_file: str | None,
    pipeline: str,
    tokenizer: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show the verdict on one document, every signal with its limit, and where the worst spans of it are.

    DIR and DOC_ID name a document of a finished build, judged by that build's own pipeline and tokenizer.
    With --text, the file is judged by --pipeline, --set and --tokenizer.
    """
    enter("explain", text_file or f"{out or ''} {doc_id or ''}".strip())
    _check_way(context, out, doc_id, text_file)
    from cleanfeed.build.explain import explain_document, explain_text
    from cleanfeed.cli.explanation import explanation_result, show_explanation
    from cleanfeed.cli.terminal import print_json
    from cleanfeed.rules.pipeline import load_pipeline

    if text_file is not None:
        text, name = read_text(text_file), "stdin" if text_file == "-" else Path(text_file).name
        explanation = explain_text(text, load_pipeline(pipeline, overrides), tokenizer, name)
    else:
        explanation = explain_document(out or "", doc_id or "")  # neither is empty: see _check_way
    if as_json:
        print_json(explanation_result(explanation))
    else:
        show_explanation(explanation)
    return 0


def _check_way(context: click.Context, out: str | None, doc_id: str | None, text_file: str | None) -> None:
    """Refuse a call that names no document, or two, or options that would be passed over in silence."""
    todo = "Use 'cleanfeed explain DIR DOC_ID' or 'cleanfeed explain --text FILE'."
    if text_file is not None and out is not None:
        raise MisuseError(
            one_line("two documents to explain", "arguments", f"--text and {out}", "one of them", todo)
        )
    if text_file is None and (out is None or doc_id is None):
        got = "nothing" if out is None else f"DIR {out} alone"
        raise MisuseError(
            one_line("no document to explain", "arguments", got, "DIR and DOC_ID, or --text", todo)
        )
    if text_file is None:
        for name in ("pipeline", "tokenizer", "overrides"):
            if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                option = "--set" if name == "overrides" else f"--{name}"
                raise MisuseError(
                    one_line(
                        f"{option} goes with --text only",
                        "arguments",
                        expected="the pipeline and tokenizer of the build",
                        todo="Leave it out, or give the text with --text.",
                    )
                )


def read_text(file: str) -> str:
    """Return the text of a UTF-8 file, or of stdin for ``-``, without a byte order mark at its start."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise MisuseError(one_line("cannot read the text", file, got=error.strerror or str(error))) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        got = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise CleanfeedError(one_line("not UTF-8", file, got, "UTF-8 text", "Convert it first.")) from error
