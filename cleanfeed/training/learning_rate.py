"""Optimizer steps are watched as they happen; the learning rate of each, and a way to lower it, come out.

The guard need not be told which optimizer the loop uses: torch calls a hook before and after every optimizer's step,
and whatever steps between `Step.accept` and `Step.commit` is the run's. A lowered rate never touches the scheduler: the
hook multiplies the rate of every parameter group just before the step and puts the scheduled one back just after.

The same hook holds the loop to its word: the run's optimizer steps once where a step was accepted, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal
from weakref import WeakSet, ref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cleanfeed.errors import TrainingError, one_line


class LearningRate:
    """The learning rate of a run.

    Args:
        source: The run's optimizer, where it is known beforehand; a function that returns the rate; or None.
    """

    _attached: ClassVar[WeakSet[LearningRate]] = WeakSet()

    def __init__(self, source: torch.optim.Optimizer | Callable[[], float] | None) -> None:
        self.factor = 1.0
        """What the scheduled rate is multiplied by."""
        self.stepped = False
        """Whether an optimizer has stepped since `expect`."""
        self._optimizers: list[ref[torch.optim.Optimizer]] = []
        """Those of the run that are known, in the order they came to be; it is not for the guard to keep them alive."""
        self._only = isinstance(source, torch.optim.Optimizer)
        if isinstance(source, torch.optim.Optimizer):
            self._optimizers.append(ref(source))
        self._function = None if isinstance(source, torch.optim.Optimizer) else source
        self._phase: Literal["guard", "loop", "accepted", "refused"] = "guard"
        self._outside = ""
        """Kind of an optimizer, not known to be the run's, that stepped in this step where none was accepted."""
        self._rate: float | None = None
        self._lowered: dict[int, tuple[torch.optim.Optimizer, dict[str, Any], Any]] = {}
        """Parameter groups whose rate is lowered now, by identity: the optimizer, the group, and its scheduled rate."""
        self._stepped: list[torch.optim.Optimizer] = []
        """Those that have stepped since `expect`, where any has."""
        self._hooks: list[Any] = []

    @property
    def known(self) -> bool:
        """Whether an optimizer of the run is known, so that its rate can be lowered."""
        return bool(self._alive())

    def attach(self) -> None:
        """Begin to watch the optimizers of this process.

        A loop that was left by an error may never be closed: whoever watched the same optimizers, or all that come,
        is relieved of it.
        """
        for other in list(self._attached):
            apart = self._only and other._only and not {*self._alive()} & {*other._alive()}
            if other is not self and not apart:
                other.detach()
        self._attached.add(self)
        if not self._hooks:
            before, after = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
            self._hooks = [before(self._before), after(self._after)]

    def detach(self) -> None:
        """Leave the optimizers alone."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._attached.discard(self)
        self._phase = "guard"

    def hand_over(self) -> None:
        """Say that the loop is at work: the run's optimizer may not step before the step is decided."""
        self._phase, self._outside = "loop", ""

    def take_back(self) -> None:
        """Say that the guard is at work: saving and loading may call the step of an optimizer to make its state."""
        self._phase = "guard"

    def expect(self, allowed: bool) -> None:
        """Say what was decided: from here to `done` the run's optimizer may step, or must not."""
        self._phase, self.stepped = "accepted" if allowed else "refused", False
        self._rate = self.now

    def done(self) -> float | None:
        """Return the rate of the step, lowered as it was; None where nobody knows it.

        Raises:
            TrainingError: The optimizer has stepped before the step was accepted, and not after it.
        """
        accepted, self._phase = self._phase == "accepted", "guard"
        if accepted and not self.stepped and self._outside:
            raise _wrong("the optimizer stepped before the step was accepted", self._outside)
        return self._rate

    @property
    def missed(self) -> bool:
        """Whether no optimizer has stepped since `expect`, though one is known whose steps are told."""
        # A wrapper whose class torch has not hooked never tells.
        return (
            bool(self._hooks)
            and not self.stepped
            and any(getattr(type(optimizer).step, "hooked", False) for optimizer in self._alive())
        )

    @property
    def now(self) -> float | None:
        """The rate the next step would be taken with; None where nobody knows it."""
        if self._function is not None:
            return float(self._function()) * self.factor
        for one in self._optimizers:
            optimizer = one()
            if optimizer is not None:
                return float(optimizer.param_groups[0]["lr"]) * self.factor
        return None

    def _alive(self) -> list[torch.optim.Optimizer]:
        return [optimizer for one in self._optimizers if (optimizer := one()) is not None]

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._after(optimizer)  # a step that failed has had no end
        if self._phase == "guard":
            return
        known = ref(optimizer) in self._optimizers
        if self._only and not known:
            return
        if self._phase == "loop":
            if known and any(group.get("lr") != 0 for group in optimizer.param_groups):
                raise _wrong("the optimizer steps where no step was accepted", type(optimizer).__name__)
            self._outside = type(optimizer).__name__
            return
        if self._phase == "refused":
            if known or not self.known:
                raise _wrong(
                    "the optimizer steps although the step was not accepted", type(optimizer).__name__
                )
            return
        if self.stepped and optimizer in self._stepped:
            raise _wrong("the optimizer steps twice in one step", type(optimizer).__name__)
        if not self.stepped:
            self._stepped = []
        self._stepped.append(optimizer)
        if not known:
            self._optimizers = [ref(one) for one in (*self._alive(), optimizer)]
        if not self.stepped and self._function is None:
            self._rate = float(optimizer.param_groups[0]["lr"]) * self.factor
        self.stepped = True
        if self.factor == 1.0:
            return
        for group in optimizer.param_groups:
            # An optimizer inside another one may have the same groups, which are lowered once.
            if id(group) not in self._lowered:
                self._lowered[id(group)] = optimizer, group, group["lr"]
                group["lr"] = group["lr"] * self.factor

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for key, (owner, group, scheduled) in list(self._lowered.items()):
            if owner is optimizer:
                group["lr"] = scheduled
                del self._lowered[key]


def _wrong(what: str, optimizer: str) -> TrainingError:
    return TrainingError(
        one_line(
            what,
            optimizer,
            todo="Call optimizer.step() once, between step.accept(...) that returned True and step.commit().",
        )
    )
