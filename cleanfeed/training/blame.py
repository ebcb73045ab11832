"""The steps around an incident go in; the batches and samples behind it, and what should be left out, come out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from cleanfeed.feed.sampler import CurriculumSampler
from cleanfeed.feed.samples import FILLER
from cleanfeed.runs.incident_files import suspect_rows
from cleanfeed.runs.records import LedgerLine, State, Suspect, SuspectSample
from cleanfeed.training.evidence import Losses, usual_losses
from cleanfeed.training.policy import Policy
from cleanfeed.training.suspects import culprits, rank, stands_out

COLUMNS = (
    "sample_hash",
    "doc_id",
    "part",
    "source",
    "source_row",
    "stage",
    "n_tokens",
    "n_chars",
    "quality",
    "flags",
)
MOST_ROWS = 4096
"""Samples an incident lists at most; batches are listed whatever their number."""


@dataclass(slots=True)
class Blamed:
    """One sample that is held to be behind an incident."""

    row: int
    step: int
    slot: int
    score: float
    reason: str
    loss: float | None = None


@dataclass(slots=True)
class Blame:
    """Who is suspected of an incident."""

    suspects: list[Suspect]
    samples: list[Blamed] = field(default_factory=list)
    """Those to leave out if anything is: named culprits, else all samples of the batches that stand out."""
    slots: tuple[int, int] | None = None
    """First and last slot from onset to trip, where not every batch behind it has named culprits."""
    stands_out: bool = False
    """Whether a batch or a sample stands out from its like."""
    named: bool = False
    """Whether every batch behind it has named culprits, and its other samples are healthy."""


def find_blame(
    lines: Sequence[LedgerLine],
    onset: int,
    trip: int,
    policy: Policy,
    sampler: CurriculumSampler,
    losses: Losses,
) -> Blame:
    """Return the suspects of an incident.

    Args:
        lines: Ledger lines around it, ascending.
        onset: First step of it.
        trip: Step at which the rule fired.
        policy: Limits.
        sampler: What the slots hold.
        losses: Losses of single samples, as far as the loop told them.
    """
    suspects = rank(lines, onset, trip, policy)
    blame = Blame(suspects, stands_out=stands_out(suspects, policy))
    since = [one for one in suspects if one.step >= onset]
    behind = [one for one in since if one.score >= policy.z_observe] or since[:1]
    named = True
    for suspect in behind:
        found, whole = _samples_of(suspect, sampler, losses, onset)
        blame.stands_out = blame.stands_out or (bool(found) and not whole)
        named = named and not whole
        blame.samples += found[: MOST_ROWS - len(blame.samples)]
    blame.named = bool(behind) and named
    if behind and not named:
        slots = [one.slot for one in since]
        blame.slots = (min(slots), max(slots))
    return blame


def _samples_of(
    suspect: Suspect, sampler: CurriculumSampler, losses: Losses, onset: int
) -> tuple[list[Blamed], bool]:
    """Return the samples of a batch to blame, and whether that is the whole batch for want of better knowledge."""
    told = losses.get(suspect.step, {})
    rows = list(told)
    found = culprits([told[row] for row in rows], usual_losses(losses, onset))
    if found.rows and not found.uniform:
        return [
            Blamed(
                rows[at],
                suspect.step,
                suspect.slot,
                found.z.get(at, suspect.score),
                f"its loss of {told[rows[at]]:.4g} lies {found.z.get(at, 0.0):.1f} scales above its like",
                told[rows[at]],
            )
            for at in found.rows
        ], False
    evidence = ", ".join(
        f"{name} {value:.1f}" for name, value in suspect.evidence.items() if value is not None
    )
    batch = sampler.schedule.rows(suspect.slot)
    excluded = set(sampler.exclusions.rows.tolist())
    reason = f"in the batch of step {suspect.step}" + (f": {evidence}" if evidence else "")
    return [
        Blamed(row, suspect.step, suspect.slot, suspect.score, reason, told.get(row))
        for row in batch[batch != FILLER].tolist()
        if row not in excluded
    ], True


def as_samples(
    blamed: Sequence[Blamed], curriculum: Any, state: State, attempt: int
) -> tuple[list[SuspectSample], pa.Table | None]:
    """Return the record of each sample, and their rows of the curriculum with an excerpt of each.

    Args:
        blamed: The samples.
        curriculum: The `Curriculum`.
        state: What they are from now on.
        attempt: The present attempt.
    """
    if not blamed:
        return [], None
    content = "text" if curriculum.tokenizer_digest is None else "input_ids"
    table = curriculum.columns(np.array([one.row for one in blamed], dtype=np.int64), [*COLUMNS, content])
    now = time.time()
    hashes, docs = table["sample_hash"].to_pylist(), table["doc_id"].to_pylist()
    sources, source_rows = table["source"].to_pylist(), table["source_row"].to_pylist()
    samples = [
        SuspectSample(
            sample_hash=hashes[at].hex(),
            doc_id=docs[at],
            source=sources[at],
            source_row=source_rows[at],
            state=state,
            reason=one.reason,
            decided_by="guard",
            decided_at=now,
            slot=one.slot,
            loss=one.loss,
            score=one.score,
        )
        for at, one in enumerate(blamed)
    ]
    places: dict[str, Any] = {
        "attempt": [attempt] * len(blamed),
        "step": [one.step for one in blamed],
        "slot": [one.slot for one in blamed],
        "score": [one.score for one in blamed],
        "loss": [one.loss for one in blamed],
    }
    return samples, suspect_rows(table, places, decode=_decoder(curriculum))


def _decoder(curriculum: Any) -> Callable[[list[int]], str] | None:
    """Return how to turn ids into text, where the build kept its tokenizer; an excerpt is a comfort, not a need."""
    if curriculum.tokenizer_digest is None:
        return None
    try:
        with fsspec.open(f"{curriculum.catalog.path}/tokenizer.json", "rt", encoding="utf-8") as file:
            tokenizer = Tokenizer.from_str(json.dumps(json.load(file)))
    except (OSError, ValueError):
        return None
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))
