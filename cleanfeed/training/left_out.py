"""A sampler goes in; what it leaves out is changed, and each change comes out as a record for the ledger."""

from __future__ import annotations

from cleanfeed.feed.sampler import CurriculumSampler
from cleanfeed.runs.records import ExclusionChange


class LeftOut:
    """What a run leaves out, and what of it is on file.

    Args:
        sampler: The sampler of the loop, which the loop itself may tell to leave something out as well.
    """

    def __init__(self, sampler: CurriculumSampler) -> None:
        self._exclusions = sampler.exclusions
        self._sampler = sampler
        self._version = -1
        self._hashes: frozenset[bytes] = frozenset()
        self._ranges: frozenset[tuple[int, int]] = frozenset()

    def change(self, change: ExclusionChange) -> None:
        """Leave samples and slots out from now on, or take them back."""
        self._sampler.quarantine(change.quarantined)
        self._sampler.release(change.released)
        for first, last in change.unskipped:
            self._sampler.unskip(first, last)
        for first, last in change.skipped:
            self._sampler.skip(first, last)

    def on_file(self) -> None:
        """Take all that is left out now for written down."""
        exclusions = self._exclusions
        self._version = exclusions.version
        self._hashes, self._ranges = frozenset(exclusions.hashes), frozenset(exclusions.ranges)

    def unwritten(self, after_step: int, incident: int | None) -> ExclusionChange | None:
        """Return how what is left out has changed since it was last on file, whoever changed it; None: it has not.

        Args:
            after_step: Steps done.
            incident: What it was changed for.
        """
        if self._exclusions.version == self._version:
            return None
        hashes, ranges = self._hashes, self._ranges
        self.on_file()
        if (hashes, ranges) == (self._hashes, self._ranges):
            return None
        return ExclusionChange(
            after_step=after_step,
            incident=incident,
            quarantined=sorted(one.hex() for one in self._hashes - hashes),
            released=sorted(one.hex() for one in hashes - self._hashes),
            skipped=sorted(self._ranges - ranges),
            unskipped=sorted(ranges - self._ranges),
        )
