"""The records of a training run as plain typed values: what a ledger line, an attempt and an incident hold."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

State = Literal["suspected", "quarantined", "released"]
Outcome = Literal["open", "recovered", "helped", "did_not_help", "state_not_data", "halted"]
"""What became of an incident.

``open``: not yet judged. ``recovered``: the run went on without excluding anything and returned to its band.
``helped``: the steps after the exclusion stayed healthy. ``did_not_help``: the same spike came again without the
blamed batches, which were released. ``state_not_data``: so judged after it. ``halted``: training stopped here.
"""
Action = Literal["record", "skip_step", "rollback", "lower_lr", "halt"]


class LedgerLine(msgspec.Struct, frozen=True, omit_defaults=False, gc=False):
    """One optimizer step, as it was committed; one JSON object a line."""

    attempt: int
    """Number of the attempt, from 1."""
    step: int
    """Number of the optimizer step, from 1; a step that was not accepted has a number as well."""
    epoch: int
    """Epoch of the slot, from 0."""
    slot: int
    """Index of the global batch in the schedule, from 0 over all epochs."""
    stage: int
    """Index of the stage of the slot's first row."""
    batch_hash: str
    """32 lower-case hex digits; see `cleanfeed.feed.identity`."""
    samples: int
    """Rows that were trained on all ranks: pad rows are left out."""
    tokens: int
    """Tokens of these rows (code points where the curriculum holds text)."""
    loss: float | None
    """Mean over all ranks and micro-batches, weighed by label tokens; null where it is not finite."""
    worst_micro_loss: float | None
    """Largest mean loss of a micro-batch on any rank; null where one is not finite."""
    grad_norm: float | None
    """As given to ``step.accept``; null where not given or not finite."""
    lr: float | None
    """Learning rate of the first parameter group, where the guard was told of an optimizer or given ``lr``."""
    time: float
    """Seconds since 1970 when the line was written."""
    accepted: bool = True
    """Whether ``optimizer.step()`` was allowed."""
    finite: bool = True
    """False where the loss or the gradient norm was NaN or infinite on any rank."""
    judged: bool = True
    """False where no statistical rule could speak: in the grace, and while a stage is new. NaN and Inf always are."""
    metrics: dict[str, float | None] = {}
    """Other metrics given by the loop."""


class Attempt(msgspec.Struct, frozen=True):
    """How an attempt began; written before its first ledger line."""

    attempt: int
    started_at: float
    """Seconds since 1970."""
    after_step: int
    """Steps that were already done: lines of earlier attempts with a higher step did not survive."""
    checkpoint_step: int | None
    """Checkpoint that was loaded; null at the very start."""
    why: Literal["start", "resume", "rollback"]
    incident: int | None
    """Incident that asked for the rollback."""
    curriculum: str
    """Path or address of the curriculum as the run was given it."""
    digest: str
    """Digest of the curriculum."""
    sampler: dict[str, Any]
    """``sampler.state_dict()`` at the start."""
    world_size: int = 1


class ExclusionChange(msgspec.Struct, frozen=True):
    """What the sampler began to leave out, or took back, in the middle of an attempt.

    Together with the sampler's state at the start of the attempt it tells, for every line, which samples were blanked.
    """

    after_step: int
    """It holds for the lines with a higher step."""
    incident: int | None
    quarantined: list[str] = []
    """Sample hashes, 32 lower-case hex digits."""
    released: list[str] = []
    skipped: list[tuple[int, int]] = []
    """Ranges of slots, both ends inclusive."""
    unskipped: list[tuple[int, int]] = []
    """Ranges that are no longer skipped; these are taken back before ``skipped`` is put in force."""


class Suspect(msgspec.Struct, frozen=True):
    """One batch that may be behind an incident."""

    attempt: int
    step: int
    epoch: int
    slot: int
    batch_hash: str
    score: float
    """Evidence; higher is more suspect; the list is sorted by it, descending."""
    evidence: dict[str, float | None] = {}
    """What the score is made of: ``loss_z``, ``worst_micro_z``, ``grad_z``, ``signals``."""


class SuspectSample(msgspec.Struct, frozen=True):
    """One sample of a suspect batch."""

    sample_hash: str
    """32 lower-case hex digits."""
    doc_id: str
    source: str
    source_row: int
    state: State
    reason: str
    decided_by: str
    """``guard``, or who decided by hand."""
    decided_at: float
    slot: int | None = None
    loss: float | None = None
    """Its own loss, where the loop gave ``per_sample_loss``."""
    score: float | None = None


class SkipRange(msgspec.Struct, frozen=True):
    """Slots that this run skips from now on; both ends inclusive, slots counted over all epochs."""

    attempt: int
    epoch: int
    first_slot: int
    last_slot: int


class Event(msgspec.Struct, frozen=True):
    """One thing that happened in an incident."""

    at: float
    step: int
    what: str
    """A sentence for a person."""


class Incident(msgspec.Struct, kw_only=True):
    """An incident: what happened, why, and what was done; ``incidents/NNNN/incident.json``."""

    format: int = 1
    incident_id: int
    opened_at: float
    closed_at: float | None = None
    attempt: int
    epoch: int
    onset_step: int
    """First step whose leading signal left its band."""
    trip_step: int
    """Step at which the rule fired."""
    rule: str
    """Name of the detector rule: see docs/training.md."""
    detail: dict[str, Any]
    """Numbers of the trip: signal, value, limit, baseline (median, scale, n), the context (stage, band)."""
    policy: dict[str, Any]
    """The policy in force."""
    action: Action
    actions: list[dict[str, Any]] = []
    """Every step of the ladder that was taken: {action, at, step, why}."""
    checkpoint_step: int | None = None
    checkpoint_why: str = ""
    """Why this checkpoint was chosen, and why newer ones were not."""
    metrics: list[LedgerLine] = []
    """Ledger lines around the onset."""
    suspects: list[Suspect] = []
    samples: list[SuspectSample] = []
    skip_ranges: list[SkipRange] = []
    steps_lost: int = 0
    tokens_lost: int = 0
    outcome: Outcome = "open"
    outcome_why: str = ""
    events: list[Event] = []
