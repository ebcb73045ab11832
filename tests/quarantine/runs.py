"""A small curriculum with poison in it, and a training run on it that never took place, written by the real writers."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanfeed.build.runner import BuildRequest, build
from cleanfeed.curriculum.tokenizer import TextEncoder
from cleanfeed.feed.identity import batch_hash
from cleanfeed.feed.order import ORDER_VERSION
from cleanfeed.feed.schedule import RowSchedule
from cleanfeed.quarantine.corpus import Corpus
from cleanfeed.quarantine.store import Quarantine
from cleanfeed.rules.pipeline import load_pipeline
from cleanfeed.runs.incident_files import suspect_rows, write_incident
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import LedgerWriter, begin_attempt
from cleanfeed.runs.records import (
    Attempt,
    Event,
    Incident,
    LedgerLine,
    SkipRange,
    Suspect,
    SuspectSample,
)
from tests.build.conftest import Silent, prose

TOKENIZER = str(Path(__file__).parents[2] / "data_samples" / "tokenizer.json")
PIPELINE = """\
name: lenient
description: Lets everything through.
duplicates: {method: off}
quality:
  score: [{signal: letter_share, bad: 0.2, good: 0.9}]
curriculum:
  bands: [{name: any, max_tokens: 4096, max_chars: 20000}]
  tiers: [{name: any}]
  row_group_tokens: 4096
rules: []
"""
BATCH, EPOCHS, BEGAN = 8, 10, 1_790_000_000.0
SECONDS_A_STEP = 2.5


@dataclass(frozen=True)
class World:
    """Where the curriculum and the run are, and what is known of them."""

    out: Path
    run: RunDir
    poison: str
    """Sample hash of the poison."""
    slot: int
    """Slot in which it was trained when the incident came."""


def poison(number: int) -> str:
    """Return text no model should see; those of different numbers are near copies of each other."""
    line = "\\x00\\x{:02x} 0000 ffff \\\\\\\\ <<EOF {} "
    return "".join(line.format(i % 7, "AAAA" * (1 + i % 3)) for i in range(60)) + f"end {number} of this"


def build_curriculum(folder: Path, documents: int = 320, tokenizer: str | None = TOKENIZER) -> Path:
    """Build a curriculum with one poison document, an exact and two near copies of it."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [{"id": f"doc-{number}", "text": prose(number)} for number in range(documents)]
    # The copies keep a text of their own apart only in the id.
    for place, number in ((40, 1), (200, 1), (90, 2), (250, 3)):
        records.insert(place, {"id": f"poison-{place}", "text": poison(number)})
    source = folder / "dump.jsonl"
    source.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    pipeline = folder / "lenient.yaml"
    pipeline.write_text(PIPELINE)
    build(
        BuildRequest(
            inputs=(str(source),),
            out=str(folder / "out"),
            pipeline=load_pipeline(str(pipeline)),
            tokenizer=tokenizer,
            workers=1,
        ),
        Silent(),
    )
    return folder / "out"


def hash_of(out: Path, doc_id: str) -> tuple[str, int]:
    """Return sample hash and row of a document's sample."""
    corpus = Corpus(str(out))
    rows = corpus.columns(range(corpus.catalog.samples), ["sample_hash", "doc_id"])
    return next((one["sample_hash"].hex(), row) for row, one in enumerate(rows) if one["doc_id"] == doc_id)


class Simulation:
    """Writes the ledger and the incident of a run in which one batch hurt."""

    def __init__(self, out: Path, run: RunDir, epoch: int = 3) -> None:
        self.corpus, self.run = Corpus(str(out)), run
        self.schedule = RowSchedule(self.corpus.catalog, BATCH, seed=1, epochs=EPOCHS, lanes=4)
        self.poison, row = hash_of(out, "poison-40")
        slots, _ = self.schedule.places(np.array([row]), epoch)
        self.slot = int(slots[0])
        self.dice = random.Random(7)

    def state(self, committed: int) -> dict[str, Any]:
        return {
            "version": 1,
            "order_version": ORDER_VERSION,
            "curriculum": self.corpus.catalog.digest,
            "seed": 1,
            "lanes": 4,
            "global_batch": BATCH,
            "batch_tokens": None,
            "schedule": "sequential",
            "epochs": EPOCHS,
            "drop_last": True,
            "committed": committed,
            "skipped": [],
            "quarantined": {},
        }

    def begin(
        self, attempt: int, after: int, why: Any, incident: int | None, at: float, slot: int
    ) -> LedgerWriter:
        begin_attempt(
            self.run,
            Attempt(
                attempt=attempt,
                started_at=at,
                after_step=after,
                checkpoint_step=after or None,
                why=why,
                incident=incident,
                curriculum=self.corpus.path,
                digest=self.corpus.catalog.digest,
                sampler=self.state(slot),
            ),
        )
        return LedgerWriter(self.run, attempt)

    def line(self, attempt: int, step: int, slot: int, at: float, hurt: float = 0.0) -> LedgerLine:
        rows = self.schedule.rows(slot)
        columns = self.corpus.columns(rows.tolist(), ["sample_hash", "n_tokens"])
        digest = batch_hash(
            np.frombuffer(b"".join(one["sample_hash"] for one in columns), np.uint8).reshape(-1, 16)
        )
        calm = 2.2 + 6.5 * math.exp(-step / 40) + self.dice.gauss(0, 0.03)
        norm = math.exp(self.dice.gauss(-1.2, 0.12)) * (1 + 5 * math.exp(-step / 25))
        return LedgerLine(
            attempt=attempt,
            step=step,
            epoch=self.schedule.epoch(slot),
            slot=slot,
            stage=0,
            batch_hash=digest,
            samples=BATCH,
            tokens=sum(one["n_tokens"] or 0 for one in columns),
            loss=calm + hurt * 0.9 if math.isfinite(hurt) else None,
            worst_micro_loss=calm + hurt * 3 if math.isfinite(hurt) else None,
            grad_norm=norm * (1 + 40 * hurt) if math.isfinite(hurt) else None,
            lr=3e-4,
            time=at,
            finite=math.isfinite(hurt),
        )

    def play(self, last_slot: int, store: Path | None = None) -> Incident:
        """Train, break, go back and train on; the last slot is about where training is now."""
        onset, trip, back = self.slot + 1, self.slot + 4, self.slot + 1 - 25
        hurts = {onset: 0.4, onset + 1: 1.5, onset + 2: math.inf, trip: 4.0}
        lines: list[LedgerLine] = []
        with self.begin(1, 0, "start", None, BEGAN, 0) as ledger:
            for step in range(1, trip + 1):
                at = BEGAN + SECONDS_A_STEP * step
                lines.append(self.line(1, step, step - 1, at, hurts.get(step, 0.0)))
                ledger.write(lines[-1])
        now = BEGAN + SECONDS_A_STEP * (trip + 1)
        with self.begin(2, back, "rollback", 1, now + 20, back) as ledger:
            step = back
            for slot in range(back, last_slot + 1):
                if onset - 1 <= slot <= trip - 1:
                    continue
                step += 1
                ledger.write(self.line(2, step, slot, now + 20 + SECONDS_A_STEP * (step - back)))
        incident = self.incident(lines, onset, trip, back, now)
        rows = self.schedule.rows(self.slot)
        names = ["sample_hash", "doc_id", "source", "source_row", "stage", "n_tokens", "input_ids"]
        if not self.corpus.tokens:
            names[-1] = "text"
        table = self.corpus.columns(rows.tolist(), names)
        suspects = suspect_rows(
            pa.Table.from_pylist(table),
            {"attempt": [1] * len(rows), "step": [onset] * len(rows), "slot": [self.slot] * len(rows)},
            decode=TextEncoder(TOKENIZER).decode if self.corpus.tokens else None,
        )
        write_incident(self.run, incident, suspects)
        Quarantine(store or self.run.root).record(incident, self.run)
        return incident

    def incident(self, lines: Sequence[LedgerLine], onset: int, trip: int, back: int, now: float) -> Incident:
        rows = self.schedule.rows(self.slot)
        columns = self.corpus.columns(rows.tolist(), ["sample_hash", "doc_id", "source", "source_row"])
        suspects = [
            Suspect(
                1,
                line.step,
                line.epoch,
                line.slot,
                line.batch_hash,
                9.0 - abs(line.step - onset) * 1.5,
                {
                    "loss_z": 12.5 if line.step == onset else 1.1,
                    "grad_z": 31.0 if line.step == onset else 0.4,
                },
            )
            for line in lines[onset - 3 : trip]
        ]
        samples = [
            SuspectSample(
                sample_hash=one["sample_hash"].hex(),
                doc_id=one["doc_id"],
                source=one["source"],
                source_row=one["source_row"],
                state="quarantined" if one["sample_hash"].hex() == self.poison else "suspected",
                reason="loss 14.2 against 2.4 of its batch"
                if one["sample_hash"].hex() == self.poison
                else "in the batch of the onset",
                decided_by="guard",
                decided_at=now,
                slot=self.slot,
                loss=14.2 if one["sample_hash"].hex() == self.poison else 2.2 + self.dice.random(),
                score=9.0 if one["sample_hash"].hex() == self.poison else self.dice.random(),
            )
            for one in columns
        ]
        return Incident(
            incident_id=1,
            opened_at=now,
            closed_at=now + 800,
            attempt=1,
            epoch=3,
            onset_step=onset,
            trip_step=trip,
            rule="robust_z",
            detail={
                "signal": "grad_norm",
                "value": 62.4,
                "limit": 10.0,
                "z": 31.2,
                "level": "act",
                "detail": {"median": 0.301, "scale": 0.12, "n": 96, "context": "any/any"},
            },
            policy={"z_act": 10.0, "margin": 20},
            action="rollback",
            actions=[{"action": "rollback", "at": now + 5, "step": trip, "why": "the loss was not finite"}],
            checkpoint_step=back,
            checkpoint_why=f"newest one at least 20 steps before the onset; step-{onset - 5:08d} is too near to it",
            metrics=list(lines[onset - 20 : trip]),
            suspects=sorted(suspects, key=lambda one: -one.score),
            samples=samples,
            skip_ranges=[SkipRange(1, 3, onset - 1, trip - 1)],
            steps_lost=trip - back,
            tokens_lost=sum(line.tokens for line in lines[back:trip]),
            outcome="helped",
            outcome_why="200 steps after the rollback stayed in their band",
            events=[
                Event(now + 5, trip, "rollback: the loss was not finite"),
                Event(now + 800, trip + 200, "helped: 200 steps after the rollback stayed in their band"),
            ],
        )


def make_world(folder: Path, tokenizer: str | None = TOKENIZER) -> World:
    """Build a curriculum and a run on it with one incident."""
    out = build_curriculum(folder / "data", tokenizer=tokenizer)
    run = RunDir(folder / "run")
    simulation = Simulation(out, run)
    simulation.play(simulation.slot + 120)
    return World(out, run, simulation.poison, simulation.slot)
