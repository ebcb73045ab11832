"""A sampler, a loader and a policy go in; steps come out, each recorded, judged and, where need be, undone."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from cleanfeed.errors import CheckpointError, MisuseError, TrainingError, one_line
from cleanfeed.feed.sampler import CurriculumSampler
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import LedgerWriter, begin_attempt
from cleanfeed.runs.records import Attempt, ExclusionChange, LedgerLine
from cleanfeed.training import startup
from cleanfeed.training.agreement import Agreement
from cleanfeed.training.alerts import Alerts, Target
from cleanfeed.training.arguments import check_dataset, check_loader, check_ranks, check_settings, must_be
from cleanfeed.training.checkpoints import CheckpointRing, Checkpoints
from cleanfeed.training.delivery import Delivery
from cleanfeed.training.learning_rate import LearningRate
from cleanfeed.training.left_out import LeftOut
from cleanfeed.training.metrics import Metrics, Verdict
from cleanfeed.training.numbers import Numbers, combine
from cleanfeed.training.policy import Policy
from cleanfeed.training.response import Response
from cleanfeed.training.startup import Beginning
from cleanfeed.training.steps import Step
from cleanfeed.training.watch import Watch

STATE_FORMAT = 1
log = logging.getLogger("cleanfeed.training")


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
            ``Checkpoints.of``. A function that returns the scheduled rate is asked for what is recorded.
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
        must_be("sampler", sampler, CurriculumSampler)
        must_be("policy", policy, Policy, optional=True)
        must_be("checkpoints", checkpoints, Checkpoints, optional=True)
        check_settings(run_dir, optimizer, scaler, quarantine, resume=resume, fsync=fsync)
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
        self._delivery = Delivery(self.agreement, sampler)
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
        self._told_missed = False
        self._last_saved = -1
        self._left_out = LeftOut(sampler)

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
        check_loader(loader)
        check_dataset(getattr(loader, "dataset", None), self.sampler)
        self.lr.attach()
        try:
            self._start()
            yield from self._loop(loader)
        finally:
            self.lr.detach()
            self._delivery.end()
            self.close()

    def _loop(self, loader: Iterable[Any]) -> Iterator[Step]:
        while True:
            self._delivery.begin(loader)
            version = self.sampler.exclusions.version
            while (slot := self.sampler.next_slot(self.sampler.committed)) is not None:
                self._log_exclusions()
                step = self._next(slot)
                self.lr.hand_over()
                yield step
                self.lr.take_back()
                if not step.committed:
                    raise TrainingError(
                        one_line(
                            "a step was not committed", f"step {step.number}", todo="Call step.commit()."
                        )
                    )
                if self.response.rollback is not None:
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

    def _next(self, slot: int) -> Step:
        found = self._delivery.next(slot)
        assert found.due is not None
        assert found.shares is not None
        return Step(self, self.step + 1, found.due, found.batches, found.ids, found.shares)

    def _slot_after(self, step: Step) -> int | None:
        """Return the slot whose batches are taken before the present step is decided; None for none.

        Never across a checkpoint: what a collator draws at random for the next slot is drawn after that is saved.
        """
        if self.agreement.world_size == 1 or self._due(step.number):
            return None
        return self.sampler.next_slot(step.slot + 1)

    # ---- one step ------------------------------------------------------------------------------------------------

    def decide(
        self,
        step: Step,
        losses: list[float],
        grad_norm: float | None,
        extra: dict[str, float],
        samples: list[float],
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
            samples,
            scaled=scaled,
            failed=self.agreement.broken is not None,
            carry=self._delivery.look_ahead(self._slot_after(step)),
        )
        if numbers.failed:
            self.agreement.all_well()
        self._delivery.told(numbers.carried)
        step.numbers = numbers
        self._verdict = self._judge(step, numbers)
        accepted = self._verdict.accept and not numbers.overflow
        self.lr.expect(accepted)
        return accepted

    def _judge(self, step: Step, numbers: Numbers) -> Verdict:
        if numbers.empty and numbers.finite:
            return self.watch.pass_over(step.number)
        return self.watch.update(
            Metrics(
                step=step.number,
                loss=numbers.loss,
                grad_norm=numbers.grad_norm,
                context=step.due.context,
                worst_micro_loss=numbers.worst_micro_loss,
                finite=numbers.finite,
                extra={**numbers.extra, **numbers.samples} if numbers.samples else numbers.extra,
            )
        )

    def commit(self, step: Step) -> None:
        """Record a step and act on what was found; called by `Step.commit`."""
        assert self._verdict is not None
        step.lr = self.lr.done()
        if step.accepted and self.lr.missed:
            self._missed(step)
        line = self._line(step)
        self.agreement.alone(self._write, line)
        self.step = step.number
        self.sampler.commit(step.slot)
        self.response.after(step, line, self._verdict)
        if self.response.rollback is None:
            self._save_if_due()
        self.lr.hand_over()

    def _write(self, line: LedgerLine) -> None:
        """Put a line on file; rank 0 alone has the ledger."""
        if self._hold is not None and self._hold.lost:
            raise TrainingError(
                one_line("another guard of this process took over", str(self.run.root), todo="Use that one.")
            )
        if self._ledger is not None:
            self._ledger.write(line)

    def _missed(self, step: Step) -> None:
        """Take a step for not accepted which was, and which no optimizer has taken."""
        step.accepted = False
        # A scaler that found an overflow which the norm did not show does so by itself.
        if not self._scaled and not self._told_missed:
            self._told_missed = True
            log.warning(
                "step %d was accepted and no optimizer stepped: the ledger calls such steps not accepted. Call "
                "optimizer.step() once for each step that is accepted, or give the guard the scaler that left it out.",
                step.number,
            )

    def _line(self, step: Step) -> LedgerLine:
        numbers = step.numbers
        assert numbers is not None
        assert self._verdict is not None
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
            judged=not numbers.finite or (self.watch.seen > self.policy.grace and "loss" in self._verdict.z),
            metrics={name: _finite(value) for name, value in {**step.metrics, **numbers.samples}.items()},
        )

    # ---- beginning, going back, ending ---------------------------------------------------------------------------

    def _start(self) -> None:
        """Take up the run: put right what a killed process left, load a checkpoint, begin an attempt.

        A loop that was left and is entered again goes on with the weights it has, unless a rollback is due.
        """
        first = self.agreement.rank == 0
        goes_on = self.attempt > 0
        self.agreement.broken = None
        self.agreement.alone(check_ranks, self.sampler, self.agreement)
        self.agreement.all_well()

        def look() -> Beginning:
            self._hold = startup.Hold(self.run)
            startup.clean(self.run)
            if goes_on:
                return startup.go_on(self.run, self.ring)
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
        self.agreement.alone(self.response.restore, beginning)
        self.agreement.all_well()
        self._left_out.on_file()
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
        self._sync()

    def _save_if_due(self) -> None:
        if self._due(self.step) and self.response.may_save:
            self._save()

    def _due(self, step: int) -> bool:
        """Return whether a checkpoint is to be saved after a step, if all is well."""
        if self.checkpoints is None:
            return False
        return step // self.checkpoints.every > max(0, self._last_saved) // self.checkpoints.every

    def _save(self) -> None:
        assert self.ring is not None
        self._sync()  # no checkpoint is ever ahead of the ledger, also after a power cut
        self.ring.save(self.step, self.attempt, self.state_dict())
        self._last_saved = self.step
        self.agreement.on_first(self._tidy)

    def _tidy(self) -> None:
        assert self.ring is not None
        try:
            self.ring.tidy(
                self.step,
                self.attempt,
                self.response.healthy_since,
                self.policy.promote_after,
                doubt=self.watch.doubt(self.step),
                reach=self.policy.reach,
            )
        except OSError as error:
            raise CheckpointError(
                one_line(
                    "old checkpoints cannot be marked or removed",
                    str(self.run.checkpoints),
                    error.strerror or str(error),
                    todo="Make room or give rights and start again: the newest one is complete.",
                )
            ) from error

    def _sync(self) -> None:
        """Wait until every line is on disk, and stop all ranks where one of them cannot go on."""
        self.agreement.alone(lambda: self._ledger.sync() if self._ledger is not None else None)
        self.agreement.all_well()

    def change_exclusions(self, change: ExclusionChange) -> None:
        """Leave samples and slots out from now on, or take them back; on file before the next line is."""
        self.agreement.alone(self._left_out.change, change)
        self.agreement.all_well()
        self._log_exclusions(change.incident)

    def _log_exclusions(self, incident: int | None = None) -> None:
        """Write down how what is left out has changed, whoever changed it."""
        change, ledger = self._left_out.unwritten(self.step, incident), self._ledger
        if change is not None and ledger is not None:
            self.agreement.alone(ledger.change, change)

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

        Raises:
            TrainingError: It is none; nothing has changed then.
            ResumeError: It is of another run.
        """
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        if found != STATE_FORMAT:
            raise _no_state(f"format {found}", f"format {STATE_FORMAT}")
        watch = Watch(self.policy)
        try:
            step, healthy_since, ours = int(state["step"]), int(state["healthy_since"]), state["sampler"]
            watch.load_state_dict(state["watch"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise _no_state(f"{type(error).__name__}: {error}", "what state_dict returned") from error
        self.sampler.load_state_dict(ours, keep_exclusions=rollback)
        self.watch, self.step, self.response.healthy_since = watch, step, healthy_since


def _no_state(got: str, expected: str) -> TrainingError:
    return TrainingError(one_line("not a state of a guard", "load_state_dict", got, expected))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _part(checkpoints: Checkpoints | None, name: str) -> Any:
    return None if checkpoints is None else getattr(checkpoints, name)
