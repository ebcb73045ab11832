"""A function goes in; it runs in several gloo processes at once, and the first failure of any comes out."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _rank(
    rank: int, function: Callable[..., None], world: int, folder: Path, name: str, arguments: tuple[Any, ...]
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / name), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        function(rank, folder, *arguments)
    except BaseException:
        (folder / f"failed-{rank}.txt").write_text(traceback.format_exc())
        raise
    finally:
        dist.destroy_process_group()


def run_ranks(function: Callable[..., None], world: int, folder: Path, *arguments: Any) -> None:
    """Run ``function(rank, folder, *arguments)`` in ``world`` processes; raise with the tracebacks of any that fail."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"store-{uuid4().hex}"  # an old one would send the ranks to processes that are gone
    context = mp.get_context("fork")
    processes = [
        context.Process(target=_rank, args=(rank, function, world, folder, name, arguments))
        for rank in range(world)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside torch's idle threads
        for process in processes:
            process.start()
    for process in processes:
        process.join(120)
    failures = [path.read_text() for path in sorted(folder.glob("failed-*.txt"))]
    hung = [process for process in processes if process.is_alive()]
    for process in hung:
        process.kill()
    assert not failures, "\n".join(failures)
    assert not hung, f"{len(hung)} of {world} processes hang"
    assert [process.exitcode for process in processes] == [0] * world
