"""A run directory goes in; everything that is known of its incidents comes out, whatever part of it is missing.

Incidents are read from their files, never from the store: so a report can be made while the store is locked and while
training goes on. What cannot be read is left out and said in ``notes``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from cleanfeed.errors import CleanfeedError, LedgerError, MisuseError, one_line
from cleanfeed.feed.state import schedule_of
from cleanfeed.quarantine.corpus import Corpus
from cleanfeed.quarantine.model import (
    BatchReport,
    Checkpoint,
    CurriculumReport,
    HandSample,
    IncidentReport,
    Report,
    SuspectReport,
    Unusual,
)
from cleanfeed.quarantine.sources import read_decisions
from cleanfeed.quarantine.timeline import fired_of, timeline_of
from cleanfeed.runs.curve import CurveLine, LedgerTable, Totals
from cleanfeed.runs.gaps import missing_steps, newest_saved, say_steps
from cleanfeed.runs.incident_files import (
    EXCERPT_CHARS,
    EXCERPT_TOKENS,
    read_incident,
    read_incidents,
    read_suspects,
)
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.records import Attempt, Incident, SuspectSample

LOOK_AHEAD = 10_000
"""Samples ahead that are compared for near copies, unless the caller says otherwise."""
BUCKETS = 600
"""Points of a curve over the whole run."""
SAMPLES_SHOWN = 20
"""Samples of an incident that are looked up; all are counted."""
NONFINITE_SHOWN = 500
"""Steps with a NaN or an infinity that are marked in the curve over the whole run."""
STEPS_AROUND = 60
"""Steps before the onset and after the trip that a zoomed plot shows, unless the incident took longer."""

Note = Callable[[str], None]


def make_report(
    run: RunDir, incident: int | None = None, *, look_ahead: int = LOOK_AHEAD, curriculum: str | None = None
) -> Report:
    """Return the report of a run.

    Args:
        run: The run directory.
        incident: Number of the only incident to report; by default all.
        look_ahead: Samples ahead that are compared for near copies.
        curriculum: Where the curriculum lies now; by default where the run found it.

    Raises:
        MisuseError: The folder is no run directory, or there is no incident of this number.
    """
    notes: list[str] = []
    note: Note = lambda line: notes.append(line) if line not in notes else None  # noqa: E731
    if not (run.ledger.is_dir() or run.incidents.is_dir() or run.store.is_file()):
        raise MisuseError(
            one_line("not a run directory", str(run.root), expected="a folder with ledger/ or incidents/")
        )
    incidents = [read_incident(run, incident)] if incident is not None else read_incidents(run, note)
    by_hand = _take_decisions(run, incidents, note)
    with LedgerTable(run, note) as ledger:
        if not run.attempts():
            note(f"there is no ledger in {run.ledger}: curves and totals are missing")
        _note_gaps(run, ledger.attempts, note)
        library = _Library(run, ledger, incidents, look_ahead, curriculum, note)
        return Report(
            run=str(run.root),
            made_at=time.time(),
            totals=library.totals,
            attempts=len(run.attempts()),
            curriculum=library.curriculum,
            incident_count=len(run.incident_numbers()),
            incidents=[_incident_report(one, run, ledger, library, note) for one in incidents],
            by_hand=by_hand,
            loss=ledger.curve("loss", BUCKETS),
            grad_norm=ledger.curve("grad_norm", BUCKETS),
            nonfinite=ledger.nonfinite(NONFINITE_SHOWN),
            notes=notes,
        )


def _note_gaps(run: RunDir, starts: Sequence[Attempt], note: Note) -> None:
    """Say which steps of the run no line of the ledger stands for."""
    saved = newest_saved(run, starts)
    try:
        gaps = missing_steps(run, starts, saved.step if saved is not None else 0)
    except LedgerError as error:
        note(str(error))
        return
    if gaps:
        note(f"the ledger has no line of {say_steps(gaps)}: files of it were removed or cut")


def _take_decisions(run: RunDir, incidents: Sequence[Incident], note: Note) -> list[HandSample]:
    """Let what a person decided after an incident stand in the place of what the guard had said.

    Returns:
        What was decided of samples that none of the incidents names.
    """
    decisions, _ = read_decisions(run.store, note)
    latest = {one.sample_hash: one for one in sorted(decisions, key=lambda one: one.decided_at)}
    for incident in incidents:
        for at, sample in enumerate(incident.samples):
            found = latest.get(sample.sample_hash)
            if found is not None and found.decided_at >= sample.decided_at:
                incident.samples[at] = replace(
                    sample, state=found.state, reason=found.reason, decided_by=found.decided_by
                )
    named = {sample.sample_hash for incident in incidents for sample in incident.samples}
    return [
        msgspec.convert(one, HandSample, from_attributes=True)
        for one in latest.values()
        if one.sample_hash not in named
    ]


class _Library:
    """What is known of the suspects of all incidents from the curriculum, each part of it read once."""

    def __init__(
        self,
        run: RunDir,
        ledger: LedgerTable,
        incidents: Sequence[Incident],
        look_ahead: int,
        curriculum: str | None,
        note: Note,
    ) -> None:
        self.run, self.note = run, note
        self.totals: Totals = ledger.totals()
        self.corpus: Corpus | None = None
        self.curriculum = CurriculumReport()
        self.rows: dict[str, list[int]] = {}
        self.columns: dict[str, Mapping[str, Any]] = {}
        self.unusual: dict[tuple[str, int], list[Unusual]] = {}
        self.copies: dict[str, Any] = {}
        start = ledger.attempts[-1] if ledger.attempts else None
        path = curriculum or (start.curriculum if start else None)
        if path is None:
            if incidents:
                note("no attempt says which curriculum is trained on: signals and copies ahead are missing")
            return
        self.curriculum = CurriculumReport(path=path, digest=start.digest if start else None)
        samples = [sample for one in incidents for sample in shown_samples(one)]
        try:
            self.corpus = self._open(path, self.curriculum.digest)
            self._look_up(samples)
            if start is None:
                note("no attempt says in which order is trained: copies ahead are missing")
            else:
                self._look_ahead(start.sampler, look_ahead)
        except (CleanfeedError, OSError) as error:
            note(f"{error} What needs the curriculum is missing.")

    def _open(self, path: str, digest: str | None) -> Corpus:
        corpus = Corpus(path)
        if digest is not None and corpus.catalog.digest != digest:
            raise CleanfeedError(
                one_line("the curriculum is another one now", path, corpus.catalog.digest, f"digest {digest}")
            )
        self.curriculum.reachable = True
        return corpus

    def _look_up(self, samples: Sequence[SuspectSample]) -> None:
        assert self.corpus is not None
        hashes = list(dict.fromkeys(sample.sample_hash for sample in samples))
        if not hashes:
            return
        self.rows, seen = self.corpus.rows_of(hashes)
        if seen < self.corpus.catalog.samples:
            self.note(
                f"copies were sought among the first {seen:,} of {self.corpus.catalog.samples:,} samples"
            )
        names = [name for name in hashes if name in self.rows]
        found = self.corpus.columns(
            [self.rows[name][0] for name in names], ["stage", "n_tokens", "doc_id", "source", "source_row"]
        )
        self.columns = dict(zip(names, found, strict=True))
        documents = [(sample.source, sample.source_row) for sample in samples]
        self.unusual, compared, kept = self.corpus.unusual_signals(documents, self.note)
        self.curriculum.documents_compared, self.curriculum.documents = compared, kept

    def _look_ahead(self, state: Mapping[str, Any], look_ahead: int) -> None:
        assert self.corpus is not None
        schedule = schedule_of(self.corpus.catalog, state)
        slots = max(0, schedule.n_slots - 1 - self.totals.last_slot)
        self.curriculum.slots_ahead = slots
        if not self.rows:
            return
        # It brings numba, which other reports have no use for.
        from cleanfeed.quarantine.copies import copies_ahead

        ahead = copies_ahead(self.corpus, schedule, self.totals.last_slot, self.rows, look_ahead)
        self.copies = dict(ahead.copies)
        self.curriculum.looked_ahead = ahead.compared

    def excerpt(self, name: str, rows: Mapping[str, Mapping[str, Any]]) -> str | None:
        """Return the beginning of a sample's text from the incident's file, else from the curriculum."""
        text = rows.get(name, {}).get("excerpt") or rows.get(name, {}).get("text")
        if text is None and self.corpus is not None and name in self.rows:
            try:
                text = self.corpus.text(self.rows[name][0], EXCERPT_TOKENS)
            except CleanfeedError as error:
                self.note(str(error))
        return None if text is None else str(text)[:EXCERPT_CHARS]

    def stage(self, name: str) -> str | None:
        """Return the name of a sample's stage."""
        number = self.columns.get(name, {}).get("stage")
        if number is None or self.corpus is None:
            return None
        return next((one.name for one in self.corpus.catalog.stages if one.index == number), None)


def shown_samples(incident: Incident) -> list[SuspectSample]:
    """Return the samples of an incident that a report describes, the most suspect first."""

    def order(sample: SuspectSample) -> tuple[bool, float, float]:
        score, loss = sample.score, sample.loss
        return sample.state != "quarantined", -(score if score is not None else -1e300), -(loss or 0.0)

    return sorted(incident.samples, key=order)[:SAMPLES_SHOWN]


def _incident_report(
    incident: Incident, run: RunDir, ledger: LedgerTable, library: _Library, note: Note
) -> IncidentReport:
    states: dict[str, int] = {}
    for sample in incident.samples:
        states[sample.state] = states.get(sample.state, 0) + 1
    suspects = _suspect_rows(run, incident, note)
    return IncidentReport(
        incident_id=incident.incident_id,
        run=str(run.root),
        opened_at=incident.opened_at,
        closed_at=incident.closed_at,
        attempt=incident.attempt,
        epoch=incident.epoch,
        onset_step=incident.onset_step,
        trip_step=incident.trip_step,
        fired=fired_of(incident),
        action=incident.action,
        actions=incident.actions,
        outcome=incident.outcome,
        outcome_why=incident.outcome_why,
        checkpoint=Checkpoint(incident.checkpoint_step, incident.checkpoint_why),
        steps_lost=incident.steps_lost,
        tokens_lost=incident.tokens_lost,
        timeline=timeline_of(incident, ledger.attempts),
        zoom=_around(incident, ledger),
        batches=[
            BatchReport(one.attempt, one.step, one.epoch, one.slot, one.batch_hash, one.score, one.evidence)
            for one in incident.suspects
        ],
        samples=[_sample_report(sample, suspects, library) for sample in shown_samples(incident)],
        samples_by_state=states,
        skipped=[(one.first_slot, one.last_slot) for one in incident.skip_ranges],
    )


def _suspect_rows(run: RunDir, incident: Incident, note: Note) -> dict[str, Mapping[str, Any]]:
    """Return the excerpts in the incident's file of suspects, by sample hash."""
    try:
        table = read_suspects(run, incident.incident_id)
    except CleanfeedError as error:
        note(str(error))
        return {}
    if table is None or "sample_hash" not in table.column_names:
        return {}
    kept = table.select([name for name in ("sample_hash", "excerpt", "text") if name in table.column_names])
    raw = pa.types.is_fixed_size_binary(kept["sample_hash"].type) or pa.types.is_binary(
        kept["sample_hash"].type
    )
    return {
        (row["sample_hash"].hex() if raw else str(row["sample_hash"])): row
        for row in kept.to_pylist()
        if row["sample_hash"] is not None
    }


def _sample_report(
    sample: SuspectSample, suspects: Mapping[str, Mapping[str, Any]], library: _Library
) -> SuspectReport:
    name = sample.sample_hash
    return SuspectReport(
        sample_hash=name,
        doc_id=sample.doc_id,
        source=sample.source,
        source_row=sample.source_row,
        state=sample.state,
        reason=sample.reason,
        decided_by=sample.decided_by,
        slot=sample.slot,
        loss=sample.loss,
        score=sample.score,
        row=library.rows[name][0] if library.rows.get(name) else None,
        stage=library.stage(name),
        n_tokens=library.columns.get(name, {}).get("n_tokens"),
        excerpt=library.excerpt(name, suspects),
        unusual=library.unusual.get((sample.source, sample.source_row), []),
        ahead=library.copies.get(name),
    )


def _around(incident: Incident, ledger: LedgerTable) -> list[CurveLine]:
    """Return the ledger lines around an incident, those in its file where the ledger has none."""
    first, last = incident.onset_step - STEPS_AROUND, incident.trip_step + STEPS_AROUND
    if incident.checkpoint_step is not None:
        first = max(min(first, incident.checkpoint_step - 10), incident.onset_step - 6 * STEPS_AROUND)
    lines = ledger.around(max(0, first), last)
    if lines:
        return lines
    return [
        CurveLine(
            line.attempt,
            line.step,
            line.epoch,
            line.slot,
            line.stage,
            line.samples,
            line.tokens,
            line.loss,
            line.worst_micro_loss,
            line.grad_norm,
            line.lr,
            line.time,
            line.accepted,
            line.finite,
            survived=True,
        )
        for line in incident.metrics
    ]
