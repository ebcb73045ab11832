"""Outliers that belong together go in one by one; one open observation, which may become an incident, comes out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from cleanfeed.training.metrics import Trip


@dataclass(slots=True)
class Observation:
    """What is known of an event that is not over: outliers at most ``merge_gap`` steps apart."""

    onset: int
    """First step of it, walked back over the steps before that were unusual already."""
    last: int
    """Last step with an outlier."""
    incident: bool = False
    harmed: bool = False
    """Whether the optimizer took one of its sick steps."""
    notable: bool = False
    """Whether it counts as a spike for the rule on repetition."""
    skips: int = 0
    """Steps of it that were not accepted."""
    peaks: dict[str, float] = field(default_factory=dict)
    """Largest z of each signal."""
    strong: dict[str, list[float]] = field(default_factory=dict)
    """Step at which a signal was beyond every harmless step, and how far: z over the limit a conjunction needs."""

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

    def broken(self, step: int, z: float, limit_z: float, steps: int) -> Trip:
        """Return the trip of a loss whose median over ``steps`` steps lies ``z`` scales above the old one."""
        value, limit = self.median + z * self.scale, self.median + limit_z * self.scale
        detail = {"median": self.median, "scale": self.scale, "steps": steps, "context": self.context}
        return Trip("no_return", "loss", step, self.onset, value, limit, z, detail=detail)
