"""A document of a build, or a text, goes in; every signal, what each rule said and the worst spans come out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import xxhash
from msgspec.structs import asdict

from cleanfeed.build.budget import TOO_COSTLY, OverrunError, Reason, Reporter
from cleanfeed.build.finished import MANIFEST_NAME
from cleanfeed.build.manifest import read_manifest
from cleanfeed.build.measurer import Columns, Measurer
from cleanfeed.build.queries import duckdb_over
from cleanfeed.build.spool import signal_columns
from cleanfeed.build.tasks import Context
from cleanfeed.curriculum.paths import AnyPath, path_of
from cleanfeed.curriculum.tokenizer import TextEncoder
from cleanfeed.documents.fields import Fields
from cleanfeed.documents.record import DocumentBatch
from cleanfeed.errors import CleanfeedError, MisuseError, one_line
from cleanfeed.rules.explain import RuleReading, explain_rules
from cleanfeed.rules.pipeline import from_resolved
from cleanfeed.rules.ruleset import REJECT, VERDICTS
from cleanfeed.settings import Pipeline
from cleanfeed.signals.registry import SIGNALS
from cleanfeed.signals.spans import Span, worst_spans

Values = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that is known of one document."""

    doc_id: str
    source: str | None
    source_row: int | None
    verdict: str
    reasons: Sequence[Mapping[str, Any]]
    signals: Values
    rules: Sequence[RuleReading]
    spans: Sequence[Span]
    text: str | None
    others: int = 0
    """Further documents with the same id."""


def explain_text(text: str, pipeline: Pipeline, tokenizer: str | None, doc_id: str = "text") -> Explanation:
    """Explain what a build with this pipeline would say of a text; measures against a corpus are null.

    Args:
        text: The text.
        pipeline: The rules.
        tokenizer: A tokenizer file, for the signals that need one.
        doc_id: What to call the text.
    """
    context = Context(pipeline, Path(), tokenizer)
    columns, refused = _measured(text, context)
    for signal in SIGNALS:
        columns.setdefault(signal.name, np.full(1, np.nan))
    verdicts = context.rules().evaluate(columns)
    verdict, reasons = VERDICTS[int(verdicts.verdict[0])], verdicts.reasons[0].as_py()
    if refused is not None:
        verdict, reasons = VERDICTS[REJECT], [refused, *reasons]
    values: Values = {}
    for signal in SIGNALS:
        value = float(columns[signal.name][0])
        values[signal.name] = None if math.isnan(value) else int(value) if signal.type == "int" else value
    return _explanation(doc_id, None, None, verdict, reasons, values, pipeline, text)


def _measured(text: str, context: Context) -> tuple[Columns, Mapping[str, Any] | None]:
    """Measure a text as a build does; return its signals, and why it would not be measured or tokenised."""
    schema = Fields(context.pipeline.documents, context.pipeline.quality.column).schema()
    given = {"row": 0, "text": text, "lone_surrogates": 0}
    table = pa.RecordBatch.from_pylist([dict.fromkeys(schema.names) | given], schema=schema)
    try:
        spooled = Measurer(context, (), Reporter(lambda _: None)).measured(0, DocumentBatch(table))
    except OverrunError:
        seconds = context.pipeline.budget.seconds
        return {}, asdict(Reason(TOO_COSTLY, "seconds", seconds, seconds))
    return signal_columns(spooled), spooled.column("refused")[0].as_py()


def explain_document(out: str, doc_id: str) -> Explanation:
    """Explain one document of a finished build from its files.

    Args:
        out: The build.
        doc_id: The document's id, or ``<source>:<source_row>``; where several have the id, the first in the inputs.

    Raises:
        MisuseError: The folder holds no finished build, or the build no such document.
    """
    folder = path_of(out)
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None:
        raise MisuseError(
            one_line("the folder holds no finished build", out, todo="Give the --out of a build.")
        )
    pipeline = from_resolved(manifest["pipeline"], str(folder / MANIFEST_NAME))
    condition = "doc_id = $id OR source || ':' || source_row = $id"
    found = _rows(folder, manifest, "signals", "*", condition, {"id": doc_id})
    if not found:
        raise MisuseError(
            one_line(
                "no such document",
                doc_id,
                todo=f"Ids are in {folder / 'signals'}, column doc_id, and in rejected/.",
            )
        )
    row = found[0]
    values: Values = {signal.name: row[signal.name] for signal in SIGNALS}
    text = _text(folder, manifest, row)
    explanation = _explanation(
        row["doc_id"],
        row["source"],
        row["source_row"],
        row["verdict"],
        row["reasons"],
        values,
        pipeline,
        text,
    )
    return replace(explanation, others=len(found) - 1)


def _explanation(
    doc_id: str,
    source: str | None,
    source_row: int | None,
    verdict: str,
    reasons: Sequence[Mapping[str, Any]],
    values: Values,
    pipeline: Pipeline,
    text: str | None,
) -> Explanation:
    names = list(
        dict.fromkeys([reason["signal"] for reason in reasons] + [rule.signal for rule in pipeline.rules])
    )
    # What could not be measured is not looked at here either.
    costly = any(reason["rule"] == TOO_COSTLY for reason in reasons)
    spans = worst_spans(text, names) if text is not None and not costly else []
    rules = explain_rules(pipeline.rules, values)
    return Explanation(doc_id, source, source_row, verdict, reasons, values, rules, spans, text)


def _text(out: AnyPath, manifest: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """Return the document's text from wherever the build has it; None where it has none."""
    place = "source = $source AND source_row = $row"
    values = {"source": row["source"], "row": row["source_row"]}
    if row["verdict"] not in ("keep", "flag"):
        found = _rows(out, manifest, "rejected", "text", place, values)
        return found[0]["text"] if found else None
    samples = _rows(out, manifest, "curriculum", "*", place + " ORDER BY part", values)
    if samples and "text" in samples[0]:
        return "".join(sample["text"] for sample in samples)
    with TemporaryDirectory() as folder:
        copy = Path(folder, "tokenizer.json")
        copy.write_bytes((out / copy.name).read_bytes())
        encoder = TextEncoder(str(copy), manifest["tokenizer"]["end_of_text"])
    text = encoder.decode([token for sample in samples for token in sample["input_ids"]])
    # Not every tokenizer gives back what it took, and spans are places in the document's own text.
    return text if xxhash.xxh3_128_digest(text.encode()) == row["content_hash"] else None


def _rows(
    out: AnyPath,
    manifest: Mapping[str, Any],
    folder: str,
    columns: str,
    where: str,
    values: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return the rows of a build's Parquet files in one folder that meet a condition, in the order of the inputs."""
    files = [
        str(out / entry["path"]) for entry in manifest["files"] if entry["path"].startswith(folder + "/")
    ]
    try:
        with duckdb_over(out) as store:
            store.execute("SET preserve_insertion_order = true")
            query = f"SELECT {columns} FROM read_parquet($files) WHERE {where}"
            result = store.execute(query, {"files": files, **values})
            names = [column[0] for column in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    except duckdb.Error as error:
        cause = str(error).splitlines()[0]
        todo = f"'cleanfeed verify {out}' says what is wrong with it."
        raise CleanfeedError(
            one_line("cannot read the build", str(out / folder), cause, todo=todo)
        ) from error
