"""Optimizer steps are watched as they happen; the learning rate of each, and a way to lower it, come out.

The guard need not be told which optimizer the loop uses: torch calls a hook before and after every optimizer's step,
and whatever steps between `Step.accept` and `Step.commit` is the run's. A lowered rate never touches the scheduler: the
hook multiplies the rate of every parameter group just before the step and puts the scheduled one back just after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cleanfeed.errors import TrainingError, one_line


class LearningRate:
    """The learning rate of a run.

    Args:
        source: The run's optimizer, where it is known beforehand; a function that returns the rate; or None.
    """

    def __init__(self, source: torch.optim.Optimizer | Callable[[], float] | None) -> None:
        self.factor = 1.0
        """What the scheduled rate is multiplied by."""
        self.stepped = False
        """Whether an optimizer has stepped since `expect`."""
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._only = isinstance(source, torch.optim.Optimizer)
        if isinstance(source, torch.optim.Optimizer):
            self._optimizers.add(source)
        self._function = None if isinstance(source, torch.optim.Optimizer) else source
        self._allowed: bool | None = None
        self._rate: float | None = None
        self._scheduled: list[Any] = []
        self._hooks: list[Any] = []

    @property
    def known(self) -> bool:
        """Whether an optimizer of the run is known, so that its rate can be lowered."""
        return bool(self._optimizers)

    def attach(self) -> None:
        """Begin to watch the optimizers of this process."""
        if not self._hooks:
            before, after = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
            self._hooks = [before(self._before), after(self._after)]

    def detach(self) -> None:
        """Leave the optimizers alone."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._allowed = None

    def expect(self, allowed: bool) -> None:
        """Say what was decided: from here to `done` the run's optimizer may step, or must not."""
        self._allowed, self.stepped = allowed, False
        self._rate = self.now

    def done(self) -> float | None:
        """Return the rate of the step, lowered as it was; None where nobody knows it."""
        self._allowed = None
        return self._rate

    @property
    def now(self) -> float | None:
        """The rate the next step would be taken with; None where nobody knows it."""
        if self._function is not None:
            return float(self._function())
        for optimizer in self._optimizers:
            return float(optimizer.param_groups[0]["lr"]) * self.factor
        return None

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._scheduled = []
        if self._allowed is None or (self._only and optimizer not in self._optimizers):
            return
        if not self._allowed:
            if optimizer in self._optimizers:
                raise TrainingError(
                    one_line(
                        "the optimizer steps although the step was not accepted",
                        type(optimizer).__name__,
                        todo="Call optimizer.step() only if step.accept(...) returned True.",
                    )
                )
            return
        self._optimizers.add(optimizer)
        if not self.stepped and self._function is None:
            self._rate = float(optimizer.param_groups[0]["lr"]) * self.factor
        self.stepped = True
        if self.factor == 1.0:
            return
        for group in optimizer.param_groups:
            self._scheduled.append(group["lr"])
            group["lr"] = group["lr"] * self.factor

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, scheduled in zip(optimizer.param_groups, self._scheduled, strict=False):
            group["lr"] = scheduled
        self._scheduled = []
