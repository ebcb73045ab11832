"""What holds whatever checkpoint is loaded: the last word on each sample."""

from __future__ import annotations

from cleanfeed.runs.records import Incident, State, SuspectSample
from cleanfeed.training.inforce import sample_states


def incident(number: int, state: State, at: float) -> Incident:
    sample = SuspectSample("ab" * 16, "d", "s", 0, state, "", "guard", at)
    return Incident(
        incident_id=number,
        opened_at=0.0,
        attempt=1,
        epoch=0,
        onset_step=1,
        trip_step=1,
        rule="conjunction",
        detail={},
        policy={},
        action="skip_step",
        samples=[sample],
    )


def test_the_last_decision_holds_and_of_two_at_once_that_of_the_later_incident() -> None:
    name = "ab" * 16
    assert sample_states([incident(1, "quarantined", 5.0), incident(2, "released", 4.0)]) == {
        name: "quarantined"
    }
    assert sample_states([incident(1, "quarantined", 5.0), incident(2, "released", 5.0)]) == {
        name: "released"
    }
    assert sample_states([incident(1, "released", 5.0), incident(2, "quarantined", 5.0)]) == {
        name: "quarantined"
    }
