"""The numbers of a step go in; a trip comes out where one of them is NaN or infinite."""

from __future__ import annotations

import math
from typing import Any

from cleanfeed.training.metrics import Metrics, Trip

OVERFLOWS = 20
"""Overflows in a row that a falling loss scale explains: 2^16 is down at 1 after 16 halvings."""


class NonFinite:
    """NaN or Inf in the loss or the gradient norm, on any rank; tested before every comparison.

    ``NaN > limit`` is false, so a rule that only compares never sees it. There is no grace for it. A gradient
    that overflows while the loss is finite and the loop gives a ``loss_scale`` is how half precision finds its
    scale: the step is not taken, and only more than 20 in a row trip.

    Source: pytorch/torchtitan, NVIDIA/Megatron-LM (`check_for_nan_in_loss`); EleutherAI/gpt-neox counts overflows.
    """

    rule = "nonfinite"

    def __init__(self) -> None:
        self.overflows = 0
        self.in_row = 0

    def update(self, metrics: Metrics) -> Trip | None:
        """Return a trip where a number is not finite and no loss scale explains it."""
        if metrics.is_finite:
            self.overflows = self.in_row = 0
            return None
        self.in_row += 1
        bad_loss = not math.isfinite(metrics.loss)
        bad_norm = metrics.grad_norm is not None and not math.isfinite(metrics.grad_norm)
        if bad_norm and not bad_loss and "loss_scale" in metrics.extra:
            self.overflows += 1
            if self.overflows <= OVERFLOWS:
                return None
        signal = "grad_norm" if bad_norm and not bad_loss else "loss"
        value = metrics.grad_norm if signal == "grad_norm" else metrics.loss
        detail = {"got": str(value), "in_row": self.in_row, "context": metrics.context}
        onset = metrics.step - self.in_row + 1
        return Trip(self.rule, signal, metrics.step, onset, None, None, detail=detail)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as values JSON can hold."""
        return {"overflows": self.overflows, "in_row": self.in_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.overflows, self.in_row = state["overflows"], state["in_row"]
