"""The smallest incidents."""

from __future__ import annotations

from typing import Any

from cleanfeed.runs.records import Event, Incident, LedgerLine, SkipRange, State, Suspect, SuspectSample

A, B, C = (f"{number:032x}" for number in (10, 11, 12))
"""Hashes of three samples."""


def sample(name: str, state: State = "quarantined", at: float = 100.0) -> SuspectSample:
    """Return what an incident says of one sample."""
    return SuspectSample(
        sample_hash=name,
        doc_id=f"doc-{name[-1]}",
        source="a.jsonl",
        source_row=int(name[-1], 16),
        state=state,
        reason="its loss",
        decided_by="guard",
        decided_at=at,
        slot=4,
        loss=9.5,
        score=3.0,
    )


def incident(number: int, samples: list[SuspectSample] | None = None, **changed: Any) -> Incident:
    """Return an incident in which everything there can be is there."""
    fields: dict[str, Any] = {
        "incident_id": number,
        "opened_at": 99.5,
        "attempt": 1,
        "epoch": 0,
        "onset_step": 5,
        "trip_step": 7,
        "rule": "robust_z",
        "detail": {"signal": "loss", "value": 9.5, "limit": 4.0, "z": 20.0},
        "policy": {"z_act": 10.0},
        "action": "rollback",
        "actions": [{"action": "rollback", "at": 100.0, "step": 7, "why": "z"}],
        "checkpoint_step": 4,
        "checkpoint_why": "newest",
        "metrics": [LedgerLine(1, 5, 0, 4, 0, "ab" * 16, 8, 100, 9.5, 20.0, 3.0, 1e-3, 99.0)],
        "suspects": [Suspect(1, 5, 0, 4, "ab" * 16, 3.0, {"loss_z": 20.0})],
        "samples": [sample(A), sample(B, "suspected")] if samples is None else samples,
        "skip_ranges": [SkipRange(1, 0, 4, 6)],
        "events": [Event(99.5, 7, "opened")],
    }
    return Incident(**{**fields, **changed})
