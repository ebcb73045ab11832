"""What the detectors are given of a step, and what they answer: plain numbers in, a trip or a verdict out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Level = Literal["observe", "act"]
Health = Literal["healthy", "observing", "incident"]

SAMPLE_HIGH = ("sample_high_1", "sample_high_2", "sample_high_3")
"""The highest loss of a sample of the global batch, the second and the third; where the loop gives them."""
SAMPLE_LOW = ("sample_low_1", "sample_low_2")
"""The lowest, and the second."""


class Metrics(msgspec.Struct, frozen=True):
    """The numbers of one optimizer step, reduced over all ranks, before the step is taken."""

    step: int
    """Number of the optimizer step."""
    loss: float
    """Mean loss of the global batch, weighed by label tokens, in nats; NaN or infinite where it is."""
    grad_norm: float | None = None
    """Global gradient norm before clipping; None where the loop gives none."""
    context: str = ""
    """Key of the baseline, for example ``stage/band``: levels of different contexts are never compared."""
    worst_micro_loss: float | None = None
    """Largest mean loss of a micro-batch on any rank, in nats."""
    finite: bool | None = None
    """False where any rank met NaN or Inf; None: as `loss` and `grad_norm` say."""
    extra: Mapping[str, float] = {}
    """Other numbers of the loop. Read here where given: ``val_loss``, ``layer_ratio``, ``update_norm``,
    ``activation_mean``, ``activation_kurtosis``, ``loss_scale``, and those of `SAMPLE_HIGH` and `SAMPLE_LOW`."""

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient norm are numbers on every rank."""
        return (
            self.finite is not False
            and math.isfinite(self.loss)
            and (self.grad_norm is None or math.isfinite(self.grad_norm))
        )


@dataclass(frozen=True, slots=True)
class Trip:
    """One rule that fired, with the numbers that made it fire."""

    rule: str
    """Name of the rule: see docs/detectors.md."""
    signal: str
    """The number it looked at: ``loss``, ``grad_norm`` or the key of another metric."""
    step: int
    """Step at which it fired."""
    onset_step: int
    """First step that belongs to it."""
    value: float | None
    """The number at ``step``; None where it is not finite."""
    limit: float | None
    """What it would have had to stay below; None for NaN and Inf."""
    z: float | None = None
    """How far from the median in scales, for rules that compare with a baseline."""
    level: Level = "act"
    """``observe`` opens an observation, ``act`` an incident."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers: median, scale, n, context, …; values JSON can hold."""

    def to_dict(self) -> dict[str, Any]:
        """Return the trip as values JSON can hold."""
        return dataclasses.asdict(self) | {"detail": dict(self.detail)}


class Verdict(msgspec.Struct, frozen=True):
    """What the watch thinks of one step, before the optimizer takes it."""

    step: int
    state: Health
    accept: bool
    """Whether ``optimizer.step()`` may be called for it."""
    trips: tuple[Trip, ...] = ()
    """Every rule that fired at this step, the one that counts first."""
    opened: bool = False
    """An incident opens with this step; `lead` says why."""
    escalated: bool = False
    """The open incident goes on although its steps were answered: the next rung of the ladder is due."""
    closed: bool = False
    """An incident has ended: that of the steps before, whose numbers are back, or with ``level_shift`` the open one."""
    onset_step: int | None = None
    """First step of the open event."""
    harmed: bool = False
    """Whether the optimizer has taken a sick step of the open event already, so that not stepping is no answer."""
    sick_in_row: int = 0
    """Outlying or non-finite steps in a row, this one included."""
    skipped_in_row: int = 0
    """Steps in a row that were not accepted, this one included."""
    z: Mapping[str, float] = {}
    """z of ``loss`` and ``grad_norm`` where a baseline speaks: what the suspects are ranked by."""
    level_shift: tuple[str, ...] = ()
    """Signals whose baseline was seeded again at a higher level: the open event ends, and no data is to blame."""

    @property
    def lead(self) -> Trip | None:
        """The rule that counts, where one fired."""
        return self.trips[0] if self.trips else None
