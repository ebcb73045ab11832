"""The quarantine commands end to end: what is printed, what is changed, and that build --exclude takes the result."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import pytest
from rich.console import Console

from cleanfeed.cli.incident import show_report
from cleanfeed.cli.incident_page import page
from cleanfeed.cli.main import main
from cleanfeed.errors import BusyError
from cleanfeed.quarantine.corpus import Corpus
from cleanfeed.quarantine.report import make_report
from cleanfeed.quarantine.store import Quarantine
from cleanfeed.runs.incident_files import read_incident, write_incident
from cleanfeed.runs.layout import RunDir
from tests.quarantine.incidents import A, B, incident, sample
from tests.quarantine.runs import TOKENIZER, World, hash_of

QUARANTINE = "quarantine"


def run(*arguments: object) -> int:
    return main([QUARANTINE, *map(str, arguments)])


def result(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    printed, said = capsys.readouterr()
    assert printed == ""
    assert said.count("\n") == 1
    return said.strip()


def recorded(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    write_incident(RunDir(folder), incident(1))
    Quarantine(folder).record(incident(1))
    return folder


# ---- the report ----


def test_the_report_says_everything_an_engineer_on_call_needs(
    world: World,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("report", world.run.root) == 0
    printed, said = capsys.readouterr()
    assert said == ""
    words = " ".join(printed.split())
    onset, trip = world.slot + 1, world.slot + 4
    for part in (
        f"{world.run.root}: 1 incident,",
        f"Incident 1, step {trip}: helped",
        "rule robust z: grad norm was 62.4, limit 10, z 31.2",
        "baseline median 0.301, scale 0.12 over 96 healthy steps of any/any",
        f"onset step {onset}, attempt 1, epoch 3",
        f"done rolled back, 4 slots skipped ({world.slot} to {world.slot + 3}), 1 sample quarantined, 7 samples",
        f"checkpoint step {onset - 25}: newest one",
        "lost 28 steps and",
        "outcome helped: 200 steps after the rollback stayed in their band",
        f"loss, steps {onset - 60} to {trip + 60}",
        "gradient norm, whole run, log scale",
        f"▲ onset {onset}",
        "quarantined poison-40 (dump.jsonl, record 40)",
        world.poison,
        "higher than in 98.77 % of the documents",
        "the sample or exact copies of it: 6 ahead and left out, in slots",
        "near copies: 6 ahead, in slots",
        f"cleanfeed quarantine add {world.run.root} ",
        "Signals are compared with 324 documents;",
    ):
        assert part in words, part


def test_what_the_report_says_to_do_next_works(
    copied: World,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("report", copied.run.root) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "cleanfeed quarantine add" in one]
    assert main(shlex.split(line.split("cleanfeed ", 1)[1])) == 0
    near = [hash_of(copied.out, name)[0] for name in ("poison-90", "poison-250")]
    assert Quarantine(copied.run.root).hashes() == sorted([copied.poison, *near])


def test_the_report_as_json_is_the_whole_report(
    world: World,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("report", world.run.root, "--json", "--incident", 1) == 0
    found = result(capsys)
    assert found["run"] == str(world.run.root)
    (one,) = found["incidents"]
    assert one["outcome"] == "helped"
    assert one["samples"][0]["sample_hash"] == world.poison
    assert found["curriculum"]["reachable"] is True


def test_text_that_acts_on_a_terminal_or_a_page_is_shown_as_an_escape(tmp_path: Path) -> None:
    evil = "\x1b[31m<script>alert(1)</script>\u202e\x00 end"
    one = incident(1, [sample(A)], outcome_why=evil, rule=evil)
    write_incident(RunDir(tmp_path), one)
    Quarantine(tmp_path).add([A], evil, by=evil)
    report = make_report(RunDir(tmp_path))
    report.incidents[0].samples[0].excerpt = f"{evil}\nsecond line"
    screen = StringIO()
    show_report(report, Console(file=screen, width=100))
    html = page(report)
    for text in (screen.getvalue(), html):
        assert "\\x1b[31m" in text
        assert not {"\x1b", "\u202e", "\x00"} & set(text)
    assert "<script" not in html
    assert "end\nsecond line" in html


class Tags(HTMLParser):
    """Collects tags, and what each points to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "circle", "line", "path", "polyline", "polygon"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("circle", "path"):
            assert self.open.pop() == tag


def test_the_page_needs_nothing_but_itself(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "report.html"
    assert run("report", world.run.root, "--html", file) == 0
    assert capsys.readouterr().out == f"wrote {file}\n"
    html = file.read_text("utf-8")
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert {"script", "img", "link", "iframe", "object"} & {tag for tag, _ in tags.seen} == set()
    assert not re.search(r"https?:|url\(|@import", html)
    assert not [attributes for _, attributes in tags.seen if {"src", "href"} & attributes.keys()]
    assert sum(tag == "svg" for tag, _ in tags.seen) == 4
    assert "prefers-color-scheme: dark" in html
    for part in (world.poison, "poison-40", "helped", "near copies: 6 ahead", f"onset {world.slot + 1}"):
        assert part in html


def test_json_and_html_can_be_had_at_once(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "report.html"
    assert run("report", world.run.root, "--html", file, "--json") == 0
    assert result(capsys)["incidents"][0]["incident_id"] == 1
    assert file.stat().st_size > 10_000


def test_a_report_of_nothing_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ledger").mkdir()
    store = tmp_path / "by-hand.duckdb"
    for arguments in ((tmp_path,), (tmp_path, "--json")):
        assert run("report", *arguments) == 0
    printed = capsys.readouterr().out
    assert "No incidents. No quarantined batches." in printed
    assert json.loads(printed[printed.index("{") :])["incidents"] == []
    assert run("list", tmp_path, "--json") == 0
    assert result(capsys)["incidents"] == []
    assert run("show", tmp_path) == 0
    assert capsys.readouterr().out == "No quarantined batches.\n"
    assert run("add", store, A, "--reason", "seen before") == 0
    capsys.readouterr()
    assert run("report", store, "--json") == 0
    assert result(capsys)["incidents"] == []


def test_a_report_can_be_asked_of_the_store_of_one_run(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("report", world.run.store, "--json") == 0
    assert result(capsys)["run"] == str(world.run.root)
    store = tmp_path / "shared.duckdb"
    for name in ("a", "b"):
        write_incident(RunDir(tmp_path / name), incident(1))
        Quarantine(store).record(incident(1), tmp_path / name)
        if name == "a":
            assert run("report", store, "--json") == 0
            assert result(capsys)["run"] == str(tmp_path / "a")
    assert run("report", store) == 2
    assert one_error(capsys).startswith(f"a report is of one run: {store}: got a store of {tmp_path / 'a'}, ")


def test_a_locked_store_is_read_from_the_incident_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleanfeed.cli.quarantine_store.PATIENCE", 0.0)
    recorded(tmp_path)
    with duckdb.connect(str(tmp_path / "quarantine.duckdb")):
        assert run("report", tmp_path, "--json") == 0
        assert len(result(capsys)["incidents"]) == 1
        assert run("list", tmp_path, "--json") == 0
        printed, said = capsys.readouterr()
        assert json.loads(printed)["samples"] == {"quarantined": 1, "suspected": 1, "released": 0}
        assert said.startswith("note: read from the incident files instead: the store is in use: ")


# ---- list and show ----


def test_list_shows_a_line_an_incident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path)
    assert run("list", tmp_path) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1970-01-01", "00:01:39", "1", "7", "robust", "z", "rollback", "open", "1", "1", "0"] in lines
    assert "Samples now: 1 quarantined, 1 suspected, 0 released.".split() in lines
    assert run("list", tmp_path, "--json") == 0
    (one,) = result(capsys)["incidents"]
    assert (one["incident_id"], one["opened_at"], one["rule"]) == (
        1,
        "1970-01-01T00:01:39.500000Z",
        "robust_z",
    )


def test_show_has_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path)
    assert run("show", tmp_path, "--incident", 1, "--json") == 0
    found = result(capsys)
    assert [row["sample_hash"] for row in found["samples"]] == [A, B]
    assert [row["slot"] for row in found["suspects"]] == [4]
    assert [(row["first_slot"], row["last_slot"]) for row in found["skip_ranges"]] == [(4, 6)]
    assert [row["what"] for row in found["events"]] == ["opened"]
    assert run("show", tmp_path) == 0
    printed = capsys.readouterr().out
    assert A in printed
    assert "its loss" in printed
    assert run("show", tmp_path, "--incident", 9) == 2
    assert "no such incident" in one_error(capsys)


# ---- add, release, export, rebuild ----


def test_add_makes_a_store_and_release_takes_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "new.duckdb"
    assert run("add", store, A.upper(), B, "--reason", "seen before", "--by", "ada") == 0
    assert capsys.readouterr().out == f"2 samples quarantined in {store}\n"
    assert run("release", store, A, "--reason", "fine", "--json") == 0
    assert result(capsys) == {"store": str(store), "state": "released", "samples": [A]}
    with duckdb.connect(str(store), read_only=True) as connection:
        rows = connection.execute(
            "SELECT sample_hash, state, reason, incident_id FROM samples ORDER BY 1"
        ).fetchall()
    assert rows == [(A, "released", "fine", None), (B, "quarantined", "seen before", None)]


def test_add_notes_the_document_and_refuses_a_hash_of_no_sample(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = tmp_path / "store.duckdb"
    assert run("add", store, world.poison, "--reason", "bad", "--curriculum", world.out) == 0
    row = Quarantine(store).rows("samples")[0]
    assert (row["source"], row["source_row"]) == ("dump.jsonl", 40)
    capsys.readouterr()
    assert run("add", store, B, "--reason", "bad", "--curriculum", world.out) == 2
    assert (
        one_error(capsys)
        == f"no such sample: --curriculum {world.out}: got {B}, expected a sample_hash of it."
    )
    assert Quarantine(store).hashes() == [world.poison]


def test_add_finds_a_sample_however_far_back_it_lies(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Corpus.rows_of, "__defaults__", (1,)
    )  # a report looks no further than the first row group
    assert world.poison not in Corpus(str(world.out)).rows_of([world.poison])[0]
    store = tmp_path / "store.duckdb"
    assert run("add", store, world.poison, "--reason", "bad", "--curriculum", world.out) == 0
    assert Quarantine(store).rows("samples")[0]["source_row"] == 40


@pytest.mark.parametrize("kind", ["store", "run", "parquet", "text"])
def test_a_build_leaves_out_what_is_quarantined(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    store = folder / "quarantine.duckdb"
    clean = hash_of(world.out, "doc-7")[0]
    other = hash_of(world.out, "doc-8")[0]
    assert run("add", store, clean, other, "--reason", "bad") == 0
    assert run("release", store, other, "--reason", "fine") == 0
    given = {"store": store, "run": folder, "parquet": tmp_path / "x.parquet", "text": tmp_path / "x.txt"}[
        kind
    ]
    if kind in ("parquet", "text"):
        assert run("export", store, "--out", given) == 0
        assert capsys.readouterr().out.endswith(f"wrote 1 quarantined sample to {given}\n")
    capsys.readouterr()
    source, out = world.out.parent / "dump.jsonl", tmp_path / "out"
    pipeline = world.out.parent / "lenient.yaml"
    arguments = [str(source), "--out", str(out), "--pipeline", str(pipeline), "--tokenizer", TOKENIZER]
    assert main(["build", *arguments, "--workers", "1", "--exclude", str(given), "--json"]) == 0
    counts = result(capsys)["counts"]
    assert (counts["read"], counts["kept"], counts["excluded"]) == (324, 323, 1)
    assert main(["explain", str(out), "doc-7", "--json"]) == 0
    assert result(capsys)["verdict"] == "excluded"
    assert main(["explain", str(out), "doc-8", "--json"]) == 0
    assert result(capsys)["verdict"] == "keep"


def test_an_export_of_nothing_is_a_list_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path)
    assert run("release", tmp_path, A, "--reason", "fine") == 0
    for name in ("none.parquet", "none.txt"):
        assert run("export", tmp_path, "--out", tmp_path / name, "--json") == 0
    assert run("export", tmp_path, "--out", tmp_path / "x.csv") == 2
    assert "cannot tell the format: " in capsys.readouterr().err


def test_rebuild_says_what_the_store_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path)
    store = tmp_path / "quarantine.duckdb"
    assert run("add", store, "c" * 32, "--reason", "bad") == 0
    store.unlink()
    capsys.readouterr()
    assert run("rebuild", tmp_path) == 0
    assert capsys.readouterr().out == f"{store}: 1 incident, 1 decision by hand\n"
    shared = tmp_path / "shared.duckdb"
    assert run("rebuild", shared, "--run", tmp_path, "--json") == 0
    assert result(capsys) == {"store": str(shared), "incidents": 1, "decisions": 0}


# ---- misuse ----


@pytest.mark.parametrize("command", ["report", "list", "show", "rebuild"])
def test_a_place_that_is_not_there_is_said_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    place = tmp_path / "missing.duckdb"
    assert run(command, place) == 2
    expected = "got no such file, expected a run directory or a quarantine store."
    assert one_error(capsys) == f"neither a run nor a store: {place}: {expected}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("report",),
        ("list",),
        ("show",),
        ("rebuild",),
        ("export", "--out", "x.txt"),
        ("add", A, "--reason", "x"),
    ],
)
def test_a_file_that_is_no_store_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("call them back\n")
    command, *rest = arguments
    assert run(command, notes, *rest) == 1
    assert one_error(capsys).startswith(
        f"not a quarantine store: {notes}: got a file that is no DuckDB database"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_misuse_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("add", tmp_path / "s.duckdb", "xyz", "--reason", "bad") == 2
    assert one_error(capsys) == "not a hash: HASH: got 'xyz', expected 32 hexadecimal digits, a sample_hash."
    assert run("add", tmp_path / "s.duckdb", A) == 2
    assert "Missing option '--reason'" in one_error(capsys)
    assert run("release", tmp_path / "s.duckdb", A, "--reason", "x") == 2
    assert "neither a run nor a store" in one_error(capsys)
    assert run("report", tmp_path) == 2
    assert "neither a run nor a store" in one_error(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_incident_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path)
    write_incident(RunDir(tmp_path), incident(2))
    (tmp_path / "incidents" / "0001" / "incident.json").write_text("{")
    assert run("report", tmp_path) == 0
    printed = capsys.readouterr().out
    assert "note: not an incident: " in printed
    assert "Incident 2, step 7: open" in printed
    assert read_incident(RunDir(tmp_path), 2).incident_id == 2


def test_a_damaged_incident_loses_nothing_that_the_store_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path)
    assert run("export", tmp_path, "--out", tmp_path / "before.txt") == 0
    (tmp_path / "incidents" / "0001" / "incident.json").write_text("{")
    capsys.readouterr()
    assert run("export", tmp_path, "--out", tmp_path / "after.txt") == 0
    assert "The copy in the store is used." in capsys.readouterr().err
    assert (tmp_path / "after.txt").read_bytes() == (tmp_path / "before.txt").read_bytes()
    assert run("rebuild", tmp_path) == 0
    assert run("add", tmp_path, A, "--reason", "seen") == 0
    assert Quarantine(tmp_path / "quarantine.duckdb").hashes("quarantined") == sorted(
        {A, *re.findall("^[0-9a-f]{32}", (tmp_path / "before.txt").read_text(), re.MULTILINE)}
    )


def test_a_build_is_not_taken_for_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    assert run("add", tmp_path, A, "--reason", "bad") == 2
    assert one_error(capsys).startswith("a build keeps no quarantine: ")
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_help_of_the_group_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    printed = capsys.readouterr().out
    for name in ("report", "list", "show", "add", "release", "export", "rebuild"):
        assert f"\n  {name} " in printed


def test_a_run_that_is_gone_leaves_its_store_readable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "shared.duckdb"
    write_incident(RunDir(tmp_path / "a"), incident(1))
    Quarantine(store).record(incident(1), tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    assert run("list", store, "--json") == 0
    assert result(capsys)["samples"]["quarantined"] == 1
    assert run("report", store) == 2
    assert "a report is of one run" in one_error(capsys)


# ---- what is asked for and is not there ----


def test_the_report_of_a_store_without_a_run_lists_what_was_decided_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "by-hand.duckdb"
    assert run("add", store, A, "--reason", "seen [before]", "--by", "ana") == 0
    assert run("add", store, B, "--reason", "a poem", "--by", "ben") == 0
    assert run("release", store, B, "--reason", "a fine poem", "--by", "cem") == 0
    capsys.readouterr()
    assert run("report", store) == 0
    printed, said = capsys.readouterr()
    assert said == ""
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    assert printed.startswith(f"{store}: no incidents\n\nNo incidents.\n\n2 samples decided by hand\n")
    assert [line[:4] for line in lines[4:]] == [
        [A, "quarantined", "–", "ana"],
        [B, "released", "–", "cem"],
    ]
    assert [" ".join(line[6:]) for line in lines[4:]] == ["seen [before]", "a fine poem"]
    file = tmp_path / "report.html"
    assert run("report", store, "--html", file, "--json") == 0
    assert [one["state"] for one in result(capsys)["by_hand"]] == ["quarantined", "released"]
    assert file.read_text().count("seen [before]") == 1


def test_the_report_of_a_run_lists_samples_that_no_incident_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = recorded(tmp_path / "run")
    assert run("add", place, "ab" * 16, "--reason", "near copy") == 0
    capsys.readouterr()
    assert run("report", place, "--json") == 0
    assert [one["sample_hash"] for one in result(capsys)["by_hand"]] == ["ab" * 16]
    assert run("report", place) == 0
    assert "1 sample of no incident decided by hand" in capsys.readouterr().out


def test_a_report_of_one_incident_counts_all_and_says_which_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = recorded(tmp_path / "run")
    write_incident(RunDir(place), incident(2))
    assert run("report", place, "--incident", 2) == 0
    assert capsys.readouterr().out.startswith(f"{place}: 2 incidents (shown: number 2)")
    assert run("report", place, "--incident", 2, "--json") == 0
    assert result(capsys)["incident_count"] == 2


@pytest.mark.parametrize("command", ["report", "show"])
def test_an_incident_that_is_not_there_is_misuse(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = recorded(tmp_path / "run")
    assert run(command, place, "--incident", 9) == 2
    assert re.fullmatch(r"no such incident: \S+: got number 9, expected one of: 1\.", one_error(capsys))
    store = tmp_path / "by-hand.duckdb"
    assert run("add", store, A, "--reason", "seen before") == 0
    capsys.readouterr()
    assert run(command, store, "--incident", 9) == 2
    assert "got number 9, expected one of: none." in one_error(capsys)


def test_a_folder_in_the_place_of_a_file_is_refused_under_the_name_it_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = recorded(tmp_path / "run")
    for arguments in (("report", place, "--html", tmp_path), ("export", place, "--out", tmp_path)):
        assert run(*arguments) == 2
        assert one_error(capsys) == (
            f"cannot write a file there: {arguments[2]} {tmp_path}: got a folder, expected a file name."
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_held_store_is_waited_for_once_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = recorded(tmp_path / "run")
    opened: list[float] = []

    def busy(path: Path, *, read_only: bool, patience: float) -> Any:
        opened.append(patience)
        raise BusyError("the store is in use: here: got process 7.")

    monkeypatch.setattr("cleanfeed.quarantine.store.opened", busy)
    for command in ("list", "show"):
        assert run(command, place) == 0
        printed, said = capsys.readouterr()
        assert "1" in printed
        assert (
            said == "note: read from the incident files instead: the store is in use: here: got process 7.\n"
        )
    assert opened == [1.0, 1.0]


@pytest.mark.parametrize(
    "command",
    [
        ("quarantine", "report", "{run}"),
        ("quarantine", "add", "{run}", A, "--reason", "seen"),
        ("ledger", "audit", "{run}"),
    ],
)
def test_a_curriculum_that_is_not_there_is_misuse_in_every_command(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    place = recorded(tmp_path / "run")
    words = [word.format(run=place) for word in command]
    assert main([*words, "--curriculum", str(tmp_path)]) == 2
    assert one_error(capsys) == (
        f"no finished build: --curriculum {tmp_path}: got no manifest.json, expected a folder 'cleanfeed build' wrote."
    )
