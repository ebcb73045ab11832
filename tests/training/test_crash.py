"""Killed at any moment, a run goes on as if nothing had happened: same weights, same incident, proved lineage."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import random
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cleanfeed import Curriculum, CurriculumSampler, Policy, Quarantine
from cleanfeed.errors import TrainingError
from cleanfeed.runs.audit import audit
from cleanfeed.runs.incident_files import read_incidents
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_attempts, read_ledger, surviving
from cleanfeed.training.steps import Step

from .world import Seen, make_curriculum, train, weights_of

ALL = bool(os.environ.get("CLEANFEED_KILLS"))
"""Kill between every two effects of an incident and at 50 random moments, not only at some."""
SLOT, STEPS = 48, 64
SKIP = Policy(
    grace=10,
    window=16,
    margin=3,
    promote_after=6,
    pre=2,
    recover_within=20,
    merge_gap=3,
    repeat=None,
    stall=None,
)
ROLL = dataclasses.replace(SKIP, actions=("record", "rollback", "halt"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_curriculum(tmp_path_factory.mktemp("crash"), documents=8 * STEPS)


@pytest.fixture(scope="module")
def bad(data: Path) -> list[int]:
    return CurriculumSampler(Curriculum(data), global_batch=8).slot_rows(SLOT)[:3].tolist()


def count_effects(note: Callable[[str], None]) -> None:
    """Call ``note`` before every change of the file system that Python code of this process makes."""

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            note(name)
            return function(*arguments, **options)

        return call

    os.write, os.fsync = noted("write", os.write), noted("fsync", os.fsync)
    for name in ("rename", "replace", "unlink", "mkdir", "rmdir"):
        setattr(Path, name, noted(name, getattr(Path, name)))
    shutil.rmtree = noted("rmtree", shutil.rmtree)  # type: ignore[assignment]


def in_child(work: Callable[[], None]) -> int:
    """Run something in a forked process and return how it ended, as `os.waitpid` has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside torch's idle threads
        child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the child must never go on as a second pytest
        import traceback

        traceback.print_exc()
        os._exit(99)


def run_killed(data: Path, run: Path, policy: Policy, bad: list[int], at: int) -> int:
    """Train in a child that is killed before effect ``at``; return how many it had, or 0 if it was killed."""
    log = run.with_suffix(".effects")

    def work() -> None:
        done: list[str] = []

        def note(name: str) -> None:
            done.append(name)
            if len(done) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        count_effects(note)
        train(data, run, policy=policy, poisoned=bad, per_sample=True)
        log.write_text(str(len(done)))

    status = in_child(work)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return 0
    assert os.WEXITSTATUS(status) == 0
    return int(log.read_text())


def check(data: Path, run: Path, policy: Policy, bad: list[int], weights: set[str]) -> None:
    """Go on with the run, and find it as if it had never been killed."""
    train(data, run, policy=policy, poisoned=bad, per_sample=True)
    final = train(data, run, policy=policy, poisoned=bad, per_sample=True)
    where = RunDir(run)
    assert weights_of(final.model) in weights
    lines = surviving(where)
    assert [line.slot for line in lines] == list(range(STEPS))
    found = audit(where)
    assert (
        found.problems,
        found.epochs[0].trained + found.epochs[0].blanked + found.epochs[0].not_accepted,
    ) == (
        [],
        8 * STEPS,
    )
    (incident,) = read_incidents(where)
    assert incident.outcome == "helped"
    assert incident.suspects[0].slot == SLOT
    assert len(Quarantine(where.store).hashes("quarantined")) == 3
    assert Quarantine(where.store).rows("incidents")[0]["outcome"] == "helped"
    assert not where.resume_plan.exists()
    assert not list(run.rglob("*.unfinished"))


@pytest.fixture(scope="module")
def expected(data: Path, bad: list[int], tmp_path_factory: pytest.TempPathFactory) -> dict[Policy, set[str]]:
    """Weights a run may end with: where the batch was passed over, and where only its culprits were left out."""
    weights = {}
    for policy in (ROLL, SKIP):
        run = tmp_path_factory.mktemp("seen")
        seen = train(data, run, policy=policy, poisoned=bad, per_sample=True)
        assert [one.outcome for one in read_incidents(RunDir(run))] == ["helped"]
        weights[policy] = {weights_of(seen.model)}
    # A skipped step that a kill undid is taken again, by then without the culprits.
    return {ROLL: weights[ROLL], SKIP: weights[SKIP] | weights[ROLL]}


Undisturbed = tuple[Policy, set[str], int, tuple[int, int]]


@pytest.fixture(scope="module", params=["rollback", "skip"])
def undisturbed(
    request: pytest.FixtureRequest,
    data: Path,
    bad: list[int],
    expected: dict[Policy, set[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Undisturbed:
    """Policy, final weights, number of effects, and which of them belong to the incident."""
    policy = ROLL if request.param == "rollback" else SKIP
    folder = tmp_path_factory.mktemp("undisturbed")
    effects = run_killed(data, folder / "counted", policy, bad, 0)
    first = effects_until(data, folder / "first", policy, bad, SLOT + 1)
    last = effects_until(data, folder / "last", policy, bad, SLOT + (14 if policy is ROLL else 5))
    return policy, expected[policy], effects, (first, last)


def effects_until(data: Path, run: Path, policy: Policy, bad: list[int], lines: int) -> int:
    """Return how many effects a run has had when its ledger has so many lines."""
    log = run.with_suffix(".reached")

    def work() -> None:
        done: list[str] = []

        def note(name: str) -> None:
            done.append(name)
            if name == "write" and len(list(read_ledger(RunDir(run)))) == lines:
                log.write_text(str(len(done)))
                os._exit(0)

        count_effects(note)
        train(data, run, policy=policy, poisoned=bad, per_sample=True)

    in_child(work)
    return int(log.read_text())


def test_killed_between_two_effects_of_an_incident_nothing_is_lost(
    data: Path, bad: list[int], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    policy, weights, _, (first, last) = undisturbed
    moments = range(first, last + 1)
    if not ALL:
        moments = range(first, last + 1, max(1, (last - first) // 6))
    for at in moments:
        run = tmp_path / f"at-{at}"
        assert run_killed(data, run, policy, bad, at) == 0
        check(data, run, policy, bad, weights)
        shutil.rmtree(run)


def test_killed_anywhere_twice_nothing_is_lost(
    data: Path, bad: list[int], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    policy, weights, effects, _ = undisturbed
    dice = random.Random(7)
    for number in range(50 if ALL else 1):
        run = tmp_path / f"twice-{number}"
        run_killed(data, run, policy, bad, dice.randrange(1, effects))
        run_killed(data, run, policy, bad, dice.randrange(1, effects))
        check(data, run, policy, bad, weights)
        shutil.rmtree(run)


def test_killed_at_a_random_moment_nothing_is_lost(
    data: Path, bad: list[int], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A signal from outside, which may come inside a write as well."""
    policy, weights, _, _ = undisturbed
    dice = random.Random(3)
    for number in range(50 if ALL else 1):
        run = tmp_path / f"random-{number}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            train(data, run, policy=policy, poisoned=bad, per_sample=True)
            os._exit(0)
        lines, wanted = 0, dice.randrange(1, STEPS)
        while lines < wanted and os.waitpid(child, os.WNOHANG) == (0, 0):
            where = RunDir(run)
            lines = sum(path.read_bytes().count(b"\n") for path in where.ledger.glob("*.jsonl"))
            time.sleep(0)
        if lines >= wanted:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        check(data, run, policy, bad, weights)


def test_after_a_kill_the_same_command_goes_on_at_once_while_the_workers_of_the_loader_still_live(
    data: Path, tmp_path: Path
) -> None:
    left = tmp_path / "workers"

    def kill(_: Seen, step: Step) -> None:
        if step.number == 15:
            left.write_text(" ".join(str(worker.pid) for worker in multiprocessing.active_children()))
            os.kill(os.getpid(), signal.SIGKILL)

    status = in_child(lambda: train(data, tmp_path / "run", workers=2, before_step=kill))
    assert os.WTERMSIG(status) == signal.SIGKILL
    workers = [int(pid) for pid in left.read_text().split()]
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)  # else they find out within seconds that their parent is gone
    try:
        train(data, tmp_path / "run", steps=20)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
    assert [start.after_step for start in read_attempts(RunDir(tmp_path / "run"))] == [0, 10]


def test_on_a_full_disk_an_incident_stops_training_before_anything_is_done_about_it(
    data: Path, bad: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("cleanfeed.training.desk.write_incident", full)
        with pytest.raises(TrainingError) as caught:
            train(data, tmp_path, policy=ROLL, poisoned=bad, per_sample=True)
    where = tmp_path / "incidents" / "0001"
    assert str(caught.value) == (
        f"an incident cannot be written: {where}: got No space left on device. "
        "Make room and start again: training goes on from the newest checkpoint."
    )
    run = RunDir(tmp_path)
    assert not where.exists()
    assert not run.resume_plan.exists()
    train(data, tmp_path, policy=ROLL, poisoned=bad, per_sample=True)
    assert [start.why for start in read_attempts(run)] == ["start", "resume", "rollback"]
    assert [incident.outcome for incident in read_incidents(run)] == ["helped"]
    assert audit(run).problems == []


def test_on_a_full_disk_the_ledger_stops_training_with_the_last_step_on_file(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(handle: int, text: bytes) -> int:
        if b'"step":17,' in text:
            write(handle, text[:20])
            raise OSError(28, "No space left on device")
        return write(handle, text)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(Exception, match=r"cannot write the ledger: .*: got No space left on device"):
            train(data, tmp_path)
    run = RunDir(tmp_path)
    assert [line.step for line in read_ledger(run)] == list(range(1, 17))
    assert run.attempt_lines(1).read_bytes().endswith(b"}\n")
    train(data, tmp_path)
    assert audit(run).problems == []
