"""An optimizer or a function goes in; the learning rate of the step, and a way to lower it, come out.

A lowered rate never touches the scheduler: a hook multiplies the rate of every parameter group just before the
optimizer steps, and another puts the scheduled one back just after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class LearningRate:
    """The learning rate of a run.

    Args:
        source: An optimizer, a function that returns the rate, or None where the guard is told neither.
    """

    def __init__(self, source: torch.optim.Optimizer | Callable[[], float] | None) -> None:
        self.factor = 1.0
        """What the scheduled rate is multiplied by."""
        self.steps_seen = 0
        """Calls of ``optimizer.step()`` so far, where the optimizer is known."""
        self._optimizer = source if isinstance(source, torch.optim.Optimizer) else None
        self._function = None if isinstance(source, torch.optim.Optimizer) else source
        self._scheduled: list[Any] = []
        if self._optimizer is not None:
            self._optimizer.register_step_pre_hook(self._lower)
            self._optimizer.register_step_post_hook(self._put_back)

    @property
    def can_lower(self) -> bool:
        """Whether there is an optimizer whose rate can be lowered."""
        return self._optimizer is not None

    def now(self) -> float | None:
        """Return the rate the next step is taken with: that of the first parameter group, lowered as it is."""
        if self._function is not None:
            return float(self._function())
        if self._optimizer is None:
            return None
        return float(self._optimizer.param_groups[0]["lr"]) * self.factor

    def _lower(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.steps_seen += 1
        self._scheduled = []
        if self.factor == 1.0:
            return
        for group in optimizer.param_groups:
            self._scheduled.append(group["lr"])
            group["lr"] = group["lr"] * self.factor

    def _put_back(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, scheduled in zip(optimizer.param_groups, self._scheduled, strict=False):
            group["lr"] = scheduled
        self._scheduled = []
