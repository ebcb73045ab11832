"""A sampler, a loader and a policy go in; steps come out, each recorded, judged and, where need be, undone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cleanfeed.errors import LedgerError, MisuseError, TrainingError, one_line
from cleanfeed.feed.sampler import CurriculumSampler
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import LedgerWriter, begin_attempt
from cleanfeed.runs.records import Attempt, ExclusionChange, LedgerLine
from cleanfeed.training import startup
from cleanfeed.training.agreement import Agreement
from cleanfeed.training.alerts import Alerts, Target
from cleanfeed.training.checkpoints import CheckpointRing, Checkpoints
from cleanfeed.training.expected import Expected, check
from cleanfeed.training.learning_rate import LearningRate
from cleanfeed.training.metrics import Metrics, Verdict
from cleanfeed.training.numbers import combine
from cleanfeed.training.policy import Policy
from cleanfeed.training.response import Response
from cleanfeed.training.shares import sample_ids, share
from cleanfeed.training.startup import Beginning
from cleanfeed.training.steps import Step
from cleanfeed.training.watch import Watch

STATE_FORMAT = 1


class TrainingGuard:
    """Takes a training loop through its steps, and through what goes wrong.

    See docs/training.md for the loop it expects and what it does at each point.

    Args:
        sampler: The batch sampler of the loader.
        run_dir: Where ledger, incidents, checkpoints and quarantine of the run are kept; on a file system that all
            ranks share.
        checkpoints: How to save and load; without them the guard records and skips, but cannot go back.
        policy: When a step counts as sick and what is done about it.
        resume: Go on from the newest usable checkpoint of ``run_dir``; False begins anew and undoes its steps so far.
        optimizer: Whose learning rate is recorded, and lowered where the policy says so; by default that of
            ``Checkpoints.of``. A function that returns the rate is recorded only.
        scaler: The ``torch.amp.GradScaler``, whose overflows are no incidents; by default that of ``Checkpoints.of``.
        on_alert: A function of one dict, an http(s) address, or several, told of whatever happens.
        quarantine: The store; by default ``quarantine.duckdb`` in ``run_dir``. Several runs may share one.
        fsync: Wait for the disk after each line of the ledger; without it a line survives the end of the process, but
            not a power cut.
        group: Process group of the ranks; by default all.

    Raises:
        MisuseError: The arguments contradict each other.
    """

    def __init__(
        self,
        sampler: CurriculumSampler,
        run_dir: str | Path,
        checkpoints: Checkpoints | None = None,
        policy: Policy | None = None,
        *,
        resume: bool = True,
        optimizer: torch.optim.Optimizer | Callable[[], float] | None = None,
        scaler: Any = None,
        on_alert: Target | Iterable[Target] | None = None,
        quarantine: str | Path | None = None,
        fsync: bool = False,
        group: Any = None,
    ) -> None:
        _must_be("sampler", sampler, CurriculumSampler)
        _must_be("policy", policy, Policy, optional=True)
        _must_be("checkpoints", checkpoints, Checkpoints, optional=True)
        self.sampler = sampler
        self.run = RunDir(Path(run_dir))
        if self.run.root.exists() and not self.run.root.is_dir():
            raise MisuseError(
                one_line("not a run directory", str(run_dir), "a file", "a folder, or none yet")
            )
        self.checkpoints = checkpoints
        self.policy = policy if policy is not None else Policy()
        self.watch = Watch(self.policy)
        self.agreement = Agreement(group)
        self._expected = Expected(sampler, hashes=self.agreement.rank == 0)
        self.alerts = Alerts(on_alert, str(self.run.root))
        self.step = 0
        """Optimizer steps done, those that were not accepted included."""
        self.attempt = 0
        self.lr = LearningRate(optimizer if optimizer is not None else _part(checkpoints, "optimizer"))
        self._scaler = scaler if scaler is not None else _part(checkpoints, "scaler")
        self.ring = CheckpointRing(self.run, checkpoints, self.agreement) if checkpoints else None
        self.response = Response(self, quarantine)
        self._resume, self._fsync = resume, fsync
        self._ledger: LedgerWriter | None = None
        self._hold: startup.Hold | None = None
        self._verdict: Verdict | None = None
        self._scaled = False
        self._last_saved = -1
        self._logged: tuple[int, frozenset[bytes], frozenset[tuple[int, int]]] = (
            -1,
            frozenset(),
            frozenset(),
        )
        self._broken: LedgerError | None = None
        """Why rank 0 cannot go on; told to the other ranks at the next decision, so that none waits for it."""

    # ---- the loop ------------------------------------------------------------------------------------------------

    def steps(self, loader: Iterable[Any]) -> Iterator[Step]:
        """Yield one item per optimizer step until the data are exhausted; goes back and on by itself.

        Args:
            loader: A loader whose batch sampler is the guard's sampler.

        Raises:
            TrainingError: A batch is not the one that is due, or a step was not committed.
            CheckpointError: No checkpoint can be used, or one cannot be saved.
            MisuseError: The loader reads another curriculum than the sampler orders.
            TrainingHalted: The policy stops training.
            SystemExit: With code 75, where the policy leaves a rollback to the next start.
        """
        self._check_dataset(getattr(loader, "dataset", None))
        self.lr.attach()
        try:
            self._start()
            yield from self._loop(loader)
        finally:
            self.lr.detach()
            self.close()

    def _check_dataset(self, dataset: Any) -> None:
        """Refuse a loader over another curriculum: row numbers alone would not tell."""
        catalog, own = getattr(dataset, "catalog", None), self.sampler.curriculum.catalog
        if catalog is not None and catalog.digest != own.digest:
            raise MisuseError(
                one_line(
                    "the loader reads another curriculum than the sampler orders",
                    str(catalog.path),
                    f"digest {catalog.digest}",
                    f"{own.digest}, of {own.path}",
                    "Give the DataLoader the sampler's curriculum.",
                )
            )

    def _loop(self, loader: Iterable[Any]) -> Iterator[Step]:
        while True:
            batches = iter(loader)
            version = self.sampler.exclusions.version
            while (slot := self.sampler.next_slot(self.sampler.committed)) is not None:
                self._log_exclusions()
                step = self._next(batches, slot)
                yield step
                if not step.committed:
                    raise TrainingError(
                        one_line(
                            "a step was not committed", f"step {step.number}", todo="Call step.commit()."
                        )
                    )
                if self.response.rollback is not None:
                    del batches  # its workers end before those of the next iterator begin
                    self._roll_back()
                    break
                if self.sampler.exclusions.version != version:
                    break  # what the workers hold was issued before the change
            else:
                self._finish()
                return

    def close(self) -> None:
        """Close the ledger and let go of the run directory; `steps` does so when its loop is left."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def _next(self, batches: Iterator[Any], slot: int) -> Step:
        """Take the micro-batches of the slot that is due from the loader, and check that they are what they must be."""
        problem: Exception | None = None
        due = self._expected.of(slot)
        taken: list[Any] = []
        ids: list[Any] = []
        try:
            for _ in range(self.sampler.micro_batches(slot)):
                batch = next(batches, None)
                if batch is None:
                    raise TrainingError(
                        one_line(
                            "the loader ended early", f"slot {slot}", todo="Give it this guard's sampler."
                        )
                    )
                taken.append(batch)
                ids.append(sample_ids(batch))
            check(due, ids[0] if len(ids) == 1 else np.concatenate(ids), self.agreement.rank)
        except Exception as error:  # noqa: BLE001 - whatever fails on one rank, the others must not wait for it
            problem = error
        # A rank whose loader failed takes part in the count with nothing, and then all of them stop.
        shares = share(
            self.agreement, [] if problem else taken, [] if problem else ids, failed=problem is not None
        )
        if shares.failed:
            self.agreement.raise_first(problem, "loading a batch")
        return Step(self, self.step + 1, due, taken, ids, shares)

    # ---- one step ------------------------------------------------------------------------------------------------

    def decide(
        self, step: Step, losses: list[float], grad_norm: float | None, extra: dict[str, float]
    ) -> bool:
        """Return whether the optimizer may step; called by `Step.accept`."""
        scaled = self._scaled = self._scaler is not None and self._scaler.is_enabled()
        if scaled and "loss_scale" not in extra:
            extra["loss_scale"] = float(self._scaler.get_scale())
        numbers = combine(
            self.agreement,
            losses,
            step.shares.labels,
            grad_norm,
            extra,
            scaled=scaled,
            failed=self._broken is not None,
        )
        if numbers.failed:
            self.agreement.raise_first(self._broken, "writing the ledger")
        step.numbers = numbers
        self._verdict = self.watch.update(
            Metrics(
                step=step.number,
                loss=numbers.loss,
                grad_norm=None if numbers.overflow else numbers.grad_norm,
                context=step.due.context,
                worst_micro_loss=numbers.worst_micro_loss,
                finite=numbers.finite,
                lr=self.lr.now,
                extra=numbers.extra,
            )
        )
        accepted = self._verdict.accept and not numbers.overflow
        self.lr.expect(accepted)
        return accepted

    def commit(self, step: Step) -> None:
        """Record a step and act on what was found; called by `Step.commit`."""
        assert self._verdict is not None
        if self._hold is not None and self._hold.lost:
            raise TrainingError(
                one_line("another guard of this process took over", str(self.run.root), todo="Use that one.")
            )
        step.lr = self.lr.done()
        if step.accepted and self._scaled and self.lr.known and not self.lr.stepped:
            step.accepted = False  # the scaler found an overflow that the norm did not show
        line = self._line(step)
        if self._ledger is not None:
            try:
                self._ledger.write(line)
            except LedgerError as error:
                self._broken = error
        if self._broken is not None and self.agreement.world_size == 1:
            raise self._broken
        self.step = step.number
        self.sampler.commit(step.slot)
        self.response.after(step, line, self._verdict)
        if self.response.rollback is None:
            self._save_if_due()

    def _line(self, step: Step) -> LedgerLine:
        numbers = step.numbers
        assert numbers is not None
        return LedgerLine(
            attempt=self.attempt,
            step=step.number,
            epoch=step.due.epoch,
            slot=step.slot,
            stage=step.due.stage,
            batch_hash=step.due.batch_hash,
            samples=step.shares.samples,
            tokens=step.shares.tokens,
            loss=_finite(numbers.loss),
            worst_micro_loss=numbers.worst_micro_loss,
            grad_norm=_finite(numbers.grad_norm),
            lr=step.lr,
            time=time.time(),
            accepted=bool(step.accepted),
            finite=numbers.finite and not numbers.overflow,
            metrics={name: _finite(value) for name, value in step.metrics.items()},
        )

    # ---- beginning, going back, ending ---------------------------------------------------------------------------

    def _start(self) -> None:
        """Take up the run: put right what a killed process left, load a checkpoint, begin an attempt.

        A loop that was left and is entered again goes on with the weights it has.
        """
        first = self.agreement.rank == 0
        goes_on = self.attempt > 0

        def look() -> Beginning:
            self._hold = startup.Hold(self.run)
            startup.clean(self.run)
            if goes_on:
                return startup.go_on(self.run)
            digest = self.sampler.curriculum.catalog.digest
            return startup.find_beginning(self.run, self.ring, digest, resume=self._resume)

        beginning = self.agreement.on_first(look)
        for event, message in beginning.messages if first else ():
            self.alerts.send(event, message, step=beginning.checkpoint_step)
        self.begin(beginning)
        fresh = self.ring is not None and self.step == 0
        if fresh and self.checkpoints is not None and self.checkpoints.at_start and self._last_saved < 0:
            self._save()

    def begin(self, beginning: Beginning) -> None:
        """Load the checkpoint an attempt begins with, if any, put exclusions in force, and begin the attempt."""
        if beginning.checkpoint_step is not None:
            assert self.ring is not None
            self.load_state_dict(self.ring.load(beginning.checkpoint_step), rollback=self.attempt > 0)
            self._last_saved = beginning.checkpoint_step
        self.attempt = beginning.attempt
        self.response.restore(beginning)
        self.agreement.on_first(lambda: self._begin_attempt(beginning))

    def _begin_attempt(self, beginning: Beginning) -> None:
        if self._ledger is not None:
            self._ledger.close()
        start = Attempt(
            attempt=beginning.attempt,
            started_at=time.time(),
            after_step=self.step,
            checkpoint_step=beginning.checkpoint_step,
            why=beginning.why,
            incident=beginning.incident,
            curriculum=str(self.sampler.curriculum.catalog.path),
            digest=self.sampler.curriculum.catalog.digest,
            sampler=self.sampler.state_dict(),
            world_size=self.agreement.world_size,
        )
        begin_attempt(self.run, start)
        exclusions = self.sampler.exclusions
        self._logged = (exclusions.version, frozenset(exclusions.hashes), frozenset(exclusions.ranges))
        self._ledger = LedgerWriter(self.run, beginning.attempt, fsync=self._fsync)
        if self.response.released:
            # What an incident excludes and a person took back: the audit must know of it.
            self._ledger.change(ExclusionChange(self.step, None, released=self.response.released))
        self.run.resume_plan.unlink(missing_ok=True)

    def _roll_back(self) -> None:
        """Go back to the checkpoint of the plan, which is on file; quarantine, ledger and budgets stay as they are."""
        if self.policy.rollback == "exit":
            self.close()
            raise SystemExit(startup.EXIT_RESUME)
        ring = self.ring
        assert ring is not None
        digest = self.sampler.curriculum.catalog.digest
        self.begin(
            self.agreement.on_first(lambda: startup.find_beginning(self.run, ring, digest, resume=True))
        )

    def _finish(self) -> None:
        self.response.finish()
        if self.ring is not None and self.response.may_save and self.step > self._last_saved:
            self._save()
        if self._ledger is not None:
            self._ledger.sync()

    def _save_if_due(self) -> None:
        if self.ring is None or self.checkpoints is None:
            return
        due = self.step // self.checkpoints.every > max(0, self._last_saved) // self.checkpoints.every
        if due and self.response.may_save:
            self._save()

    def _save(self) -> None:
        assert self.ring is not None
        if self._broken is not None or self.agreement.world_size > 1:
            self.agreement.raise_first(self._broken, "writing the ledger")
        if self._ledger is not None:
            self._ledger.sync()  # no checkpoint is ever ahead of the ledger, also after a power cut
        self.ring.save(self.step, self.attempt, self.state_dict())
        self._last_saved = self.step
        self.ring.tidy(self.step, self.attempt, self.response.healthy_since, self.policy.promote_after)

    def change_exclusions(self, change: ExclusionChange) -> None:
        """Leave samples and slots out from now on, or take them back; on file before the next line is."""
        self.sampler.quarantine(change.quarantined)
        self.sampler.release(change.released)
        for first, last in change.unskipped:
            self.sampler.unskip(first, last)
        for first, last in change.skipped:
            self.sampler.skip(first, last)
        self._log_exclusions(change.incident)

    def _log_exclusions(self, incident: int | None = None) -> None:
        """Write down how what is left out has changed, whoever changed it: the loop may tell the sampler as well."""
        exclusions = self.sampler.exclusions
        if exclusions.version == self._logged[0]:
            return
        _, hashes, ranges = self._logged
        self._logged = (exclusions.version, frozenset(exclusions.hashes), frozenset(exclusions.ranges))
        change = ExclusionChange(
            after_step=self.step,
            incident=incident,
            quarantined=sorted(one.hex() for one in self._logged[1] - hashes),
            released=sorted(one.hex() for one in hashes - self._logged[1]),
            skipped=sorted(self._logged[2] - ranges),
            unskipped=sorted(ranges - self._logged[2]),
        )
        if self._ledger is not None and (self._logged[1:] != (hashes, ranges)):
            self._ledger.change(change)

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the guard's own state as values JSON can hold, the same on every rank; taking it changes nothing.

        Checkpoints hold it already. A loop that saves by other means keeps it with its weights.
        """
        return {
            "format": STATE_FORMAT,
            "step": self.step,
            "sampler": self.sampler.state_dict(),
            "watch": self.watch.state_dict(),
            "healthy_since": self.response.healthy_since,
        }

    def load_state_dict(self, state: dict[str, Any], *, rollback: bool = False) -> None:
        """Take up a state; before `steps` is called.

        Args:
            state: What `state_dict` returned.
            rollback: Keep what is excluded now; else what the state excludes comes to it.
        """
        if state.get("format") != STATE_FORMAT:
            raise TrainingError(
                one_line(
                    "not a state of a guard", "load_state_dict", str(state.get("format")), str(STATE_FORMAT)
                )
            )
        self.sampler.load_state_dict(state["sampler"], keep_exclusions=rollback)
        self.watch.load_state_dict(state["watch"])
        self.step = state["step"]
        self.response.healthy_since = state["healthy_since"]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _must_be(argument: str, value: Any, kind: type, *, optional: bool = False) -> None:
    if not isinstance(value, kind) and not (optional and value is None):
        got, expected = type(value).__name__, f"a {kind.__name__}" + (" or None" if optional else "")
        raise MisuseError(one_line("wrong argument of TrainingGuard", argument, got, expected))


def _part(checkpoints: Checkpoints | None, name: str) -> Any:
    return None if checkpoints is None else getattr(checkpoints, name)
