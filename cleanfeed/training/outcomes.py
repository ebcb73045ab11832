"""An incident and those before it go in; what to do now, and what became of the earlier ones, comes out.

Nothing is blamed for good on one sign alone. Three experiments decide, and each is one the run makes anyway:

- *the step not taken*: a sick batch is skipped with the weights unharmed. If the batches after it are healthy, it was
  to blame; if as many others in a row are sick too, the state is.
- *the run without the suspects*: after a rollback they are left out. If the spike comes back near the same place, they
  were innocent and are released: state, not data.
- *the run with the suspects*: after a rollback that excluded nothing. If the same place is sick again on restored
  weights, the data are to blame after all.

A fourth is in the batch itself, where the loop tells the losses of single samples: if a few stand far out and the rest
are as healthy as ever, the weights are sound. Such a batch near an earlier place is another part of the same pocket.

Places are compared by slot, which a rollback does not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cleanfeed.runs.records import Action, Incident, Outcome
from cleanfeed.training.metrics import Verdict
from cleanfeed.training.policy import LADDER, Policy

STATE_RULES = frozenset({"stall", "scale_drops", "val_variance"})
"""Rules that no single batch can be behind: the learning rate is lowered at once, by the last factor."""
BACK: frozenset[str] = frozenset({"rollback", "lower_lr"})
"""Answers that load a checkpoint."""
MOST_AHEAD = 1 << 12


@dataclass(frozen=True, slots=True)
class Situation:
    """Where the run stands when an incident opens or goes on."""

    verdict: Verdict
    """The verdict that asks for an answer: ``opened`` or ``escalated``."""
    rule: str
    """Rule the incident was opened by."""
    first_slot: int
    """Slot of the onset step."""
    last_slot: int
    """Slot of this step."""
    safe_checkpoints: int | None
    """Usable safe checkpoints before the onset; None where the run keeps none at all."""
    stands_out: bool = False
    """Whether a batch or sample stands out from its like: evidence against data, see `cleanfeed.training.suspects`."""
    named: bool = False
    """Whether single samples are named in every sick batch while the rest of it is as healthy as before: the weights
    are sound then, and what comes next to an earlier place is more of the same data."""
    steps_since_rollback: int | None = None
    """Steps since the last rollback; None where there was none."""
    over_budget: bool = False
    """Whether excluding the suspects would exceed ``max_excluded``."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What became of an incident."""

    incident_id: int
    outcome: Outcome
    why: str
    release: bool = False
    """Whether its samples and skip ranges are taken back."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do about an incident now."""

    action: Action
    why: str
    exclude: bool = False
    """Whether the suspects are left out from now on; False also takes back what this incident excluded before."""
    proven: bool = False
    """Whether batches without named samples are quarantined when they are left out by a rollback, and not only
    skipped in this run: that needs an experiment which tells them from a sick state."""
    depth: int = 0
    """Which safe checkpoint to go back to: 1 the newest, 2 the one before; 0 none. The oldest where there are fewer."""
    lr_factor: float = 1.0
    """Factor on the scheduled learning rate from now on, in place of any before."""
    ahead: int = 0
    """Slots after this step that are left out as well, whatever the evidence."""
    outcome: Outcome = "open"
    """What may be said of this incident already."""
    rulings: tuple[Ruling, ...] = ()
    """What it says about earlier incidents."""


def judge(policy: Policy, situation: Situation, history: Sequence[Incident]) -> Judgement:
    """Return what to do about an incident.

    Args:
        policy: Actions allowed, budgets and distances.
        situation: Where the run stands.
        history: Incidents of the run, the oldest first, without the one at hand; with its ``actions`` if it escalates.

    Returns:
        The judgement: an action the policy allows. Rollbacks beyond ``max_rollbacks``, a budget of excluded data that
        is used up, and no checkpoint to go back to where one is needed end in ``halt``.
    """
    before = _same_place(policy, situation, history)
    wanted = _wanted(policy, situation, history, before)
    used = sum(1 for incident in history for action in incident.actions if action.get("action") in BACK)
    if wanted.action in BACK and used >= policy.max_rollbacks:
        wanted = _halted(wanted, f"{_plural(used)} used up and it is sick again: suspect {_whom(situation)}")
    elif wanted.exclude and situation.over_budget:
        wanted = _halted(wanted, f"no more samples may be excluded: suspect {_whom(situation)}")
    elif wanted.action in BACK and not situation.safe_checkpoints:
        wanted = _nowhere(situation, wanted)
    return _allowed(policy, wanted)


def settle(
    policy: Policy,
    incident: Incident,
    *,
    slot: int,
    verdict: Verdict,
    ended: bool = False,
    interrupted: bool = False,
    again: int | None = None,
) -> Ruling | None:
    """Return what became of an incident that is ``open``, once enough steps have passed; None before that.

    Args:
        policy: How many healthy steps are enough.
        incident: An open incident.
        slot: Slot of the step that has just been committed.
        verdict: Verdict on it. ``closed`` and ``level_shift`` say how this incident ended, whatever else is open.
        ended: Whether training ends here, or the watch will not tell of its end.
        interrupted: Whether other weights were loaded before it was judged.
        again: A later incident near its place.
    """
    number, excluded = incident.incident_id, bool(incident.skip_ranges or _excluded(incident))
    if incident.outcome == "open" and interrupted and again is not None and not excluded:
        return Ruling(
            number, "did_not_help", f"its place was sick again on other weights: see incident {again}"
        )
    if incident.outcome != "open" or (verdict.state == "incident" and not verdict.closed):
        return None
    if verdict.closed and verdict.level_shift:
        return Ruling(number, "state_not_data", "the new level has become the baseline", release=True)
    past = slot - _place(incident)[1]
    if _last_action(incident) not in BACK:
        if not verdict.closed and not (ended and past > 0):
            return None
        if incident.action == "skip_step" and excluded:
            which = (
                "without its named samples, on weights loaded anew"
                if interrupted
                else "with the same weights"
            )
            return Ruling(number, "helped", f"the batches after it were healthy {which}")
        if incident.action == "skip_step" and interrupted:
            why = "its batch came again on weights loaded anew, and was healthy"
            return Ruling(number, "state_not_data", why, release=True)
        return Ruling(number, "recovered", "the numbers came back by themselves")
    if past < policy.promote_after and not (ended and past > 0):
        return None
    if not excluded:
        why = f"{past} slots on, nothing excluded: the same batches were healthy on restored weights"
        return Ruling(number, "state_not_data", why)
    return Ruling(number, "helped", f"{past} slots past the place without it, and healthy")


def _wanted(
    policy: Policy, situation: Situation, history: Sequence[Incident], before: Incident | None
) -> Judgement:
    """Return the right answer, before budgets and what the policy allows."""
    verdict = situation.verdict
    lowered = sum(1 for i in history for action in i.actions if action.get("action") == "lower_lr")
    if situation.rule in STATE_RULES:
        factor = min(policy.lr_factors, default=1.0)
        return _lower(factor, 1, f"{situation.rule} speaks of the state, not of a batch")
    if situation.rule == "samples" and not situation.named and not verdict.harmed and not verdict.escalated:
        why = "samples lie far out together, and the others of their batch are not healthy: nobody is left out for it"
        return Judgement("skip_step", why)
    if not verdict.harmed and not verdict.escalated:
        return Judgement(
            "skip_step", "seen before the optimizer took the step: the weights are unharmed", True
        )
    if before is not None and (situation.named or _goes_on(situation, before)):
        return _pocket(policy, situation, history, before, lowered)
    if before is not None:
        return _again(policy, situation, history, before, lowered)
    if situation.named and not verdict.harmed:
        return Judgement(
            "skip_step", "batch after batch, a few samples stand out and the rest are healthy", True
        )
    if verdict.escalated and not verdict.harmed:
        why = f"{verdict.sick_in_row} different batches in a row are sick with unharmed weights: state, not data"
        factor = _factor(policy, lowered)
        return Judgement("rollback", why, depth=1, lr_factor=factor, outcome="state_not_data")
    since = situation.steps_since_rollback
    if since is not None and since <= policy.elsewhere_within and not situation.stands_out:
        why = f"a spike elsewhere {since} steps after a rollback, and nothing stands out in the data"
        return replace(_lower(_next_factor(policy, lowered), 1, why), exclude=True)
    ahead = max(0, policy.skip_batches - (situation.last_slot - situation.first_slot + 1))
    why = f"the optimizer took sick steps from step {verdict.onset_step} on"
    return Judgement("rollback", why, True, depth=1, lr_factor=_factor(policy, lowered), ahead=ahead)


def _pocket(
    policy: Policy, situation: Situation, history: Sequence[Incident], before: Incident, lowered: int
) -> Judgement:
    """Return the answer to more bad samples near the place of an earlier incident, whose suspects stay excluded."""
    why = (
        f"more samples stand out near the place of incident {before.incident_id}, and the rest are healthy"
        if situation.named
        else f"its place was healthy without the samples of incident {before.incident_id}, and the next is sick"
    )
    if not situation.verdict.harmed:
        return Judgement("skip_step", why, True)
    ahead = _ahead(policy, situation, history)
    return Judgement(
        "rollback", why, True, proven=True, depth=1, lr_factor=_factor(policy, lowered), ahead=ahead
    )


def _goes_on(situation: Situation, before: Incident) -> bool:
    """Return whether the run came past the place of an incident whose samples were named, and is sick only after it.

    That place was healthy without them, so they were to blame; a batch of nothing but bad samples may follow, in which
    none can stand out.
    """
    return _was_named(before) and situation.first_slot > _place(before)[1]


def _ahead(policy: Policy, situation: Situation, history: Sequence[Incident]) -> int:
    """Return how many slots after this step are left out unseen: twice as many each time the place is sick again."""
    times = sum(1 for incident in history if _near(policy, situation, incident))
    width = situation.last_slot - situation.first_slot + 1
    return max(policy.skip_batches, min(width << times, MOST_AHEAD))


def undecided(incident: Incident) -> bool:
    """Return whether an incident's batches were left out on one sign, and it is not judged.

    The experiment is the steps after it with the same weights. Where it is cut short, by a halt or by loading other
    weights, the batches are suspected and no more; samples that were named stand out whatever follows.
    """
    open_yet = incident.outcome == "open" and _last_action(incident) not in BACK
    return open_yet and not _was_named(incident) and bool(_excluded(incident))


def _was_named(incident: Incident) -> bool:
    return any(action.get("named") for action in incident.actions)


def _again(
    policy: Policy, situation: Situation, history: Sequence[Incident], before: Incident, lowered: int
) -> Judgement:
    """Return the answer to a spike near the place of an earlier incident."""
    number = before.incident_id
    times = sum(1 for incident in history if _near(policy, situation, incident))
    excluded = bool(before.skip_ranges or _excluded(before))
    if not excluded and _last_action(before) == "rollback":
        # The control with the suspects: the same batches on restored weights.
        ahead = _ahead(policy, situation, history)
        why = f"the place of incident {number} is sick again on restored weights: the data are to blame"
        ruling = Ruling(number, "did_not_help", "the rollback alone did not help; the data are to blame")
        back = Judgement("rollback", why, True, depth=1, lr_factor=_factor(policy, lowered), ahead=ahead)
        return replace(back, proven=True, rulings=(ruling,))
    if excluded:
        why = f"the spike of incident {number} came back without its suspects: they were innocent; state, not data"
        ruling = Ruling(
            number, "did_not_help", "the spike came back without the blamed batches", release=True
        )
    else:
        why = f"the spike of incident {number} came back at a lower learning rate"
        ruling = Ruling(number, "did_not_help", "the spike came back at the lower learning rate")
    if lowered >= len(policy.lr_factors):
        return Judgement("halt", why, outcome="halted", rulings=(ruling,))
    return replace(_lower(_next_factor(policy, lowered), 2**times, why), rulings=(ruling,))


def _lower(factor: float, depth: int, why: str) -> Judgement:
    return Judgement("lower_lr", why, depth=depth, lr_factor=factor, outcome="state_not_data")


def _factor(policy: Policy, lowered: int) -> float:
    """Return the factor in force after the rate was lowered so many times."""
    return (
        policy.lr_factors[min(lowered, len(policy.lr_factors)) - 1] if lowered and policy.lr_factors else 1.0
    )


def _next_factor(policy: Policy, lowered: int) -> float:
    return _factor(policy, min(lowered + 1, len(policy.lr_factors)))


def _halted(wanted: Judgement, why: str) -> Judgement:
    """Return a halt for one reason; what was wanted has reasons of its own, which may say otherwise."""
    return replace(wanted, action="halt", why=why, exclude=False, depth=0, ahead=0, outcome="halted")


def _plural(rollbacks: int) -> str:
    return "1 rollback is" if rollbacks == 1 else f"{rollbacks} rollbacks are"


def _whom(situation: Situation) -> str:
    """Return the one suspect of a halt: data only where single samples are named and the rest is healthy."""
    return "the data, not the state" if situation.named else "the state, not the data"


def _nowhere(situation: Situation, wanted: Judgement) -> Judgement:
    """Return the answer where there is no checkpoint to go back to."""
    hopeless = situation.rule == "nonfinite" and situation.verdict.escalated
    if situation.safe_checkpoints is None and not hopeless:
        why = f"{wanted.why}; the run keeps no checkpoints, so it goes on"
        return replace(wanted, action="record", why=why, depth=0, lr_factor=1.0, outcome="open")
    return _halted(wanted, f"{situation.rule} fired, and there is no safe checkpoint to go back to")


def _allowed(policy: Policy, wanted: Judgement) -> Judgement:
    """Return the answer the policy allows: the wanted one, else the next stronger, else a record."""
    for action in LADDER[LADDER.index(wanted.action) :]:
        if not policy.allows(action) or (action == "lower_lr" and not policy.lr_factors):
            continue
        if action == wanted.action:
            return wanted
        why = f"{wanted.why}; the policy does not allow {wanted.action}"
        if action == "halt":
            return _halted(wanted, why)
        factor = policy.lr_factors[0] if action == "lower_lr" else wanted.lr_factor
        return replace(wanted, action=action, why=why, depth=max(1, wanted.depth), lr_factor=factor)
    why = f"{wanted.why}; the policy allows no answer"
    outcome: Outcome = "open" if wanted.outcome == "halted" else wanted.outcome  # nothing stops
    return replace(
        wanted, action="record", why=why, exclude=False, depth=0, ahead=0, lr_factor=1.0, outcome=outcome
    )


def _same_place(policy: Policy, situation: Situation, history: Sequence[Incident]) -> Incident | None:
    """Return the last incident near this place that was answered by a rollback and not yet found wrong."""
    for incident in reversed(history):
        judged = incident.outcome in ("did_not_help", "halted")
        if not judged and _last_action(incident) in BACK and _near(policy, situation, incident):
            return incident
    return None


def _near(policy: Policy, situation: Situation, incident: Incident) -> bool:
    return _meet(policy, (situation.first_slot, situation.last_slot), _place(incident))


def next_near(policy: Policy, incident: Incident, incidents: Sequence[Incident]) -> int | None:
    """Return the number of the first later incident near the place of one, if there is any."""
    place = _place(incident)
    later = (one for one in incidents if one.incident_id > incident.incident_id)
    return next((one.incident_id for one in later if _meet(policy, place, _place(one))), None)


def _meet(policy: Policy, one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] + policy.margin and one[1] >= other[0] - policy.margin


def _place(incident: Incident) -> tuple[int, int]:
    """Return the first and last slot an incident is about."""
    slots = [line.slot for line in incident.metrics if _inside(incident, line.attempt, line.step)]
    slots += [s.slot for s in incident.suspects]
    for skipped in incident.skip_ranges:
        slots += [skipped.first_slot, skipped.last_slot]
    return (min(slots), max(slots)) if slots else (incident.onset_step - 1, incident.trip_step - 1)


def _inside(incident: Incident, attempt: int, step: int) -> bool:
    return attempt == incident.attempt and incident.onset_step <= step <= incident.trip_step


def _excluded(incident: Incident) -> list[str]:
    return [sample.sample_hash for sample in incident.samples if sample.state == "quarantined"]


def _last_action(incident: Incident) -> str:
    return str(incident.actions[-1].get("action")) if incident.actions else incident.action
