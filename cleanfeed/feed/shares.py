"""Global batch, lanes, ranks and micro-batch as asked for go in; sizes that fit each other, or one line, come out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from operator import index
from typing import SupportsIndex

import torch.distributed as dist

from cleanfeed.errors import MisuseError, one_line
from cleanfeed.feed.catalog import Catalog
from cleanfeed.feed.schedule import RowSchedule, Schedule
from cleanfeed.feed.segments import StagePlan

MOST_LANES = 64
"""Default lanes are a power of two up to this."""


def this_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, else those of ``torch.distributed``, else of torchrun, else 0 of 1.

    Raises:
        MisuseError: Only one of the two is given, or there is no such rank.
    """
    if (rank is None) != (world_size is None):
        got = "only rank" if world_size is None else "only world_size"
        raise MisuseError(one_line("half of a place among ranks", "rank, world_size", got, "both or neither"))
    if rank is None or world_size is None:
        if dist.is_available() and dist.is_initialized():
            rank, world_size = dist.get_rank(), dist.get_world_size()
        else:
            # A sampler made before init_process_group must not train rank 0's rows on every rank.
            rank, world_size = (int(os.environ.get(name, fallback)) for name, fallback in _TORCHRUN)
    if not 0 <= rank < world_size:
        raise MisuseError(
            one_line("no such rank", "rank, world_size", f"{rank} of {world_size}", "0 to world_size - 1")
        )
    return rank, world_size


_TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"))


LIMITS = {
    "global_batch": (1, 1 << 40),
    "batch_tokens": (1, 1 << 50),
    "seed": (0, (1 << 64) - 1),
    "epochs": (1, 1 << 20),
    "lanes": (1, 1 << 20),
}


def _whole(name: str, value: SupportsIndex) -> int:
    """Return a setting as an integer.

    Raises:
        MisuseError: It is none, or out of range.
    """
    low, high = LIMITS[name]
    number = index(value) if hasattr(value, "__index__") and not isinstance(value, bool) else low - 1
    if not low <= number <= high:
        raise MisuseError(
            one_line("not a number that will do", name, repr(value), f"an integer from {low} to {high}")
        )
    return number


def make_schedule(
    catalog: Catalog,
    *,
    global_batch: int | None,
    batch_tokens: int | None,
    seed: int,
    epochs: int,
    lanes: int | None,
    drop_last: bool,
    plan: StagePlan,
) -> Schedule:
    """Return the schedule of a run.

    Raises:
        MisuseError: A number is out of range, sizes do not fit each other, or there would be no slot.
    """
    seed, epochs = _whole("seed", seed), _whole("epochs", epochs)
    lanes = None if lanes is None else _whole("lanes", lanes)
    if (global_batch is None) == (batch_tokens is None):
        got = "neither" if global_batch is None else "both"
        raise MisuseError(one_line("no size of a slot", "global_batch, batch_tokens", got, "exactly one"))
    if global_batch is None:
        raise NotImplementedError
    global_batch = _whole("global_batch", global_batch)
    schedule = RowSchedule(
        catalog,
        global_batch,
        seed=seed,
        epochs=epochs,
        lanes=lanes_of(global_batch, lanes, "global_batch"),
        drop_last=drop_last,
        plan=plan,
    )
    if not schedule.n_slots:
        got, expected = f"{global_batch}", f"at most {epochs * catalog.samples}, or drop_last=False"
        raise MisuseError(one_line("the whole run does not fill one slot", "global_batch", got, expected))
    return schedule


def lanes_of(batch: int, lanes: int | None, name: str) -> int:
    """Return the lanes of a global batch: as given, else the largest power of two up to 64 that divides it.

    Raises:
        MisuseError: They do not divide it.
    """
    if lanes is None:
        return min(batch & -batch, MOST_LANES)
    if lanes < 1 or batch % lanes:
        expected = _one_of(divisors(batch), lanes, f"a divisor of {name} {batch}")
        raise MisuseError(one_line("lanes do not divide the global batch", "lanes", str(lanes), expected))
    return lanes


def check_world(batch: int, lanes: int, world_size: int, name: str) -> None:
    """Check that ranks share the lanes evenly.

    Raises:
        MisuseError: They do not; the message names lanes that would do.
    """
    if lanes % world_size == 0:
        return
    fitting = [one for one in divisors(batch) if one % world_size == 0]
    if fitting:
        expected = _one_of(fitting, max(lanes, MOST_LANES // 2), "lanes that world_size and the batch allow")
        todo = "Lanes are part of the order: a run keeps them for good."
    else:
        low = max(1, batch // world_size) * world_size
        expected = f"a {name} that world_size divides, such as {low} or {low + world_size}"
        todo = ""
    got = f"world_size {world_size}, lanes {lanes}, {name} {batch}"
    raise MisuseError(one_line("ranks do not share the lanes evenly", "lanes", got, expected, todo))


def micro_sizes(schedule: Schedule, world_size: int, micro_batch: int | None) -> dict[int, int]:
    """Return the rows of a micro-batch for each size of a slot.

    Raises:
        MisuseError: Ranks do not share the lanes evenly, or micro-batches do not fill a rank's share.
    """
    sizes = schedule.slot_sizes
    for size in sizes:
        check_world(size, schedule.lanes, world_size, "global_batch")
    return {size: check_micro(size, world_size, micro_batch, "global_batch") for size in sizes}


def check_micro(batch: int, world_size: int, micro_batch: int | None, name: str) -> int:
    """Return the rows of a micro-batch: as given, else all of a rank's rows.

    Raises:
        MisuseError: They do not divide the rank's rows; the message names numbers that would do.
    """
    share = batch // world_size
    if micro_batch is None:
        return share
    if micro_batch < 1 or share % micro_batch:
        expected = _one_of(divisors(share), micro_batch, f"a divisor of {share}, the rows of a rank")
        got = f"{micro_batch} with {name} {batch} on {world_size} ranks"
        raise MisuseError(one_line("micro-batches do not fill a rank's share", "micro_batch", got, expected))
    return micro_batch


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    low = [one for one in range(1, int(number**0.5) + 1) if number % one == 0]
    return sorted({*low, *(number // one for one in low)})


def _one_of(fitting: Iterable[int], near: int, what: str) -> str:
    nearest = sorted(sorted(fitting, key=lambda one: (abs(one - near), one))[:4])
    return f"{what}: {', '.join(map(str, nearest))}"
