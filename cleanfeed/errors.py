"""Every error a user can meet: what is wrong goes in, one line and an exit code come out.

The tree::

    CleanfeedError            1   the run failed on data or environment
    ├── MisuseError           2   a wrong option, a wrong key in a pipeline file, an input that does not exist
    ├── NothingReadableError  1   no input held a single readable record
    ├── BusyError             1   another process is building into the same folder
    ├── VerifyError           1   a finished build does not match its manifest
    ├── CurriculumError       1   there is no finished build to train on, or it was altered
    ├── ResumeError           1   a state cannot be taken up exactly, or an iterator was overtaken by one
    ├── LedgerError           1   the ledger of a training run cannot be written, read or believed
    ├── DamagedStoreError     1   the file of a quarantine is not whole
    ├── ForeignStoreError     1   the file is no quarantine, or one of a later version
    └── TrainingError         1   training cannot go on as asked
        ├── CheckpointError   1   a checkpoint cannot be saved or loaded
        └── TrainingHalted    1   the policy stopped training at an incident

A message has the form ``what is wrong: where: got X, expected Y. What to do.`` on one line.
"""

from __future__ import annotations


class CleanfeedError(Exception):
    """A run that cannot go on; the message is one line for the person at the terminal."""

    exit_code = 1


class MisuseError(CleanfeedError):
    """The command or its settings are wrong, and nothing was changed."""

    exit_code = 2


class NothingReadableError(CleanfeedError):
    """Not one record of any input could be read."""


class BusyError(CleanfeedError):
    """Another process holds the output folder."""


class VerifyError(CleanfeedError):
    """Files and manifest of a build disagree."""


class CurriculumError(CleanfeedError):
    """There is no finished build to train on, or what it holds is not what was written."""


class ResumeError(CleanfeedError):
    """Training cannot go on exactly where it was: the state is of another run, or the iterator of another place."""


class LedgerError(CleanfeedError):
    """The ledger of a training run cannot be written, read or believed."""


class DamagedStoreError(CleanfeedError):
    """The file of a store is not whole."""


class ForeignStoreError(CleanfeedError):
    """The file is no store, or one of a later version."""


class TrainingError(CleanfeedError):
    """Training cannot go on as asked; what was committed is on disk."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be saved or loaded."""


class TrainingHalted(TrainingError):
    """The policy stopped training at an incident, after state and batch were saved.

    Attributes:
        incident: Number of the incident, as in ``incidents/NNNN``.
    """

    def __init__(self, message: str, incident: int) -> None:
        super().__init__(message)
        self.incident = incident

    def __reduce__(self) -> tuple[type[TrainingHalted], tuple[str, int]]:
        """Let the error cross processes with its number."""
        return type(self), (str(self), self.incident)


def one_line(what: str, where: str, got: str = "", expected: str = "", todo: str = "") -> str:
    """Return a message in the form every cleanfeed error has.

    Args:
        what: What is wrong, without a final full stop.
        where: File, option or key.
        got: What was found; left out when empty.
        expected: What should have been there; left out when empty.
        todo: What the reader can do about it, as a sentence.
    """
    sides = ", ".join(
        part for part in (f"got {got}" if got else "", f"expected {expected}" if expected else "") if part
    )
    message = f"{what}: {where}" + (f": {sides}" if sides else "") + "."
    return " ".join((message + (f" {todo}" if todo else "")).split())
