"""The incidents of a run and its quarantine go in; what is left out, and at which rate is trained, comes out.

Both outlive every rollback and every process: they are read anew from the files whenever an attempt begins.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cleanfeed.errors import CleanfeedError
from cleanfeed.quarantine.store import Quarantine
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_attempts
from cleanfeed.runs.records import Incident
from cleanfeed.training.outcomes import BACK

log = logging.getLogger("cleanfeed.training")


@dataclass(slots=True)
class InForce:
    """What holds whatever checkpoint is loaded."""

    incidents: list[Incident] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    """Samples of incidents that are trained, whatever was held of them before."""
    skipped: list[tuple[int, int]] = field(default_factory=list)
    lr_factor: float = 1.0
    rolled_back_to: int | None = None
    """Step the last rollback went back to."""


def read_in_force(run: RunDir, store: Path, incidents: list[Incident], anew: int | None = None) -> InForce:
    """Return what is in force; for rank 0 alone.

    What a run that began anew has left behind holds no longer, except that quarantined samples stay so.

    Args:
        run: The run directory.
        store: The quarantine, which may know decisions by hand and those of other runs.
        incidents: Of the run, by number.
        anew: The attempt that begins anew now, if one does.
    """
    states = sample_states(incidents) | _in_store(store)
    starts = read_attempts(run)
    begun = [one.attempt for one in starts if one.why == "start"]
    first = anew if anew is not None else max(begun, default=0)
    own = [one for one in incidents if one.attempt >= first]
    back = [one.after_step for one in starts if one.why == "rollback" and one.attempt >= first]
    return InForce(
        incidents=own,
        quarantined=sorted(one for one, state in states.items() if state == "quarantined"),
        released=sorted(one for one, state in states.items() if state != "quarantined"),
        skipped=[(skip.first_slot, skip.last_slot) for one in own for skip in one.skip_ranges],
        lr_factor=lr_factor(own),
        rolled_back_to=back[-1] if back else None,
    )


def _in_store(store: Path) -> dict[str, str]:
    """Return the state of each sample of a store; without decisions by hand it says what the incidents say."""
    quarantine = Quarantine(store, on_note=log.warning)
    try:
        rows = quarantine.rows("samples") if quarantine.exists() else []
    except CleanfeedError as error:
        log.warning("the store cannot be read, and the files beside it are in force: %s", error)
        rows = quarantine.file_rows("samples")
    return {row["sample_hash"]: row["state"] for row in rows}


def sample_states(incidents: Sequence[Incident]) -> dict[str, str]:
    """Return the state of each sample: what was decided last; of two at the same time, what the later incident says.

    The store decides the same way, so that it and the files of the incidents never tell two stories.
    """
    states: dict[str, tuple[float, str]] = {}
    for incident in incidents:
        for sample in incident.samples:
            at, _ = states.get(sample.sample_hash, (-1.0, ""))
            if sample.decided_at >= at:
                states[sample.sample_hash] = (sample.decided_at, sample.state)
    return {one: state for one, (_, state) in states.items()}


def lr_factor(incidents: Sequence[Incident]) -> float:
    """Return the factor on the scheduled learning rate: what the last answer that says one says."""
    told = [
        (float(action["at"]), float(action["lr_factor"]))
        for incident in incidents
        for action in incident.actions
        if action.get("action") in BACK and "lr_factor" in action
    ]
    return max(told)[1] if told else 1.0
