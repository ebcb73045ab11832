"""The verdict of each step goes in; incidents on file, exclusions in force and a rollback, where due, come out.

Rank 0 decides and writes (`cleanfeed.training.desk`); then all ranks hear of it and do the same. Doing it twice is no
different from doing it once.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from cleanfeed.errors import TrainingHalted, one_line
from cleanfeed.runs.ledger import newest_surviving
from cleanfeed.runs.records import LedgerLine
from cleanfeed.training.checkpoints import save_into
from cleanfeed.training.desk import Answer, Case, IncidentDesk
from cleanfeed.training.evidence import BEFORE, Evidence
from cleanfeed.training.inforce import InForce, read_in_force
from cleanfeed.training.metrics import Verdict
from cleanfeed.training.outcomes import BACK, next_near, settle
from cleanfeed.training.startup import Beginning, ResumePlan
from cleanfeed.training.steps import Step

if TYPE_CHECKING:
    from cleanfeed.training.guard import TrainingGuard


class Response:
    """Answers what the watch finds.

    Args:
        guard: The guard it works for.
        quarantine: The store.
    """

    def __init__(self, guard: TrainingGuard, quarantine: str | Path | None) -> None:
        self.rollback: ResumePlan | None = None
        """The rollback that is due."""
        self.released: list[str] = []
        """Hashes of samples that were taken back when this attempt began."""
        self.healthy_since = 0
        """Last step of an incident. A lone outlier under observation is no sign against the weights: if an incident
        comes of it, its onset is dated back to it."""
        self._guard = guard
        self._store = Path(quarantine) if quarantine is not None else guard.run.store
        self._desk = IncidentDesk(guard, self._store)
        self._policy = guard.policy
        self._evidence = Evidence(guard.policy)
        self._current: int | None = None
        """Number of the incident the watch has open."""
        self._detached: set[int] = set()
        """Open incidents whose end the watch will not tell of: it was loaded anew since."""
        self._interrupted: set[int] = set()
        """Those of them after which other weights were loaded."""
        self._begun = False
        self._well_since = 0
        """`healthy_since` as it was before the present incident."""
        self._rolled_back_to: int | None = None
        self._verdict: Verdict | None = None

    @property
    def may_save(self) -> bool:
        """Whether all is well: a checkpoint saved now may be used."""
        well = self._verdict is None or self._verdict.state == "healthy"
        return well and not any(incident.outcome == "open" for incident in self._desk.incidents)

    # ---- each step -----------------------------------------------------------------------------------------------

    def after(self, step: Step, line: LedgerLine, verdict: Verdict) -> None:
        """Act on a step that was committed; a collective of all ranks where something is found.

        Raises:
            TrainingHalted: The policy stops training.
            TrainingError: An incident cannot be written.
        """
        self._verdict = verdict
        self._evidence.add(line, step.ids, step.per_sample)
        well_since = self.healthy_since
        if verdict.state == "incident":
            self.healthy_since = step.number
        if step.accepted and verdict.sick_in_row:
            verdict = replace(verdict, harmed=True)  # the optimizer has taken this very step
        if verdict.opened:
            # What was open has ended before: the steps in between judge it, and what opens now has not ended yet.
            self._settle(step.slot, replace(verdict, closed=True, level_shift=()))
            self._current = None
            verdict = replace(verdict, closed=bool(verdict.level_shift))
        if verdict.opened or verdict.escalated:
            self._well_since = well_since if self._current is None else self._well_since
            self._answer(step, verdict, self._current)
        if self.rollback is None:
            self._settle(step.slot, verdict)
        if verdict.closed:
            self._current = None

    def _answer(self, step: Step, verdict: Verdict, number: int | None) -> None:
        onset = min(verdict.onset_step or step.number, step.number)
        first = onset - self._policy.pre - BEFORE
        losses = self._evidence.gather(self._guard.agreement, first, step.number)
        lines = self._evidence.lines(first, step.number)
        case = Case(step, verdict, onset, lines, losses, number, self._well_since, self._rolled_back_to)
        answer = self._guard.agreement.on_first(lambda: self._desk.answer(case))
        self._current = answer.changed[0].incident_id
        self._take(answer)
        if answer.halted is not None:
            self._halt(step, answer)
        self.rollback = answer.plan

    def _take(self, answer: Answer) -> None:
        """Do on every rank what was decided and is on file."""
        self._desk.take(answer.changed)
        self._guard.change_exclusions(answer.exclusions)
        if answer.lr_factor is not None:
            self._guard.lr.factor = answer.lr_factor
        if answer.message and self._guard.agreement.rank == 0:
            self._guard.alerts.send("incident", answer.message, **answer.about)

    # ---- what becomes of incidents -------------------------------------------------------------------------------

    def _settle(self, slot: int, verdict: Verdict, *, ended: bool = False) -> None:
        """Rule on what is open; that an incident has ended is said of the present one alone."""
        still_open = [one for one in self._desk.incidents if one.outcome == "open"]
        if not still_open:
            return
        others = replace(verdict, closed=False, level_shift=())
        for incident in still_open:
            past = slot - max([line.slot for line in incident.metrics], default=slot)
            detached = incident.incident_id in self._detached
            ruling = settle(
                self._policy,
                incident,
                slot=slot,
                verdict=verdict if incident.incident_id == self._current else others,
                ended=ended or (detached and past > self._policy.merge_gap),
                interrupted=incident.incident_id in self._interrupted,
                again=next_near(self._policy, incident, self._desk.incidents),
            )
            if ruling is not None:
                self._take(self._guard.agreement.on_first(partial(self._desk.close, ruling)))

    def finish(self) -> None:
        """Act on the end of the data."""
        if self._verdict is not None:
            verdict = replace(self._verdict, closed=False, level_shift=())
            if not verdict.sick_in_row:
                # The watch waits some steps before it closes an incident; there are none to come.
                verdict = replace(verdict, state="healthy")
            self._settle(self._guard.sampler.n_slots, verdict, ended=True)
            self._verdict = verdict
        if self._guard.agreement.rank == 0:
            self._guard.agreement.alone(self._desk.leave)
            self._desk.catch_up()

    def _halt(self, step: Step, answer: Answer) -> None:
        """Save state and batch, and stop."""
        guard = self._guard
        folder = guard.run.incident(answer.halted or 0) / "state"
        problem: Exception | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(list(step.batches), folder / f"batch-{guard.agreement.rank:04d}.pt")
            if guard.checkpoints is not None:
                save_into(folder, guard.checkpoints.save)
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
        self.rollback = None
        same_weights = self._begun and beginning.checkpoint_step is None
        self._begun = True
        self._evidence.forget_after(self._guard.step)
        found = self._guard.agreement.on_first(partial(self._read, beginning, same_weights))
        self._desk.incidents = found.incidents
        numbers = {one.incident_id for one in found.incidents}
        # With the same weights the watch has its open event still, and tells of its end.
        self._current = self._current if same_weights and self._current in numbers else None
        self._detached = {
            one.incident_id for one in found.incidents if one.outcome == "open" and one.action not in BACK
        } - {self._current}
        self._interrupted = self._interrupted & self._detached if same_weights else set(self._detached)
        self._guard.lr.factor = found.lr_factor
        self.released = found.released
        sampler = self._guard.sampler
        sampler.quarantine(found.quarantined)
        sampler.release(found.released)
        for first, last in found.skipped:
            if first < sampler.n_slots:  # else it is of an epoch that this run does not have
                sampler.skip(first, min(last, sampler.n_slots - 1))
        back = found.rolled_back_to
        self._rolled_back_to = self._guard.step if beginning.why == "rollback" else back
        self._verdict = None

    def _read(self, beginning: Beginning, same_weights: bool) -> InForce:
        run, evidence = self._guard.run, self._evidence
        evidence.fill(newest_surviving(run, self._guard.step, evidence.size))
        self._desk.heal(same_weights=same_weights)
        anew = beginning.attempt if beginning.why == "start" else None
        return read_in_force(self._guard.run, self._store, self._desk.incidents, anew)
