"""A loader goes in; the micro-batches of the slot that is due come out, checked, and weighed over all ranks.

What a micro-batch weighs depends on the label tokens of all ranks, so these are shared before the first ``backward`` of
a step. For a step to cost one collective and not two, several ranks take the batches of the next slot before they
decide about the present one, and its counts travel with the numbers of the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cleanfeed.errors import TrainingError, one_line
from cleanfeed.feed.sampler import CurriculumSampler
from cleanfeed.training.agreement import Agreement
from cleanfeed.training.expected import Due, Expected, check
from cleanfeed.training.shares import NOTHING, Counts, Shares, count, sample_ids, weigh


@dataclass(slots=True)
class Delivered:
    """What this rank has of a slot."""

    slot: int
    due: Due | None = None
    batches: list[Any] = field(default_factory=list)
    ids: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """`sample_ids` of each."""
    counts: Counts = NOTHING
    problem: Exception | None = None
    """Why this rank could not load its part; it takes part in the count with nothing, so that no other waits for it."""
    shares: Shares | None = None
    """What it is of the whole, once all ranks have told."""


class Delivery:
    """Takes slot after slot from a loader.

    Args:
        agreement: Of the ranks.
        sampler: The sampler of the loader.
    """

    def __init__(self, agreement: Agreement, sampler: CurriculumSampler) -> None:
        self._agreement = agreement
        self._expected = Expected(sampler, hashes=agreement.rank == 0)
        self._batches: Iterator[Any] = iter(())
        self._ahead: Delivered | None = None

    def begin(self, loader: Iterable[Any]) -> None:
        """Take from a loader from here on; what was taken ahead of another is forgotten."""
        self.end()  # its workers end before those of the next iterator begin
        # A loader draws the seed of its workers from the generator that dropout draws from, and a run that goes on
        # makes one iterator more than the run in one go.
        with torch.random.fork_rng(devices=()):
            try:
                self._batches = iter(loader)
            except Exception as error:  # noqa: BLE001 - told with the first batch: no other rank must wait for it
                self._batches = map(_throw, (error,))

    def end(self) -> None:
        """Let go of the loader, so that its workers end."""
        self._ahead, self._batches = None, iter(())

    def next(self, slot: int) -> Delivered:
        """Return the slot that is due; a collective of all ranks, unless it was taken ahead.

        Raises:
            TrainingError: The loader delivers something else, or failed on any rank.
        """
        found, self._ahead = self._ahead, None
        if found is None:
            found = self._take(slot)
            found.shares = self._weighed(found, self._agreement.total(found.counts.row()))
        assert found.slot == slot
        assert found.shares is not None
        if found.shares.failed:
            self._agreement.raise_first(found.problem, "loading a batch")
        return found

    def look_ahead(self, slot: int | None) -> list[float]:
        """Take a slot before it is due, and return what all ranks must add up and give to `told`."""
        if slot is None:
            return NOTHING.row()
        self._ahead = self._take(slot)
        return self._ahead.counts.row()

    def told(self, totals: list[float]) -> None:
        """Take the sums over all ranks of what `look_ahead` returned."""
        if self._ahead is not None:
            self._ahead.shares = self._weighed(self._ahead, totals)

    def _weighed(self, found: Delivered, totals: list[float]) -> Shares:
        return weigh(found.counts, totals, self._agreement.world_size)

    def _take(self, slot: int) -> Delivered:
        """Take the micro-batches of a slot from the loader, and check that they are what they must be."""
        found = Delivered(slot)
        try:
            found.due = self._expected.of(slot)
            for _ in range(found.due.micro_batches):
                batch = next(self._batches, None)
                if batch is None:
                    raise TrainingError(
                        one_line(
                            "the loader ended early", f"slot {slot}", todo="Give it this guard's sampler."
                        )
                    )
                found.batches.append(batch)
                found.ids.append(sample_ids(batch))
            check(found.due, found.ids, self._agreement.rank)
            found.counts = count(found.batches, found.ids)
        except Exception as error:  # noqa: BLE001 - whatever fails on one rank, the others must not wait for it
            found.problem, found.counts = error, Counts(failed=True)
        return found


def _throw(error: Exception) -> Any:
    raise error
