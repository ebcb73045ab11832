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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from cleanfeed.curriculum.durable import ASIDE_SUFFIX, write_bytes
from cleanfeed.errors import BusyError, CheckpointError, MisuseError, TrainingError, one_line
from cleanfeed.runs.incident_files import read_incidents
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import next_attempt, read_attempts
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
    messages: list[str] = field(default_factory=list)


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

    @property
    def lost(self) -> bool:
        """Whether another guard of this process has taken over, or it was released."""
        return self._held.get(self._path) is not self

    def release(self) -> None:
        """Let go; doing so twice is allowed."""
        if not self.lost:
            del self._held[self._path]
            os.close(self._handle)


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
    attempt = next_attempt(run)
    plan = read_plan(run) or _planned(run)
    if plan is not None and any(start.attempt > plan.attempt for start in starts):
        plan = None  # it was followed, and the process killed before the plan was removed
    if not resume:
        run.resume_plan.unlink(missing_ok=True)
        return Beginning(attempt, "start", None)
    if ring is None:
        return Beginning(attempt, "resume" if starts else "start", None)
    if plan is not None:
        return _rollback(ring, plan, attempt)
    step, messages = ring.newest()
    for message in messages:
        log.warning("checkpoint passed over: %s", message)
    if step is None and run.checkpoint_steps():
        raise CheckpointError(
            one_line(
                "none of the checkpoints can be used",
                str(run.checkpoints),
                "; ".join(messages),
                todo="Restore one, or begin anew with resume=False.",
            )
        )
    return Beginning(attempt, "resume" if starts else "start", step, None, messages)


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
    return Beginning(attempt, "rollback", step, plan.incident, why)


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
