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
import numpy as np

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
from cleanfeed.training.outcomes import BACK, Judgement, Ruling, Situation, judge, undecided
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
    well_since: int
    """Step after which there was no incident until this one."""
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
        blame = find_blame(
            case.lines, case.onset, trip, policy, guard.sampler, case.losses, case.verdict.trips
        )
        incident = self._open(case) if case.number is None else self.incident(case.number)
        slots = {line.step: line.slot for line in case.lines}
        situation = Situation(
            verdict=case.verdict,
            rule=incident.rule,
            first_slot=slots.get(case.onset, case.step.slot),
            last_slot=case.step.slot,
            safe_checkpoints=self._count(case),
            stands_out=blame.stands_out,
            named=blame.named,
            steps_since_rollback=None if case.rolled_back_to is None else max(0, trip - case.rolled_back_to),
        )
        judgement = self._judged(case, incident, blame, situation)
        choice = self._choose(judgement, case.onset)
        if judgement.action in BACK and choice is None:
            # None of those that there were by their records can be used.
            judgement = self._judged(
                case, incident, blame, dataclasses.replace(situation, safe_checkpoints=0)
            )
        return self._write(case, incident, blame, judgement, choice)

    def _count(self, case: Case) -> int | None:
        """Return how many checkpoints there are to go back to, after calling those safe that have become it."""
        ring, policy = self._guard.ring, self._policy
        if ring is None:
            return None
        doubt = self._guard.watch.doubt(case.step.number)
        ring.promote(case.onset - 1, self._guard.attempt, case.well_since, policy.promote_after, doubt=doubt)
        return ring.count(case.onset, policy.margin)

    def _judged(self, case: Case, incident: Incident, blame: Blame, situation: Situation) -> Judgement:
        """Return what to do, within the budget of what may be left out."""
        wanted = judge(self._possible(), situation, self.incidents)
        if not wanted.exclude:
            return wanted
        room = self._room(case, incident, blame, dataclasses.replace(wanted, ahead=0))
        if room < 0:
            return judge(self._possible(), dataclasses.replace(situation, over_budget=True), self.incidents)
        ahead = min(wanted.ahead, room // self._guard.sampler.schedule.slot_sizes[-1])
        if ahead == wanted.ahead:
            return wanted
        why = f"{wanted.why}; {ahead} of {wanted.ahead} slots ahead: no more samples may be excluded"
        return dataclasses.replace(wanted, ahead=ahead, why=why)

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

    def heal(self, *, same_weights: bool) -> None:
        """Read the incidents anew, and do what one of them says of earlier ones and a kill has left undone.

        Args:
            same_weights: Whether training goes on with the weights it has; else incidents that are not judged yet
                have lost their experiment, and their batches come again.
        """
        self.incidents = read_incidents(self._guard.run, log.warning)
        for incident in list(self.incidents):
            for told in [one for action in incident.actions for one in action.get("rulings", ())]:
                ruling = Ruling(**told)
                # One that is damaged, or was moved away for that, is not there.
                about = next((one for one in self.incidents if one.incident_id == ruling.incident_id), None)
                if about is not None and about.outcome != ruling.outcome:
                    self._on_file([self._ruled(ruling, incident.trip_step)], None, None)
        for incident in self._undecided() if not same_weights else []:
            self._on_file([incident], None, None)
        self.unrecorded = bool(self.incidents)
        self.catch_up()

    def leave(self) -> None:
        """Put on file that the data have ended before some incidents were judged."""
        for incident in self._undecided():
            self._on_file([incident], None, None)

    def _undecided(self) -> list[Incident]:
        """Return the incidents whose batches turn from quarantined to suspected, changed that way."""
        found = [incident for incident in self.incidents if undecided(incident)]
        for incident in found:
            incident.samples = _as(incident.samples, "suspected")
            what = "not judged before training stopped or other weights were loaded: its batches are suspected only"
            incident.events.append(Event(time.time(), self._guard.step, what))
        return found

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
        trips = [trip.to_dict() for trip in case.verdict.trips]
        detail |= {"trips": trips, "z_of_step": dict(case.verdict.z)}
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

    def _write(
        self, case: Case, incident: Incident, blame: Blame, judgement: Judgement, choice: Choice | None
    ) -> Answer:
        now, trip = time.time(), case.step.number
        before = _in_force(self.incidents)
        did: dict[str, Any] = {"at": now, "step": trip, "named": blame.named}
        plan = None if choice is None else self._plan(incident, judgement, choice, case.onset, did)
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
        if halted:
            known = {one.incident_id for one in changed}
            changed += [one for one in self._undecided() if one.incident_id not in known]
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
        states = _states(blame, judgement)
        samples, table = as_samples(blame.samples, guard.sampler.curriculum, states, guard.attempt)
        known = {one.sample_hash for one in samples}
        kept = incident.samples if judgement.exclude else _as(incident.samples, "released")
        incident.samples = [*(one for one in kept if one.sample_hash not in known), *samples]
        incident.suspects = blame.suspects
        incident.skip_ranges = self._skips(case, blame, judgement) if judgement.exclude else []
        shown = [line for line in case.lines if line.step >= case.onset - SHOWN]
        lines = {(line.attempt, line.step): line for line in [*incident.metrics, *shown]}
        incident.metrics = [lines[key] for key in sorted(lines)]
        return table

    def _choose(self, judgement: Judgement, onset: int) -> Choice | None:
        """Choose the checkpoint to go back to, if any; a halt names the one that the next start goes on from."""
        ring = self._guard.ring
        if ring is None or judgement.action not in (*BACK, "halt"):
            return None
        depth = max(1, judgement.depth)
        chosen, _, why = ring.before(onset, self._policy.margin, depth)
        return None if chosen is None else (chosen, depth, "; ".join(why))

    def _plan(
        self, incident: Incident, judgement: Judgement, choice: Choice, onset: int, did: dict[str, Any]
    ) -> ResumePlan:
        """Enter the checkpoint that was chosen, and return the plan of going back to it."""
        chosen, depth, incident.checkpoint_why = choice
        incident.checkpoint_step = chosen
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
            incident.samples = _as(incident.samples, "released")
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

    def _room(self, case: Case, incident: Incident, blame: Blame, judgement: Judgement) -> int:
        """Return how many samples more than a judgement wants could be left out; below 0 where it wants too many.

        What counts is what the incidents of this run leave out; not what a person or another run does.
        """
        sampler = self._guard.sampler
        freed = {ruling.incident_id for ruling in judgement.rulings if ruling.release}
        others = [one for one in self.incidents if one.incident_id not in freed]
        away = {one for one, state in sample_states(others).items() if state == "quarantined"}
        away &= {one.hex() for one in sampler.exclusions.hashes}
        named = zip(blame.samples, _states(blame, judgement), strict=True)
        rows = [one.row for one, state in named if state == "quarantined"]
        if rows:
            found = sampler.curriculum.columns(np.array(rows, dtype=np.int64), ["sample_hash"])
            away |= {one.hex() for one in found["sample_hash"].to_pylist()}
        ranges = [s for one in others if one.incident_id != incident.incident_id for s in one.skip_ranges]
        ranges += self._skips(case, blame, judgement)
        gone = sampler.excluded_by(away, [(skip.first_slot, skip.last_slot) for skip in ranges])
        allowed = self._policy.excludable(sampler.curriculum.catalog.samples, len(sampler.schedule.rows(0)))
        return allowed * sampler.epochs - gone

    def _possible(self) -> Any:
        """Return the policy without what the guard cannot do."""
        if self._guard.lr.known:
            return self._policy
        actions = tuple(action for action in self._policy.actions if action != "lower_lr")
        return dataclasses.replace(self._policy, actions=actions)


Choice = tuple[int, int, str]
"""Step of a checkpoint, which of those it is, counted from the newest, and why."""


def _states(blame: Blame, judgement: Judgement) -> list[State]:
    """Return what the samples of a blame become.

    A rollback restores the weights and leaves the batches out: it does not tell which of the two was to blame.
    """
    proven = judgement.proven or judgement.action == "skip_step"
    return [
        "quarantined" if judgement.exclude and (proven or one.named) else "suspected" for one in blame.samples
    ]


def _as(samples: Sequence[SuspectSample], state: State) -> list[SuspectSample]:
    """Return samples with those that are quarantined in another state."""
    now = time.time()
    return [
        msgspec.structs.replace(one, state=state, decided_at=now) if one.state == "quarantined" else one
        for one in samples
    ]


Exclusions = tuple[dict[str, str], set[tuple[int, int]]]
"""State of each sample, and skip ranges."""


def _in_force(incidents: Sequence[Incident]) -> Exclusions:
    ranges = {(skip.first_slot, skip.last_slot) for one in incidents for skip in one.skip_ranges}
    return sample_states(incidents), ranges
