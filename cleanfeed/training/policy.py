"""The policy of a run: when a step counts as sick and what is done about it; plain values in, a frozen record out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cleanfeed.runs.records import Action
from cleanfeed.training.options import (
    OPTIONS,
    Activation,
    Ratio,
    Repeat,
    ScaleDrops,
    Stall,
    Sustained,
    UpdateNorm,
    ValVariance,
    check,
    from_mapping,
    limits,
    refuse,
)

LADDER: tuple[Action, ...] = ("record", "skip_step", "rollback", "lower_lr", "halt")
"""Every answer to an incident, the mildest first."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a step counts as sick, and what is done about it; stored with each incident.

    Steps are optimizer steps. A z is (value − center) / scale against the baseline of the step's context (stage, band;
    see `cleanfeed.training.baselines`); for the grad norm its natural logarithm is taken first. ``None`` turns a
    detector off.

    Raises:
        MisuseError: A value is of the wrong type or out of range; one line that names it.
    """

    grace: int = limits(500, 0)
    """First steps of a run in which no statistical rule speaks; NaN and Inf always do. At least the LR warm-up."""
    window: int = limits(128, 8)
    """Healthy steps a baseline remembers; it speaks once it holds half as many."""
    z_observe: float = limits(6.0, 1.0)
    """A z from here on is an outlier: it stays out of the baseline and opens an observation."""
    z_act: float = limits(10.0, 1.0)
    """A z from here on opens an incident by itself, where the run has shown no heavy tails (see ``tail_act``)."""
    recover_within: int = limits(200, 1)
    """Steps after an outlier by which the loss must be back in its band."""
    return_z: float = limits(1.5, 0.0)
    """How far above the old median, in z, the running median still counts as back in the band."""
    conjunction: int = limits(5, 0)
    """Loss and grad norm that leave their bands at most so many steps apart are one incident."""
    persist: int = limits(5, 2)
    """Outlying losses in a row that are an incident; also how many steps one incident may skip."""
    merge_gap: int = limits(10, 0)
    """Outliers at most so many steps apart belong to one event."""
    tail_conjunction: float = limits(2.0, 1.0)
    """Where the tails are heavy, a conjunction needs both z beyond the largest harmless one so far, so many times on
    the geometric mean."""
    tail_act: float = limits(8.0, 1.0)
    """Where the tails are heavy, a single z needs so many times the largest harmless one of the run so far."""
    loss_floor: float = limits(0.005, 0.0, 1.0)
    """Least scale of the loss, as a share of its median."""
    grad_floor: float = limits(0.15, 0.0, 1.0)
    """Least scale of the log grad norm: 0.15 is 15 % of the norm, z = 6 is 2.5 times its median, z = 10 4.5 times."""

    ratio: Ratio | None = None
    sustained: Sustained | None = dataclasses.field(default_factory=Sustained)
    repeat: Repeat | None = dataclasses.field(default_factory=Repeat)
    stall: Stall | None = dataclasses.field(default_factory=Stall)
    layer_ratio: float | None = dataclasses.field(
        default=1000.0, metadata={"low": 1.0, "high": float("inf"), "optional": True}
    )
    """Largest over median of the layers' mean absolute gradients; speaks only where the loop gives it."""
    val_variance: ValVariance | None = None
    update_norm: UpdateNorm | None = None
    activation: Activation | None = None
    scale_drops: ScaleDrops | None = dataclasses.field(default_factory=ScaleDrops)

    actions: tuple[Action, ...] = LADDER
    """The answers that are allowed; an incident is always recorded."""
    rollback: Literal["in_process", "exit"] = "in_process"
    """``exit``: the process ends with code 75 and the next start follows the plan it left."""
    margin: int = limits(100, 0)
    """A checkpoint must lie at least so many steps before the onset; also how near counts as the same place."""
    promote_after: int = limits(200, 0)
    """Healthy steps that must follow a checkpoint before it is safe, and a rollback before it has helped."""
    pre: int = limits(8, 0)
    """Steps before the onset that are suspects as well."""
    skip_batches: int = limits(0, 0)
    """Batches that are left out from the first suspect on, whatever the evidence; 0: the suspects alone."""
    max_rollbacks: int = limits(3, 0)
    """Rollbacks of a run before it is halted."""
    max_excluded: float = limits(0.001, 0.0, 1.0)
    """Share of the samples that may be excluded before the run is halted; never less than four global batches."""
    elsewhere_within: int = limits(1000, 0)
    """A spike elsewhere so many steps after a rollback is taken for a sign of the state."""
    lr_factors: tuple[float, ...] = (0.5, 0.1)
    """Factors on the scheduled learning rate, one for each time it is lowered; the last one is final."""

    def __post_init__(self) -> None:
        for name, kind in OPTIONS.items():
            part = getattr(self, name)
            if part is not None and not isinstance(part, kind):
                raise refuse(name, part, f"{kind.__name__}(…) or None")
            if part is not None:
                check(part, f"{name}.")
        check(self)
        if self.z_act < self.z_observe:
            raise refuse("z_act", self.z_act, f"at least z_observe = {self.z_observe:g}")
        if not isinstance(self.actions, tuple) or any(action not in LADDER for action in self.actions):
            raise refuse("actions", self.actions, f"a tuple of {', '.join(LADDER)}")
        if self.rollback not in ("in_process", "exit"):
            raise refuse("rollback", self.rollback, "in_process or exit")
        if (
            not isinstance(self.lr_factors, tuple)
            or not self.lr_factors
            or not all(isinstance(f, (int, float)) and 0.0 < f <= 1.0 for f in self.lr_factors)
        ):
            raise refuse("lr_factors", self.lr_factors, "a tuple of numbers above 0 and up to 1")

    @property
    def min_history(self) -> int:
        """Healthy steps a baseline needs before it speaks."""
        return max(4, self.window // 2)

    @property
    def reach(self) -> int:
        """How many steps before its trip the onset of an incident can lie, and a checkpoint before that must."""
        parts = [
            self.recover_within + self.merge_gap,
            self.persist,
            self.sustained.steps if self.sustained else 0,
        ]
        parts += [rule.within for rule in (self.repeat, self.scale_drops) if rule is not None]
        return max(*parts, self.stall.steps if self.stall else 0) + self.margin

    def allows(self, action: Action) -> bool:
        """Return whether the policy lets the guard take an action."""
        return action == "record" or action in self.actions

    def excludable(self, samples: int, global_batch: int) -> int:
        """Return how many samples of a curriculum of ``samples`` may be excluded."""
        return max(int(samples * self.max_excluded), 4 * global_batch)

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as values JSON can hold."""
        values = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Policy:
        """Return the policy `to_dict` described; keys left out take their defaults.

        Raises:
            MisuseError: A key is unknown or its value is wrong.
        """
        if not isinstance(values, Mapping):
            raise refuse("from_dict", values, "values by key")
        ready: dict[str, Any] = {}
        known = [field.name for field in dataclasses.fields(cls)]
        for key, value in values.items():
            if key not in known:
                raise refuse(str(key), value, f"one of the keys {', '.join(known)}")
            if key in OPTIONS and isinstance(value, Mapping):
                ready[key] = from_mapping(OPTIONS[key], value, f"{key}.")
            elif key in ("actions", "lr_factors") and isinstance(value, list):
                ready[key] = tuple(value)
            else:
                ready[key] = value
        return cls(**ready)
