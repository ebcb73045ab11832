"""Calls go in; the result of each comes out, whatever became of the workers they were made in.

A call that was lost is made again, alone on the machine if its worker died. Of documents that were at work together
each is then taken by itself, and the one that loses its worker again is refused. What was found out is in the journal,
so that a build that goes on comes to the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from cleanfeed.build.budget import TOO_COSTLY, Finding, Lost, Place, Reason
from cleanfeed.build.engine import Call, Engine
from cleanfeed.build.journal import Journal
from cleanfeed.curriculum.paths import AnyPath
from cleanfeed.errors import CleanfeedError, one_line
from cleanfeed.settings import BudgetSettings

Result = TypeVar("Result")

LOSSES = 4
"""Times a call may be lost without anything to blame."""

DEATHS, READING_DEATHS = 2, 4
"""Workers that may die at the same documents before these are blamed; and while they read at the same place, where
more is at stake: what follows there is given up."""

FINDING = "finding"


class Findings:
    """What lost calls have shown of the documents of their tasks.

    Args:
        journal: Where it is kept.
        budget: What a document may take.
    """

    def __init__(self, journal: Journal, budget: BudgetSettings) -> None:
        self.journal, self.budget = journal, budget
        self.found: list[Finding] = []
        while (finding := journal.done(FINDING, len(self.found), Finding)) is not None:
            self.found.append(finding)
        self._deaths: Counter[tuple[int, Place]] = Counter()

    def of(self, task: int) -> tuple[Finding, ...]:
        """Return what is known of a task."""
        return tuple(finding for finding in self.found if finding.task == task)

    def learn(self, task: int, lost: Lost) -> bool:
        """Draw the conclusion from a lost call, if there is one; return whether the loss is explained by a place."""
        place = lost.place
        if place is None:
            return False
        self._deaths[task, place] += 1
        deaths = self._deaths[task, place]
        if not lost.overrun and deaths < (READING_DEATHS if place.last is None else DEATHS):
            return True
        reason = None
        if place.is_one and lost.overrun:
            reason = Reason(TOO_COSTLY, "seconds", self.budget.seconds, self.budget.seconds)
        elif place.is_one:
            reason = Reason(TOO_COSTLY, "worker_deaths", DEATHS, DEATHS - 1)
        finding = Finding(task, place, reason)
        if finding in self.found:
            return False
        self.journal.enter(FINDING, len(self.found), finding)
        self.found.append(finding)
        return True


class Attempts:
    """Makes the calls of a build.

    Args:
        engine: Where they are made.
        journal: What is finished.
        advance: Called with the work that is done.
    """

    def __init__(self, engine: Engine, journal: Journal, advance: Callable[[int], None]) -> None:
        self.engine, self.journal, self.advance = engine, journal, advance

    def each(
        self,
        phase: str,
        function: Callable[..., Result],
        calls: Sequence[Call],
        kind: type[Result],
        sizes: Mapping[int, int],
        files: Callable[[int, Result], Sequence[AnyPath]],
        findings: Findings | None = None,
    ) -> list[Result]:
        """Return the result of every call, in order; those in the journal are not made again.

        Args:
            phase: Name of these calls in the journal.
            function: What is called.
            calls: Number and arguments of each call.
            kind: Type of a result.
            sizes: How much of the phase each call is, by number.
            files: Returns the files that belong to a result; they are on disk before the journal says so.
            findings: What is known of the documents of each call; then it is the last argument of a call.

        Raises:
            CleanfeedError: Worker after worker died, and no document is to blame.
        """
        results = {
            number: done
            for number, _ in calls
            if (done := self.journal.done(phase, number, kind)) is not None
        }
        self.advance(sum(sizes[number] for number in results))
        left, alone = [call for call in calls if call[0] not in results], False
        unexplained: Counter[int] = Counter()
        while left:
            again: dict[int, Lost] = {}
            now = left if findings is None else [(n, (*given, findings.of(n))) for n, given in left]
            for number, result in self.engine.run(function, now, self.advance, alone=alone):
                if not isinstance(result, Lost):
                    self.journal.enter(phase, number, result, files(number, result))
                    results[number] = result
                    continue
                again[number] = result
                if findings is None or not findings.learn(number, result):
                    unexplained[number] += 1
                if unexplained[number] == LOSSES:
                    raise CleanfeedError(_gave_up(phase, result))
            left = [call for call in left if call[0] in again]
            # What died may have had too little memory beside the others; what was only slow had not.
            alone = not all(lost.overrun for lost in again.values())
        return [results[number] for number in sorted(results)]


def _gave_up(phase: str, lost: Lost) -> str:
    return one_line(
        "workers die again and again",
        phase,
        f"{LOSSES} of them, the last one {lost.how}",
        todo="Most often the machine runs out of memory: run the same command again with more of it; "
        "it goes on where it stopped.",
    )
