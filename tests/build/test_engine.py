"""Workers die and the calls they were in are known; nothing else is lost, and nothing hangs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanfeed.build.budget import Lost, Place, Reporter
from cleanfeed.build.engine import LocalEngine
from cleanfeed.build.kernels import load_kernels
from cleanfeed.build.pool import OVERRUN, RESULT, _PipeReporter
from cleanfeed.errors import MisuseError

from .conftest import prose, write_jsonl

KINDS = {"here": (1, True), "one": (1, False), "two": (2, False)}


@pytest.fixture(params=KINDS)
def local(request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    workers, here = KINDS[request.param]
    made = LocalEngine(workers, here=here)
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[LocalEngine]:
    made = LocalEngine(2)
    yield made
    made.close()


@pytest.fixture
def one() -> Iterator[LocalEngine]:
    made = LocalEngine(1)
    yield made
    made.close()


def double(number: int, report: Reporter) -> int:
    report(number)
    return 2 * number


def kill_some(number: int, report: Reporter) -> int:
    report(1)
    report.begin(Place(number, 7, 7))
    if number % 3 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def kill_parent_of_workers(number: int, report: Reporter) -> int:
    if number == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    return number


def never_comes_back(number: int, report: Reporter) -> int:
    report.begin(Place(0, number, number), 0.2)
    while number % 2:
        pass
    report.end()
    return number


def answers_just_too_late(number: int, report: _PipeReporter) -> int:
    if number == 0:
        report.send(RESULT, number)
        # Its worker is given another call before it is seen that the time of this one was over.
        assert report._pipe.poll(60)
        report.stop(Place(0, number, number))
    return number


def no_memory(number: int, report: Reporter) -> int:
    report.begin(Place(0, number, number))
    raise MemoryError


def misused(number: int, report: Reporter) -> int:
    raise MisuseError("what is wrong: here.")


def large(number: int, text: str, report: Reporter) -> str:
    for _ in range(5000):
        report(1)
    return text * 2


def most_memory_elsewhere(_: int, report: Reporter) -> int:
    pq.write_table(pa.table({"text": ["x" * 1000] * 1000}), pa.BufferOutputStream(), compression="zstd")
    backends = [name for name in pa.supported_memory_backends() if name != "system"]
    return sum(getattr(pa, f"{name}_memory_pool")().max_memory() or 0 for name in backends)


def calls(count: int) -> list[tuple[int, tuple[int]]]:
    return [(number, (number,)) for number in range(count)]


def test_every_call_has_its_result_and_every_report_arrives(local: LocalEngine):
    reported: list[int] = []
    for _ in range(2):
        found = dict(local.run(double, calls(20), reported.append))
        assert found == {number: 2 * number for number in range(20)}
    assert sum(reported) == 2 * sum(range(20))


def test_all_memory_of_arrow_in_a_worker_is_from_the_allocator_that_keeps_it(one: LocalEngine):
    assert dict(one.run(most_memory_elsewhere, calls(1), lambda amount: None)) == {0: 0}


def test_a_call_whose_worker_is_killed_is_lost_and_no_other(pool: LocalEngine):
    reported: list[int] = []
    found = dict(pool.run(kill_some, calls(10), reported.append))
    lost = {number: result for number, result in found.items() if isinstance(result, Lost)}
    assert sorted(lost) == [0, 3, 6, 9]
    assert sum(reported) == 6
    assert lost[3] == Lost(Place(3, 7, 7), overrun=False, how="killed by signal 9")
    assert {number: found[number] for number in (1, 2, 4, 5, 7, 8)} == {n: n for n in (1, 2, 4, 5, 7, 8)}


def test_a_worker_killed_while_it_has_nothing_to_do_is_replaced(pool: LocalEngine):
    list(pool.run(double, calls(4), lambda amount: None))
    assert pool._pool is not None
    for worker in pool._pool._workers:
        worker.process.kill()
        worker.process.join()
    assert dict(pool.run(double, calls(4), lambda amount: None)) == {n: 2 * n for n in range(4)}


def test_the_server_that_workers_are_forked_from_may_die_too(pool: LocalEngine):
    found = dict(pool.run(kill_parent_of_workers, calls(6), lambda amount: None))
    assert sorted(found) == list(range(6))
    assert all(found[n] == n or isinstance(found[n], Lost) for n in range(6))
    list(pool.run(kill_some, calls(4), lambda amount: None))
    assert dict(pool.run(double, calls(4), lambda amount: None)) == {n: 2 * n for n in range(4)}


def test_what_overruns_its_time_is_ended_wherever_it_is(pool: LocalEngine):
    found = dict(pool.run(never_comes_back, calls(4), lambda amount: None))
    assert (found[0], found[2]) == (0, 2)
    assert found[3] == Lost(Place(0, 3, 3), overrun=True, how="took more than its budget of time")


def test_an_overrun_costs_only_the_call_it_was_in(one: LocalEngine):
    found = dict(one.run(never_comes_back, calls(7), lambda amount: None))
    lost = {n: Lost(Place(0, n, n), overrun=True, how=OVERRUN) for n in (1, 3, 5)}
    assert found == {n: lost.get(n, n) for n in range(7)}


def test_an_overrun_that_is_seen_after_the_result_costs_nothing(one: LocalEngine):
    reported: list[int] = []
    assert dict(one.run(answers_just_too_late, calls(4), reported.append)) == {n: n for n in range(4)}
    assert sum(reported) == 0


def test_no_memory_in_a_call_is_a_loss_not_the_end(local: LocalEngine):
    found = dict(local.run(no_memory, calls(3), lambda amount: None))
    assert found[2] == Lost(Place(0, 2, 2), overrun=False, how="out of memory")


def test_an_error_in_a_call_is_raised_to_whoever_made_it(local: LocalEngine):
    with pytest.raises(MisuseError, match="what is wrong"):
        list(local.run(misused, calls(5), lambda amount: None))
    local.close(at_once=True)


def test_large_arguments_and_results_pass_in_both_directions_at_once(pool: LocalEngine):
    text = "x" * 300_000
    found = dict(pool.run(large, [(n, (n, text)) for n in range(12)], lambda amount: None))
    assert found == dict.fromkeys(range(12), text * 2)


def test_one_call_at_a_time_where_each_is_to_have_the_machine(pool: LocalEngine):
    at_work: list[int] = []
    found = [number for number, _ in pool.run(alone, calls(4), at_work.append, alone=True)]
    assert (found, at_work) == ([0, 1, 2, 3], [1, -1] * 4)


def alone(number: int, report: Reporter) -> None:
    report(1)
    report(-1)


def test_a_caller_that_goes_away_leaves_no_process(pool: LocalEngine, tmp_path: Path):
    run = pool.run(double, calls(10), lambda amount: None)
    next(iter(run))
    assert pool._pool is not None
    processes = [worker.process for worker in pool._pool._workers]
    run.close()  # type: ignore[attr-defined]
    pool.close(at_once=True)
    assert [process.exitcode is not None for process in processes] == [True] * len(processes)


COMMAND = """
import sys
from cleanfeed.cli.main import main

assert main(["build", *sys.argv[1:]]) == 0
print(sorted({"numba", "torch"} & set(sys.modules)), file=sys.stderr)
"""


def test_a_command_loads_no_compiler_beside_that_of_its_workers(tmp_path: Path):
    load_kernels(tokens=False)
    source = write_jsonl(tmp_path / "a.jsonl", [{"id": n, "text": prose(n)} for n in range(9)])
    command = [sys.executable, "-c", COMMAND, str(source), "--out", str(tmp_path / "out"), "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (0, ["[]"])


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python cannot be kept from the current folder before 3.11"
)
def test_a_module_that_lies_in_the_current_folder_is_not_loaded(tmp_path: Path):
    program, here = tmp_path / "program", tmp_path / "here"
    program.mkdir()
    here.mkdir()
    (program / "run.py").write_text(COMMAND, encoding="utf-8")
    for name in ("yaml", "signal", "cleanfeed"):
        (here / f"{name}.py").write_text("open('loaded', 'a').write(__name__)\n", encoding="utf-8")
    source = write_jsonl(here / "a.jsonl", [{"id": n, "text": prose(n)} for n in range(9)])
    command = [sys.executable, str(program / "run.py"), source.name, "--out", "out", "--workers", "2"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (here / "out" / "manifest.json").exists()
    assert not (here / "loaded").exists()
