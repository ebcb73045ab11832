"""A run directory goes in; the path of every file a training run keeps there comes out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ATTEMPT = re.compile(r"attempt-(\d{4,})\.jsonl")
_INCIDENT = re.compile(r"\d{4,}")
_CHECKPOINT = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True)
class RunDir:
    """Where a training run keeps its records; nothing is created by asking.

    ::

        RUN/
          ledger/attempt-0001.jsonl      one line a step
          ledger/attempt-0001.json       how the attempt began (see `Attempt`)
          ledger/attempt-0001.exclusions.jsonl  what was left out from which step on (see `ExclusionChange`)
          incidents/0001/incident.json   the truth about an incident (see `Incident`)
          incidents/0001/suspects.parquet
          checkpoints/step-00000250/
          quarantine.duckdb
          resume.json                    what the next start must do, where a process ended for a rollback
    """

    root: Path

    @property
    def ledger(self) -> Path:
        """Folder of the ledger."""
        return self.root / "ledger"

    @property
    def incidents(self) -> Path:
        """Folder of the incidents."""
        return self.root / "incidents"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.root / "checkpoints"

    @property
    def store(self) -> Path:
        """The DuckDB quarantine."""
        return self.root / "quarantine.duckdb"

    @property
    def resume_plan(self) -> Path:
        """The plan a process leaves for the next start."""
        return self.root / "resume.json"

    def attempt_lines(self, attempt: int) -> Path:
        """Ledger of an attempt, one JSON object a line."""
        return self.ledger / f"attempt-{attempt:04d}.jsonl"

    def attempt_start(self, attempt: int) -> Path:
        """How an attempt began."""
        return self.ledger / f"attempt-{attempt:04d}.json"

    def attempt_exclusions(self, attempt: int) -> Path:
        """Changes within an attempt of what the sampler leaves out, one JSON object a line; absent where none."""
        return self.ledger / f"attempt-{attempt:04d}.exclusions.jsonl"

    def incident(self, number: int) -> Path:
        """Folder of one incident."""
        return self.incidents / f"{number:04d}"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint taken after ``step`` optimizer steps."""
        return self.checkpoints / f"step-{step:08d}"

    def checkpoint_record(self, step: int) -> Path:
        """What says that a checkpoint is complete, when it was saved, and which files it has."""
        return self.checkpoint(step) / "cleanfeed" / "checkpoint.json"

    def attempts(self) -> list[int]:
        """Return the numbers of the attempts that have a ledger, ascending."""
        return _numbers(self.ledger, _ATTEMPT)

    def incident_numbers(self) -> list[int]:
        """Return the numbers of the incidents, ascending; unfinished folders (other names) are not listed."""
        return _numbers(self.incidents, _INCIDENT)

    def checkpoint_steps(self) -> list[int]:
        """Return the steps that have a checkpoint folder, ascending, usable or not."""
        return _numbers(self.checkpoints, _CHECKPOINT)


def _numbers(folder: Path, name: re.Pattern[str]) -> list[int]:
    if not folder.is_dir():
        return []
    found = (name.fullmatch(entry.name) for entry in folder.iterdir())
    return sorted(int(match[match.lastindex or 0]) for match in found if match is not None)
