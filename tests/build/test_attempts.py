"""A lost call is made again, what it shows is remembered, and only a document that is to blame is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cleanfeed.build.attempts import Attempts, Findings
from cleanfeed.build.budget import Finding, Lost, Place, Reason
from cleanfeed.build.journal import Journal
from cleanfeed.errors import CleanfeedError
from cleanfeed.settings import BudgetSettings

MANY, ONE, READING = Place(0, 3, 9), Place(0, 4, 4), Place(0, 12, None)
DIED = "killed by signal 9"


class Scripted:
    """An engine whose calls are lost as a test wants it, until they are told what to leave out."""

    def __init__(self, losses: Callable[[tuple[Finding, ...]], Lost | None]) -> None:
        self.losses = losses
        self.made: list[tuple[list[int], bool]] = []

    def run(
        self, function: Any, calls: Any, report: Any, *, alone: bool = False
    ) -> Iterator[tuple[int, Any]]:
        self.made.append(([number for number, _ in calls], alone))
        for number, arguments in calls:
            lost = self.losses(arguments[-1]) if number == 1 else None
            yield number, function(*arguments) if lost is None else lost

    def close(self, *, at_once: bool = False) -> None:
        pass


def count(number: int, findings: tuple[Finding, ...]) -> int:
    return 100 * number + len(findings)


def made(engine: Scripted, journal: Journal) -> tuple[list[int], list[Finding]]:
    findings = Findings(journal, BudgetSettings())
    calls = [(number, (number,)) for number in range(3)]
    attempts = Attempts(engine, journal, lambda amount: None)
    sizes = {0: 1, 1: 1, 2: 1}
    return attempts.each("measure", count, calls, int, sizes, lambda n, _: [], findings), findings.found


def died_at(place: Place) -> Lost:
    return Lost(place, overrun=False, how=DIED)


def overran(place: Place) -> Lost:
    return Lost(place, overrun=True, how="took more than its budget of time")


TWICE = Reason("too_costly", "worker_deaths", 2.0, 1.0)
SLOW = Reason("too_costly", "seconds", 10.0, 10.0)


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        # A worker that dies once shows nothing.
        ([died_at(ONE)], []),
        ([died_at(MANY)], []),
        ([died_at(ONE), died_at(MANY), Lost(None, overrun=False, how=DIED)], []),
        ([died_at(ONE), died_at(ONE)], [Finding(1, ONE, TWICE)]),
        ([overran(ONE)], [Finding(1, ONE, SLOW)]),
        ([overran(MANY), overran(ONE)], [Finding(1, MANY, None), Finding(1, ONE, SLOW)]),
        ([died_at(MANY)] * 2 + [died_at(ONE)] * 2, [Finding(1, MANY, None), Finding(1, ONE, TWICE)]),
        ([died_at(READING)] * 3, []),
        ([died_at(READING)] * 4, [Finding(1, READING, None)]),
    ],
)
def test_what_is_lost_is_made_again_with_what_was_found_and_alone_where_a_worker_died(
    tmp_path: Path, losses: list[Lost], found: list[Finding]
):
    left = list(losses)
    engine = Scripted(lambda findings: left.pop(0) if left else None)
    with Journal(tmp_path, "x") as journal:
        assert made(engine, journal) == ([0, 100 + len(found), 200], found)
    assert engine.made == [([0, 1, 2], False), *(([1], not lost.overrun) for lost in losses)]


def test_a_build_that_goes_on_knows_what_was_found(tmp_path: Path):
    with Journal(tmp_path, "x") as journal, pytest.raises(KeyboardInterrupt):
        made(Scripted(_first_slow_then_interrupted()), journal)
    engine = Scripted(lambda findings: None if findings else overran(ONE))
    with Journal(tmp_path, "x") as journal:
        assert made(engine, journal) == ([0, 101, 200], [Finding(1, ONE, SLOW)])
    assert engine.made == [([1], False)]


def _first_slow_then_interrupted() -> Callable[[tuple[Finding, ...]], Lost | None]:
    def losses(findings: tuple[Finding, ...]) -> Lost | None:
        if findings:
            raise KeyboardInterrupt
        return overran(ONE)

    return losses


@pytest.mark.parametrize("lost", [Lost(None, overrun=False, how=DIED), overran(ONE), died_at(ONE)])
def test_workers_that_go_on_dying_end_the_build_in_a_line(tmp_path: Path, lost: Lost):
    with Journal(tmp_path, "x") as journal, pytest.raises(CleanfeedError) as caught:
        made(Scripted(lambda findings: lost), journal)
    assert str(caught.value).startswith(
        f"workers die again and again: measure: got 4 of them, the last one {lost.how}."
    )
    assert str(caught.value).endswith("it goes on where it stopped.")
