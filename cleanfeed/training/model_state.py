"""Model, optimizer, scheduler and scaler go in; a folder from which they come back exactly, on any number of ranks.

One rank writes one file. Several ranks write with ``torch.distributed.checkpoint``, each what it holds, so that sharded
models need no rank with room for all of them. Either can be loaded on any number of ranks: parameters and their moments
are filed under the parameter's name, not its index.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from cleanfeed.arguments import wrong
from cleanfeed.errors import CheckpointError, one_line

WHOLE = "state.pt"
SHARDS = "shards"
REST = "rest.pt"


class ModelState:
    """The built-in ``save`` and ``load``.

    Args:
        model: The module; wrapped in DistributedDataParallel or sharded is fine.
        optimizer: Its optimizer.
        scheduler: Anything with ``state_dict`` and ``load_state_dict``.
        scaler: A ``torch.amp.GradScaler``.
        extra: Further parts by name with the same two methods, such as an average of the weights.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        scaler: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        call = "Checkpoints.of"
        kinds: list[tuple[str, Any, type]] = [
            ("model", model, torch.nn.Module),
            ("optimizer", optimizer, torch.optim.Optimizer),
        ]
        for name, value, kind in kinds:
            if not isinstance(value, kind):
                swapped = isinstance(value, torch.optim.Optimizer)
                todo = "Model and optimizer are in each other's place." if swapped else ""
                raise wrong(call, name, value, f"a torch {kind.__name__}", todo)
        if extra is not None and (not isinstance(extra, Mapping) or {"scheduler", "scaler", ""} & set(extra)):
            raise wrong(call, "extra", extra, "parts by name, none of them called scheduler or scaler")
        self.model = model
        self.optimizer = optimizer
        self.parts = {"scheduler": scheduler, "scaler": scaler, **(extra or {})}
        self.parts = {name: part for name, part in self.parts.items() if part is not None}
        unfit = [name for name, part in self.parts.items() if not hasattr(part, "load_state_dict")]
        if unfit:
            raise CheckpointError(
                one_line("a part of the checkpoint has no load_state_dict", unfit[0], todo="Leave it out.")
            )

    def save(self, folder: Path) -> None:
        """Write everything into an existing folder; every rank calls it."""
        rest = {name: part.state_dict() for name, part in self.parts.items()}
        if not _several_ranks():
            whole = {
                "model": get_model_state_dict(self.model),
                "optimizer": self.optimizer.state_dict(),
                "names": self._names(),
            }
            torch.save(whole, folder / WHOLE)
            torch.save(rest, folder / REST)
            return
        state: dict[str, Any] = {"model": get_model_state_dict(self.model)}
        # Asking torch for the moments by name fills in those an optimizer does not have yet, which counts as a step.
        if self.optimizer.state:
            state["optimizer"] = get_optimizer_state_dict(self.model, self.optimizer)
        save_shards(state, checkpoint_id=folder / SHARDS)
        if dist.get_rank() == 0:
            torch.save({**rest, "": {"moments": bool(self.optimizer.state)}}, folder / REST)

    def load(self, folder: Path) -> None:
        """Put everything back from a folder that `save` wrote; every rank calls it.

        Raises:
            CheckpointError: The folder holds something else, or parts this run does not have.
        """
        rest = _torch_load(folder / REST)
        about = rest.pop("", {"moments": True})
        self._check_parts(set(rest), folder)
        if (folder / WHOLE).exists():
            self._load_whole(_torch_load(folder / WHOLE))
        else:
            self._load_shards(folder / SHARDS, moments=about["moments"])
        for name, part in self.parts.items():
            part.load_state_dict(rest[name])

    def finite(self) -> bool:
        """Return whether all weights, buffers and moments of this rank are finite."""
        return all(bool(torch.isfinite(tensor).all()) for tensor in self._tensors())

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from _floats(self.model.state_dict())
        yield from _floats(dict(enumerate(self.optimizer.state.values())))

    def _names(self) -> list[list[str]]:
        """Return the names of the optimizer's parameters, group by group, without those of wrappers."""
        wrapped = isinstance(self.model, torch.nn.parallel.DistributedDataParallel)
        model: Any = self.model.module if wrapped else self.model
        names = {id(parameter): _plain(name) for name, parameter in model.named_parameters()}
        return [
            [names.get(id(parameter), "") for parameter in group["params"]]
            for group in self.optimizer.param_groups
        ]

    def _load_whole(self, state: dict[str, Any]) -> None:
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.model, state["model"], options=options)
        optimizer = state["optimizer"]
        if not _several_ranks():
            self.optimizer.load_state_dict(optimizer)
        elif not optimizer["state"]:
            self._forget_moments(optimizer["param_groups"])
        else:
            named = _by_name(optimizer, state["names"])
            set_optimizer_state_dict(self.model, self.optimizer, named, options=options)

    def _load_shards(self, folder: Path, *, moments: bool) -> None:
        state: dict[str, Any] = {"model": get_model_state_dict(self.model)}
        if moments:
            state["optimizer"] = get_optimizer_state_dict(self.model, self.optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that one process loads alone is what is meant
            load_shards(state, checkpoint_id=folder, no_dist=not _several_ranks())
        set_model_state_dict(self.model, state["model"])
        if moments:
            set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
        else:
            self._forget_moments([])

    def _forget_moments(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.state.clear()
        for group, settings in zip(self.optimizer.param_groups, groups, strict=False):
            group.update({name: value for name, value in settings.items() if name != "params"})

    def _check_parts(self, saved: set[str], folder: Path) -> None:
        if saved != set(self.parts):
            raise CheckpointError(
                one_line(
                    "the checkpoint holds other parts than this run",
                    str(folder),
                    ", ".join(sorted(saved)) or "none",
                    ", ".join(sorted(self.parts)) or "none",
                    "Give Checkpoints.of the parts it was saved with.",
                )
            )


def _several_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _plain(name: str) -> str:
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
        name = name.replace(wrapper, "")
    return name


def _by_name(optimizer: dict[str, Any], names: list[list[str]]) -> dict[str, Any]:
    """Turn an optimizer's state by index into one by name of parameter."""
    by_index = {
        index: name
        for group, group_names in zip(optimizer["param_groups"], names, strict=True)
        for index, name in zip(group["params"], group_names, strict=True)
    }
    return {
        "state": {by_index[index]: value for index, value in optimizer["state"].items()},
        "param_groups": [
            {**group, "params": [by_index[index] for index in group["params"]]}
            for group in optimizer["param_groups"]
        ],
    }


def _floats(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        value = value.to_local() if hasattr(value, "to_local") else value
        if value.is_floating_point() or value.is_complex():
            yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _floats(part)
    elif isinstance(value, float) and not math.isfinite(value):
        yield torch.tensor(value)


def _torch_load(path: Path) -> Any:
    try:
        # Schedulers and user parts may hold any Python object; the folder is one this run wrote and has verified.
        return torch.load(path, map_location="cpu", weights_only=False)
    except FileNotFoundError:
        raise CheckpointError(
            one_line(
                "the checkpoint was not saved by Checkpoints.of", str(path.parent), got=f"no {path.name}"
            )
        ) from None
