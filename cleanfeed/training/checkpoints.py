"""How to save and load goes in; checkpoints that can be trusted, and the one to go back to, come out.

A checkpoint is *usable* if it is complete, its digests are right, its weights were finite (where that can be told) and
no later rollback undid it. It is *safe* once healthy steps have followed it: that can only be said in hindsight. The
newest ``keep`` are kept, and besides them the newest ``keep_safe`` safe ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from cleanfeed.curriculum.durable import write_bytes
from cleanfeed.errors import CheckpointError, MisuseError, one_line
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
        for name, value, least in (("every", every, 1), ("keep", keep, 1), ("keep_safe", keep_safe, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise MisuseError(
                    one_line("a setting is wrong", f"Checkpoints({name}=)", repr(value), f">= {least}")
                )
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
            if self._usable(step, starts, why) is not None:
                return step, why
        return None, why

    def before(self, onset: int, margin: int, depth: int = 1) -> tuple[int | None, int, list[str]]:
        """Return the checkpoint to roll back to, how many there are to choose from, and in sentences why this one.

        For rank 0 alone. Those that are safe and at least ``margin`` steps before the onset come first; where there are
        none, those that are merely usable; where none lies so far back, the oldest usable one before the onset.

        Args:
            onset: First step of the incident.
            margin: Steps by which a checkpoint must lie before it.
            depth: Which one: 1 the newest, 2 the one before; the oldest where there are fewer.
        """
        why: list[str] = []
        starts = read_attempts(self.run)
        usable: list[Found] = []
        for step in reversed(self.run.checkpoint_steps()):
            if step >= onset:
                why.append(f"step {step} was saved at or after the onset")
            elif (found := self._usable(step, starts, why)) is not None:
                usable.append(found)
            else:
                log.warning("checkpoint passed over: %s", why[-1])
        far = [found for found in usable if found.step <= onset - margin]
        why += [
            f"step {one.step} lies less than {margin} steps before the onset"
            for one in usable
            if one not in far
        ]
        safe = [found for found in far if found.safe]
        if not usable:
            return None, 0, why
        among = safe or far or usable[-1:]
        chosen = among[min(depth, len(among)) - 1]
        place = (
            ("newest", "second newest", "third newest")[depth - 1]
            if depth <= min(3, len(among))
            else "oldest"
        )
        kind = (
            f"safe one at least {margin} steps before the onset: healthy steps had followed it"
            if safe
            else f"usable one at least {margin} steps before the onset, though too few followed it to call it safe"
            if far
            else f"usable one before the onset; none lies {margin} steps before it"
        )
        return chosen.step, len(among), [f"step {chosen.step} is the {place} {kind}", *why]

    def _usable(self, step: int, starts: list[Attempt], why: list[str]) -> Found | None:
        try:
            found = files.find(self.run, step)
            if not survives(starts, found.record.attempt, step):
                why.append(f"step {step} belongs to steps that were rolled back")
                return None
            if found.record.finite is False:
                why.append(f"step {step} holds weights or moments that are not finite")
                return None
            files.verify(found, digests=self.settings.digests)
        except (CheckpointError, OSError) as error:
            why.append(str(error))
            return None
        return found

    def tidy(self, step: int, attempt: int, healthy_since: int, promote_after: int) -> None:
        """Call those safe that ``promote_after`` healthy steps have followed, and remove what need not be kept.

        Not a collective: rank 0 alone does it.

        Args:
            step: Steps done.
            attempt: The present attempt.
            healthy_since: Step after which every step was healthy.
            promote_after: Healthy steps that make a checkpoint safe.
        """
        if self._agreement.rank != 0:
            return
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
            if (
                not found.safe
                and found.record.finite is not False
                and (step - max(number, healthy_since) >= promote_after)
            ):
                files.mark_safe(found, step, attempt)
                found = files.find(self.run, number)
            present.append(found)
        safe = [found.step for found in present if found.safe]
        kept = {found.step for found in present[-self.settings.keep :]} | set(
            safe[-self.settings.keep_safe :]
        )
        # While nothing is safe yet, the oldest is the one that is least likely to hold the damage.
        kept |= {found.step for found in present[:1]} if len(safe) < self.settings.keep_safe else set()
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
