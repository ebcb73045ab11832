"""Who is blamed: the onset before the peak, the culprit and not its neighbours, nobody for a sick state."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cleanfeed.runs.records import LedgerLine
from cleanfeed.training.policy import Policy
from cleanfeed.training.suspects import CAP, Culprits, culprits, level_of, rank, stands_out
from tests.training.traces import BLOOM_176B, quantiles

POLICY = Policy(pre=3)


def line(
    step: int, loss: float | None = 2.0, worst: float | None = 2.1, norm: float | None = 0.5
) -> LedgerLine:
    return LedgerLine(
        attempt=1,
        step=step,
        epoch=0,
        slot=step - 1,
        stage=0,
        batch_hash=f"{step:032x}",
        samples=8,
        tokens=80,
        loss=loss,
        worst_micro_loss=worst,
        grad_norm=norm,
        lr=None,
        time=0.0,
        finite=loss is not None and norm is not None,
    )


def around(**sick: LedgerLine) -> list[LedgerLine]:
    lines = [
        line(step, 2.0 + 0.02 * q, 2.1 + 0.02 * q, 0.5 * math.exp(0.1 * q))
        for step, q in enumerate(quantiles(100, 2), 1)
    ]
    for one in sick.values():
        lines[one.step - 1] = one
    return lines


def test_suspects_reach_from_before_the_onset_to_the_trip() -> None:
    found = rank(around(), 90, 92, POLICY)
    assert sorted(suspect.step for suspect in found) == [87, 88, 89, 90, 91, 92]
    assert [suspect.slot for suspect in found] == [suspect.step - 1 for suspect in found]


def test_the_worst_micro_batch_tells_what_the_mean_hides() -> None:
    found = rank(around(a=line(90, 2.03, 4.0)), 90, 92, POLICY)
    assert found[0].step == 90
    assert found[0].evidence["worst_micro_z"] == pytest.approx(93, abs=15)
    assert found[0].score == found[0].evidence["worst_micro_z"]


def test_static_signals_of_the_documents_are_evidence() -> None:
    found = rank(around(), 90, 92, POLICY, static={88: 40.0})
    assert (found[0].slot, found[0].score, found[0].evidence["signals"]) == (88, 40.0, 40.0)


def test_a_batch_of_nan_counts_as_much_as_evidence_can() -> None:
    found = rank(around(b=line(90, None, None, None)), 90, 90, POLICY)
    assert (found[0].step, found[0].score) == (90, CAP)


def test_what_follows_a_sick_step_that_was_taken_ranks_behind_it() -> None:
    taken, broken = line(89, 9.0), line(90, None, None, None)
    assert [s.step for s in rank(around(a=taken, b=broken), 89, 90, POLICY)[:2]] == [89, 90]
    vetoed = structs.replace(taken, accepted=False)
    assert [s.step for s in rank(around(a=vetoed, b=broken), 89, 90, POLICY)[:2]] == [90, 89]


def test_on_bloom_the_onset_is_among_the_first_though_the_peak_came_later() -> None:
    lines = [
        line(m.step, m.loss, m.loss, m.grad_norm) for m in [*BLOOM_176B.before(64), *BLOOM_176B.printed()[:3]]
    ]
    found = rank(lines, 31215, 31216, POLICY)
    assert {suspect.step for suspect in found[:2]} == {31215, 31216}
    assert all(suspect.score >= POLICY.z_observe for suspect in found[:2])


def test_without_healthy_steps_there_are_suspects_and_no_scores() -> None:
    found = rank([line(1), line(2)], 1, 2, POLICY)
    assert [(s.step, s.score) for s in found] == [(1, 0.0), (2, 0.0)]
    assert found[0].evidence == {"loss_z": None, "worst_micro_z": None, "grad_z": None, "signals": None}
    assert rank([], 1, 2, POLICY) == []


def test_one_clear_batch_stands_out_and_a_sick_row_does_not() -> None:
    assert stands_out(rank(around(a=line(90, 9.0)), 90, 91, POLICY), POLICY)
    sick = {f"s{step}": line(step, 4.0, 4.1, 5.0) for step in range(85, 96)}
    assert not stands_out(rank(around(**sick), 88, 95, POLICY), POLICY)
    assert not stands_out(rank(around(), 90, 92, POLICY), POLICY)
    assert not stands_out([], POLICY)


# ---- inside a batch ------------------------------------------------------------------------------------------------

USUAL = [3.0 + 0.5 * q for q in quantiles(64, 8)]


def test_the_culprits_of_a_batch_are_named_the_worst_first() -> None:
    losses = [3.0 + 0.5 * q for q in quantiles(16, 9)]
    losses[3], losses[11] = 9.0, 12.0
    found = culprits(losses, USUAL)
    assert (found.rows, found.uniform) == ((11, 3), False)
    assert found.z[3] >= 6.0


def test_a_healthy_batch_has_no_culprits() -> None:
    assert culprits([3.0 + 0.5 * q for q in quantiles(16, 9)], USUAL).rows == ()


def test_a_batch_of_unlike_documents_has_none_where_such_are_usual() -> None:
    usual = [1.0, 1.1, 1.2, 5.0, 5.1, 5.2] * 8
    assert culprits([1.0, 1.1, 1.2, 1.1, 1.0, 5.1], usual).rows == ()


def test_where_all_samples_are_far_off_it_says_so() -> None:
    found = culprits([9.0 + 0.1 * q for q in quantiles(16, 9)], USUAL)
    assert found.uniform
    assert len(found.rows) == 16


def test_samples_stand_out_only_where_the_rest_of_their_batch_is_healthy() -> None:
    """Of weights that are off, some samples suffer most: they are not to blame."""
    losses = [4.3 + 0.5 * q for q in quantiles(16, 9)]
    losses[3] = 6.5
    found = culprits(losses, USUAL)
    assert (found.rows, found.uniform) == ((3,), True)


def test_more_than_half_of_a_batch_can_stand_out() -> None:
    losses = [3.0 + 0.5 * q for q in quantiles(16, 9)]
    for row in range(10):
        losses[row] = 9.0 + row
    found = culprits(losses, USUAL)
    assert (set(found.rows), found.uniform) == (set(range(10)), False)


def test_samples_a_detector_points_at_are_named_though_each_alone_would_pass() -> None:
    losses = [3.0 + 0.5 * q for q in quantiles(16, 9)]
    losses[3] = losses[7] = losses[8] = 4.8
    assert culprits(losses, USUAL).rows == ()
    assert culprits(losses, USUAL, highest=3).rows == (3, 7, 8)
    losses[3] = losses[7] = 0.1
    assert culprits(losses, USUAL, lowest=2).rows == (3, 7)
    assert culprits([3.0 + 0.5 * q for q in quantiles(16, 9)], USUAL, highest=3, lowest=2).rows == ()


def test_without_a_past_the_batch_alone_decides() -> None:
    assert culprits([2.0, 2.1, 2.2, 1.9, 2.0, 2.1, 30.0]).rows == (6,)
    assert culprits([2.0, 9.0]).rows == ()


def test_a_loss_that_is_not_finite_stands_out_unless_all_are() -> None:
    assert culprits([2.0, 2.1, math.nan, 2.2], USUAL).rows == (2,)
    assert culprits([math.nan, math.inf], USUAL) == Culprits((), {}, True)
    assert culprits([], USUAL) == Culprits((), {}, False)


def test_planted_culprits_are_found_in_nearly_every_batch() -> None:
    rng = random.Random(4)
    right = wrong = missed = 0
    for _ in range(200):
        usual = [rng.gauss(3.0, 0.6) for _ in range(64)]
        losses = [rng.gauss(3.0, 0.6) for _ in range(16)]
        planted = set(rng.sample(range(16), rng.randint(1, 4)))
        for row in planted:
            losses[row] = rng.uniform(8.0, 14.0)
        named = set(culprits(losses, usual).rows)
        right, wrong, missed = (
            right + len(named & planted),
            wrong + len(named - planted),
            missed + len(planted - named),
        )
    assert wrong == 0
    assert right / (right + missed) >= 0.95


@given(st.lists(st.floats(0, 20), max_size=20), st.lists(st.floats(0, 20), max_size=20), st.randoms())
def test_the_order_of_the_samples_does_not_matter(
    losses: list[float], usual: list[float], rng: random.Random
) -> None:
    order = list(range(len(losses)))
    rng.shuffle(order)
    named = {losses[row] for row in culprits(losses, usual).rows}
    moved = [losses[row] for row in order]
    assert {moved[row] for row in culprits(moved, usual).rows} == named


def test_a_level_needs_four_values() -> None:
    assert level_of([1.0, None, math.nan, 2.0, 3.0]) is None
    found = level_of([1.0, 2.0, 3.0, 4.0], floor=5.0)
    assert found is not None
    assert (found.median, found.scale, found.z(12.5), found.z(None)) == (2.5, 5.0, 2.0, None)
