"""What a report says, as plain typed values: no text is laid out here, so that every face shows the same facts."""

from __future__ import annotations

from typing import Any

import msgspec

from cleanfeed.runs.curve import Bucket, CurveLine, Totals
from cleanfeed.runs.records import Outcome


class Moment(msgspec.Struct, frozen=True):
    """One thing that happened."""

    at: float | None
    """Seconds since 1970; null where nobody noted it."""
    step: int
    what: str


class Fired(msgspec.Struct, frozen=True):
    """The rule that fired, with its numbers; null where the rule has no such number."""

    rule: str
    signal: str | None = None
    value: float | None = None
    """The number that made it fire; null for NaN and infinity."""
    limit: float | None = None
    median: float | None = None
    """Of the baseline."""
    scale: float | None = None
    """Of the baseline: 1.4826 times the median absolute deviation, or its floor."""
    n: int | None = None
    """Healthy steps in the baseline."""
    z: float | None = None
    context: str | None = None
    """Stage and band whose baseline it was."""
    others: dict[str, Any] = {}
    """Whatever else the detector said."""


class Unusual(msgspec.Struct, frozen=True):
    """A signal of a suspect's document, beside those of the documents the curriculum was made of."""

    signal: str
    value: float
    median: float
    below: float
    """Share of the documents with a smaller value."""
    above: float
    """Share of the documents with a larger value."""


class Place(msgspec.Struct, frozen=True):
    """Where a sample will be trained."""

    row: int
    """Row number in the curriculum."""
    epoch: int
    slot: int


class Copies(msgspec.Struct, frozen=True):
    """Samples that are still ahead and equal, or much like, a suspect."""

    exact: list[Place] = []
    """The sample itself and others of the same sample hash."""
    near: list[Place] = []
    near_hashes: list[str] = []
    """Sample hashes of these, each once."""
    similarity: float | None = None
    """Of the nearest of these, estimated."""


class SuspectReport(msgspec.Struct, kw_only=True):
    """One sample of a suspect batch."""

    sample_hash: str
    doc_id: str | None
    source: str | None
    source_row: int | None
    state: str
    reason: str
    decided_by: str
    slot: int | None = None
    loss: float | None = None
    score: float | None = None
    row: int | None = None
    """Row number in the curriculum."""
    stage: str | None = None
    n_tokens: int | None = None
    excerpt: str | None = None
    unusual: list[Unusual] = []
    """Its most unusual signals, the most unusual first."""
    ahead: Copies | None = None
    """Null where nobody could look."""


class BatchReport(msgspec.Struct, frozen=True):
    """One suspect batch."""

    attempt: int
    step: int
    epoch: int
    slot: int
    batch_hash: str
    score: float
    evidence: dict[str, float | None] = {}


class Checkpoint(msgspec.Struct, frozen=True):
    """What training went back to."""

    step: int | None
    why: str


class IncidentReport(msgspec.Struct, kw_only=True):
    """One incident."""

    incident_id: int
    run: str
    opened_at: float
    closed_at: float | None
    attempt: int
    epoch: int
    onset_step: int
    trip_step: int
    fired: Fired
    action: str
    actions: list[dict[str, Any]]
    outcome: Outcome
    outcome_why: str
    checkpoint: Checkpoint
    steps_lost: int
    tokens_lost: int
    timeline: list[Moment]
    zoom: list[CurveLine]
    """Ledger lines around it."""
    batches: list[BatchReport]
    samples: list[SuspectReport]
    """The first of its samples, the most suspect first."""
    samples_by_state: dict[str, int]
    """All of its samples."""
    skipped: list[tuple[int, int]]
    """First and last slot of each skip range."""


class CurriculumReport(msgspec.Struct, kw_only=True):
    """What the run is trained on, as far as it can be reached."""

    path: str | None = None
    digest: str | None = None
    reachable: bool = False
    documents_compared: int = 0
    """Documents that percentiles of signals are taken over."""
    documents: int = 0
    """Documents kept."""
    looked_ahead: int = 0
    """Samples ahead that were searched for near copies."""
    slots_ahead: int | None = None
    """Slots that are not trained yet; null where the order is not known."""


class HandSample(msgspec.Struct, frozen=True):
    """A sample that no incident named and a person decided about."""

    sample_hash: str
    state: str
    reason: str
    decided_by: str
    decided_at: float
    """Seconds since 1970."""
    doc_id: str | None = None
    source: str | None = None
    source_row: int | None = None


class Report(msgspec.Struct, kw_only=True):
    """Everything that is known of a run's incidents."""

    run: str
    made_at: float
    totals: Totals
    attempts: int
    curriculum: CurriculumReport
    incident_count: int
    """Incidents of the run; ``incidents`` has fewer where one was asked for, or one cannot be read."""
    incidents: list[IncidentReport]
    by_hand: list[HandSample] = []
    loss: list[Bucket]
    """The whole run."""
    grad_norm: list[Bucket]
    nonfinite: list[int] = []
    """First steps with a NaN or an infinity, undone ones as well."""
    notes: list[str]
    """What could not be read, in one line each."""
