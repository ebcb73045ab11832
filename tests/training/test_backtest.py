"""A finished run's log, whoever wrote it, shows the same incident at the same step."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cleanfeed.cli.main import main
from cleanfeed.errors import MisuseError, NothingReadableError
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import LedgerWriter, begin_attempt
from cleanfeed.runs.records import Attempt, LedgerLine
from cleanfeed.training.backtest import Backtest, backtest
from cleanfeed.training.logs import Log, read_log
from cleanfeed.training.metrics import Metrics
from cleanfeed.training.policy import Policy
from tests.training.traces import BLOOM_176B, healthy

RUN = [*BLOOM_176B.before(640), *BLOOM_176B.printed()]


def judged(path: Path, **chosen: str) -> Backtest:
    return backtest(read_log(str(path), chosen), Policy())


def places(result: Backtest) -> list[tuple[int, int, str]]:
    return [(found.onset_step, found.trip_step, found.rule) for found in result.incidents]


FOUND = [(31215, 31216, "conjunction")]


def write_csv(path: Path, names: tuple[str, str, str], delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(names)
        writer.writerows((m.step, m.loss, m.grad_norm) for m in RUN)
    return path


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# ---- where logs come from ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("step", "loss", "grad_norm"),
        ("iteration", "lm loss", "grad norm"),
        ("train/global_step", "train/loss", "train/grad_norm"),
        ("_step", "train/CE loss", "optim/total grad norm"),
    ],
)
def test_a_csv_under_common_names(tmp_path: Path, names: tuple[str, str, str]) -> None:
    assert places(judged(write_csv(tmp_path / "log.csv", names))) == FOUND


def test_a_table_with_tabs_and_names_of_its_own(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.tsv", ("n", "objective", "size"), "\t")
    assert places(judged(path, step="n", loss="objective", grad_norm="size")) == FOUND


def test_the_columns_of_a_ledger_are_not_chosen(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    sampler: dict[str, Any] = {}
    begin_attempt(run, Attempt(1, 0.0, 0, None, "start", None, "out", "0" * 32, sampler))
    LedgerWriter(run, 1).close()
    with pytest.raises(MisuseError, match=r"a ledger names its own columns: .*: got loss = zzz"):
        read_log(str(tmp_path), {"loss": "zzz"})


def test_json_lines_that_give_loss_and_norm_apart(tmp_path: Path) -> None:
    rows = [
        row
        for m in RUN
        for row in ({"step": m.step, "train/loss": m.loss}, {"step": m.step, "train/grad_norm": m.grad_norm})
    ]
    log = read_log(str(write_lines(tmp_path / "log.jsonl", rows)))
    assert len(log.rows) == len(RUN)
    assert places(backtest(log, Policy())) == FOUND


def test_the_history_of_a_trainer_state(tmp_path: Path) -> None:
    history = [{"step": m.step, "loss": m.loss, "grad_norm": m.grad_norm} for m in RUN]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": [*history, {"step": 31222, "eval_loss": 2.2}]}))
    assert places(judged(path)) == FOUND


def test_tensorboard_events_of_both_kinds(tmp_path: Path) -> None:
    summary = pytest.importorskip("tensorboard.summary")
    writer = summary.Writer(str(tmp_path / "tb"))
    for m in RUN:
        writer.add_scalar("lm-loss-training/lm loss", m.loss, m.step)
        writer.add_scalar("grad-norm/grad-norm", m.grad_norm, m.step)
    writer.close()
    log = read_log(str(tmp_path / "tb"))
    assert log.names["loss"] == "lm-loss-training/lm loss"
    assert places(backtest(log, Policy())) == FOUND
    (events,) = (tmp_path / "tb").iterdir()
    assert places(judged(events)) == FOUND


# ---- a run's own ledger --------------------------------------------------------------------------------------------


def ledger_line(attempt: int, m: Metrics) -> LedgerLine:
    finite = math.isfinite(m.loss)
    return LedgerLine(
        attempt=attempt,
        step=m.step,
        epoch=0,
        slot=m.step - 1,
        stage=0,
        batch_hash="0" * 32,
        samples=8,
        tokens=80,
        loss=m.loss if finite else None,
        worst_micro_loss=None,
        grad_norm=m.grad_norm,
        lr=None,
        time=0.0,
        finite=finite,
    )


def write_run(root: Path, attempts: list[tuple[int, list[Metrics]]]) -> RunDir:
    run = RunDir(root)
    run.ledger.mkdir(parents=True)
    for number, (after, steps) in enumerate(attempts, 1):
        start = Attempt(number, 0.0, after, None, "start" if number == 1 else "rollback", None, "c", "d", {})
        run.attempt_start(number).write_bytes(msgspec.json.encode(start))
        lines = (msgspec.json.encode(ledger_line(number, m)) + b"\n" for m in steps)
        run.attempt_lines(number).write_bytes(b"".join(lines))
    return run


def test_a_run_with_a_rollback_is_judged_from_what_was_known_at_the_checkpoint(tmp_path: Path) -> None:
    first = [*healthy(700), *healthy(5, 701, loss=(9.0, 0.1))]
    again = healthy(200, 601)
    again[150] = Metrics(751, math.nan, 0.5)
    run = write_run(tmp_path / "run", [(0, first), (600, again)])
    result = judged(run.root)
    assert places(result) == [(701, 701, "robust_z"), (751, 751, "nonfinite")]
    assert result.restarts == 1
    assert places(judged(run.ledger)) == places(result)


def test_the_lines_of_one_attempt_are_a_log_too(tmp_path: Path) -> None:
    steps = healthy(700)
    steps[650] = Metrics(651, math.nan, 0.5)
    run = write_run(tmp_path / "run", [(0, steps)])
    assert places(judged(run.attempt_lines(1))) == [(651, 651, "nonfinite")]


# ---- what it says --------------------------------------------------------------------------------------------------


def test_further_rules_of_an_incident_are_listed_once_at_the_step_they_first_fired(tmp_path: Path) -> None:
    (found,) = judged(write_csv(tmp_path / "log.csv", ("step", "loss", "grad_norm"))).incidents
    fired = {(trip.rule, trip.signal): trip.step for trip in found.trips}
    assert fired["sustained", "grad_norm"] == 31220
    assert fired["persistence", "loss"] == 31222
    assert len(found.trips) == len({(trip.rule, trip.signal) for trip in found.trips})
    assert found.last_step == 31222


def test_a_log_of_every_tenth_step_counts_lines_and_shows_steps() -> None:
    rows = [{"step": 10 * m.step, "loss": m.loss, "grad_norm": m.grad_norm} for m in healthy(700)]
    rows[650]["loss"], rows[651]["loss"] = 9.0, 9.0
    result = backtest(Log("csv", rows=rows), Policy())
    assert (result.stride, places(result)) == (10, [(6510, 6510, "robust_z")])


def test_the_command_prints_a_table_and_exits_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "log.csv", ("step", "loss", "grad_norm"))
    assert main(["backtest", str(path), "--observations"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "incidents: 1; outliers that opened none: 1" in lines
    table = [line.split() for line in lines if line.startswith(("1 ", " "))]
    assert table[0][:5] == ["1", "conjunction", "loss", "31,216", "31,215"]
    assert table[-1][:5] == ["robust_z", "grad_norm", "31,215", "31,215", "0.947"]


def test_json_holds_everything_with_the_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "log.csv", ("step", "lm loss", "grad_norm"))
    assert main(["backtest", str(path), "--set", "sustained=null", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["names"] == {"step": "step", "loss": "lm loss", "grad_norm": "grad_norm"}
    assert result["policy"] == Policy(sustained=None).to_dict()
    assert [i["trip_step"] for i in result["incidents"]] == [31216]
    assert "sustained" not in [trip["rule"] for trip in result["incidents"][0]["trips"]]


def test_a_healthy_log_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": m.step, "loss": m.loss} for m in healthy(600)]
    assert main(["backtest", str(write_lines(tmp_path / "log.jsonl", rows))]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "incidents: 0; outliers that opened none: 0"


# ---- what cannot be read -------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_passed_over_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", [{"step": m.step, "loss": m.loss} for m in healthy(5)])
    with path.open("a") as file:
        file.write('{"step": 6, "lo')
    assert len(read_log(str(path)).rows) == 5
    path.write_text('{"step": 1, "loss": 2}\nnot json\n{"step": 2, "loss": 2}\n')
    with pytest.raises(NothingReadableError, match=r"not a JSON line: .*log.jsonl:2: got not json"):
        read_log(str(path))


def test_lines_without_step_or_loss_are_counted(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"step": 1, "loss": 2.0},
        {"step": 2},
        {"note": "x"},
        {"step": 3, "loss": "2.1"},
    ]
    log = read_log(str(write_lines(tmp_path / "log.jsonl", rows)))
    assert ([row["step"] for row in log.rows], log.left_out) == ([1, 3], 2)


@pytest.mark.parametrize(
    ("content", "chosen", "message"),
    [
        ("step,x\n1,2\n", {}, "no loss in the log: {}: got the columns step, x. Name it with --loss."),
        ("step,loss\n1,2\n", {"grad_norm": "y"}, "no such column: {}: got 'y', expected one of step, loss."),
    ],
)
def test_a_log_without_the_numbers_names_what_there_is(
    tmp_path: Path, content: str, chosen: dict[str, str], message: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(content)
    with pytest.raises(MisuseError) as caught:
        read_log(str(path), chosen)
    assert str(caught.value) == message.format(path)


def test_an_absent_log_and_an_empty_folder_are_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backtest", str(tmp_path / "absent.csv")]) == 2
    assert capsys.readouterr().err == f"no such log: {tmp_path}/absent.csv: expected a file or folder.\n"
    assert main(["backtest", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(
        f"no log in the folder: {tmp_path}: expected a run directory or"
    )


def test_without_tensorboard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, "tensorboard.backend.event_processing.event_accumulator", None
    )
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    with pytest.raises(MisuseError) as caught:
        read_log(str(tmp_path))
    assert str(caught.value).endswith("Install it with: pip install 'cleanfeed[tensorboard]'.")


@pytest.mark.parametrize(
    ("name", "text", "code", "said"),
    [
        ("log.csv", "", 1, "the log holds no step: {}: got an empty file, expected a row for each step."),
        ("log.jsonl", "", 1, "the log holds no step: {}: got an empty file, expected a row for each step."),
        ("log.json", "[]", 1, "the log holds no step: {}: got no row, expected a row for each step."),
        ("log.jsonl", "\n\n", 1, "the log holds no step: {}: got no row, expected a row for each step."),
        (
            "log.csv",
            "step,loss\n",
            1,
            "the log holds no step: {}: got a header alone, expected a row for each step.",
        ),
        (
            "log.csv",
            "step,accuracy\n1,2\n",
            2,
            "no loss in the log: {}: got the columns step, accuracy. Name it with --loss.",
        ),
        (
            "log.csv",
            "iteration,loss\n1,\n2,low\n",
            1,
            "no step with a loss: {}: got 2 rows without a number in both columns, expected step from 'iteration', "
            "loss from 'loss'. Name other columns with --step and --loss.",
        ),
    ],
)
def test_a_log_without_a_step_says_what_it_lacks(
    tmp_path: Path, name: str, text: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert main(["backtest", str(path)]) == code
    assert capsys.readouterr() == ("", said.format(path) + "\n")


def test_a_log_of_nothing_but_nan_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n" + "".join(f"{step},nan\n" for step in range(1, 21)))
    assert main(["backtest", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "lines whose loss or norm is not finite: all of them\n" in printed
    assert "in the grace" not in printed
    assert "nonfinite" in printed


def test_steps_that_no_statistical_rule_judges_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"step": m.step, "loss": m.loss, "stage": "a" if m.step <= 100 else "b"} for m in healthy(192)]
    path = write_lines(tmp_path / "log.jsonl", rows)
    found = backtest(read_log(str(path)), Policy(grace=70))
    assert (found.in_grace, found.not_finite) == (70, 0)
    assert 0 < found.in_new_context < 30
    assert main(["backtest", str(path), "--set", "grace=70"]) == 0
    told = f"70 lines lie in the grace and {found.in_new_context} in a stage that is new"
    assert told in capsys.readouterr().out


def test_a_step_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n1,3.0\nnan,3.0\ninf,3.0\n2,2.5\n")
    log = read_log(str(path))
    assert ([row["step"] for row in log.rows], log.left_out) == ([1, 2], 2)


def test_line_ends_inside_a_json_string_do_not_end_the_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"step": 1, "loss": 3.0, "note": "a\u2028b\x85c"}\n{"step": 2, "loss": 2.5}\n\n{"step": 3, "lo'
    )
    assert [row["loss"] for row in read_log(str(path)).rows] == [3.0, 2.5]


def test_a_ledger_tells_a_norm_that_was_not_finite_from_one_that_was_not_given(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"loss": 3.0, "grad_norm": None, "finite": True},
        {"loss": 3.0, "grad_norm": None, "finite": False},
        {"loss": None, "grad_norm": 1.0, "finite": False},
        {"loss": None, "grad_norm": 1.0, "finite": True},
    ]
    rest = {"attempt": 1, "epoch": 0, "stage": 0, "batch_hash": "", "samples": 1, "tokens": 1, "time": 0.0}
    rest |= {"worst_micro_loss": None, "lr": None}
    text = "".join(
        json.dumps({"step": at, "slot": at, **rest, **line}) + "\n" for at, line in enumerate(lines)
    )
    run = RunDir(tmp_path / "run")
    run.ledger.mkdir(parents=True)
    run.attempt_lines(1).write_text(text)
    (tmp_path / "log.jsonl").write_text(text)
    for path in (run.root, tmp_path / "log.jsonl"):
        log = read_log(str(path))
        assert [(row["step"], repr(row["loss"]), row.get("grad_norm")) for row in log.rows] == [
            (0, "3.0", None),
            (1, "3.0", float("inf")),
            (2, "nan", 1.0),
        ]
        assert log.left_out == 1
