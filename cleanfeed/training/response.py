"""The verdict of each step goes in; incidents on file, exclusions in force and a rollback, where due, come out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cleanfeed.runs.records import LedgerLine
from cleanfeed.training.metrics import Verdict
from cleanfeed.training.startup import Beginning, ResumePlan
from cleanfeed.training.steps import Step

if TYPE_CHECKING:
    from cleanfeed.training.guard import TrainingGuard


class Response:
    """Answers what the watch finds."""

    def __init__(self, guard: TrainingGuard, quarantine: str | Path | None) -> None:
        self.guard = guard
        self.rollback: ResumePlan | None = None
        self.healthy_since = 0
        self.may_save = True

    def allows(self, verdict: Verdict) -> bool:
        """Return whether the optimizer may take the step."""
        return verdict.accept

    def after(self, step: Step, line: LedgerLine, verdict: Verdict) -> None:
        """Act on a step that was committed."""
        self.may_save = verdict.state == "healthy"

    def restore(self, beginning: Beginning) -> None:
        """Put what is known of earlier attempts in force."""
        self.rollback = None

    def finish(self) -> None:
        """Act on the end of the data."""
