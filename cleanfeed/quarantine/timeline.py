"""An incident goes in; what happened one after the other, and the numbers of the rule that fired, come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cleanfeed.quarantine.model import Fired, Moment
from cleanfeed.runs.records import Attempt, Incident

_NUMBERS = ("value", "limit", "median", "scale", "z")


def fired_of(incident: Incident) -> Fired:
    """Return the rule that fired with its numbers, wherever the detector put them."""
    flat = _flat(incident.detail)
    rest = {
        name: value
        for name, value in flat.items()
        if name not in (*_NUMBERS, "n", "context", "signal", "rule", "step", "onset_step", "level")
    }
    n, signal, context = _number(flat.get("n")), flat.get("signal"), flat.get("context")
    numbers = {name: _number(flat.get(name)) for name in _NUMBERS}
    return Fired(
        rule=incident.rule,
        signal=None if signal is None else str(signal),
        n=None if n is None else int(n),
        context=None if context is None else str(context),
        others=rest,
        **numbers,
    )


def _flat(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a trip and of its baseline beside each other; the outer ones stand."""
    flat: dict[str, Any] = {}
    for name, value in detail.items():
        if name in ("detail", "baseline") and isinstance(value, Mapping):
            flat = {**_flat(value), **flat}
        else:
            flat[name] = value
    return flat


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def timeline_of(incident: Incident, attempts: Sequence[Attempt]) -> list[Moment]:
    """Return what happened, in the order of time; what has no time stands by its step.

    The guard's own events are told where there are any, else the actions it took.
    """
    times = {line.step: line.time for line in incident.metrics if line.attempt == incident.attempt}
    opened = int(_number(incident.detail.get("step")) or incident.trip_step)
    moments = [
        Moment(
            times.get(incident.onset_step), incident.onset_step, "onset: the leading signal left its band"
        ),
        Moment(
            incident.opened_at, opened, f"{incident.rule.replace('_', ' ')} fired: the incident was opened"
        ),
    ]
    moments += [Moment(event.at, event.step, event.what.replace("_", " ", 1)) for event in incident.events]
    if not incident.events:
        moments += [_action(action, incident.trip_step) for action in incident.actions]
    moments += [
        Moment(
            start.started_at,
            start.after_step,
            f"attempt {start.attempt} went on after step {start.after_step}"
            + (
                f", from the checkpoint of step {start.checkpoint_step}"
                if start.checkpoint_step is not None
                else ""
            ),
        )
        for start in attempts
        if start.incident == incident.incident_id
    ]
    told = any(event.what.startswith(incident.outcome) for event in incident.events)
    if incident.closed_at is not None and not told:
        why = f": {incident.outcome_why}" if incident.outcome_why else ""
        outcome = incident.outcome.replace("_", " ")
        moments.append(Moment(incident.closed_at, incident.trip_step, f"{outcome}{why}"))
    return sorted(moments, key=lambda moment: moment.at if moment.at is not None else incident.opened_at)


def _action(action: Mapping[str, Any], step: int) -> Moment:
    words = str(action.get("action", "?")).replace("_", " ")
    why = action.get("why")
    at = _number(action.get("at"))
    return Moment(at, int(action.get("step", step)), words + (f": {why}" if why else ""))
