"""Text files go in; a clean, ordered curriculum for pretraining a language model comes out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cleanfeed.errors import TrainingHalted as TrainingHalted
    from cleanfeed.feed.collators import FlattenCollator as FlattenCollator
    from cleanfeed.feed.collators import PadCollator as PadCollator
    from cleanfeed.feed.dataset import Curriculum as Curriculum
    from cleanfeed.feed.sampler import CurriculumSampler as CurriculumSampler
    from cleanfeed.quarantine.store import Quarantine as Quarantine
    from cleanfeed.training.checkpoints import Checkpoints as Checkpoints
    from cleanfeed.training.guard import TrainingGuard as TrainingGuard
    from cleanfeed.training.policy import Policy as Policy

__version__ = "0.1.0"
_HOMES = {
    "Checkpoints": "cleanfeed.training.checkpoints",
    "Curriculum": "cleanfeed.feed.dataset",
    "CurriculumSampler": "cleanfeed.feed.sampler",
    "FlattenCollator": "cleanfeed.feed.collators",
    "PadCollator": "cleanfeed.feed.collators",
    "Policy": "cleanfeed.training.policy",
    "Quarantine": "cleanfeed.quarantine.store",
    "TrainingGuard": "cleanfeed.training.guard",
    "TrainingHalted": "cleanfeed.errors",
}
"""Public names and the modules they live in. They are imported when asked for: most of them bring torch."""

__all__ = [
    "Checkpoints",
    "Curriculum",
    "CurriculumSampler",
    "FlattenCollator",
    "PadCollator",
    "Policy",
    "Quarantine",
    "TrainingGuard",
    "TrainingHalted",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name the first time it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise ImportError(f"cleanfeed.{name} needs torch. Run pip install 'cleanfeed[train]'.") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what is there and what can be asked for."""
    return sorted({*globals(), *_HOMES})
