"""The store follows its files: nothing is lost, nothing is there twice, and what a person decides stands."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.errors import DamagedStoreError, ForeignStoreError, MisuseError
from cleanfeed.quarantine import schema
from cleanfeed.quarantine.sources import decisions_path
from cleanfeed.quarantine.store import Quarantine
from cleanfeed.runs.incident_files import write_incident
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.records import Incident, SkipRange
from tests.quarantine.incidents import A, B, C, incident, sample

DESIGNED = {
    "incidents": "incident_id opened_at onset_step trip_step rule detail action checkpoint_step outcome",
    "suspects": "incident_id attempt step slot batch_hash score",
    "samples": "sample_hash doc_id source source_row state incident_id reason decided_by decided_at",
    "skip_ranges": "incident_id attempt epoch first_slot last_slot",
}


class Notes(list[str]):
    """What a store had to say."""

    def __call__(self, line: str) -> None:
        self.append(line)


def store_of(path: Path, notes: Notes | None = None) -> Quarantine:
    return Quarantine(path, patience=0.0, on_note=notes if notes is not None else unexpected)


def unexpected(line: str) -> None:
    raise AssertionError(line)


def record(run: Path, *incidents: Incident, store: Path | None = None) -> Quarantine:
    run.mkdir(parents=True, exist_ok=True)
    quarantine = store_of(store or run)
    for one in incidents:
        write_incident(RunDir(run), one)
        assert quarantine.record(one, run)
    return quarantine


def states(store: Quarantine) -> dict[str, str]:
    return {row["sample_hash"]: row["state"] for row in store.rows("samples")}


def everything(store: Quarantine) -> dict[str, Any]:
    names = ("incidents", "suspects", "samples", "skip_ranges", "decisions", "metrics", "events")
    with store.reading() as connection:
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall() for name in names}


def test_the_tables_have_the_designed_columns_first(tmp_path: Path) -> None:
    record(tmp_path, incident(1))
    with duckdb.connect(str(tmp_path / "quarantine.duckdb"), read_only=True) as connection:
        for table, columns in DESIGNED.items():
            names = [row[0] for row in connection.execute(f"DESCRIBE {table}").fetchall()]
            assert names[: len(columns.split())] == columns.split()
        assert connection.execute("SELECT count(*) FROM duckdb_indexes()").fetchall() == [(0,)]
        assert connection.execute("SELECT count(*) FROM duckdb_constraints()").fetchall() == [(0,)]
        assert connection.execute("SELECT sample_hash, state FROM samples ORDER BY 1").fetchall() == [
            (A, "quarantined"),
            (B, "suspected"),
        ]


def test_nothing_is_left_in_the_log_after_a_write(tmp_path: Path) -> None:
    record(tmp_path, incident(1), incident(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "incidents",
        "quarantine.decisions.jsonl",
        "quarantine.duckdb",
    ]


def test_recording_again_changes_nothing(tmp_path: Path) -> None:
    store = record(tmp_path, incident(1))
    before = everything(store)
    assert store.record(incident(1))
    assert everything(store) == before


def test_an_incident_that_changes_replaces_its_rows(tmp_path: Path) -> None:
    store = record(tmp_path, incident(1), incident(2, [sample(C)]))
    record(tmp_path, incident(1, [sample(A, "released", 200.0)], outcome="did_not_help", suspects=[]))
    assert states(store) == {A: "released", C: "quarantined"}
    assert [row["outcome"] for row in store.rows("incidents")] == ["did_not_help", "open"]
    assert [row["incident_id"] for row in store.rows("suspects")] == [2]


def test_a_write_takes_up_incidents_that_were_missed(tmp_path: Path) -> None:
    write_incident(RunDir(tmp_path), incident(1, [sample(A)]))
    store = record(tmp_path, incident(2, [sample(B)]))
    assert states(store) == {A: "quarantined", B: "quarantined"}


def test_a_reader_sees_incidents_that_are_on_file_only(tmp_path: Path) -> None:
    store = record(tmp_path, incident(1, [sample(A)]))
    write_incident(RunDir(tmp_path), incident(2, [sample(B)]))
    before = store.path.read_bytes()
    assert store.hashes() == [A, B]
    assert store.path.read_bytes() == before


def test_skip_ranges_are_of_one_run(tmp_path: Path) -> None:
    shared = tmp_path / "shared.duckdb"
    record(tmp_path / "a", incident(1), store=shared)
    store = record(tmp_path / "b", incident(1, skip_ranges=[SkipRange(2, 1, 9, 9)]), store=shared)
    assert store.skip_ranges(tmp_path / "a") == [SkipRange(1, 0, 4, 6)]
    assert store.skip_ranges(tmp_path / "b") == [SkipRange(2, 1, 9, 9)]
    assert store.skip_ranges() == []


def test_incidents_come_back_as_they_were_recorded(tmp_path: Path) -> None:
    store = record(tmp_path, incident(1), incident(2, outcome="helped"))
    assert store.incidents() == [(".", incident(1)), (".", incident(2, outcome="helped"))]


def test_what_a_person_decides_stands_against_the_guard(tmp_path: Path) -> None:
    store = record(tmp_path, incident(1, [sample(A)]))
    store.release([A], "looks fine", by="ada")
    record(tmp_path, incident(1, [sample(A)], outcome="helped"))
    assert states(store) == {A: "released"}
    row = store.rows("samples")[0]
    assert (row["reason"], row["decided_by"], row["doc_id"], row["source_row"]) == (
        "looks fine",
        "ada",
        "doc-a",
        10,
    )
    store.add([A], "no, it is not", by="ada")
    record(tmp_path, incident(1, [sample(A, "released", 9e9)]))
    assert states(store) == {A: "quarantined"}


def test_a_later_incident_quarantines_what_a_person_released(tmp_path: Path) -> None:
    store = record(tmp_path, incident(1, [sample(A)]))
    store.release([A], "looks fine")
    record(tmp_path, incident(2, [sample(A, at=9e9)]))
    assert states(store) == {A: "quarantined"}


def test_what_a_run_says_last_counts_and_one_run_that_quarantines_is_enough(tmp_path: Path) -> None:
    shared = tmp_path / "shared.duckdb"
    record(tmp_path / "a", incident(1, [sample(A, at=100.0)]), store=shared)
    store = record(tmp_path / "a", incident(2, [sample(A, "released", at=200.0)]), store=shared)
    assert states(store) == {A: "released"}
    record(tmp_path / "b", incident(1, [sample(A, at=50.0)]), store=shared)
    assert states(store) == {A: "quarantined"}
    record(tmp_path / "b", incident(1, [sample(A, "released", at=60.0)]), store=shared)
    assert states(store) == {A: "released"}


def test_runs_share_a_store(tmp_path: Path) -> None:
    shared = tmp_path / "shared.duckdb"
    record(tmp_path / "a", incident(1, [sample(A)]), store=shared)
    store = record(tmp_path / "b", incident(1, [sample(B)]), store=shared)
    assert store.hashes() == [A, B]
    assert [(row["run"], row["incident_id"]) for row in store.rows("incidents")] == [("a", 1), ("b", 1)]
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("a", "b", "shared.duckdb", "shared.decisions.jsonl"):
        (tmp_path / name).rename(moved / name)
    store = store_of(moved / "shared.duckdb")
    record(moved / "a", incident(2, [sample(C)]), store=store.path)
    assert len(store.rows("incidents")) == 3


def test_a_rebuilt_store_says_the_same(tmp_path: Path) -> None:
    store = record(tmp_path, incident(1), incident(2, [sample(C)]))
    store.add(["ab" * 16], "seen before")
    store.release([C], "fine")
    before = everything(store)
    store.path.unlink()
    assert everything(store) == before
    assert store.rebuild() == {"incidents": 2, "decisions": 2}
    assert everything(store) == before
    assert store.rebuild() == {"incidents": 2, "decisions": 2}
    assert everything(store) == before


def test_rebuilding_keeps_what_only_the_store_has(tmp_path: Path) -> None:
    shared = tmp_path / "shared.duckdb"
    record(tmp_path / "a", incident(1, [sample(A)]), store=shared)
    store = record(tmp_path / "b", incident(1, [sample(B)]), store=shared)
    store.add([C], "seen before")
    before = everything(store)
    shutil.rmtree(tmp_path / "a")
    decisions_path(shared).unlink()
    assert store.rebuild() == {"incidents": 2, "decisions": 1}
    assert everything(store) == before


def test_rebuilding_takes_in_a_run_that_is_named(tmp_path: Path) -> None:
    write_incident(RunDir(tmp_path / "a"), incident(1, [sample(A)]))
    store = store_of(tmp_path / "shared.duckdb")
    assert store.rebuild([tmp_path / "a"]) == {"incidents": 1, "decisions": 0}
    store.path.unlink()
    assert store.hashes() == [A]


@pytest.mark.parametrize("length", [0, 7, 5000, 20_000, 100_000])
def test_a_damaged_store_is_set_aside_and_made_anew(tmp_path: Path, length: int) -> None:
    store = record(tmp_path, incident(1, [sample(A)]))
    store.release([A], "fine")
    before = everything(store)
    data = store.path.read_bytes()
    store.path.write_bytes(data[:length])
    notes = Notes()
    reader = store_of(tmp_path, notes)
    assert everything(reader) == before
    assert all("read from the incident files instead: the store is damaged" in line for line in notes)
    assert store.path.read_bytes() == data[:length]
    notes.clear()
    assert store_of(tmp_path, notes).record(incident(1))
    assert "a new one is made from the incident files and decisions by hand." in notes[0]
    assert everything(store) == before
    (kept,) = tmp_path.glob("quarantine.duckdb.damaged-*")
    assert kept.read_bytes() == data[:length]


def test_damage_in_the_middle_is_found_and_got_around(tmp_path: Path) -> None:
    store = record(tmp_path, *(incident(number, [sample(A)]) for number in range(1, 4)))
    before = everything(store)
    data = bytearray(store.path.read_bytes())
    for at in range(12_288, len(data), 97):
        data[at] ^= 0xFF
    store.path.write_bytes(data)
    notes = Notes()
    assert store_of(tmp_path, notes).hashes() == [A]
    assert store_of(tmp_path, notes).record(incident(1))
    assert store_of(tmp_path, notes).rebuild() == {"incidents": 3, "decisions": 0}
    assert everything(store) == before


@pytest.mark.parametrize("content", [b"notes of mine\n", b""])
def test_a_file_that_never_was_a_store_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    store = store_of(path)
    for action in (store.hashes, store.rebuild, lambda: store.add([A], "bad")):
        with pytest.raises(ForeignStoreError, match=r"not a quarantine store: .*notes\.txt"):
            action()
    assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE mine (a INT)")
    store = store_of(path)
    with pytest.raises(ForeignStoreError, match="not a quarantine store"):
        store.hashes()
    with pytest.raises(ForeignStoreError, match="not a quarantine store"):
        store.add([A], "bad")
    assert [one.name for one in tmp_path.iterdir()] == ["quarantine.duckdb"]


def test_a_store_of_a_later_format_is_refused(tmp_path: Path) -> None:
    store = record(tmp_path, incident(1))
    with duckdb.connect(str(store.path)) as connection:
        connection.execute("UPDATE store SET format = 9")
    with pytest.raises(
        ForeignStoreError, match=r"a store of a later format: .*: got format 9, expected at most 1"
    ):
        store.hashes()


def test_reading_makes_no_store(tmp_path: Path) -> None:
    store = store_of(tmp_path / "none.duckdb")
    assert store.hashes() == []
    assert store.skip_ranges() == []
    for action in (
        lambda: store.rows("samples"),
        lambda: store.release([A], "x"),
        lambda: store.export("out.txt"),
    ):
        with pytest.raises(MisuseError, match="no such store"):
            action()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "xyz", "ab" * 15, "ab" * 17, "zz" * 16, " " + "a" * 31])
def test_what_is_no_hash_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(MisuseError, match=r"not a hash: HASH: got .*, expected 32 hexadecimal digits"):
        store_of(tmp_path).add([A, text], "bad")
    assert list(tmp_path.iterdir()) == []


def test_hashes_are_lower_case_and_each_once(tmp_path: Path) -> None:
    store = store_of(tmp_path / "new" / "store.duckdb")
    store.add(["AB" * 16, "ab" * 16], "bad")
    assert store.hashes() == ["ab" * 16]
    assert len(store.rows("decisions")) == 1


def test_a_sample_the_store_does_not_know_is_not_released(tmp_path: Path) -> None:
    store = record(tmp_path, incident(1, [sample(A)]))
    with pytest.raises(MisuseError, match=f"no such sample in the store: .*: got {C} and 1 more"):
        store.release([A, C, "cd" * 16], "fine")
    assert states(store) == {A: "quarantined"}


def test_a_decision_needs_a_reason(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="no reason given"):
        store_of(tmp_path).add([A], "  ")


def test_text_of_any_kind_comes_back_whole(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    text = "nul \x00, quote ' \" ; DROP TABLE samples; \u202e \U0001f984 \n end"
    store.add([A], text, by="o'hara", places={A: (text, text, 2**62)})
    store.rebuild()
    row = store.rows("samples")[0]
    assert (row["reason"], row["doc_id"], row["source"], row["source_row"]) == (text, text, text, 2**62)


def test_a_torn_line_of_decisions_costs_nothing_else(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store.add([A], "bad")
    with decisions_path(store.path).open("ab") as file:
        file.write(b'{"type":"decision","sample_ha')
    notes = Notes()
    store = store_of(tmp_path, notes)
    assert store.hashes() == [A]
    assert notes == []
    store.add([B], "bad")
    store.path.unlink()
    assert store.hashes() == [A, B]
    assert {line.split(", ", 1)[1] for line in notes} == {"line 2 is passed over: Input data was truncated"}


RUNS = (None, "a", "a", "b")
"""The run of each incident; the first stands for decisions by hand."""


@cache
def empty_store() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    schema.create(connection)
    return connection


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["suspected", "quarantined", "released"]), st.integers(1, 6)
        ),
        max_size=8,
    )
)
def test_a_sample_is_quarantined_exactly_when_it_should_be(opinions: list[tuple[int, Any, int]]) -> None:
    """Compare with the rule in words: the last decision by hand, unless a run's last word after it quarantines."""
    connection = empty_store()
    connection.execute("DELETE FROM decisions; DELETE FROM samples")
    last = {(who, at): state for who, state, at in opinions}
    rows = [
        {
            "sample_hash": A,
            "state": state,
            "incident_id": who or None,
            "run": RUNS[who],
            "decided_at": schema.moment(float(at)),
        }
        for (who, at), state in last.items()
        if who or state != "suspected"
    ]
    schema.insert(connection, "decisions", rows)
    schema.settle(connection, [A])
    found = connection.execute("SELECT state FROM samples").fetchall()
    by_hand = sorted((at, state) for (who, at), state in last.items() if who == 0 and state != "suspected")
    hand_at, hand = by_hand[-1] if by_hand else (0, None)
    later = sorted((at, who, state) for (who, at), state in last.items() if who and at > hand_at)
    words = {RUNS[who]: (at, RUNS[who], state) for at, who, state in later}
    if any(state == "quarantined" for *_, state in words.values()):
        expected = "quarantined"
    else:
        expected = hand or (max(words.values())[2] if words else None)
    assert found == ([] if expected is None else [(expected,)])


def test_errors_of_reading_say_what_to_do(tmp_path: Path) -> None:
    store = record(tmp_path, incident(1))
    with pytest.raises(DamagedStoreError, match="'cleanfeed quarantine rebuild' makes it"), store.reading():
        raise duckdb.IOException("Corrupt database file")
