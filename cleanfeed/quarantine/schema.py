"""Incidents and decisions go in; the tables of a store and the rows of each come out.

No table has a key or a unique index: replaying a log that rewrites a key after a kill has made stores unreadable.
Rows are replaced by deleting and inserting them in one transaction. Times are UTC.

``decisions`` holds what every incident and every person said of a sample; ``samples`` holds what follows from it, one
row a sample (:func:`settle`): what a person decided last stands, until an incident after it quarantines the sample
again; without a person, what each run's incidents said last counts, and one run that quarantines is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from cleanfeed.runs.records import Incident

FORMAT = 1
"""Version of the tables; kept in the table ``store``."""

STRING, SMALL, WHOLE, REAL, TRUTH = pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.bool_()
MOMENT = pa.timestamp("us")
_SQL = {
    STRING: "VARCHAR",
    SMALL: "INTEGER",
    WHOLE: "BIGINT",
    REAL: "DOUBLE",
    TRUTH: "BOOLEAN",
    MOMENT: "TIMESTAMP",
}
_OPINION = {
    "sample_hash": STRING,
    "doc_id": STRING,
    "source": STRING,
    "source_row": WHOLE,
    "state": STRING,
    "incident_id": SMALL,
    "reason": STRING,
    "decided_by": STRING,
    "decided_at": MOMENT,
    "run": STRING,
}

TABLES: Mapping[str, Mapping[str, pa.DataType]] = {
    "incidents": {
        "incident_id": SMALL,
        "opened_at": MOMENT,
        "onset_step": WHOLE,
        "trip_step": WHOLE,
        "rule": STRING,
        "detail": STRING,
        "action": STRING,
        "checkpoint_step": WHOLE,
        "outcome": STRING,
        "run": STRING,
        "attempt": SMALL,
        "epoch": SMALL,
        "closed_at": MOMENT,
        "outcome_why": STRING,
        "checkpoint_why": STRING,
        "steps_lost": WHOLE,
        "tokens_lost": WHOLE,
        "digest": STRING,
        "record": STRING,
    },
    "suspects": {
        "incident_id": SMALL,
        "attempt": SMALL,
        "step": WHOLE,
        "slot": WHOLE,
        "batch_hash": STRING,
        "score": REAL,
        "run": STRING,
        "epoch": SMALL,
        "evidence": STRING,
    },
    "samples": _OPINION,
    "skip_ranges": {
        "incident_id": SMALL,
        "attempt": SMALL,
        "epoch": SMALL,
        "first_slot": WHOLE,
        "last_slot": WHOLE,
        "run": STRING,
    },
    "decisions": {**_OPINION, "slot": WHOLE, "loss": REAL, "score": REAL},
    "metrics": {
        "incident_id": SMALL,
        "attempt": SMALL,
        "step": WHOLE,
        "epoch": SMALL,
        "slot": WHOLE,
        "stage": SMALL,
        "batch_hash": STRING,
        "samples": WHOLE,
        "tokens": WHOLE,
        "loss": REAL,
        "worst_micro_loss": REAL,
        "grad_norm": REAL,
        "lr": REAL,
        "time": MOMENT,
        "accepted": TRUTH,
        "finite": TRUTH,
        "metrics": STRING,
        "run": STRING,
    },
    "events": {"incident_id": SMALL, "at": MOMENT, "step": WHOLE, "what": STRING, "run": STRING},
    "store": {"format": SMALL},
}
"""Columns of each table; what the design names comes first, in its order."""
OF_INCIDENTS = ("incidents", "suspects", "skip_ranges", "decisions", "metrics", "events")
"""Tables whose rows come from incident files."""


def moment(seconds: float | None) -> datetime | None:
    """Return seconds since 1970 as a UTC time without a zone, as DuckDB's TIMESTAMP holds it."""
    if seconds is None:
        return None
    return datetime(1970, 1, 1) + timedelta(microseconds=round(seconds * 1e6))


def seconds(value: datetime) -> float:
    """Return a UTC time without a zone as seconds since 1970."""
    return value.replace(tzinfo=timezone.utc).timestamp()


def create(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables that are not there."""
    for name, columns in TABLES.items():
        listed = ", ".join(f'"{column}" {_SQL[kind]}' for column, kind in columns.items())
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({listed})")
    if not connection.execute("SELECT count(*) FROM store").fetchall()[0][0]:
        connection.execute("INSERT INTO store VALUES (?)", [FORMAT])


def insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a table; columns a row lacks are null."""
    if rows:
        columns = TABLES[table]
        # Through Arrow: a row at a time takes minutes for the samples of some large batches.
        data = pa.table({name: pa.array([row.get(name) for row in rows], columns[name]) for name in columns})
        connection.register("rows_to_insert", data)
        connection.execute(f"INSERT INTO {table} SELECT * FROM rows_to_insert")
        connection.unregister("rows_to_insert")


def incident_rows(run: str, digest: str, record: str, incident: Incident) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of an incident, by table.

    Args:
        run: Name of the run within the store.
        digest: Digest of the incident's file.
        record: Its text.
        incident: What it holds.
    """
    key = {"run": run, "incident_id": incident.incident_id}
    head = {
        **{name: getattr(incident, name) for name in TABLES["incidents"] if hasattr(incident, name)},
        **key,
        "opened_at": moment(incident.opened_at),
        "closed_at": moment(incident.closed_at),
        "detail": _json(incident.detail),
        "digest": digest,
        "record": record,
    }
    return {
        "incidents": [head],
        "suspects": [
            {**msgspec.structs.asdict(one), "evidence": _json(one.evidence), **key}
            for one in incident.suspects
        ],
        "skip_ranges": [{**msgspec.structs.asdict(one), **key} for one in incident.skip_ranges],
        "decisions": [
            {**msgspec.structs.asdict(one), "decided_at": moment(one.decided_at), **key}
            for one in incident.samples
        ],
        "metrics": [
            {
                **msgspec.structs.asdict(line),
                "time": moment(line.time),
                "metrics": _json(line.metrics),
                **key,
            }
            for line in incident.metrics
        ],
        "events": [{**msgspec.structs.asdict(one), "at": moment(one.at), **key} for one in incident.events],
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def forget(connection: duckdb.DuckDBPyConnection, run: str, number: int) -> list[str]:
    """Remove the rows of an incident and return the samples it had an opinion of."""
    hashes = connection.execute(
        "SELECT DISTINCT sample_hash FROM decisions WHERE run = ? AND incident_id = ?", [run, number]
    ).fetchall()
    for table in OF_INCIDENTS:
        connection.execute(f"DELETE FROM {table} WHERE run = ? AND incident_id = ?", [run, number])
    return [name for (name,) in hashes]


_SETTLE = """
INSERT INTO samples
WITH opinions AS (
    SELECT decisions.*,
        incident_id IS NULL AS by_hand,
        max(decided_at) FILTER (incident_id IS NULL) OVER same AS hand_at,
        max({'known': source IS NOT NULL, 'doc_id': doc_id, 'source': source, 'row': source_row}) OVER same AS place
    FROM decisions SEMI JOIN touched USING (sample_hash)
    WINDOW same AS (PARTITION BY sample_hash)
), latest AS (
    SELECT *, row_number() OVER (
        PARTITION BY sample_hash, run ORDER BY decided_at DESC, incident_id DESC
    ) AS turn
    FROM opinions
    WHERE by_hand AND decided_at = hand_at OR NOT by_hand AND decided_at > coalesce(hand_at, '-infinity'::TIMESTAMP)
), ranked AS (
    SELECT *, row_number() OVER (
        PARTITION BY sample_hash
        ORDER BY CASE WHEN by_hand THEN 1 WHEN state = 'quarantined' THEN 0 ELSE 2 END, decided_at DESC, run DESC
    ) AS rank
    FROM latest WHERE turn = 1
)
SELECT sample_hash, coalesce(doc_id, place.doc_id), coalesce(source, place.source), coalesce(source_row, place.row),
    state, incident_id, reason, decided_by, decided_at, run
FROM ranked WHERE rank = 1
"""


def settle(connection: duckdb.DuckDBPyConnection, hashes: Iterable[str]) -> None:
    """Decide anew what holds of some samples, from everything that was said of them."""
    touched = sorted(set(hashes))
    if touched:
        connection.register("touched", pa.table({"sample_hash": pa.array(touched, pa.string())}))
        connection.execute("DELETE FROM samples WHERE sample_hash IN (SELECT sample_hash FROM touched)")
        connection.execute(_SETTLE)
        connection.unregister("touched")
