"""The verdict of each step goes in; incidents on file, exclusions in force and a rollback, where due, come out.

Rank 0 decides and writes, all ranks hear of it and do the same. The order of what is written makes every moment safe to
be killed at: the incident first, which says what is to be done and is the truth; then the plan of a rollback; then the
store. Only then is anything done, and doing it twice is no different from doing it once.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from cleanfeed.errors import TrainingError, TrainingHalted, one_line
from cleanfeed.quarantine.store import Quarantine
from cleanfeed.runs.incident_files import next_incident_number, write_incident
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
from cleanfeed.training.evidence import BEFORE, Evidence, Losses
from cleanfeed.training.inforce import InForce, read_in_force, sample_states
from cleanfeed.training.metrics import Verdict
from cleanfeed.training.outcomes import BACK, Judgement, Ruling, Situation, judge, settle
from cleanfeed.training.startup import Beginning, ResumePlan
from cleanfeed.training.steps import Step

if TYPE_CHECKING:
    from cleanfeed.training.guard import TrainingGuard

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


class Response:
    """Answers what the watch finds.

    Args:
        guard: The guard it works for.
        quarantine: The store.
    """

    def __init__(self, guard: TrainingGuard, quarantine: str | Path | None) -> None:
        self.rollback: ResumePlan | None = None
        """The rollback that is due."""
        self.healthy_since = 0
        """Last step that was not healthy."""
        self.incidents: list[Incident] = []
        self._guard = guard
        self._store = Path(quarantine) if quarantine is not None else guard.run.store
        self._policy = guard.policy
        self._evidence = Evidence(guard.policy)
        self._current: int | None = None
        """Number of the incident the watch has open."""
        self._detached: set[int] = set()
        """Open incidents whose end the watch will not tell of: it was loaded anew since."""
        self._rolled_back_to: int | None = None
        self._unrecorded = False
        self._verdict: Verdict | None = None

    @property
    def may_save(self) -> bool:
        """Whether all is well: a checkpoint saved now may be used."""
        well = self._verdict is None or self._verdict.state == "healthy"
        return well and not any(incident.outcome == "open" for incident in self.incidents)

    # ---- each step -----------------------------------------------------------------------------------------------

    def after(self, step: Step, line: LedgerLine, verdict: Verdict) -> None:
        """Act on a step that was committed; a collective of all ranks where something is found.

        Raises:
            TrainingHalted: The policy stops training.
            TrainingError: An incident cannot be written.
        """
        self._verdict = verdict
        self._evidence.add(line, step.ids, step.told.per_sample)
        if verdict.state != "healthy":
            self.healthy_since = step.number
        if step.accepted and verdict.sick_in_row:
            verdict = dataclasses.replace(verdict, harmed=True)  # the optimizer has taken this very step
        if verdict.opened or (verdict.escalated and self._current is not None):
            self._answer(step, verdict, None if verdict.opened else self._current)
        if self.rollback is None:
            self._settle(step.slot, verdict)
        if verdict.closed:
            self._current = None

    def _answer(self, step: Step, verdict: Verdict, number: int | None) -> None:
        onset = min(verdict.onset_step or step.number, step.number)
        first = onset - self._policy.pre - BEFORE
        losses = self._evidence.gather(self._guard.agreement, first, step.number)
        answer = self._guard.agreement.on_first(
            lambda: self._decide(
                step, verdict, number, onset, self._evidence.lines(first, step.number), losses
            )
        )
        self._current = answer.changed[-1].incident_id
        self._take(answer)
        if answer.halted is not None:
            self._halt(step, answer)
        self.rollback = answer.plan

    def _take(self, answer: Answer) -> None:
        """Do on every rank what was decided and is on file."""
        known = {incident.incident_id: incident for incident in self.incidents}
        known.update({incident.incident_id: incident for incident in answer.changed})
        self.incidents = [known[number] for number in sorted(known)]
        self._guard.change_exclusions(answer.exclusions)
        if answer.lr_factor is not None:
            self._guard.lr.factor = answer.lr_factor
        if answer.message and self._guard.agreement.rank == 0:
            self._guard.alerts.send("incident", answer.message, **answer.about)

    # ---- what rank 0 decides and writes --------------------------------------------------------------------------

    def _decide(
        self,
        step: Step,
        verdict: Verdict,
        number: int | None,
        onset: int,
        lines: list[LedgerLine],
        losses: Losses,
    ) -> Answer:
        guard, policy = self._guard, self._policy
        blame = find_blame(lines, onset, step.number, policy, guard.sampler, losses)
        incident = self._incident(number) if number is not None else self._open(step, verdict, onset, lines)
        there = 0 if guard.ring is not None else None
        if guard.ring is not None:
            _, there, _ = guard.ring.before(onset, policy.margin)
        slots = {line.step: line.slot for line in lines}
        situation = Situation(
            verdict=verdict,
            rule=incident.rule,
            first_slot=slots.get(onset, step.slot),
            last_slot=step.slot,
            safe_checkpoints=there,
            stands_out=blame.stands_out,
            steps_since_rollback=self._since_rollback(step.number),
            over_budget=self._over_budget(blame),
        )
        history = [
            one for one in self.incidents if number is not None or one.incident_id != incident.incident_id
        ]
        judgement = judge(self._allowed_policy(), situation, history)
        return self._write(step, incident, blame, judgement, onset, lines)

    def _open(self, step: Step, verdict: Verdict, onset: int, lines: list[LedgerLine]) -> Incident:
        lead = verdict.lead
        detail = lead.to_dict() if lead is not None else {}
        detail |= {"trips": [trip.to_dict() for trip in verdict.trips], "z": dict(verdict.z)}
        if step.numbers is not None and step.numbers.sick_ranks:
            detail["ranks"] = list(step.numbers.sick_ranks)
        return Incident(
            incident_id=next_incident_number(self._guard.run),
            opened_at=time.time(),
            attempt=self._guard.attempt,
            epoch=self._guard.sampler.epoch_of(step.slot),
            onset_step=onset,
            trip_step=step.number,
            rule=lead.rule if lead is not None else "unknown",
            detail=detail,
            policy=self._policy.to_dict(),
            action="record",
            metrics=[line for line in lines if line.step >= onset - SHOWN],
        )

    def _write(
        self,
        step: Step,
        incident: Incident,
        blame: Blame,
        judgement: Judgement,
        onset: int,
        lines: list[LedgerLine],
    ) -> Answer:
        guard, now = self._guard, time.time()
        before = _in_force(self.incidents)
        state: State = "quarantined" if judgement.exclude else "suspected"
        samples, table = as_samples(blame.samples, guard.sampler.curriculum, state, guard.attempt)
        known = {one.sample_hash for one in samples}
        kept = incident.samples if judgement.exclude else _released(incident.samples)
        incident.samples = [one for one in kept if one.sample_hash not in known]
        incident.samples += samples
        incident.suspects = blame.suspects
        incident.metrics = _joined(incident.metrics, [line for line in lines if line.step >= onset - SHOWN])
        incident.skip_ranges = self._skips(step, blame, judgement) if judgement.exclude else []
        incident.trip_step = step.number
        did: dict[str, Any] = {
            "action": judgement.action,
            "at": now,
            "step": step.number,
            "why": judgement.why,
        }
        plan = None
        if judgement.action in BACK or judgement.action == "halt":
            plan = self._plan(incident, judgement, onset, did)
        if judgement.action in BACK and plan is None:
            # What could be gone back to when it was judged is damaged now, or never was.
            why = f"{judgement.why}; there is no checkpoint to go back to"
            judgement = dataclasses.replace(judgement, action="halt", why=why, outcome="halted")
            did |= {"action": "halt", "why": why}
        incident.actions.append(did)
        incident.action, incident.outcome = judgement.action, judgement.outcome
        if judgement.outcome != "open":
            incident.outcome_why, incident.closed_at = judgement.why, now
        message = (
            f"incident {incident.incident_id}: {incident.rule} at step {step.number}, onset at step {onset}; "
            f"{judgement.action}: {judgement.why}"
        )
        incident.events.append(Event(now, step.number, f"{judgement.action}: {judgement.why}"))
        ruled = [self._ruled(ruling, step.number) for ruling in judgement.rulings]
        changed = [*ruled, incident]
        self._on_file(changed, table, plan if judgement.action != "halt" else None)
        return Answer(
            changed=changed,
            exclusions=self._change(step.number, changed, before),
            plan=plan if judgement.action in BACK else None,
            lr_factor=judgement.lr_factor if judgement.action in BACK else None,
            halted=incident.incident_id if judgement.action == "halt" else None,
            message=message,
            about={
                "incident": incident.incident_id,
                "step": step.number,
                "onset_step": onset,
                "rule": incident.rule,
                "action": judgement.action,
            },
        )

    def _plan(
        self, incident: Incident, judgement: Judgement, onset: int, did: dict[str, Any]
    ) -> ResumePlan | None:
        """Choose the checkpoint to go back to; a halt names the one the next start goes on from."""
        guard = self._guard
        if guard.ring is None:
            return None
        depth = max(1, judgement.depth)
        chosen, _, why = guard.ring.before(onset, self._policy.margin, depth)
        if chosen is None:
            return None
        incident.checkpoint_step, incident.checkpoint_why = chosen, "; ".join(why)
        lost = self._lines_after(chosen)
        incident.steps_lost += len(lost)
        incident.tokens_lost += sum(line.tokens for line in lost)
        did |= {
            "attempt": guard.attempt,
            "checkpoint_step": chosen,
            "onset_step": onset,
            "depth": depth,
            "lr_factor": judgement.lr_factor,
        }
        return startup.plan_of(incident.incident_id, did, self._policy.margin)

    def _lines_after(self, step: int) -> list[LedgerLine]:
        return [line for line in surviving(self._guard.run) if line.step > step]

    def _skips(self, step: Step, blame: Blame, judgement: Judgement) -> list[SkipRange]:
        first, last = blame.slots or (step.slot + 1, step.slot)
        if judgement.action in BACK:
            last = min(last + judgement.ahead, self._guard.sampler.n_slots - 1)
        elif judgement.action == "skip_step":
            # The batch was passed over already; a range would only say so again.
            return []
        if last < first:
            return []
        return [SkipRange(self._guard.attempt, self._guard.sampler.epoch_of(first), first, last)]

    def _change(self, step: int, changed: Sequence[Incident], before: Exclusions) -> ExclusionChange:
        """Return how what is left out changes, from how it was before to how the incidents have it now."""
        now = {incident.incident_id: incident for incident in [*self.incidents, *changed]}
        (states, ranges), (states_before, ranges_before) = _in_force(list(now.values())), before
        away = {one for one, state in states.items() if state == "quarantined"}
        away_before = {one for one, state in states_before.items() if state == "quarantined"}
        return ExclusionChange(
            after_step=step,
            incident=changed[-1].incident_id,
            quarantined=sorted(away - away_before),
            released=sorted(away_before - away),
            skipped=sorted(ranges - ranges_before),
            unskipped=sorted(ranges_before - ranges),
        )

    def _ruled(self, ruling: Ruling, step: int) -> Incident:
        incident = self._incident(ruling.incident_id)
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
                write_incident(run, incident, table if incident is changed[-1] else None)
            if plan is not None:
                startup.write_plan(run, plan)
        except OSError as error:
            raise TrainingError(
                one_line(
                    "an incident cannot be written",
                    str(run.incident(changed[-1].incident_id)),
                    got=error.strerror or str(error),
                    todo="Make room and start again: training goes on from the newest checkpoint.",
                )
            ) from error
        self._record(changed[-1])

    def _record(self, incident: Incident) -> None:
        """Bring the store up to date; a store that is locked or full is caught up later, and stops nothing."""
        try:
            quarantine = Quarantine(self._store, on_note=self._note)
            self._unrecorded = not quarantine.record(incident, self._guard.run)
        except Exception as error:  # noqa: BLE001 - the incident is on file; no trouble with the store stops training
            self._unrecorded = True
            self._note(f"the store was not brought up to date: {type(error).__name__}: {error}")

    def _note(self, text: str) -> None:
        self._guard.alerts.send("store", text)

    # ---- what becomes of incidents -------------------------------------------------------------------------------

    def _settle(self, slot: int, verdict: Verdict, *, ended: bool = False) -> None:
        for incident in [one for one in self.incidents if one.outcome == "open"]:
            past = slot - max([line.slot for line in incident.metrics], default=slot)
            over = ended or (incident.incident_id in self._detached and past > self._policy.merge_gap)
            ruling = settle(self._policy, incident, slot=slot, verdict=verdict, ended=over)
            if ruling is not None:
                self._take(self._guard.agreement.on_first(lambda ruling=ruling: self._close(ruling)))  # type: ignore[misc]

    def _close(self, ruling: Ruling) -> Answer:
        before = _in_force(self.incidents)
        incident = self._ruled(ruling, self._guard.step)
        change = self._change(self._guard.step, [incident], before)
        self._on_file([incident], None, None)
        message = f"incident {ruling.incident_id}: {ruling.outcome}: {ruling.why}"
        about = {"incident": ruling.incident_id, "step": self._guard.step, "outcome": ruling.outcome}
        return Answer([incident], change, message=message, about=about)

    def finish(self) -> None:
        """Act on the end of the data."""
        if self._verdict is not None:
            verdict = self._verdict
            if not verdict.sick_in_row:
                # The watch waits some steps before it closes an incident; there are none to come.
                verdict = dataclasses.replace(verdict, state="healthy", closed=True)
            self._settle(self._guard.sampler.n_slots, verdict, ended=True)
            self._verdict = verdict
        if self._unrecorded and self.incidents and self._guard.agreement.rank == 0:
            self._record(self.incidents[-1])

    def _halt(self, step: Step, answer: Answer) -> None:
        """Save state and batch, and stop."""
        guard = self._guard
        folder = guard.run.incident(answer.halted or 0) / "state"
        problem: Exception | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(list(step.batches), folder / f"batch-{guard.agreement.rank:04d}.pt")
            if guard.checkpoints is not None:
                guard.checkpoints.save(folder)
        except Exception as error:  # noqa: BLE001 - what cannot be saved must not hide why training stops
            problem = error
        saved = (
            f"State and batch are in {folder}." if problem is None else f"They could not be saved: {problem}."
        )
        raise TrainingHalted(
            one_line(
                "training stopped",
                f"step {step.number}",
                answer.message,
                todo=f"{saved} See 'cleanfeed quarantine report {guard.run.root}'.",
            ),
            answer.halted or 0,
        )

    # ---- beginning -----------------------------------------------------------------------------------------------

    def restore(self, beginning: Beginning) -> None:
        """Put in force what is known of earlier attempts; a collective of all ranks."""
        self.rollback, self._current = None, None
        found: InForce = self._guard.agreement.on_first(lambda: read_in_force(self._guard.run, self._store))
        self.incidents = found.incidents
        self._detached = {
            one.incident_id for one in found.incidents if one.outcome == "open" and one.action not in BACK
        }
        self._guard.lr.factor = found.lr_factor
        sampler = self._guard.sampler
        sampler.quarantine(found.quarantined)
        sampler.release(found.released)
        for first, last in found.skipped:
            sampler.skip(first, min(last, sampler.n_slots - 1))
        self._evidence.forget_after(self._guard.step)
        back = found.rolled_back_to
        self._rolled_back_to = self._guard.step if beginning.why == "rollback" else back
        self._verdict = None

    # ---- small answers -------------------------------------------------------------------------------------------

    def _incident(self, number: int) -> Incident:
        return next(one for one in self.incidents if one.incident_id == number)

    def _since_rollback(self, step: int) -> int | None:
        return None if self._rolled_back_to is None else max(0, step - self._rolled_back_to)

    def _over_budget(self, blame: Blame) -> bool:
        sampler = self._guard.sampler
        batch = len(sampler.schedule.rows(0))
        skipped = sum(last - first + 1 for first, last in sampler.exclusions.ranges) * batch
        gone = len(sampler.exclusions.rows) + skipped + len(blame.samples)
        return gone > self._policy.excludable(sampler.curriculum.catalog.samples, batch)

    def _allowed_policy(self) -> Any:
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


def _joined(lines: Sequence[LedgerLine], more: Sequence[LedgerLine]) -> list[LedgerLine]:
    known = {(line.attempt, line.step): line for line in [*lines, *more]}
    return [known[key] for key in sorted(known)]
