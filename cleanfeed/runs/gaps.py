"""The ledger and the checkpoints of a run go in; the steps that no line of the ledger stands for come out.

The guard syncs the ledger before a checkpoint is complete, so no checkpoint is ahead of it unless files of the ledger
were removed, cut or taken from an older copy. What such steps trained nobody can prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cleanfeed.errors import LedgerError, one_line
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import last_surviving, survives
from cleanfeed.runs.records import Attempt

Gap = tuple[int, int]
"""First and last step, both included."""
TAIL_BYTES = 1 << 16
"""End of a ledger file that is read for its last line."""


class Saved(msgspec.Struct, frozen=True):
    """What the record of a checkpoint says of when it was saved."""

    step: int
    attempt: int


class _LastLine(msgspec.Struct, frozen=True):
    step: int


def saved_states(run: RunDir) -> list[Saved]:
    """Return when each checkpoint whose record can be read was saved, by step."""
    found = []
    for step in run.checkpoint_steps():
        try:
            found.append(msgspec.json.decode(run.checkpoint_record(step).read_bytes(), type=Saved))
        except (OSError, msgspec.MsgspecError):
            continue
    return found


def newest_saved(run: RunDir, starts: Sequence[Attempt]) -> Saved | None:
    """Return the newest checkpoint that no later attempt undid; None where there is none."""
    alive = [saved for saved in saved_states(run) if survives(starts, saved.attempt, saved.step)]
    return max(alive, key=lambda saved: saved.step, default=None)


def last_step(path: Path) -> int | None:
    """Return the step of the last whole line of an attempt's ledger; None where there is none.

    Raises:
        LedgerError: That line cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            wanted = TAIL_BYTES
            while True:
                file.seek(max(0, size - wanted))
                lines = file.read().rpartition(b"\n")[0].split(b"\n")
                if len(lines) > 1 or wanted >= size:
                    break
                wanted *= 16
    except FileNotFoundError:
        return None
    if not lines[-1]:
        return None
    try:
        return msgspec.json.decode(lines[-1], type=_LastLine).step
    except msgspec.MsgspecError as error:
        raise LedgerError(
            one_line("a line of the ledger cannot be read", str(path), str(error), todo="Restore the file.")
        ) from error


def missing_steps(run: RunDir, starts: Sequence[Attempt], upto: int = 0) -> list[Gap]:
    """Return the steps of the surviving lineage that the ledger ends before, or begins after.

    Args:
        run: The run directory.
        starts: How each attempt began, ascending.
        upto: Steps that are known to have been done, as a checkpoint says; the last attempt alone may know fewer.
    """
    gaps: list[Gap] = []
    limits = last_surviving(starts)
    held = 0
    for start in starts:
        if limits[start.attempt] < start.after_step:
            continue  # a later attempt undid all of it
        if start.after_step > held:
            gaps.append((held + 1, start.after_step))
        last = last_step(run.attempt_lines(start.attempt)) or start.after_step
        held = max(start.after_step, int(min(last, limits[start.attempt])))
    return [*gaps, (held + 1, upto)] if upto > held else gaps


def last_surviving_step(run: RunDir, starts: Sequence[Attempt]) -> int:
    """Return the last step of the surviving lineage, as far as the ledger knows; 0 where nothing was trained."""
    limits = last_surviving(starts)
    ends = (
        min(last_step(run.attempt_lines(start.attempt)) or start.after_step, limits[start.attempt])
        for start in starts
    )
    return int(max(ends, default=0))


def say_steps(gaps: Sequence[Gap]) -> str:
    """Return steps in words: ``step 3``, ``steps 3 to 7 and 9``."""
    parts = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in gaps]
    several = len(parts) > 1 or any(first != last for first, last in gaps)
    return f"{'steps' if several else 'step'} {' and '.join(parts)}"
