"""What is done about an incident, and what is said of those before it: the three experiments, budgets, the ladder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from cleanfeed.runs.records import Action, Incident, Outcome, SkipRange, SuspectSample
from cleanfeed.training.metrics import Verdict
from cleanfeed.training.outcomes import Judgement, Ruling, Situation, judge, settle, undecided
from cleanfeed.training.policy import Policy
from cleanfeed.training.watch import Watch
from tests.training.traces import healthy

POLICY = Policy(margin=20, promote_after=50)
OPENED = Verdict(301, "incident", accept=False, opened=True, onset_step=301, sick_in_row=1)
HARMED = structs.replace(OPENED, harmed=True, onset_step=299)
ESCALATED = structs.replace(OPENED, opened=False, escalated=True, sick_in_row=5)
HEALTHY = Verdict(400, "healthy", accept=True)


def at(verdict: Verdict, slot: int = 300, rule: str = "conjunction", **more: Any) -> Situation:
    return Situation(verdict, rule, slot, slot, **{"safe_checkpoints": 3, **more})


def incident(
    number: int, slot: int, *actions: Action, excluded: bool = True, outcome: Outcome = "open"
) -> Incident:
    """Return an incident at a slot, with its batch quarantined or nothing excluded."""
    sample = SuspectSample("ab" * 16, "d", "s", 0, "quarantined", "", "guard", 0.0)
    return Incident(
        incident_id=number,
        opened_at=0.0,
        attempt=1,
        epoch=0,
        onset_step=slot + 1,
        trip_step=slot + 1,
        rule="conjunction",
        detail={},
        policy={},
        action=actions[-1],
        actions=[{"action": action} for action in actions],
        samples=[sample] if excluded else [],
        skip_ranges=[SkipRange(1, 0, slot, slot)] if excluded else [],
        outcome=outcome,
    )


def short(judgement: Judgement) -> tuple[str, bool, int, float]:
    return judgement.action, judgement.exclude, judgement.depth, judgement.lr_factor


# ---- the first answer ----------------------------------------------------------------------------------------------


def test_a_spike_seen_before_the_step_is_skipped_and_its_batch_left_out() -> None:
    judgement = judge(POLICY, at(OPENED), [])
    assert short(judgement) == ("skip_step", True, 0, 1.0)
    assert judgement.outcome == "open"


def test_damage_that_shows_later_is_rolled_back_without_the_suspects() -> None:
    assert short(judge(POLICY, at(HARMED), [])) == ("rollback", True, 1, 1.0)


def test_a_fixed_window_of_batches_can_be_left_out() -> None:
    assert judge(replace(POLICY, skip_batches=200), at(HARMED), []).ahead == 199


def test_many_sick_batches_in_a_row_on_unharmed_weights_blame_the_state() -> None:
    judgement = judge(POLICY, at(ESCALATED), [incident(1, 300, "skip_step")])
    assert short(judgement) == ("rollback", False, 1, 1.0)
    assert judgement.outcome == "state_not_data"


@pytest.mark.parametrize("rule", ["stall", "scale_drops", "val_variance"])
def test_a_rule_about_the_state_lowers_the_rate_and_blames_no_data(rule: str) -> None:
    judgement = judge(POLICY, at(HARMED, rule=rule), [])
    assert short(judgement) == ("lower_lr", False, 1, 0.1)
    assert judgement.outcome == "state_not_data"


# ---- what comes back -----------------------------------------------------------------------------------------------


def test_the_same_spike_without_its_suspects_releases_them_and_lowers_the_rate() -> None:
    judgement = judge(POLICY, at(HARMED, slot=305), [incident(1, 300, "rollback")])
    assert short(judgement) == ("lower_lr", False, 2, 0.5)
    why = "the spike came back without the blamed batches"
    assert judgement.rulings == (Ruling(1, "did_not_help", why, release=True),)


def test_the_rate_is_lowered_again_from_an_older_checkpoint_and_then_training_halts() -> None:
    history = [
        incident(1, 300, "rollback", outcome="did_not_help"),
        incident(2, 305, "lower_lr", excluded=False, outcome="state_not_data"),
    ]
    assert short(judge(POLICY, at(HARMED, slot=303), history)) == ("lower_lr", False, 4, 0.1)
    history.append(incident(3, 303, "lower_lr", excluded=False, outcome="state_not_data"))
    generous = replace(POLICY, max_rollbacks=9)
    judgement = judge(generous, at(HARMED, slot=303), history)
    assert (judgement.action, judgement.outcome) == ("halt", "halted")
    assert [ruling.incident_id for ruling in judgement.rulings] == [3]


def test_the_same_place_sick_again_on_restored_weights_blames_the_data_after_all() -> None:
    history = [incident(1, 300, "skip_step", "rollback", excluded=False, outcome="state_not_data")]
    judgement = judge(POLICY, at(ESCALATED, slot=300), history)
    assert short(judgement) == ("rollback", True, 1, 1.0)
    assert judgement.ahead == 2
    assert [(ruling.outcome, ruling.release) for ruling in judgement.rulings] == [("did_not_help", False)]


def test_a_new_spike_near_an_old_one_is_first_skipped_and_says_nothing_of_it() -> None:
    judgement = judge(POLICY, at(OPENED, slot=305), [incident(1, 300, "rollback")])
    assert (short(judgement), judgement.rulings) == (("skip_step", True, 0, 1.0), ())


def test_a_pocket_of_bad_samples_is_left_out_piece_by_piece_and_nothing_is_released() -> None:
    first = incident(1, 300, "rollback")
    judgement = judge(POLICY, at(HARMED, slot=302, named=True), [first])
    assert (short(judgement), judgement.ahead, judgement.rulings) == (("rollback", True, 1, 1.0), 2, ())
    history = [first, incident(2, 302, "rollback")]
    judgement = judge(POLICY, at(HARMED, slot=305, named=True), history)
    assert (short(judgement), judgement.ahead, judgement.rulings) == (("rollback", True, 1, 1.0), 4, ())


def test_a_batch_of_nothing_but_bad_samples_after_a_place_that_was_healed_is_more_of_the_pocket() -> None:
    first = incident(1, 300, "rollback")
    first.actions[0]["named"] = True
    judgement = judge(POLICY, at(HARMED, slot=302), [first])
    assert (short(judgement), judgement.ahead, judgement.rulings) == (("rollback", True, 1, 1.0), 2, ())
    assert short(judge(POLICY, at(HARMED, slot=300), [first])) == ("lower_lr", False, 2, 0.5)


def test_a_row_of_batches_with_named_samples_and_healthy_rest_is_skipped_and_blames_the_data() -> None:
    judgement = judge(POLICY, at(ESCALATED, named=True), [incident(1, 300, "skip_step")])
    assert (short(judgement), judgement.outcome) == (("skip_step", True, 0, 1.0), "open")


def test_a_spike_elsewhere_soon_after_is_the_state_unless_a_batch_stands_out() -> None:
    history = [incident(1, 300, "rollback")]
    elsewhere = at(HARMED, slot=600, steps_since_rollback=310)
    judgement = judge(POLICY, elsewhere, history)
    assert (short(judgement), judgement.rulings) == (("lower_lr", True, 1, 0.5), ())
    assert short(judge(POLICY, replace(elsewhere, stands_out=True), history)) == ("rollback", True, 1, 1.0)
    assert short(judge(POLICY, replace(elsewhere, steps_since_rollback=2000), history))[0] == "rollback"


def test_a_lowered_rate_stays_lowered_over_a_later_rollback() -> None:
    history = [incident(1, 100, "lower_lr", excluded=False, outcome="state_not_data")]
    assert short(judge(POLICY, at(HARMED, slot=5000), history)) == ("rollback", True, 1, 0.5)


# ---- budgets and what is allowed -----------------------------------------------------------------------------------


def test_rollbacks_beyond_the_budget_halt() -> None:
    history = [incident(n, 1000 * n, "rollback", outcome="helped") for n in (1, 2, 3)]
    judgement = judge(POLICY, at(HARMED, slot=9000), history)
    assert short(judgement) == ("halt", False, 0, 1.0)
    assert "3 rollbacks are used up" in judgement.why


def test_a_used_up_budget_of_data_halts() -> None:
    assert judge(POLICY, at(OPENED, over_budget=True), []).action == "halt"
    assert judge(POLICY, at(ESCALATED, over_budget=True), []).action == "rollback"


@pytest.mark.parametrize(
    ("kept", "verdict", "rule", "action"),
    [
        (0, HARMED, "conjunction", "halt"),
        (None, HARMED, "conjunction", "record"),
        (None, ESCALATED, "nonfinite", "halt"),
        (0, OPENED, "conjunction", "skip_step"),
    ],
)
def test_without_a_checkpoint_it_halts_or_goes_on_where_none_are_kept(
    kept: int | None, verdict: Verdict, rule: str, action: str
) -> None:
    assert judge(POLICY, at(verdict, rule=rule, safe_checkpoints=kept), []).action == action


@pytest.mark.parametrize(
    ("actions", "verdict", "action"),
    [
        (("record",), OPENED, "record"),
        (("record",), HARMED, "record"),
        (("rollback",), OPENED, "rollback"),
        (("skip_step",), HARMED, "record"),
        (("skip_step", "halt"), HARMED, "halt"),
        (("lower_lr",), HARMED, "lower_lr"),
    ],
)
def test_an_answer_that_is_not_allowed_becomes_the_next_stronger_one(
    actions: tuple[Action, ...], verdict: Verdict, action: str
) -> None:
    judgement = judge(replace(POLICY, actions=actions), at(verdict), [])
    assert judgement.action == action
    assert judgement.exclude is (action not in ("record", "halt"))


@pytest.mark.parametrize("named", [True, False])
def test_a_halt_names_one_suspect_and_one_reason(named: bool) -> None:
    history = [incident(1, 300, "skip_step", "rollback", excluded=False, outcome="state_not_data")]
    again = judge(replace(POLICY, max_rollbacks=1), at(HARMED, slot=300, named=named), history)
    budget = judge(POLICY, at(OPENED, over_budget=True, named=named), [])
    suspect = "suspect the data, not the state" if named else "suspect the state, not the data"
    assert again.why == f"1 rollback is used up and it is sick again: {suspect}"
    assert budget.why == f"no more samples may be excluded: {suspect}"


def test_samples_far_out_in_a_batch_that_is_not_healthy_otherwise_are_left_out_by_nobody() -> None:
    judgement = judge(POLICY, at(OPENED, rule="samples"), [])
    assert short(judgement) == ("skip_step", False, 0, 1.0)
    assert judge(POLICY, at(OPENED, rule="samples", named=True), []).exclude


# ---- what became of it ---------------------------------------------------------------------------------------------


def test_a_skipped_batch_was_to_blame_when_those_after_it_are_healthy() -> None:
    skipped = incident(1, 300, "skip_step")
    assert settle(POLICY, skipped, slot=305, verdict=HEALTHY) is None
    ruling = settle(POLICY, skipped, slot=311, verdict=structs.replace(HEALTHY, closed=True))
    assert ruling is not None
    assert (ruling.outcome, ruling.release) == ("helped", False)


def test_a_recorded_incident_that_ended_has_recovered() -> None:
    recorded = incident(1, 300, "record", excluded=False)
    ruling = settle(POLICY, recorded, slot=311, verdict=structs.replace(HEALTHY, closed=True))
    assert ruling is not None
    assert ruling.outcome == "recovered"


def test_a_rollback_has_helped_when_enough_healthy_steps_lie_past_the_place() -> None:
    back = incident(1, 300, "rollback")
    assert settle(POLICY, back, slot=349, verdict=HEALTHY) is None
    ruling = settle(POLICY, back, slot=350, verdict=HEALTHY)
    assert ruling == Ruling(1, "helped", "50 slots past the place without it, and healthy")
    sick = structs.replace(HEALTHY, state="incident")
    assert settle(POLICY, back, slot=400, verdict=sick) is None


def test_a_rollback_without_exclusions_that_stays_healthy_shows_it_was_the_state() -> None:
    ruling = settle(POLICY, incident(1, 300, "rollback", excluded=False), slot=350, verdict=HEALTHY)
    assert ruling is not None
    assert ruling.outcome == "state_not_data"


def test_the_end_of_training_settles_what_is_past() -> None:
    back = incident(1, 300, "rollback")
    assert settle(POLICY, back, slot=300, verdict=HEALTHY, ended=True) is None
    ruling = settle(POLICY, back, slot=310, verdict=HEALTHY, ended=True)
    assert ruling is not None
    assert ruling.outcome == "helped"


def test_an_incident_that_the_watch_ends_with_a_level_shift_releases_what_was_blamed() -> None:
    watch = Watch(Policy(grace=64, window=64))
    steps = [structs.replace(one, loss=one.loss + 1.0) if one.step > 300 else one for one in healthy(340)]
    (shifted,) = [verdict for verdict in map(watch.update, steps) if verdict.level_shift]
    ruling = settle(POLICY, incident(1, 300, "skip_step"), slot=shifted.step - 1, verdict=shifted)
    assert ruling == Ruling(1, "state_not_data", "the new level has become the baseline", release=True)
    # A rollback that is on probation beside it is told nothing of that end, and not judged on such a step.
    told = structs.replace(shifted, closed=False, level_shift=())
    assert settle(POLICY, incident(2, 200, "rollback"), slot=shifted.step - 1, verdict=told) is None


def test_an_incident_whose_experiment_was_cut_short_is_not_said_to_have_helped() -> None:
    """Other weights were loaded: its batch is suspected, comes again, and is judged by that."""
    cut = incident(1, 300, "skip_step")
    assert undecided(cut)
    cut.samples = [structs.replace(sample, state="suspected") for sample in cut.samples]
    cut.skip_ranges = []
    assert not undecided(cut)
    ruling = settle(POLICY, cut, slot=311, verdict=HEALTHY, ended=True, interrupted=True)
    why = "its batch came again on weights loaded anew, and was healthy"
    assert ruling == Ruling(1, "state_not_data", why, release=True)
    ruling = settle(POLICY, cut, slot=302, verdict=HEALTHY, interrupted=True, again=2)
    assert ruling is not None
    assert (ruling.outcome, ruling.release) == ("did_not_help", False)


def test_named_samples_stay_out_when_other_weights_are_loaded() -> None:
    named = incident(1, 300, "skip_step")
    named.actions[0]["named"] = True
    assert not undecided(named)
    ruling = settle(POLICY, named, slot=311, verdict=HEALTHY, ended=True, interrupted=True)
    assert ruling is not None
    assert (ruling.outcome, ruling.release) == ("helped", False)


def test_what_is_settled_is_not_settled_again() -> None:
    done = incident(1, 300, "rollback", outcome="helped")
    assert settle(POLICY, done, slot=900, verdict=HEALTHY) is None


def test_a_policy_that_only_records_never_calls_a_run_halted() -> None:
    recorder = replace(POLICY, actions=("record",))
    judgement = judge(recorder, at(OPENED, over_budget=True), [])
    assert (judgement.action, judgement.outcome, judgement.exclude) == ("record", "open", False)
