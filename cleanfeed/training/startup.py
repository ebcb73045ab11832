"""What a run directory holds goes in; where this process goes on, and what is left out from now on, come out.

Rank 0 alone looks. Everything a killed process may have left half-done is put right here, so that it does not matter
between which two writes it was killed.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from cleanfeed.curriculum.durable import ASIDE_SUFFIX, write_bytes
from cleanfeed.errors import BusyError, CheckpointError, MisuseError, TrainingError, one_line
from cleanfeed.runs.gaps import last_surviving_step, missing_steps, saved_states, say_steps
from cleanfeed.runs.incident_files import read_incidents
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import next_attempt, read_attempts
from cleanfeed.runs.records import Attempt
from cleanfeed.training import checkpoint_files as files
from cleanfeed.training.checkpoints import CheckpointRing

LOCK_NAME = "training.lock"
EXIT_RESUME = 75
"""Exit code that says: start the same command again, a rollback is planned (EX_TEMPFAIL of sysexits.h)."""
log = logging.getLogger("cleanfeed.training")


class ResumePlan(msgspec.Struct, frozen=True):
    """``resume.json``: the rollback that was decided and is not done yet."""

    incident: int
    attempt: int
    """Attempt that decided it; once a later one has begun, the plan is done."""
    onset_step: int
    margin: int
    depth: int
    checkpoint_step: int
    decided_at: float


@dataclass(frozen=True, slots=True)
class Beginning:
    """How the next attempt begins."""

    attempt: int
    why: Literal["start", "resume", "rollback"]
    checkpoint_step: int | None
    incident: int | None = None
    messages: list[tuple[str, str]] = field(default_factory=list)
    """What must be said aloud: ``checkpoint`` or ``ledger``, and a sentence."""


class Hold:
    """The right of one guard to be the only one in a run directory; the kernel lets go of it at the process's end.

    A guard that is made later in the same process takes over, as after an exception that left the first one's loop: the
    first one may not go on then.

    Raises:
        BusyError: Another process trains in the directory.
    """

    _held: ClassVar[dict[Path, Hold]] = {}

    def __init__(self, run: RunDir) -> None:
        run.root.mkdir(parents=True, exist_ok=True)
        self._path = run.root.resolve() / LOCK_NAME
        before = self._held.get(self._path)
        if before is not None:
            before.release()
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            raise BusyError(
                one_line(
                    "another process trains in the run directory",
                    str(run.root),
                    _holder(self._path),
                    "no other process",
                    "Wait for it, or give another run_dir.",
                )
            ) from error
        os.truncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        self._held[self._path] = self
        self.lost = False
        """Whether another guard of this process has taken over, or it was released."""

    def release(self) -> None:
        """Let go; doing so twice is allowed."""
        if not self.lost:
            self.lost = True
            del self._held[self._path]
            os.close(self._handle)

    @classmethod
    def let_go_in_child(cls) -> None:
        """Hold nothing in a process forked off: a worker of a loader would keep the lock when its run is killed."""
        for hold in cls._held.values():
            hold.lost = True
            os.close(hold._handle)
        cls._held.clear()


os.register_at_fork(after_in_child=Hold.let_go_in_child)


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError):
        who = json.loads(path.read_text())
        return f"process {who['pid']} on {who['host']}"
    return "another process"


def write_plan(run: RunDir, plan: ResumePlan) -> None:
    """Leave the plan of a rollback, before any of it is done."""
    write_bytes(run.resume_plan, msgspec.json.format(msgspec.json.encode(plan)) + b"\n")


def read_plan(run: RunDir) -> ResumePlan | None:
    """Return the rollback that is still to be done, or None.

    Raises:
        TrainingError: There is a plan that cannot be read.
    """
    try:
        plan = msgspec.json.decode(run.resume_plan.read_bytes(), type=ResumePlan)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise TrainingError(
            one_line(
                "the plan of a rollback cannot be read",
                str(run.resume_plan),
                got=str(error),
                todo="Restore it, or remove it to go on from the newest checkpoint.",
            )
        ) from error
    return plan


def clean(run: RunDir) -> None:
    """Remove what was being written when a process was killed."""
    files.clean(run)
    left = [*run.root.glob("resume.json*" + ASIDE_SUFFIX), *run.ledger.glob("attempt-*" + ASIDE_SUFFIX)]
    for path in left:
        path.unlink()


def find_beginning(run: RunDir, ring: CheckpointRing | None, digest: str, *, resume: bool) -> Beginning:
    """Return where to go on.

    Args:
        run: The run directory.
        ring: Its checkpoints, where the guard has any.
        digest: Of the curriculum.
        resume: Go on from the newest usable checkpoint; else begin anew, which undoes all steps so far.

    Raises:
        MisuseError: The run was on another curriculum.
        CheckpointError: There are checkpoints and none of them can be used.
        LedgerError: The ledger cannot be read.
    """
    starts = read_attempts(run)
    others = [start for start in starts if start.digest != digest]
    if others:
        raise MisuseError(
            one_line(
                "the run was trained on another curriculum",
                str(run.root),
                f"{digest} now",
                f"{others[-1].digest} as in attempt {others[-1].attempt}",
                "Give the curriculum it began with, or another run_dir.",
            )
        )
    if not resume:
        run.resume_plan.unlink(missing_ok=True)
        return Beginning(_next_number(run), "start", None)
    why: Literal["start", "resume"] = "resume" if starts else "start"
    found = Beginning(_next_number(run), why, None)
    if ring is not None:
        found = _from_checkpoint(run, ring, found, starts)
    return replace(found, messages=[*found.messages, *_said_of_the_ledger(run, starts, found, ring)])


def go_on(run: RunDir, ring: CheckpointRing | None = None) -> Beginning:
    """Return how an attempt begins whose loop was left and entered again.

    It goes on with the weights as they are, unless a rollback was decided and not done yet.
    """
    plan = None if ring is None else _due_plan(run, read_attempts(run))
    if ring is None or plan is None:
        return Beginning(_next_number(run), "resume", None)
    return _rollback(ring, plan, _next_number(run))


def _next_number(run: RunDir) -> int:
    """Return a number that no attempt had, also where the files of the ledger are gone."""
    return max([next_attempt(run), *(saved.attempt + 1 for saved in saved_states(run))])


def _from_checkpoint(run: RunDir, ring: CheckpointRing, found: Beginning, starts: list[Attempt]) -> Beginning:
    """Choose the checkpoint: that of a rollback that is still to be done, else the newest usable one."""
    plan = _due_plan(run, starts)
    if plan is not None:
        return _rollback(ring, plan, found.attempt)
    step, passed_over = ring.newest()
    if step is None and run.checkpoint_steps():
        raise CheckpointError(
            one_line(
                "none of the checkpoints can be used",
                str(run.checkpoints),
                "; ".join(passed_over),
                todo="Restore one, or begin anew with resume=False.",
            )
        )
    messages = [("checkpoint", f"checkpoint passed over: {message}") for message in passed_over]
    return replace(
        found, why="resume" if step is not None else found.why, checkpoint_step=step, messages=messages
    )


def _said_of_the_ledger(
    run: RunDir, starts: list[Attempt], found: Beginning, ring: CheckpointRing | None
) -> list[tuple[str, str]]:
    """Return what must be said where ledger and checkpoint do not fit, or where nothing is left to go on from."""
    if found.checkpoint_step is None:
        done = last_surviving_step(run, starts)
        if not done:
            return []
        lack = (
            "the guard was given no checkpoints"
            if ring is None
            else f"there is no checkpoint in {run.checkpoints}"
        )
        text = f"training begins anew at step 1: {lack}. The {done:,} steps in the ledger count as undone."
        return [("checkpoint", text)]
    gaps = missing_steps(run, starts, found.checkpoint_step)
    if not gaps:
        return []
    what = (
        f"the ledger has no line of {say_steps(gaps)}, which checkpoint {found.checkpoint_step:,} holds"
        if starts
        else f"the ledger is gone, and checkpoint {found.checkpoint_step:,} holds {say_steps(gaps)}"
    )
    return [
        (
            "ledger",
            f"{what}: {run.ledger}. Training goes on from the checkpoint, but no audit can prove what these steps "
            "trained. Put the files back beside the new ones if there is a copy, or begin anew with resume=False.",
        )
    ]


def _rollback(ring: CheckpointRing, plan: ResumePlan, attempt: int) -> Beginning:
    """Follow a plan; the checkpoint it names may have been damaged since, then it is chosen anew."""
    step, _, why = ring.before(plan.onset_step, plan.margin, plan.depth)
    if step is None:
        raise CheckpointError(
            one_line(
                "no checkpoint to roll back to",
                str(ring.run.checkpoints),
                "; ".join(why) or "none",
                todo="Restore one, or begin anew with resume=False.",
            )
        )
    return Beginning(attempt, "rollback", step, plan.incident, [("checkpoint", "; ".join(why))])


def _due_plan(run: RunDir, starts: list[Attempt]) -> ResumePlan | None:
    """Return the rollback that was decided and that no later attempt has followed."""
    plan = read_plan(run) or _planned(run)
    begun = [*(start.attempt for start in starts), *(saved.attempt for saved in saved_states(run))]
    return None if plan is None or any(number > plan.attempt for number in begun) else plan


def _planned(run: RunDir) -> ResumePlan | None:
    """Return the rollback the last incident asks for: a process may be killed before it leaves the plan of it.

    An incident that stopped the training asks for the same, for whoever starts it again.
    """
    incidents = read_incidents(run, log.warning)
    last = incidents[-1].actions[-1] if incidents and incidents[-1].actions else {}
    return (
        plan_of(incidents[-1].incident_id, last, incidents[-1].policy["margin"])
        if "attempt" in last
        else None
    )


def plan_of(incident: int, action: dict[str, Any], margin: int) -> ResumePlan:
    """Return the plan that an action of an incident stands for."""
    return ResumePlan(
        incident=incident,
        attempt=action["attempt"],
        onset_step=action["onset_step"],
        margin=margin,
        depth=action["depth"],
        checkpoint_step=action["checkpoint_step"],
        decided_at=action["at"],
    )
