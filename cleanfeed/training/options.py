"""The options of each detector as small frozen records: numbers go in, checked; a detector is made from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cleanfeed.errors import MisuseError, one_line


def limits(default: Any, low: float, high: float = math.inf) -> Any:
    """Declare a number of a policy with its default and the range it must lie in, both ends included."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, slots=True)
class Ratio:
    """Loss at or above ``factor`` times the mean of the last ``window`` accepted losses."""

    factor: float = limits(5.0, 1.0)
    window: int = limits(100, 2)


@dataclass(frozen=True, slots=True)
class Sustained:
    """Grad norm above ``factor`` times its running median for ``steps`` steps in a row."""

    factor: float = limits(10.0, 1.0)
    steps: int = limits(5, 1)


@dataclass(frozen=True, slots=True)
class Repeat:
    """``times`` spikes that begin within ``within`` steps; what lies ``merge_gap`` steps apart or less is one."""

    times: int = limits(3, 2)
    within: int = limits(100, 2)


@dataclass(frozen=True, slots=True)
class Stall:
    """No decline of the loss over ``steps`` steps, with swings ``swing`` times as wide as before or a rise."""

    steps: int = limits(1000, 100)
    swing: float = limits(3.0, 1.0)
    rise: float = limits(0.1, 0.0)
    """Rise over ``steps`` steps, as a share of the loss, that is divergence without any swings."""


@dataclass(frozen=True, slots=True)
class ValVariance:
    """Spread of the last ``points`` validation losses above ``factor`` times what it was before."""

    points: int = limits(5, 3)
    factor: float = limits(5.0, 1.0)


@dataclass(frozen=True, slots=True)
class UpdateNorm:
    """Robust z of the log norm of the update, at or above ``z``."""

    z: float = limits(10.0, 0.0)


@dataclass(frozen=True, slots=True)
class Activation:
    """Robust z of the log activation magnitude at or above ``z``, or kurtosis above ``kurtosis``."""

    z: float = limits(10.0, 0.0)
    kurtosis: float = limits(1000.0, 0.0)


@dataclass(frozen=True, slots=True)
class ScaleDrops:
    """``times`` drops of the loss scale within ``within`` steps."""

    times: int = limits(5, 1)
    within: int = limits(100, 1)


OPTIONS: dict[str, type[Any]] = {
    "ratio": Ratio,
    "sustained": Sustained,
    "repeat": Repeat,
    "stall": Stall,
    "val_variance": ValVariance,
    "update_norm": UpdateNorm,
    "activation": Activation,
    "scale_drops": ScaleDrops,
}
"""The detectors that have options of their own, by their name in a policy."""


def refuse(key: str, got: object, expected: str) -> MisuseError:
    """Return the one-line error for a wrong value of a policy."""
    return MisuseError(
        one_line("wrong value in the policy", key, repr(got), expected, "See docs/detectors.md.")
    )


def check(record: Any, prefix: str = "") -> None:
    """Refuse a number of the wrong type, not finite or out of its range.

    Args:
        record: An instance of a dataclass whose fields were declared with `limits`.
        prefix: Name of the part of the policy, with a final dot.

    Raises:
        MisuseError: One line that names the key, the value and the range.
    """
    for field in dataclasses.fields(record):
        if "low" not in field.metadata:
            continue
        value, low, high = getattr(record, field.name), field.metadata["low"], field.metadata["high"]
        if value is None and field.metadata.get("optional"):
            continue
        whole = str(field.type) == "int"
        kind = "a whole number" if whole else "a number"
        span = f"{kind} of at least {low:g}" if math.isinf(high) else f"{kind} from {low:g} to {high:g}"
        right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not right or not math.isfinite(value) or not low <= value <= high:
            raise refuse(prefix + field.name, value, span)


def from_mapping(kind: type[Any], values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return an options record from plain values, refusing keys it does not have."""
    known = [field.name for field in dataclasses.fields(kind)]
    for key in values:
        if key not in known:
            raise refuse(prefix + str(key), values[key], f"one of the keys {', '.join(known)}")
    return kind(**values)
