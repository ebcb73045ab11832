"""The log of a finished run and a policy go in; what the watch would have found in it comes out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from cleanfeed.training.logs import Log
from cleanfeed.training.metrics import Metrics, Trip, Verdict
from cleanfeed.training.policy import Policy
from cleanfeed.training.watch import Watch

OWN = frozenset({"step", "loss", "grad_norm", "worst_micro_loss", "stage"})
MOST_RESTARTS = 1000
"""Times a log may go back; each keeps one state of the watch."""


@dataclass(slots=True)
class Found:
    """An incident the watch would have opened."""

    onset_step: int
    trip_step: int
    rule: str
    last_step: int
    """Last sick step of it."""
    trips: list[Trip] = field(default_factory=list)
    """Each rule with the first step it fired at."""
    escalated: bool = False
    """Whether not stepping would not have ended it."""
    level_shift: bool = False
    """Whether its level became the baseline."""


@dataclass(slots=True)
class Backtest:
    """What the watch would have found in a log."""

    steps: int
    """Lines judged."""
    first_step: int
    last_step: int
    stride: int
    """Steps between two lines; where there is more than one, windows and distances of the policy count lines."""
    restarts: int
    """Times the steps went back; the watch was then put back to what it knew at that step."""
    in_grace: int = 0
    """Lines in the grace, and below those of a stage whose baseline did not speak yet: of these only NaN and Inf are
    judged."""
    in_new_context: int = 0
    not_finite: int = 0
    """Lines whose loss or gradient norm is NaN or infinite."""
    incidents: list[Found] = field(default_factory=list)
    observations: list[Trip] = field(default_factory=list)
    """Outliers of no incident, or before one."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as values JSON can hold."""
        return {
            "steps": self.steps,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "stride": self.stride,
            "restarts": self.restarts,
            "in_grace": self.in_grace,
            "in_new_context": self.in_new_context,
            "not_finite": self.not_finite,
            "incidents": [
                {
                    "onset_step": found.onset_step,
                    "trip_step": found.trip_step,
                    "rule": found.rule,
                    "last_step": found.last_step,
                    "escalated": found.escalated,
                    "level_shift": found.level_shift,
                    "trips": [trip.to_dict() for trip in found.trips],
                }
                for found in self.incidents
            ],
            "observations": [trip.to_dict() for trip in self.observations],
        }


def backtest(log: Log, policy: Policy) -> Backtest:
    """Judge every step of a log as if it were training, with every step taken whatever the verdict.

    Args:
        log: At least one row with ``step`` and ``loss``.
        policy: What to judge by.
    """
    steps = [row["step"] for row in log.rows]
    stride = _stride(steps)
    back = _restarts(steps)
    result = Backtest(len(steps), min(steps), max(steps), stride, len(back))
    keep = set(back.values()) if len(back) <= MOST_RESTARTS else set()
    states: dict[int, dict[str, Any]] = {}
    watch = Watch(policy)
    for index, row in enumerate(log.rows):
        if index in back:
            state = states.get(back[index])
            watch = Watch(policy)
            if state is not None:
                watch.load_state_dict(state)
        metrics = _metrics(row, stride)
        verdict = watch.update(metrics)
        if not metrics.is_finite:
            result.not_finite += 1
        elif watch.seen <= policy.grace:
            result.in_grace += 1
        elif "loss" not in verdict.z:
            result.in_new_context += 1
        if verdict.trips or verdict.escalated or verdict.level_shift:
            _note(result, verdict, row["step"], stride)
        if index in keep:
            states[index] = watch.state_dict()
    return result


def _note(result: Backtest, verdict: Verdict, step: int, stride: int) -> None:
    """Enter the trips of a step."""
    trips = [_in_steps(trip, step, stride) for trip in verdict.trips]
    onset = step - (verdict.step - (verdict.onset_step or verdict.step)) * stride
    if verdict.opened and verdict.lead is not None:
        result.incidents.append(Found(onset, step, verdict.lead.rule, step))
    if verdict.state != "incident" and not verdict.opened:
        result.observations += trips
        return
    found = result.incidents[-1]
    found.last_step = step if verdict.sick_in_row else found.last_step
    found.escalated = found.escalated or verdict.escalated
    found.level_shift = found.level_shift or bool(verdict.level_shift)
    known = {_kind(trip) for trip in found.trips}
    found.trips += [trip for trip in trips if _kind(trip) not in known]


def _kind(trip: Trip) -> tuple[str, str]:
    """Return what makes a trip another one for the list: a conjunction is of both signals, whichever came last."""
    return trip.rule, "" if trip.rule == "conjunction" else trip.signal


def _in_steps(trip: Trip, step: int, stride: int) -> Trip:
    """Return a trip that counted lines with the steps of the log."""
    onset = step - (trip.step - trip.onset_step) * stride
    return Trip(trip.rule, trip.signal, step, onset, trip.value, trip.limit, trip.z, trip.level, trip.detail)


def _metrics(row: dict[str, Any], stride: int) -> Metrics:
    return Metrics(
        step=row["step"] // stride,
        loss=row["loss"],
        grad_norm=row.get("grad_norm"),
        context=row.get("stage", ""),
        worst_micro_loss=row.get("worst_micro_loss"),
        extra={key: value for key, value in row.items() if key not in OWN},
    )


def _stride(steps: list[int]) -> int:
    """Return the commonest distance between two lines."""
    distances = Counter(b - a for a, b in pairwise(steps) if b > a)
    return distances.most_common(1)[0][0] if distances else 1


def _restarts(steps: list[int]) -> dict[int, int]:
    """Return, for each row at which the steps go back, the row whose state the run went on from; -1 for none."""
    found: dict[int, int] = {}
    for index in range(1, len(steps)):
        if steps[index] > steps[index - 1]:
            continue
        before = index - 1
        while before >= 0 and steps[before] >= steps[index]:
            before -= 1
        found[index] = before
    return found
