"""Signals of the build as evidence: the batch with the strangest document leads where losses say nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cleanfeed import Curriculum, CurriculumSampler
from cleanfeed.training.static_signals import Strangeness, strangeness

from .world import make_curriculum


def test_the_batch_with_the_strangest_document_has_the_most_evidence_against_it(tmp_path: Path) -> None:
    data = Curriculum(make_curriculum(tmp_path, documents=320, poisoned=[100]))
    sampler = CurriculumSampler(data, global_batch=8)
    batches = {slot: sampler.slot_rows(slot) for slot in range(40)}
    ids = data.columns(np.arange(320), ["doc_id"])["doc_id"].to_pylist()
    bad = ids.index("doc-100")
    found = strangeness(data, batches)
    assert set(found.slots) == set(batches)
    worst = max(found.slots, key=lambda slot: found.slots[slot])
    assert bad in batches[worst].tolist()
    assert max(found.rows, key=lambda row: found.rows[row]) == bad
    assert 1.5 < found.slots[worst] < 6.0


def test_without_signals_nothing_is_said(tmp_path: Path) -> None:
    out = make_curriculum(tmp_path, documents=16)
    data = Curriculum(out)
    for path in (out / "signals").glob("*.parquet"):
        path.unlink()
    assert strangeness(data, {0: np.arange(8)}) == Strangeness()
    assert strangeness(data, {}) == Strangeness()
