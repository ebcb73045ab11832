"""The sampler gives every rank its part of the same slots, goes on where it was, and leaves out what is excluded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanfeed import Curriculum, CurriculumSampler
from cleanfeed.errors import MisuseError, ResumeError
from cleanfeed.feed.identity import batch_hash
from cleanfeed.feed.sampler import Place, Quarantined
from cleanfeed.feed.samples import FILLER

from .builds import sample_hash, write_build

SIZES = ((25, 3), (1, 5), (0, 4), (40, 4), (1, 1))
SAMPLES = 67
WORLDS = (1, 2, 3, 4, 6, 8, 12)


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory: pytest.TempPathFactory) -> Curriculum:
    return Curriculum(write_build(tmp_path_factory.mktemp("build") / "out", *SIZES, twins=[(2, 60)]))


@pytest.fixture(scope="module")
def make(curriculum: Curriculum) -> Callable[..., CurriculumSampler]:
    """Make samplers of 24 rows a slot on one rank, over two epochs, unless told otherwise."""

    def made(**changes: Any) -> CurriculumSampler:
        options = {"global_batch": 24, "seed": 7, "epochs": 2, "lanes": 24, "rank": 0, "world_size": 1}
        if "batch_tokens" in changes:
            options.pop("global_batch")
        return CurriculumSampler(curriculum, **{**options, **changes})

    return made


Make = Callable[..., CurriculumSampler]


def slots(sampler: CurriculumSampler, count: int | None = None, commit: bool = True) -> list[list[int]]:
    """Train some slots from the committed cursor on, all of them by default, and return their rows on this rank."""
    result: list[list[int]] = []
    batches = iter(sampler)
    while count is None or len(result) < count:
        slot = sampler.next_slot(sampler.issued)
        if slot is None:
            assert next(batches, None) is None
            break
        result.append([row for _ in range(sampler.micro_batches(slot)) for row in next(batches)])
        if commit:
            assert sampler.commit() == slot
    return result


def test_golden_vector_of_state_and_batch_hashes(make: Make) -> None:
    sampler = make(global_batch=8, lanes=4)
    assert [sampler.batch_hash(slot) for slot in (0, 3, 9)] == [
        "7adb57a95b251aec59d61636b719f75b",
        "51206674867d4c1c5c1365dd82a90401",
        "6400093ef0ed8401c8e8abbb7985b97d",
    ]
    slots(sampler, 2)
    sampler.skip(4, 5)
    sampler.quarantine([sample_hash(2)])
    assert sampler.state_dict() == {
        "version": 1,
        "order_version": 1,
        "curriculum": sampler.curriculum.catalog.digest,
        "seed": 7,
        "lanes": 4,
        "global_batch": 8,
        "batch_tokens": None,
        "schedule": "sequential",
        "epochs": 2,
        "drop_last": True,
        "committed": 2,
        "skipped": [[4, 5]],
        "quarantined": {sample_hash(2).hex(): [2, 60]},
    }


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_together_train_the_global_batches(make: Make, world: int, drop_last: bool) -> None:
    whole = make(drop_last=drop_last)
    ranks = [make(drop_last=drop_last, rank=rank, world_size=world) for rank in range(world)]
    parts = [slots(sampler) for sampler in ranks]
    assert {len(part) for part in parts} == {whole.n_slots}
    for slot in range(whole.n_slots):
        together = [row for part in parts for row in part[slot]]
        assert sorted(together) == sorted(whole.slot_rows(slot).tolist())
        assert {len(part[slot]) for part in parts} == {24 // world}
        assert [part[slot] for part in parts] == [
            whole_rank(whole, slot, rank, world) for rank in range(world)
        ]
        assert len({sampler.batch_hash(slot) for sampler in [whole, *ranks]}) == 1


def whole_rank(sampler: CurriculumSampler, slot: int, rank: int, world: int) -> list[int]:
    """Return a rank's rows worked out from the lanes of the positions."""
    first = int(sampler.schedule.block(slot, 1).lanes[0])
    rows = sampler.slot_rows(slot).tolist()
    return [row for index, row in enumerate(rows) if (first + index) % sampler.lanes % world == rank]


@pytest.mark.parametrize("micro", [1, 2, 3, 4, 6, 12, None])
def test_micro_batches_cut_a_rank_s_rows_in_order(make: Make, micro: int | None) -> None:
    sampler = make(micro_batch=micro, world_size=2, rank=1)
    batches = list(sampler)
    size = micro or 12
    assert {len(batch) for batch in batches} == {size}
    assert len(batches) == len(sampler) == sampler.n_slots * 12 // size
    assert sampler.micro_batches(0) == 12 // size
    assert [row for batch in batches for row in batch] == [
        row for slot in range(sampler.n_slots) for row in sampler.rank_rows(slot).tolist()
    ]


@pytest.mark.parametrize("schedule", ["sequential", "blend:30", "cycle:3"])
@pytest.mark.parametrize(
    "size", [{"global_batch": 24}, {"global_batch": 200, "lanes": 8}, {"batch_tokens": 64, "lanes": 2}]
)
def test_each_sample_comes_once_an_epoch(make: Make, schedule: str, size: dict[str, int]) -> None:
    sampler = make(schedule=schedule, drop_last=False, **size)
    rows = [row for batch in sampler for row in batch if row != FILLER]
    assert np.bincount(rows, minlength=SAMPLES).tolist() == [2] * SAMPLES


def test_what_does_not_fill_the_last_slot_is_said_aloud_and_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    sampler = make()
    assert (sampler.dropped, sampler.n_slots, len(sampler)) == (14, 5, 5)
    make(rank=1, world_size=2)
    assert [record.getMessage() for record in caplog.records] == [
        "14 of 134 samples of the run are left out: they do not fill a slot (drop_last=True)"
    ]
    filled = make(drop_last=False)
    assert (filled.dropped, filled.n_slots) == (0, 6)
    assert filled.slot_rows(5).tolist()[-10:] == [FILLER] * 10
    assert len(caplog.records) == 1


@settings(max_examples=60)
@given(
    options=st.sampled_from(
        [
            {},
            {"drop_last": False, "global_batch": 12, "lanes": 12},
            {"schedule": "cycle:2", "global_batch": 6, "lanes": 6},
            {"batch_tokens": 130, "lanes": 4, "drop_last": False},
        ]
    ),
    parts=st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 9)), max_size=4),
)
def test_resumed_anywhere_and_again_on_other_ranks_it_trains_what_one_run_trains(
    make: Make, options: dict[str, Any], parts: list[tuple[int, int]]
) -> None:
    whole = slots(make(**options))
    state, trained = make(**options).state_dict(), []
    for world, count in [*parts, (1, len(whole))]:
        shares = []
        for rank in range(world):
            sampler = make(**options, rank=rank, world_size=world)
            sampler.load_state_dict(json.loads(json.dumps(state)))
            shares.append(slots(sampler, count))
        trained += [sorted(row for share in shares for row in share[at]) for at in range(len(shares[0]))]
        state = sampler.state_dict()
        assert state["committed"] == len(trained)
    assert trained == [sorted(rows) for rows in whole]
    done = make(**options)
    done.load_state_dict(state)
    assert list(done) == []


def test_state_is_of_what_was_committed_however_far_the_loader_ran_ahead(make: Make) -> None:
    sampler = make(global_batch=6, lanes=6, micro_batch=2)
    batches = iter(sampler)
    for _ in range(11):
        next(batches)
    before = sampler.state_dict()
    assert (before["committed"], sampler.issued) == (0, 4)
    assert sampler.commit() == 0
    assert sampler.commit() == 1
    assert (sampler.committed, sampler.issued) == (2, 4)
    assert before["committed"] == 0
    resumed = make(global_batch=6, lanes=6, micro_batch=2)
    resumed.load_state_dict(sampler.state_dict())
    assert next(iter(resumed)) == sampler.rank_rows(2).tolist()[:2]


def test_taking_state_changes_nothing_and_shares_nothing(make: Make) -> None:
    sampler, other = make(), make()
    batches, others = iter(sampler), iter(other)
    for _ in range(other.n_slots):
        sampler.state_dict()["skipped"].append([0, 99])
        assert next(batches) == next(others)
    assert sampler.state_dict() == other.state_dict()


def test_a_new_iterator_starts_at_the_committed_cursor(make: Make) -> None:
    sampler = make()
    first = [next(batches) for batches in [iter(sampler)] for _ in range(3)]
    sampler.commit()
    assert list(sampler)[:2] == first[1:]
    assert len(sampler) == sampler.n_slots


def test_an_iterator_older_than_a_loaded_state_or_a_newer_iterator_is_refused(make: Make) -> None:
    sampler = make()
    batches = iter(sampler)
    next(batches)
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(
        ResumeError, match=r"^a stale iterator of the sampler: .* Make a new iterator of the loader\.$"
    ):
        next(batches)
    older, newer = iter(sampler), iter(sampler)
    with pytest.raises(ResumeError, match="a stale iterator"):
        next(older)
    assert next(newer) == sampler.rank_rows(0).tolist()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 8}, "seed differs: load_state_dict: got seed 7, expected seed 8."),
        ({"lanes": 12}, "lanes differs: load_state_dict: got lanes 24, expected lanes 12."),
        (
            {"schedule": "cycle:2"},
            "schedule differs: load_state_dict: got schedule sequential, expected schedule cycle:2.",
        ),
        (
            {"global_batch": 48},
            "global_batch differs: load_state_dict: got global_batch 24, expected global_batch 48.",
        ),
        (
            {"global_batch": 48, "seed": 1},
            "seed, global_batch differ: load_state_dict: got seed 7, global_batch 24, "
            "expected seed 1, global_batch 48.",
        ),
        (
            {"batch_tokens": 16 * 24},
            "global_batch, batch_tokens differ: load_state_dict: got global_batch 24, batch_tokens None, "
            "expected global_batch None, batch_tokens 384.",
        ),
    ],
)
def test_a_state_of_another_run_is_refused_by_name(make: Make, other: dict[str, Any], said: str) -> None:
    sampler = make(**other)
    before = sampler.state_dict()
    with pytest.raises(ResumeError) as caught:
        sampler.load_state_dict(make().state_dict())
    assert str(caught.value) == (
        f"the state is of another run, {said} Make the sampler as it was, or start a new run."
    )
    assert sampler.state_dict() == before


def test_a_state_of_another_curriculum_or_order_or_none_at_all_is_refused(make: Make) -> None:
    sampler = make()
    state = sampler.state_dict()
    for change, said in (
        ({"curriculum": "f" * 32}, "the state is of another run, curriculum differs"),
        ({"order_version": 2}, "the state is of another run, order_version differs"),
        ({"version": 0}, "a state of another version"),
        ({"committed": 6}, "the cursor is beyond what both runs share"),
        ({"committed": -1}, "the cursor is beyond what both runs share"),
    ):
        with pytest.raises(ResumeError, match=f"^{said}: "):
            sampler.load_state_dict({**state, **change})
    with pytest.raises(ResumeError, match=r"^a state is incomplete: load_state_dict: got no seed\.$"):
        sampler.load_state_dict({name: value for name, value in state.items() if name != "seed"})
    with pytest.raises(ResumeError, match=r"^not a state of a sampler: "):
        sampler.load_state_dict({})


def test_more_epochs_may_be_added_where_the_slots_so_far_are_the_same(make: Make) -> None:
    short = make(epochs=1)
    slots(short)
    longer = make(epochs=3)
    longer.load_state_dict(short.state_dict())
    assert slots(longer) == slots(make(epochs=3))[short.n_slots :]
    filled = make(epochs=1, drop_last=False)
    slots(filled)
    with pytest.raises(
        ResumeError, match="got slot 3 with epochs 1, drop_last False, expected 0 to 2 with epochs 3"
    ):
        make(epochs=3).load_state_dict(filled.state_dict())


@settings(max_examples=40)
@given(data=st.data())
def test_exclusions_leave_every_other_slot_as_it_was(make: Make, data: st.DataObject) -> None:
    # Before, at and after the cursor; given at the start or on the way.
    plain = slots(make(global_batch=6, lanes=6))
    sampler = make(global_batch=6, lanes=6)
    skipped = data.draw(st.lists(st.tuples(st.integers(0, 21), st.integers(0, 3)), max_size=3))
    rows = data.draw(st.sets(st.integers(0, SAMPLES - 1), max_size=12))
    done = data.draw(st.integers(0, 10))
    trained = dict(enumerate(slots(sampler, done)))
    for first, more in skipped:
        sampler.skip(first, min(first + more, sampler.n_slots - 1))
    sampler.quarantine([sample_hash(row) for row in rows])
    # Row 60 has the hash of row 2, so its own name is unknown and it goes with the other.
    blank = rows - {60} | ({60} if 2 in rows else set())
    left_out = {slot for first, more in skipped for slot in range(first, first + more + 1)}
    for slot in range(done, len(plain)):
        if slot not in left_out and not set(plain[slot]) <= blank:
            trained[slot] = [~row if row in blank else row for row in plain[slot]]
    resumed = make(global_batch=6, lanes=6)
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    expected = [rows for slot, rows in sorted(trained.items()) if slot >= done]
    assert slots(resumed, commit=False) == slots(sampler) == expected


def test_a_whole_stage_can_be_excluded(make: Make) -> None:
    sampler = make(global_batch=6, lanes=6, epochs=1, drop_last=False)
    sampler.quarantine([sample_hash(row) for row in range(25)])
    rows = slots(sampler)
    assert rows[0] == [~24, 25, 26, *sampler.slot_rows(4).tolist()[3:]]
    assert [row for part in rows for row in part if row >= 0] == [
        row
        for slot in range(sampler.n_slots)
        for row in sampler.schedule.rows(slot).tolist()
        if row > 24 and row != 60
    ]
    assert sampler.committed == sampler.n_slots
    assert len(sampler) == sampler.n_slots - 4


def test_everything_excluded_is_an_empty_run(make: Make) -> None:
    sampler = make()
    sampler.skip(0, sampler.n_slots - 1)
    assert list(sampler) == []
    assert (len(sampler), sampler.next_slot(0)) == (0, None)


def test_what_some_exclusions_would_leave_out_is_told_apart_from_what_is_left_out(make: Make) -> None:
    sampler = make(global_batch=4, lanes=4, epochs=2)
    first, other = sampler.slot_rows(0).tolist()[0], sampler.slot_rows(5).tolist()[0]
    sampler.quarantine([sample_hash(other)])
    sampler.skip(7, 8)
    hashes = [sample_hash(first), sample_hash(sampler.slot_rows(2).tolist()[1]), bytes(15) + b"\1"]
    # Slots 1 and 2 whole, and one sample of slot 0, and both samples in the second epoch.
    assert sampler.excluded_by(hashes, [(1, 2), (sampler.n_slots, sampler.n_slots + 5)]) == 8 + 1 + 2
    assert (sampler.exclusions.ranges, len(sampler.exclusions.hashes)) == (((7, 8),), 1)


def test_what_is_issued_already_keeps_its_rows_and_what_follows_does_not(make: Make) -> None:
    sampler = make(global_batch=4, lanes=4, micro_batch=2)
    batches = iter(sampler)
    first = sampler.slot_rows(0).tolist()
    second = sampler.slot_rows(1).tolist()
    assert next(batches) == first[:2]
    sampler.quarantine([sample_hash(row) for row in (first[3], second[0])])
    sampler.skip(2, 2)
    assert next(batches) == first[2:]
    assert next(batches) == [~second[0], second[1]]
    next(batches)
    assert next(batches) == sampler.rank_rows(3).tolist()[:2]
    assert [sampler.commit() for _ in range(3)] == [0, 1, 3]


def test_quarantine_counts_what_it_knows_and_names_what_it_does_not(make: Make) -> None:
    sampler = make()
    assert sampler.quarantine([sample_hash(2), sample_hash(2).hex().upper(), b"x" * 16]) == Quarantined(
        1, 0, (b"x".hex() * 16,)
    )
    assert sampler.quarantine([sample_hash(2), sample_hash(3)]) == Quarantined(1, 1, ())
    assert sampler.exclusions.rows.tolist() == [2, 3, 60]
    assert sampler.release([sample_hash(2), sample_hash(9)]) == 1
    assert sampler.exclusions.rows.tolist() == [3]
    with pytest.raises(MisuseError, match=r"^not a sample hash: hashes: got 'zz', expected 32 hex digits\.$"):
        sampler.quarantine([sample_hash(4), "zz"])
    assert sampler.exclusions.rows.tolist() == [3]


def test_the_hash_of_a_batch_is_of_what_was_trained(make: Make) -> None:
    sampler = make(global_batch=6, lanes=6)
    hashes = sampler.sample_hashes(1)
    assert [bytes.fromhex(one) for one in hashes] == [
        sample_hash(row) for row in sampler.slot_rows(1).tolist()
    ]
    sampler.quarantine(hashes[2:3])
    assert sampler.sample_hashes(1) == [*hashes[:2], "0" * 32, *hashes[3:]]
    expected = np.frombuffer(bytes.fromhex("".join(sampler.sample_hashes(1))), dtype=np.uint8).reshape(-1, 16)
    assert sampler.batch_hash(1) == batch_hash(expected)


def test_a_sample_is_located_in_every_epoch_without_a_log(make: Make) -> None:
    sampler = make(drop_last=False)
    where: dict[int, list[Place]] = {row: [] for row in range(SAMPLES)}
    for slot in range(sampler.n_slots):
        for row in sampler.slot_rows(slot).tolist():
            if row != FILLER:
                where[row].append(Place(len(where[row]), slot, row))
    found = sampler.slots_of(sample_hash(row) for row in range(SAMPLES) if row != 60)
    for row in set(range(SAMPLES)) - {2, 60}:
        assert found[sample_hash(row).hex()] == where[row]
        assert sampler.locate(sample_hash(row)) == where[row][0]
    assert sorted(found[sample_hash(2).hex()]) == sorted(where[2] + where[60])
    epoch, slot, row = sampler.locate(sample_hash(0).hex()) or (-1, -1, -1)
    assert row in sampler.slot_rows(slot)
    assert epoch == sampler.epoch_of(slot)


def test_a_sample_left_out_at_the_end_is_nowhere_and_an_unknown_one_an_error(make: Make) -> None:
    sampler = make(epochs=1)
    last = SAMPLES - 1
    assert sampler.locate(sample_hash(last)) is None
    assert sampler.slots_of([sample_hash(last), b"x" * 16]) == {
        sample_hash(last).hex(): [],
        b"x".hex() * 16: [],
    }
    with pytest.raises(MisuseError, match=r"^no such sample in the curriculum: .*: got 7878"):
        sampler.locate(b"x" * 16)


def test_what_a_rollback_keeps_and_what_a_resume_adds(make: Make) -> None:
    sampler = make()
    sampler.skip(1, 1)
    sampler.quarantine([sample_hash(4)])
    old = sampler.state_dict()
    slots(sampler, 2)
    sampler.release([sample_hash(4)])
    sampler.quarantine([sample_hash(5)])
    sampler.load_state_dict(old, keep_exclusions=True)
    assert sampler.state_dict() == {**old, "quarantined": {sample_hash(5).hex(): [5]}}
    sampler.load_state_dict(old)
    assert sampler.exclusions.rows.tolist() == [4, 5]


def test_only_slots_from_the_cursor_on_can_be_committed(make: Make) -> None:
    sampler = make()
    with pytest.raises(
        MisuseError, match=r"^nothing to commit: commit: got no slot issued since the last commit\.$"
    ):
        sampler.commit()
    batches = iter(sampler)
    for _ in range(3):
        next(batches)
    assert sampler.commit(1) == 1
    assert (sampler.committed, sampler.issued) == (2, 3)
    for slot in (0, 1, sampler.n_slots):
        with pytest.raises(
            MisuseError,
            match=rf"^a slot that cannot be committed now: commit: got {slot}, expected 2 to 4\.$",
        ):
            sampler.commit(slot)
    assert sampler.commit() == 2


def test_a_slot_committed_before_it_was_given_out_is_not_given_out(make: Make) -> None:
    sampler = make()
    batches = iter(sampler)
    next(batches)
    sampler.commit(2)
    assert next(batches) == sampler.rank_rows(3).tolist()
    assert (sampler.committed, sampler.issued, sampler.commit()) == (3, 4, 3)


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (3, 2), (0, 5)])
def test_slots_that_are_none_cannot_be_skipped(make: Make, first: int, last: int) -> None:
    with pytest.raises(MisuseError, match=r"^no such slots: skip: got .*, expected 0 to 4, first <= last"):
        make().skip(first, last)


@pytest.mark.parametrize("slot", [-1, 5])
def test_a_slot_that_is_none_is_refused(make: Make, slot: int) -> None:
    sampler = make()
    for method in (
        sampler.slot_rows,
        sampler.rank_rows,
        sampler.epoch_of,
        sampler.stage_of,
        sampler.band_of,
        sampler.batch_hash,
        sampler.micro_batches,
    ):
        with pytest.raises(MisuseError, match=rf"^no such slot: slot: got {slot}, expected 0 to 4\.$"):
            method(slot)


def test_what_is_known_of_a_slot(make: Make) -> None:
    sampler = make(global_batch=6, lanes=6)
    assert [sampler.stage_of(slot) for slot in (0, 4, 5, 10, 11)] == [0, 0, 3, 3, 4]
    assert [sampler.band_of(slot) for slot in (0, 5, 11)] == ["band0", "band0", "band1"]
    assert [sampler.epoch_of(slot) for slot in (0, 11, 12)] == [0, 0, 1]


def test_sampler_and_curriculum_pickle_small_and_go_on(make: Make) -> None:
    sampler = make()
    slots(sampler, 2)
    sampler.batch_hash(0)
    copy = pickle.loads(pickle.dumps(sampler))
    assert len(pickle.dumps((sampler.curriculum, sampler))) < 10_000
    assert slots(copy) == slots(sampler)


def test_tokens_make_micro_batches_of_short_samples_larger(make: Make) -> None:
    sampler = make(batch_tokens=256, lanes=2, micro_tokens=64, epochs=1, drop_last=False)
    by_stage = {sampler.stage_of(slot): sampler.micro_batches(slot) for slot in range(sampler.n_slots)}
    sizes = {sampler.stage_of(slot): len(sampler.slot_rows(slot)) for slot in range(sampler.n_slots)}
    assert sizes == {0: 32, 1: 16, 3: 32, 4: 16}
    assert by_stage == {0: 4, 1: 4, 3: 4, 4: 4}
    assert (
        len(list(sampler))
        == len(sampler)
        == sum(sampler.micro_batches(slot) for slot in range(sampler.n_slots))
    )
