"""Curves and totals of a ledger are those of its lines, of a million as of three."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cleanfeed.runs.curve import LedgerTable, Totals
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import LedgerWriter, begin_attempt
from cleanfeed.runs.records import Attempt, LedgerLine


def unexpected(line: str) -> None:
    raise AssertionError(line)


def write(run: RunDir, attempt: int, after: int, losses: list[float | None], **changed: object) -> None:
    begin_attempt(run, Attempt(attempt, 1.0, after, after or None, "start", None, "out", "d", {}))
    with LedgerWriter(run, attempt) as ledger:
        for step, loss in enumerate(losses, start=after + 1):
            fields = {"accepted": True, "finite": loss is not None, **changed}
            ledger.write(
                LedgerLine(
                    attempt,
                    step,
                    0,
                    step - 1,
                    2,
                    "ab" * 16,
                    8,
                    100,
                    loss,
                    loss,
                    1.0,
                    0.1,
                    10.0 + step,
                    **fields,
                )  # type: ignore[arg-type]
            )


def test_a_run_without_a_ledger_adds_up_to_nothing(tmp_path: Path) -> None:
    with LedgerTable(RunDir(tmp_path), unexpected) as ledger:
        assert ledger.totals() == Totals()
        assert (ledger.curve("loss", 10), ledger.around(0, 10), ledger.attempts) == ([], [], [])


def test_undone_steps_are_apart(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, 0, [1.0, 2.0, None, 9.0])
    write(run, 2, 2, [3.0, 4.0], accepted=False, judged=False)
    with LedgerTable(run, unexpected) as ledger:
        assert ledger.nonfinite(9) == [3]
        assert ledger.totals() == Totals(
            steps=4,
            last_step=4,
            tokens=200,
            undone_steps=2,
            refused_steps=2,
            unjudged_steps=2,
            nonfinite_steps=1,
            last_slot=3,
            first_time=11.0,
            last_time=14.0,
        )
        assert [(line.attempt, line.step, line.loss, line.survived) for line in ledger.around(2, 3)] == [
            (1, 2, 2.0, True),
            (1, 3, None, False),
            (2, 3, 3.0, True),
        ]
        assert [len(ledger.around(0, 9, most)) for most in (0, 3, 99)] == [0, 3, 6]


@settings(max_examples=20)
@given(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(1, 12))
def test_a_curve_holds_every_finite_value_once(losses: list[float | None], buckets: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        write(run, 1, 0, losses)
        with LedgerTable(run, unexpected) as ledger:
            found = ledger.curve("loss", buckets)
    assert len(found) <= buckets
    covered = 0
    for bucket in found:
        inside = [loss for loss in losses[bucket.first_step - 1 : bucket.last_step] if loss is not None]
        covered += len(inside)
        assert (bucket.low, bucket.high) == (min(inside), max(inside))
        assert abs(bucket.mean - sum(inside) / len(inside)) <= 1e-6 * max(1.0, max(map(abs, inside)))
    assert covered == sum(loss is not None for loss in losses)


def test_a_damaged_line_is_left_out_and_said(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, 0, [1.0, 2.0, 3.0, 4.0])
    write(run, 2, 4, [5.0])
    lines = run.attempt_lines(1).read_bytes().splitlines(keepends=True)
    lines[1], lines[2] = b'{"step": torn\n', b'{"foreign": 1}\n'
    run.attempt_lines(1).write_bytes(b"".join(lines))
    said: list[str] = []
    with LedgerTable(run, said.append) as ledger:
        assert [line.loss for line in ledger.around(0, 9)] == [1.0, 4.0, 5.0]
    assert said == [f"2 of 4 lines of the ledger cannot be read and are left out: {run.attempt_lines(1)}"]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, 0, [1.0, 2.0])
    with run.attempt_lines(1).open("a") as file:
        file.write('{"attempt":1,"step":3,"loss":3.0,"ti')
    with LedgerTable(run, unexpected) as ledger:
        assert ledger.totals().steps == 2
        assert [line.loss for line in ledger.around(0, 9)] == [1.0, 2.0]


def test_a_ledger_of_an_attempt_that_nobody_began_is_said_and_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, 1, 0, [1.0])
    run.attempt_start(1).unlink()
    said: list[str] = []
    with LedgerTable(run, said.append) as ledger:
        assert ledger.totals().steps == 1
    assert said[0].endswith("Every line is taken for one that counts.")
