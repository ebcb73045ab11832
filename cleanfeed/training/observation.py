"""Outliers that belong together go in one by one; one open observation, which may become an incident, comes out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Observation:
    """What is known of an event that is not over: outliers at most ``merge_gap`` steps apart."""

    onset: int
    """First step of it, walked back over the steps before that were unusual already."""
    last: int
    """Last step with an outlier."""
    incident: bool = False
    notable: bool = False
    """Whether it counts as a spike for the rule on repetition."""
    skips: int = 0
    """Steps of it that were not accepted."""
    peaks: dict[str, float] = field(default_factory=dict)
    """Largest z of each signal."""
    strong: dict[str, int] = field(default_factory=dict)
    """Last step at which a signal was far enough out for a conjunction."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as values JSON can hold."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Promise:
    """By ``due`` the loss must be back near the ``median`` it had before an outlier."""

    onset: int
    due: int
    median: float
    scale: float
    context: str

    def to_list(self) -> list[Any]:
        """Return it as values JSON can hold."""
        return [self.onset, self.due, self.median, self.scale, self.context]
