"""An incident that opens, goes on or ends goes in; it is decided, written down, and what all ranks must do comes out.

Rank 0 alone sits here. The order of what is written makes every moment safe to be killed at: the incident first, which
says what is to be done and is the truth; then the plan of a rollback; then the store. Only then is anything done.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cleanfeed.errors import TrainingError, one_line
from cleanfeed.quarantine.store import Quarantine
from cleanfeed.runs.incident_files import next_incident_number, read_incidents, write_incident
from cleanfeed.runs.ledger import surviving
from cleanfeed.runs.records import (
    Event,
    ExclusionChange,
    Incident,
    LedgerLine,
    SkipRange,
    State,
    SuspectSample,
)
from cleanfeed.training import startup
from cleanfeed.training.blame import Blame, as_samples, find_blame
from cleanfeed.training.evidence import Losses
from cleanfeed.training.inforce import sample_states
from cleanfeed.training.metrics import Verdict
from cleanfeed.training.outcomes import BACK, Judgement, Ruling, Situation, judge
from cleanfeed.training.startup import ResumePlan
from cleanfeed.training.steps import Step

if TYPE_CHECKING:
    from cleanfeed.training.guard import TrainingGuard

log = logging.getLogger("cleanfeed.training")

SHOWN = 32
"""Ledger lines before the onset that an incident holds."""


@dataclass(slots=True)
class Answer:
    """What all ranks do about an incident."""

    changed: list[Incident]
    """Incidents that are new or have changed."""
    exclusions: ExclusionChange
    plan: ResumePlan | None = None
    lr_factor: float | None = None
    halted: int | None = None
    message: str = ""
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of an incident when it must be answered."""

    step: Step
    verdict: Verdict
    onset: int
    lines: list[LedgerLine]
    """Ledger lines around it, ascending."""
    losses: Losses
    number: int | None
    """Number of the incident that goes on; None for a new one."""
    rolled_back_to: int | None
    """Step the last rollback went back to."""


class IncidentDesk:
    """Decides and writes.

    Args:
        guard: The guard it works for.
        store: The quarantine.
    """

    def __init__(self, guard: TrainingGuard, store: Path) -> None:
        self.incidents: list[Incident] = []
        """All incidents of the run, by number."""
        self.unrecorded = False
        """Whether the store is behind the files."""
        self._guard = guard
        self._policy = guard.policy
        self._store = store

    def answer(self, case: Case) -> Answer:
        """Decide what to do about an incident, and put it on file.

        Raises:
            TrainingError: It cannot be written.
        """
        guard, policy = self._guard, self._policy
        trip = case.step.number
        blame = find_blame(case.lines, case.onset, trip, policy, guard.sampler, case.losses)
        incident = self._open(case) if case.number is None else self.incident(case.number)
        slots = {line.step: line.slot for line in case.lines}
        situation = Situation(
            verdict=case.verdict,
            rule=incident.rule,
            first_slot=slots.get(case.onset, case.step.slot),
            last_slot=case.step.slot,
            safe_checkpoints=None if guard.ring is None else guard.ring.before(case.onset, policy.margin)[1],
            stands_out=blame.stands_out,
            named=blame.named,
            steps_since_rollback=None if case.rolled_back_to is None else max(0, trip - case.rolled_back_to),
            over_budget=self._over_budget(blame),
        )
        judgement = judge(self._possible(), situation, self.incidents)
        return self._write(case, incident, blame, judgement)

    def close(self, ruling: Ruling) -> Answer:
        """Put on file what became of an incident."""
        before = _in_force(self.incidents)
        step = self._guard.step
        incident = self._ruled(ruling, step)
        change = self._change(step, [incident], before)
        self._on_file([incident], None, None)
        message = f"incident {ruling.incident_id}: {ruling.outcome}: {ruling.why}"
        about = {"incident": ruling.incident_id, "step": step, "outcome": ruling.outcome}
        return Answer([incident], change, message=message, about=about)

    def heal(self) -> None:
        """Read the incidents anew, and do what one of them says of earlier ones and a kill has left undone."""
        self.incidents = read_incidents(self._guard.run, log.warning)
        for incident in list(self.incidents):
            for told in [one for action in incident.actions for one in action.get("rulings", ())]:
                ruling = Ruling(**told)
                if self.incident(ruling.incident_id).outcome != ruling.outcome:
                    self._on_file([self._ruled(ruling, incident.trip_step)], None, None)
        self.unrecorded = bool(self.incidents)
        self.catch_up()

    def catch_up(self) -> None:
        """Bring a store up to date that was locked or full before."""
        if self.unrecorded and self.incidents:
            self._record(self.incidents[-1])

    def incident(self, number: int) -> Incident:
        """Return an incident by its number."""
        return next(one for one in self.incidents if one.incident_id == number)

    def take(self, changed: Sequence[Incident]) -> None:
        """Take up incidents that are new or have changed."""
        known = {incident.incident_id: incident for incident in [*self.incidents, *changed]}
        self.incidents = [known[number] for number in sorted(known)]

    def _open(self, case: Case) -> Incident:
        lead, numbers = case.verdict.lead, case.step.numbers
        detail = lead.to_dict() if lead is not None else {}
        detail |= {"trips": [trip.to_dict() for trip in case.verdict.trips], "z": dict(case.verdict.z)}
        if numbers is not None and numbers.sick_ranks:
            detail["ranks"] = list(numbers.sick_ranks)
        return Incident(
            incident_id=next_incident_number(self._guard.run),
            opened_at=time.time(),
            attempt=self._guard.attempt,
            epoch=self._guard.sampler.epoch_of(case.step.slot),
            onset_step=case.onset,
            trip_step=case.step.number,
            rule=lead.rule if lead is not None else "unknown",
            detail=detail,
            policy=self._policy.to_dict(),
            action="record",
        )

    def _write(self, case: Case, incident: Incident, blame: Blame, judgement: Judgement) -> Answer:
        now, trip = time.time(), case.step.number
        before = _in_force(self.incidents)
        did: dict[str, Any] = {"at": now, "step": trip, "named": blame.named}
        plan = self._plan(incident, judgement, case.onset, did)
        if judgement.action in BACK and plan is None:
            # What could be gone back to when it was judged cannot be used.
            why = f"{judgement.why}; there is no checkpoint to go back to"
            judgement = dataclasses.replace(
                judgement, action="halt", why=why, exclude=False, outcome="halted"
            )
        did |= {"action": judgement.action, "why": judgement.why}
        table = self._fill(incident, case, blame, judgement)
        incident.trip_step, incident.action, incident.outcome = trip, judgement.action, judgement.outcome
        if judgement.outcome != "open":
            incident.outcome_why, incident.closed_at = judgement.why, now
        incident.actions.append(did)
        incident.events.append(Event(now, trip, f"{judgement.action}: {judgement.why}"))
        # What it says of earlier incidents is part of it, so that a start after a kill can make up for it.
        did["rulings"] = [dataclasses.asdict(ruling) for ruling in judgement.rulings]
        changed = [incident, *(self._ruled(ruling, trip) for ruling in judgement.rulings)]
        halted = judgement.action == "halt"
        self._on_file(changed, table, None if halted else plan)
        message = (
            f"incident {incident.incident_id}: {incident.rule} at step {trip}, onset at step {case.onset}; "
            f"{judgement.action}: {judgement.why}"
        )
        about = {"incident": incident.incident_id, "rule": incident.rule, "action": judgement.action}
        return Answer(
            changed=changed,
            exclusions=self._change(trip, changed, before),
            plan=None if halted else plan,
            lr_factor=judgement.lr_factor if judgement.action in BACK else None,
            halted=incident.incident_id if halted else None,
            message=message,
            about={**about, "step": trip, "onset_step": case.onset},
        )

    def _fill(self, incident: Incident, case: Case, blame: Blame, judgement: Judgement) -> Any:
        """Write suspects, samples, skip ranges and lines into the incident; return the samples' rows."""
        guard = self._guard
        state: State = "quarantined" if judgement.exclude else "suspected"
        samples, table = as_samples(blame.samples, guard.sampler.curriculum, state, guard.attempt)
        known = {one.sample_hash for one in samples}
        kept = incident.samples if judgement.exclude else _released(incident.samples)
        incident.samples = [*(one for one in kept if one.sample_hash not in known), *samples]
        incident.suspects = blame.suspects
        incident.skip_ranges = self._skips(case, blame, judgement) if judgement.exclude else []
        shown = [line for line in case.lines if line.step >= case.onset - SHOWN]
        lines = {(line.attempt, line.step): line for line in [*incident.metrics, *shown]}
        incident.metrics = [lines[key] for key in sorted(lines)]
        return table

    def _plan(
        self, incident: Incident, judgement: Judgement, onset: int, did: dict[str, Any]
    ) -> ResumePlan | None:
        """Choose the checkpoint to go back to, if any; a halt names the one that the next start goes on from."""
        ring = self._guard.ring
        if ring is None or judgement.action not in (*BACK, "halt"):
            return None
        depth = max(1, judgement.depth)
        chosen, _, why = ring.before(onset, self._policy.margin, depth)
        if chosen is None:
            return None
        incident.checkpoint_step, incident.checkpoint_why = chosen, "; ".join(why)
        lost = self._lines_after(chosen)
        incident.steps_lost += len(lost)
        incident.tokens_lost += sum(line.tokens for line in lost)
        did |= {
            "attempt": self._guard.attempt,
            "checkpoint_step": chosen,
            "onset_step": onset,
            "depth": depth,
        }
        did["lr_factor"] = judgement.lr_factor
        return startup.plan_of(incident.incident_id, did, self._policy.margin)

    def _lines_after(self, step: int) -> list[LedgerLine]:
        return [line for line in surviving(self._guard.run) if line.step > step]

    def _skips(self, case: Case, blame: Blame, judgement: Judgement) -> list[SkipRange]:
        """Return the slots to pass over: none where the batch was passed over already, or its culprits are named."""
        if judgement.action not in BACK:
            return []
        sampler, at = self._guard.sampler, case.step.slot
        first, last = blame.slots or (at + 1, at)
        last = min(last + judgement.ahead, sampler.n_slots - 1)
        return [SkipRange(self._guard.attempt, sampler.epoch_of(first), first, last)] if last >= first else []

    def _change(self, step: int, changed: Sequence[Incident], before: Exclusions) -> ExclusionChange:
        """Return how what is left out changes, from how it was before to how the incidents have it now."""
        now = {incident.incident_id: incident for incident in [*self.incidents, *changed]}
        (states, ranges), (states_before, ranges_before) = _in_force(list(now.values())), before
        away = {one for one, state in states.items() if state == "quarantined"}
        away_before = {one for one, state in states_before.items() if state == "quarantined"}
        return ExclusionChange(
            after_step=step,
            incident=changed[0].incident_id,
            quarantined=sorted(away - away_before),
            released=sorted(away_before - away),
            skipped=sorted(ranges - ranges_before),
            unskipped=sorted(ranges_before - ranges),
        )

    def _ruled(self, ruling: Ruling, step: int) -> Incident:
        incident = self.incident(ruling.incident_id)
        now = time.time()
        incident.outcome, incident.outcome_why, incident.closed_at = ruling.outcome, ruling.why, now
        if ruling.release:
            incident.samples = _released(incident.samples)
            incident.skip_ranges = []
        incident.events.append(Event(now, step, f"{ruling.outcome}: {ruling.why}"))
        return incident

    def _on_file(self, changed: Sequence[Incident], table: Any, plan: ResumePlan | None) -> None:
        """Write incidents, then the plan, then the store.

        Raises:
            TrainingError: An incident or the plan cannot be written, so nothing may be done about it either.
        """
        run = self._guard.run
        try:
            for incident in changed:
                write_incident(run, incident, table if incident is changed[0] else None)
            if plan is not None:
                startup.write_plan(run, plan)
        except OSError as error:
            raise TrainingError(
                one_line(
                    "an incident cannot be written",
                    str(run.incident(changed[0].incident_id)),
                    got=error.strerror or str(error),
                    todo="Make room and start again: training goes on from the newest checkpoint.",
                )
            ) from error
        self._record(changed[0])

    def _record(self, incident: Incident) -> None:
        """Bring the store up to date; a store that is locked or full is caught up later, and stops nothing."""
        try:
            quarantine = Quarantine(self._store, on_note=self._note)
            self.unrecorded = not quarantine.record(incident, self._guard.run)
        except Exception as error:  # noqa: BLE001 - the incident is on file; no trouble with the store stops training
            self.unrecorded = True
            self._note(f"the store was not brought up to date: {type(error).__name__}: {error}")

    def _note(self, text: str) -> None:
        self._guard.alerts.send("store", text)

    def _over_budget(self, blame: Blame) -> bool:
        sampler = self._guard.sampler
        batch = len(sampler.schedule.rows(0))
        skipped = sum(last - first + 1 for first, last in sampler.exclusions.ranges) * batch
        gone = len(sampler.exclusions.rows) + skipped + len(blame.samples)
        return gone > self._policy.excludable(sampler.curriculum.catalog.samples, batch)

    def _possible(self) -> Any:
        """Return the policy without what the guard cannot do."""
        if self._guard.lr.known:
            return self._policy
        actions = tuple(action for action in self._policy.actions if action != "lower_lr")
        return dataclasses.replace(self._policy, actions=actions)


def _released(samples: Sequence[SuspectSample]) -> list[SuspectSample]:
    """Return samples with those that are quarantined released."""
    now = time.time()
    return [
        msgspec.structs.replace(one, state="released", decided_at=now) if one.state == "quarantined" else one
        for one in samples
    ]


Exclusions = tuple[dict[str, str], set[tuple[int, int]]]
"""State of each sample, and skip ranges."""


def _in_force(incidents: Sequence[Incident]) -> Exclusions:
    ranges = {(skip.first_slot, skip.last_slot) for one in incidents for skip in one.skip_ranges}
    return sample_states(incidents), ranges
