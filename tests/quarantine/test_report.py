"""A report tells what happened from whatever is there, while training goes on, and says what is missing."""

from __future__ import annotations

import json
import math
import shutil
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from cleanfeed.errors import CleanfeedError, MisuseError
from cleanfeed.feed.schedule import RowSchedule
from cleanfeed.quarantine.corpus import Corpus
from cleanfeed.quarantine.model import SuspectReport
from cleanfeed.quarantine.report import make_report
from cleanfeed.quarantine.store import Quarantine
from cleanfeed.runs.incident_files import read_incident, write_incident
from cleanfeed.runs.layout import RunDir
from tests.quarantine.incidents import incident
from tests.quarantine.runs import BATCH, EPOCHS, World, hash_of, make_world


def poison_of(world: World, run: RunDir | None = None) -> SuspectReport:
    report = make_report(run or world.run)
    return next(one for one in report.incidents[0].samples if one.sample_hash == world.poison)


def test_the_rule_that_fired_is_told_with_its_numbers(world: World) -> None:
    found = make_report(world.run).incidents[0]
    fired = found.fired
    assert (fired.rule, fired.signal, fired.value, fired.limit, fired.z) == (
        "robust_z",
        "grad_norm",
        62.4,
        10.0,
        31.2,
    )
    assert (fired.median, fired.scale, fired.n, fired.context) == (0.301, 0.12, 96, "any/any")
    assert (found.onset_step, found.trip_step) == (world.slot + 1, world.slot + 4)


def test_the_timeline_is_in_order_and_holds_every_turn(world: World) -> None:
    found = make_report(world.run).incidents[0]
    back = found.checkpoint.step
    assert [(moment.step, moment.what) for moment in found.timeline] == [
        (found.onset_step, "onset: the leading signal left its band"),
        (found.trip_step, "robust z fired: the incident was opened"),
        (found.trip_step, "rollback: the loss was not finite"),
        (back, f"attempt 2 went on after step {back}, from the checkpoint of step {back}"),
        (found.trip_step + 200, "helped: 200 steps after the rollback stayed in their band"),
    ]
    times = [moment.at for moment in found.timeline if moment.at is not None]
    assert times == sorted(times)
    assert len(times) == 5


def test_totals_are_those_of_the_surviving_lineage(world: World) -> None:
    report = make_report(world.run)
    lines = [
        json.loads(line)
        for number in (1, 2)
        for line in world.run.attempt_lines(number).read_text().splitlines()
    ]
    back = report.incidents[0].checkpoint.step or 0
    kept = [line for line in lines if line["attempt"] == 2 or line["step"] <= back]
    assert report.totals.steps == len(kept) == report.totals.last_step
    assert report.totals.tokens == sum(line["tokens"] for line in kept)
    assert report.totals.undone_steps == len(lines) - len(kept)
    assert report.totals.nonfinite_steps == 1
    assert report.totals.last_slot == max(line["slot"] for line in kept)
    assert report.attempts == 2


def test_the_curves_hold_every_step_once(world: World) -> None:
    report = make_report(world.run)
    kept = [bucket for bucket in report.loss if bucket.survived]
    assert kept[0].first_step == 1
    assert kept[-1].last_step == report.totals.last_step
    assert all(a.last_step < b.first_step for a, b in pairwise(kept))
    assert all(bucket.low <= bucket.mean <= bucket.high for bucket in report.loss + report.grad_norm)
    undone = [bucket for bucket in report.loss if not bucket.survived]
    assert max(bucket.high for bucket in undone) > 5.5
    zoom = report.incidents[0].zoom
    assert [line.loss for line in zoom if not line.finite] == [None]
    assert {line.survived for line in zoom} == {True, False}


def test_a_suspect_is_told_with_its_document_and_excerpt(world: World) -> None:
    found = poison_of(world)
    assert (found.state, found.doc_id, found.source, found.source_row) == (
        "quarantined",
        "poison-40",
        "dump.jsonl",
        40,
    )
    assert (found.slot, found.stage, found.loss) == (world.slot, "any_any", 14.2)
    assert found.excerpt is not None
    assert found.excerpt.startswith("\\x00\\x00 0000 ffff")
    assert found.row == hash_of(world.out, "poison-40")[1]


def test_its_most_unusual_signals_are_percentiles_of_the_curriculum(world: World) -> None:
    report = make_report(world.run)
    assert (report.curriculum.documents_compared, report.curriculum.documents) == (324, 324)
    found = poison_of(world)
    names = [one.signal for one in found.unusual]
    assert len(names) == 5
    with duckdb.connect() as store:
        for one in found.unusual:
            below, above, median = store.execute(
                f"SELECT avg(({one.signal} < $value)::INT), avg(({one.signal} > $value)::INT), median({one.signal}) "
                "FROM read_parquet($files) WHERE verdict IN ('keep', 'flag')",
                {"value": one.value, "files": str(world.out / "signals" / "*.parquet")},
            ).fetchall()[0]
            assert (one.below, one.above) == pytest.approx((below, above))
            assert one.median == pytest.approx(median)
            assert max(one.below, one.above) > 0.95


def test_copies_ahead_are_counted_with_their_slots(world: World) -> None:
    report = make_report(world.run)
    last = report.totals.last_slot
    schedule = RowSchedule(Corpus(str(world.out)).catalog, BATCH, seed=1, epochs=EPOCHS, lanes=4)
    rows = {
        name: hash_of(world.out, name)[1] for name in ("poison-40", "poison-200", "poison-90", "poison-250")
    }
    where = {
        name: [
            (epoch, int(slot))
            for epoch in range(EPOCHS)
            for slot in schedule.places(np.array([row]), epoch)[0]
            if slot > last
        ]
        for name, row in rows.items()
    }
    found = poison_of(world).ahead
    assert found is not None
    exact = sorted((one.row, one.epoch, one.slot) for one in found.exact)
    near = sorted((one.row, one.epoch, one.slot) for one in found.near)
    assert exact == sorted((rows[n], *at) for n in ("poison-40", "poison-200") for at in where[n])
    assert near == sorted((rows[n], *at) for n in ("poison-90", "poison-250") for at in where[n])
    assert sorted(found.near_hashes) == sorted(hash_of(world.out, n)[0] for n in ("poison-90", "poison-250"))
    assert 0.5 <= (found.similarity or 0) < 1
    assert report.curriculum.slots_ahead == schedule.n_slots - 1 - last
    others = [one.ahead for one in report.incidents[0].samples if one.sample_hash != world.poison]
    assert all(ahead is not None and ahead.near == [] for ahead in others)


def test_near_copies_are_sought_only_as_far_as_asked(world: World) -> None:
    report = make_report(world.run, look_ahead=0)
    assert report.curriculum.looked_ahead == 0
    (found,) = [one.ahead for one in report.incidents[0].samples if one.sample_hash == world.poison]
    assert found is not None
    assert found.near == []
    assert found.exact
    assert 0 < make_report(world.run, look_ahead=40).curriculum.looked_ahead <= 40


def test_nothing_is_ahead_when_the_run_is_over(copied: World) -> None:
    lines = copied.run.attempt_lines(2)
    last = json.loads(lines.read_text().splitlines()[-1])
    schedule = RowSchedule(Corpus(str(copied.out)).catalog, BATCH, seed=1, epochs=EPOCHS, lanes=4)
    with lines.open("a") as file:
        file.write(json.dumps({**last, "step": last["step"] + 1, "slot": schedule.n_slots - 1}) + "\n")
    report = make_report(copied.run)
    assert report.curriculum.slots_ahead == 0
    assert poison_of(copied, copied.run).ahead is not None
    assert [one.ahead.exact for one in report.incidents[0].samples if one.ahead] == [[]] * 8


def test_a_report_holds_no_number_json_cannot(world: World) -> None:
    json.dumps(to_builtins(make_report(world.run)), allow_nan=False)


def test_a_run_without_incidents_has_a_report(copied: World) -> None:
    shutil.rmtree(copied.run.incidents)
    report = make_report(copied.run)
    assert (report.incidents, report.notes) == ([], [])
    assert report.totals.steps > 200


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        MisuseError, match=r"not a run directory: .*: expected a folder with ledger/ or incidents/\."
    ):
        make_report(RunDir(tmp_path))
    with pytest.raises(MisuseError, match="not a run directory"):
        make_report(RunDir(tmp_path / "none"))


def test_an_incident_that_is_not_there_is_said(world: World) -> None:
    with pytest.raises(CleanfeedError, match=r"no such incident: .*: got number 2, expected one of: 1\."):
        make_report(world.run, 2)


def test_without_its_curriculum_a_report_says_what_is_missing(copied: World, tmp_path: Path) -> None:
    start = copied.run.attempt_start(2)
    start.write_text(start.read_text().replace(str(copied.out), str(tmp_path / "gone")))
    report = make_report(copied.run)
    (note,) = report.notes
    assert note.startswith("the folder holds no finished build: ")
    assert note.endswith("What needs the curriculum is missing.")
    found = report.incidents[0].samples[0]
    assert found.excerpt is not None
    assert (found.row, found.ahead, found.unusual) == (None, None, [])
    assert report.totals.steps > 200
    named = make_report(copied.run, curriculum=str(copied.out))
    assert named.notes == []
    assert named.incidents[0].samples[0].ahead is not None


def test_another_curriculum_in_its_place_is_not_taken_for_it(copied: World) -> None:
    start = copied.run.attempt_start(2)
    start.write_text(start.read_text().replace(Corpus(str(copied.out)).catalog.digest, "0" * 32))
    report = make_report(copied.run)
    assert "the curriculum is another one now" in report.notes[0]
    assert report.incidents[0].samples[0].ahead is None


def test_excerpts_come_from_the_curriculum_where_the_incident_has_none(copied: World) -> None:
    (copied.run.incident(1) / "suspects.parquet").unlink()
    found = poison_of(copied, copied.run)
    assert found.excerpt is not None
    assert found.excerpt.startswith("\\x00\\x00 0000 ffff")


def test_what_a_person_decided_since_is_told(copied: World) -> None:
    Quarantine(copied.run.root).release([copied.poison], "a fine text", by="ada")
    found = make_report(copied.run).incidents[0]
    (sample,) = [one for one in found.samples if one.sample_hash == copied.poison]
    assert (sample.state, sample.reason, sample.decided_by) == ("released", "a fine text", "ada")
    assert found.samples_by_state == {"released": 1, "suspected": 7}


def test_a_report_needs_no_store(copied: World) -> None:
    with duckdb.connect(str(copied.run.store)):
        assert make_report(copied.run).incidents[0].outcome == "helped"
    copied.run.store.write_bytes(b"not a store")
    report = make_report(copied.run)
    assert (len(report.incidents), report.notes) == (1, [])


def test_a_ledger_that_is_being_written_is_read_up_to_its_last_whole_line(copied: World) -> None:
    before = make_report(copied.run).totals
    with copied.run.attempt_lines(2).open("a") as file:
        file.write('{"attempt":2,"step":99999,"epoch":0,"sl')
    assert make_report(copied.run).totals == before


def test_a_ledger_without_attempts_counts_every_line(copied: World) -> None:
    copied.run.attempt_start(2).unlink()
    report = make_report(copied.run)
    assert "an attempt has lines and no record of how it began" in report.notes[0]
    assert report.totals.undone_steps == 0
    assert len(report.incidents) == 1


def test_without_a_ledger_the_incident_speaks_for_itself(copied: World) -> None:
    shutil.rmtree(copied.run.ledger)
    report = make_report(copied.run)
    assert "there is no ledger" in report.notes[0]
    found = report.incidents[0]
    assert [line.step for line in found.zoom] == [line.step for line in read_incident(copied.run, 1).metrics]
    assert report.loss == []


def test_an_incident_that_cannot_be_read_leaves_the_others(copied: World) -> None:
    write_incident(copied.run, replace(read_incident(copied.run, 1), incident_id=2))
    (copied.run.incident(1) / "incident.json").write_text("{")
    report = make_report(copied.run)
    assert [one.incident_id for one in report.incidents] == [2]
    assert report.notes[0].startswith("not an incident: ")


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_incident(run, incident(1, detail={"signal": "loss", "value": math.nan, "detail": {"ranks": [3]}}))
    fired = make_report(run).incidents[0].fired
    assert (fired.value, fired.limit, fired.others) == (None, None, {"ranks": [3]})


def test_a_state_of_another_order_is_said_and_the_suspects_are_told(copied: World) -> None:
    start = copied.run.attempt_start(2)
    start.write_text(start.read_text().replace('"order_version"', '"older_version"'))
    report = make_report(copied.run)
    assert report.notes[0].startswith("a state is incomplete: ")
    found = report.incidents[0].samples[0]
    assert (found.ahead, found.stage) == (None, "any_any")
    assert found.unusual


def test_copies_are_found_where_the_curriculum_holds_text(tmp_path: Path) -> None:
    world = make_world(tmp_path, tokenizer=None)
    found = poison_of(world)
    assert found.ahead is not None
    assert sorted(found.ahead.near_hashes) == sorted(
        hash_of(world.out, name)[0] for name in ("poison-90", "poison-250")
    )
    assert found.excerpt is not None
    assert found.excerpt.startswith("\\x00\\x00 0000 ffff")
