"""The steps around an incident go in; the batches and samples behind it, and what should be left out, come out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from cleanfeed.training.metrics import SAMPLE_HIGH, SAMPLE_LOW, Trip
from cleanfeed.training.policy import Policy
from cleanfeed.training.static_signals import Strangeness, strangeness
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
"""Samples whose excerpts an incident keeps, and that it lists as suspected; quarantined ones it lists all."""


@dataclass(slots=True)
class Blamed:
    """One sample that is held to be behind an incident."""

    row: int
    step: int
    slot: int
    score: float
    """Scales by which its loss stands out; where its whole batch is blamed, by which its signals do."""
    reason: str
    loss: float | None = None
    named: bool = False
    """Whether it stands out from the rest of its batch, which is healthy."""


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
    trips: Sequence[Trip] = (),
) -> Blame:
    """Return the suspects of an incident.

    Args:
        lines: Ledger lines around it, ascending.
        onset: First step of it.
        trip: Step at which the rule fired.
        policy: Limits.
        sampler: What the slots hold.
        losses: Losses of single samples, as far as the loop told them.
        trips: What fired at ``trip``: it may point at the highest or lowest samples of that batch.
    """
    near = sorted(
        (line for line in lines if onset - policy.pre <= line.step <= trip),
        key=lambda line: abs(line.step - onset),
    )
    batches = {line.slot: sampler.schedule.rows(line.slot) for line in near}
    strange = strangeness(sampler.curriculum, {slot: rows[rows != FILLER] for slot, rows in batches.items()})
    suspects = rank(lines, onset, trip, policy, static=strange.slots)
    blame = Blame(suspects, stands_out=stands_out(suspects, policy))
    since = [one for one in suspects if one.step >= onset]
    behind = [one for one in since if one.score >= policy.z_observe] or since[:1]
    named = True
    for suspect in behind:
        fired = trips if suspect.step == trip else ()
        line = next((line for line in lines if line.step == suspect.step), None)
        usual = usual_losses(losses, lines, line, onset)
        found, whole = _samples_of(suspect, sampler, losses.get(suspect.step, {}), usual, fired, strange)
        blame.stands_out = blame.stands_out or (bool(found) and not whole)
        named = named and not whole
        blame.samples += found
    blame.named = bool(behind) and named
    if behind and not named:
        slots = [one.slot for one in since]
        blame.slots = (min(slots), max(slots))
    return blame


def _samples_of(
    suspect: Suspect,
    sampler: CurriculumSampler,
    told: Mapping[int, float],
    usual: Sequence[float],
    trips: Sequence[Trip],
    strange: Strangeness,
) -> tuple[list[Blamed], bool]:
    """Return the samples of a batch to blame, and whether that is the whole batch for want of better knowledge."""
    rows = list(told)
    fired = {trip.signal for trip in trips if trip.rule == "samples" and trip.level == "act"}
    found = culprits(
        [told[row] for row in rows],
        usual,
        highest=_how_many(SAMPLE_HIGH, fired),
        lowest=_how_many(SAMPLE_LOW, fired),
    )
    if found.rows and not found.uniform:
        return [
            Blamed(
                rows[at],
                suspect.step,
                suspect.slot,
                abs(found.z[at]),
                f"its loss of {told[rows[at]]:.4g} lies {_side(found.z[at])} its like",
                told[rows[at]],
                named=True,
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
        Blamed(row, suspect.step, suspect.slot, max(0.0, strange.rows.get(row, 0.0)), reason, told.get(row))
        for row in batch[batch != FILLER].tolist()
        if row not in excluded
    ], True


def _how_many(names: Sequence[str], fired: Collection[str]) -> int:
    """Return the largest k of the signals that fired, the k-th highest or lowest sample."""
    return max((place for place, name in enumerate(names, 1) if name in fired), default=0)


def _side(z: float) -> str:
    return f"{abs(z):.1f} scales {'above' if z >= 0.0 else 'below'}"


def as_samples(
    blamed: Sequence[Blamed], curriculum: Any, states: Sequence[State], attempt: int
) -> tuple[list[SuspectSample], pa.Table | None]:
    """Return the records of samples, and the rows of the first `MOST_ROWS` in the curriculum with an excerpt of each.

    Beyond `MOST_ROWS` only those that are quarantined have a record.

    Args:
        blamed: The samples.
        curriculum: The `Curriculum`.
        states: What each is from now on.
        attempt: The present attempt.
    """
    listed = [at for at, state in enumerate(states) if at < MOST_ROWS or state == "quarantined"]
    blamed, states = [blamed[at] for at in listed], [states[at] for at in listed]
    if not blamed:
        return [], None
    content = "text" if curriculum.tokenizer_digest is None else "input_ids"
    rows = np.array([one.row for one in blamed], dtype=np.int64)
    table = curriculum.columns(rows[:MOST_ROWS], [*COLUMNS, content])
    names = curriculum.columns(rows, ["sample_hash", "doc_id", "source", "source_row"])
    now = time.time()
    hashes, docs = names["sample_hash"].to_pylist(), names["doc_id"].to_pylist()
    sources, source_rows = names["source"].to_pylist(), names["source_row"].to_pylist()
    samples = [
        SuspectSample(
            sample_hash=hashes[at].hex(),
            doc_id=docs[at],
            source=sources[at],
            source_row=source_rows[at],
            state=states[at],
            reason=one.reason,
            decided_by="guard",
            decided_at=now,
            slot=one.slot,
            loss=one.loss,
            score=one.score,
        )
        for at, one in enumerate(blamed)
    ]
    blamed = blamed[:MOST_ROWS]
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
