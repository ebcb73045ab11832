"""What a guard is given goes in; a refusal in one line comes out where it is of the wrong kind or does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from cleanfeed.arguments import check_bool, check_path, wrong
from cleanfeed.errors import MisuseError, one_line
from cleanfeed.feed.sampler import CurriculumSampler
from cleanfeed.training.agreement import Agreement


def must_be(argument: str, value: Any, kind: type, *, optional: bool = False) -> None:
    """Refuse an argument of another kind."""
    if not isinstance(value, kind) and not (optional and value is None):
        got, expected = type(value).__name__, f"a {kind.__name__}" + (" or None" if optional else "")
        raise MisuseError(one_line("wrong argument of TrainingGuard", argument, got, expected))


def check_settings(
    run_dir: Any, optimizer: Any, scaler: Any, quarantine: Any, *, resume: Any, fsync: Any
) -> None:
    """Refuse settings of another kind."""
    call = "TrainingGuard"
    check_path(call, "run_dir", run_dir)
    if quarantine is not None:
        check_path(call, "quarantine", quarantine)
    check_bool(call, "resume", resume)
    check_bool(call, "fsync", fsync)
    known = optimizer is None or isinstance(optimizer, torch.optim.Optimizer)
    if not known and (not callable(optimizer) or isinstance(optimizer, torch.nn.Module)):
        raise wrong(
            call, "optimizer", optimizer, "a torch.optim.Optimizer, or a function that returns the rate"
        )
    if scaler is not None and not (hasattr(scaler, "is_enabled") and hasattr(scaler, "get_scale")):
        raise wrong(call, "scaler", scaler, "a torch.amp.GradScaler")


def check_loader(loader: Any) -> None:
    """Refuse what no batches can be taken from."""
    if not isinstance(loader, Iterable):
        todo = "Give the DataLoader whose batch_sampler is the guard's sampler."
        raise wrong("guard.steps", "loader", loader, "a loader of batches", todo)


def check_dataset(dataset: Any, sampler: CurriculumSampler) -> None:
    """Refuse a loader over another curriculum: row numbers alone would not tell."""
    catalog, own = getattr(dataset, "catalog", None), sampler.curriculum.catalog
    if catalog is not None and catalog.digest != own.digest:
        raise MisuseError(
            one_line(
                "the loader reads another curriculum than the sampler orders",
                str(catalog.path),
                f"digest {catalog.digest}",
                f"{own.digest}, of {own.path}",
                "Give the DataLoader the sampler's curriculum.",
            )
        )


def check_ranks(sampler: CurriculumSampler, ranks: Agreement) -> None:
    """Refuse a sampler that deals to other ranks than those that agree on each step."""
    if (sampler.rank, sampler.world_size) != (ranks.rank, ranks.world_size):
        raise MisuseError(
            one_line(
                "the sampler deals to other ranks than those that train",
                "CurriculumSampler",
                f"rank {sampler.rank} of {sampler.world_size}",
                f"rank {ranks.rank} of {ranks.world_size}",
                "Make it after torch.distributed is initialised, or give it rank= and world_size= of the group.",
            )
        )
