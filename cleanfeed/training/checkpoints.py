"""How to save and load goes in; checkpoints that can be trusted, and the one to go back to, come out.

A checkpoint is *usable* if it is complete, its digests are right, its weights were finite (where that can be told) and
no later rollback undid it. It is *safe* once healthy steps have followed it: that can only be said in hindsight. The
newest ``keep`` are kept, besides them the newest ``keep_safe`` safe ones, and one as old as an onset can lie back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from cleanfeed.arguments import check_bool, check_call, check_whole, wrong
from cleanfeed.curriculum.durable import write_bytes
from cleanfeed.errors import CheckpointError, one_line
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_attempts, survives
from cleanfeed.runs.records import Attempt
from cleanfeed.training import checkpoint_files as files
from cleanfeed.training.agreement import Agreement
from cleanfeed.training.checkpoint_files import CheckpointRecord, Found
from cleanfeed.training.model_state import ModelState
from cleanfeed.training.rng import restore_rng, rng_state

log = logging.getLogger("cleanfeed.training")

ONE_FILE = "state.save"
"""Name of the file of a ``save`` that writes one and takes its path."""


class Checkpoints:
    """What the guard saves, how often, and how many it keeps.

    Args:
        save: Called with the path of an existing folder, on every rank; writes model, optimizer and all that steps
            change. A function that takes its path for a file, as ``torch.save`` does, is given one in that folder.
        load: Called with the same kind of path, on every rank; puts all of it back.
        every: Optimizer steps between two checkpoints.
        keep: How many of the newest are kept.
        keep_safe: How many of the newest safe ones are kept besides.
        finite: Tells whether all weights and moments of this rank are finite; a checkpoint that is not is never used.
        at_start: Save once before the first step, so that there is always something to go back to.
        digests: Read every file again and compare digests before a checkpoint is used; else sizes alone.
    """

    optimizer: torch.optim.Optimizer | None = None
    scaler: Any = None

    def __init__(
        self,
        save: Callable[[Path], object],
        load: Callable[[Path], object],
        *,
        every: int = 1000,
        keep: int = 3,
        keep_safe: int = 2,
        finite: Callable[[], bool] | None = None,
        at_start: bool = True,
        digests: bool = True,
    ) -> None:
        for name, value in (("every", every), ("keep", keep), ("keep_safe", keep_safe)):
            check_whole("Checkpoints", name, value, 1)
        for name, function in (("save", save), ("load", load)):
            if not callable(function) or isinstance(function, (torch.nn.Module, torch.optim.Optimizer)):
                todo = "For a model and its optimizer there is Checkpoints.of(model, optimizer)."
                raise wrong("Checkpoints", name, function, "a function of a path", todo)
        check_call("Checkpoints", "finite", finite, optional=True)
        check_bool("Checkpoints", "at_start", at_start)
        check_bool("Checkpoints", "digests", digests)
        self.save, self.load, self.finite = save, load, finite
        self.every, self.keep, self.keep_safe = every, keep, keep_safe
        self.at_start, self.digests = at_start, digests

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        scaler: Any = None,
        *,
        extra: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Checkpoints:
        """Return checkpoints of these parts, saved by cleanfeed itself: see `cleanfeed.training.model_state`.

        Args:
            model: The module; wrapped or sharded is fine.
            optimizer: Its optimizer.
            scheduler: Anything with ``state_dict`` and ``load_state_dict``.
            scaler: A ``torch.amp.GradScaler``.
            extra: Further parts by name, with the same two methods.
            settings: ``every``, ``keep``, ``keep_safe``, ``at_start``, ``digests``.
        """
        known = ("every", "keep", "keep_safe", "at_start", "digests")
        for name in settings:
            if name not in known:
                raise wrong("Checkpoints.of", name, settings[name], f"one of the settings {', '.join(known)}")
        state = ModelState(model, optimizer, scheduler, scaler, extra)
        checkpoints = cls(state.save, state.load, finite=state.finite, **settings)
        checkpoints.optimizer, checkpoints.scaler = optimizer, scaler
        return checkpoints


class CheckpointRing:
    """The checkpoints of one run; every method is a collective of all ranks unless it says otherwise.

    Args:
        run: The run directory, on a file system all ranks share.
        settings: What is saved and how many are kept.
        agreement: Of the ranks.
    """

    def __init__(self, run: RunDir, settings: Checkpoints, agreement: Agreement) -> None:
        self.run = run
        self.settings = settings
        self._agreement = agreement
        self._proven: CheckpointRecord | None = None
        """Of the checkpoint whose files were read when it was chosen: they are not read again to go back to it."""

    def save(self, step: int, attempt: int, guard: dict[str, Any]) -> Path:
        """Save the state after ``step`` steps; complete when it returns.

        Args:
            step: Optimizer steps done.
            attempt: The present attempt.
            guard: The guard's own state, the same on every rank.

        Raises:
            CheckpointError: It could not be saved; nothing that looks like a checkpoint is left.
        """
        agreement, problem = self._agreement, None
        aside = agreement.on_first(lambda: self._on_disk(step, lambda: files.begin(self.run, step)))
        finite: bool | None = None
        try:
            save_into(aside, self.settings.save)
            finite = None if self.settings.finite is None else self.settings.finite()
            write_bytes(
                aside / files.OWN / f"rng-{agreement.rank:04d}.json", msgspec.json.encode(rng_state())
            )
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything; all ranks must hear of it
            problem = error
        told = agreement.all((finite, None if problem is None else f"{type(problem).__name__}: {problem}"))
        failed = [(rank, text) for rank, (_, text) in enumerate(told) if text is not None]
        if failed:
            raise _unsaved(self.run.checkpoint(step), *failed[0]) from problem
        record = CheckpointRecord(
            format=1,
            step=step,
            attempt=attempt,
            saved_at=time.time(),
            world_size=agreement.world_size,
            finite=None if finite is None else all(each for each, _ in told),
            files={},
            guard=guard,
        )
        path = agreement.on_first(lambda: self._on_disk(step, lambda: files.seal(self.run, aside, record)))
        if record.finite is False:
            log.warning(
                "the checkpoint holds weights or moments that are not finite and will not be used: %s", path
            )
        return path

    def _on_disk(self, step: int, write: Callable[[], Path]) -> Path:
        try:
            return write()
        except OSError as error:
            raise _unsaved(self.run.checkpoint(step), 0, error.strerror or str(error)) from error

    def load(self, step: int) -> dict[str, Any]:
        """Put the state of a checkpoint back, random states too, and return the guard's own.

        Random states come back on those ranks that had one when it was saved.

        Raises:
            CheckpointError: The folder is not complete.
        """
        found, problem = None, None
        try:
            found = files.find(self.run, step)
            self.settings.load(found.path / ONE_FILE if (found.path / ONE_FILE).is_file() else found.path)
            rng = found.path / files.OWN / f"rng-{self._agreement.rank:04d}.json"
            if rng.exists():
                restore_rng(msgspec.json.decode(rng.read_bytes()))
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything; all ranks must hear of it
            problem = error
        self._agreement.raise_first(problem, f"loading checkpoint {step}")
        assert found is not None
        return found.record.guard

    def newest(self) -> tuple[int | None, list[str]]:
        """Return the step of the newest usable checkpoint, and why newer ones were passed over; for rank 0 alone."""
        why: list[str] = []
        starts = read_attempts(self.run)
        for step in reversed(self.run.checkpoint_steps()):
            found = self._recorded(step, starts, why)
            if found is not None and self._is_whole(found, why):
                return step, why
        return None, why

    def count(self, onset: int, margin: int) -> int:
        """Return how many `before` has to choose from, as their records have it; for rank 0 alone, and quick."""
        return len(self._among(onset, margin, set(), [])[0])

    def before(self, onset: int, margin: int, depth: int = 1) -> tuple[int | None, int, list[str]]:
        """Return the checkpoint to roll back to, how many there are to choose from, and in sentences why this one.

        For rank 0 alone; of the files only those of the chosen one are read. Those that are safe and at least
        ``margin`` steps before the onset come first; where there are none, those that are merely usable; where none
        lies so far back, the oldest usable one before the onset; and where none was saved before it, the oldest safe
        one, since healthy steps had followed that as well.

        Args:
            onset: First step of the incident.
            margin: Steps by which a checkpoint must lie before it.
            depth: Which one: 1 the newest, 2 the one before; the oldest where there are fewer.
        """
        damaged: set[int] = set()
        told: list[str] = []
        while True:
            why: list[str] = []
            among, kind = self._among(onset, margin, damaged, why)
            if not among:
                return None, 0, [*told, *why]
            chosen = among[min(depth, len(among)) - 1]
            if not self._is_whole(chosen, told):
                log.warning("checkpoint passed over: %s", told[-1])
                damaged.add(chosen.step)
                continue
            nth = chosen.step <= onset - margin and depth <= min(3, len(among))
            place = ("newest", "second newest", "third newest")[depth - 1] if nth else "oldest"
            return chosen.step, len(among), [f"step {chosen.step} is the {place} {kind}", *told, *why]

    def _among(self, onset: int, margin: int, damaged: set[int], why: list[str]) -> tuple[list[Found], str]:
        """Return the checkpoints to choose from, the newest first, and what they are; ``why`` is told of the others."""
        starts = read_attempts(self.run)
        early: list[Found] = []
        late: list[Found] = []
        for step in reversed([one for one in self.run.checkpoint_steps() if one not in damaged]):
            if step >= onset:
                why.append(f"step {step} was saved at or after the onset")
            found = self._recorded(step, starts, why if step < onset else [])
            if found is not None:
                (early if step < onset else late).append(found)
        far = [found for found in early if found.step <= onset - margin]
        why += [
            f"step {one.step} lies less than {margin} steps before the onset"
            for one in early
            if one not in far
        ]
        if safe := [found for found in far if found.safe]:
            return safe, f"safe one at least {margin} steps before the onset: healthy steps had followed it"
        if far:
            few = "though too few followed it to call it safe"
            return far, f"usable one at least {margin} steps before the onset, {few}"
        if early:
            return early[-1:], f"usable one before the onset; none lies {margin} steps before it"
        # An onset that is dated back far can precede all.
        oldest_safe = [found for found in late if found.safe][-1:]
        return oldest_safe, "safe one; no usable one was saved before the onset"

    def _recorded(self, step: int, starts: list[Attempt], why: list[str]) -> Found | None:
        """Return a checkpoint that may be used as far as its record tells."""
        try:
            found = files.find(self.run, step)
        except CheckpointError as error:
            why.append(str(error))
            return None
        if not survives(starts, found.record.attempt, step):
            why.append(f"step {step} belongs to steps that were rolled back")
            return None
        if found.record.finite is False:
            why.append(f"step {step} holds weights or moments that are not finite")
            return None
        return found

    def _is_whole(self, found: Found, why: list[str]) -> bool:
        """Return whether the files of a checkpoint are what they were; each time but the one after it was chosen."""
        if found.record == self._proven:
            self._proven = None
            return True
        try:
            files.verify(found, digests=self.settings.digests)
        except (CheckpointError, OSError) as error:
            why.append(str(error))
            return False
        self._proven = found.record
        return True

    def promote(
        self, step: int, attempt: int, healthy_since: int, promote_after: int, *, doubt: int | None = None
    ) -> None:
        """Call those safe that ``promote_after`` healthy steps have followed; for rank 0 alone.

        Args:
            step: Last healthy step.
            attempt: The present attempt.
            healthy_since: Step after which there was no incident.
            promote_after: Steps without an incident that make a checkpoint safe.
            doubt: First step of which an incident may still come; a checkpoint from there on is not called safe yet.
        """
        starts = read_attempts(self.run)
        for number in self.run.checkpoint_steps():
            enough = step - max(number, healthy_since) >= promote_after
            if not enough or (doubt is not None and number >= doubt):
                continue
            found = self._recorded(number, starts, [])
            if found is None or found.safe:
                continue
            try:
                files.mark_safe(found, step, attempt)
            except OSError as error:
                log.warning("the checkpoint of step %d cannot be marked as safe: %s", number, error)

    def tidy(
        self,
        step: int,
        attempt: int,
        healthy_since: int,
        promote_after: int,
        *,
        doubt: int | None = None,
        reach: int = 0,
    ) -> None:
        """Call those safe that ``promote_after`` healthy steps have followed, and remove what need not be kept.

        Not a collective: rank 0 alone does it.

        Args:
            step: Steps done.
            attempt: The present attempt.
            healthy_since: Step after which there was no incident.
            promote_after: Steps without an incident that make a checkpoint safe.
            doubt: First step of which an incident may still come; a checkpoint from there on is not called safe yet.
            reach: How far back an onset can lie. The newest checkpoint older than that is kept, and the oldest younger
                one, which takes its place in time.
        """
        if self._agreement.rank != 0:
            return
        self.promote(step, attempt, healthy_since, promote_after, doubt=doubt)
        starts = read_attempts(self.run)
        present: list[Found] = []
        for number in self.run.checkpoint_steps():
            try:
                found = files.find(self.run, number)
            except CheckpointError:
                continue
            if not survives(starts, found.record.attempt, number):
                files.remove(self.run, number)  # a rollback went behind it: nothing goes on from there
                continue
            present.append(found)
        safe = [found.step for found in present if found.safe]
        kept = {found.step for found in present[-self.settings.keep :]} | set(
            safe[-self.settings.keep_safe :]
        )
        # While nothing is safe yet, the oldest is the one that is least likely to hold the damage.
        kept |= {found.step for found in present[:1]} if len(safe) < self.settings.keep_safe else set()
        old = [found for found in present if found.step <= step - reach]
        kept |= {found.step for found in ([one for one in old if one.safe] or old)[-1:]}
        kept |= {found.step for found in present[len(old) :][:1]}
        for found in present:
            if found.step not in kept:
                files.remove(self.run, found.step)


def save_into(folder: Path, save: Callable[[Path], object]) -> None:
    """Call a save with a folder, or, where it takes its path for that of a file, with one in the folder."""
    try:
        save(folder)
    except (IsADirectoryError, RuntimeError) as error:
        # What torch.save says of a folder is a RuntimeError, and the words are all that tells it from others.
        said = str(error)
        if isinstance(error, RuntimeError) and "s a directory" not in said and "cannot be opened" not in said:
            raise
        save(folder / ONE_FILE)


def _unsaved(path: Path, rank: int, got: str) -> CheckpointError:
    return CheckpointError(
        one_line(
            "the checkpoint could not be saved",
            f"{path} on rank {rank}",
            got=got,
            todo="What was committed and older checkpoints are on file: put it right and start again.",
        )
    )
