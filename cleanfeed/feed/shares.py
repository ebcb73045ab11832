"""Global batch, lanes, ranks and micro-batch as asked for go in; a schedule that fits them, or one line, comes out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from operator import index
from typing import SupportsIndex

import torch.distributed as dist

from cleanfeed.errors import MisuseError, one_line
from cleanfeed.feed.catalog import Catalog
from cleanfeed.feed.schedule import RowSchedule, Schedule
from cleanfeed.feed.segments import StagePlan
from cleanfeed.feed.token_schedule import TokenSchedule

MOST_LANES = 64
"""Default lanes are a power of two up to this."""
LIMITS = {
    "global_batch": (1, 1 << 40),
    "batch_tokens": (1, 1 << 50),
    "micro_batch": (1, 1 << 40),
    "micro_tokens": (1, 1 << 50),
    "seed": (0, (1 << 64) - 1),
    "epochs": (1, 1 << 20),
    "lanes": (1, 1 << 20),
}
"""Smallest and largest value of each setting."""
TORCHRUN = ("RANK", "WORLD_SIZE")


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
        elif all(os.environ.get(name, "").isdigit() for name in TORCHRUN):
            # A sampler made before init_process_group must not give rank 0's rows to every rank.
            rank, world_size = (int(os.environ[name]) for name in TORCHRUN)
        else:
            rank, world_size = 0, 1
    if not 0 <= rank < world_size:
        got = f"{rank} of {world_size}"
        raise MisuseError(one_line("no such rank", "rank, world_size", got, "0 to world_size - 1"))
    return rank, world_size


def make_schedule(
    catalog: Catalog,
    sizes: Mapping[str, SupportsIndex | None],
    world_size: int,
    *,
    drop_last: bool,
    plan: StagePlan,
) -> Schedule:
    """Return the schedule of a run.

    Args:
        catalog: Stages and their sizes.
        sizes: ``global_batch`` or ``batch_tokens``, ``lanes``, ``seed`` and ``epochs``.
        world_size: Ranks that are to share it.
        drop_last: Whether slots that cannot be filled are left out.
        plan: How stages follow each other.

    Raises:
        MisuseError: A number is out of range, sizes do not fit each other, or there would be no slot.
    """
    needed = ("seed", "epochs")
    given = {name: whole(name, value) for name, value in sizes.items() if value is not None or name in needed}
    batches = {"global_batch", "batch_tokens"} & given.keys()
    if len(batches) != 1:
        got = "both" if batches else "neither"
        raise MisuseError(one_line("no size of a slot", "global_batch, batch_tokens", got, "exactly one"))
    options = {"seed": given["seed"], "epochs": given["epochs"], "drop_last": bool(drop_last), "plan": plan}
    schedule: Schedule
    if "global_batch" in given:
        batch = given["global_batch"]
        lanes = _row_lanes(batch, given.get("lanes"), world_size)
        schedule = RowSchedule(catalog, batch, lanes=lanes, **options)
    else:
        batch = given["batch_tokens"]
        lanes = _token_lanes(catalog, batch, given.get("lanes"), world_size)
        schedule = TokenSchedule(catalog, batch, lanes=lanes, **options)
    if not schedule.n_slots:
        samples = f"{given['epochs'] * catalog.samples} samples in all"
        todo = "Use a smaller one, more epochs or drop_last=False."
        name = batches.pop()
        raise MisuseError(
            one_line("the whole run does not fill one slot", name, f"{batch} with {samples}", todo=todo)
        )
    return schedule


def whole(name: str, value: SupportsIndex | None) -> int:
    """Return a setting as an integer.

    Raises:
        MisuseError: It is none, or out of range.
    """
    low, high = LIMITS[name]
    number = index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else low - 1
    if not low <= number <= high:
        expected = f"an integer from {low} to {high}"
        raise MisuseError(one_line("not a number that will do", name, repr(value), expected))
    return number


def _row_lanes(batch: int, lanes: int | None, world_size: int) -> int:
    if lanes is None:
        lanes = min(batch & -batch, MOST_LANES)
    if batch % lanes:
        fitting = [one for one in divisors(batch) if one % world_size == 0] or divisors(batch)
        expected = f"a divisor of global_batch {batch}, such as {_nearest(fitting, lanes)}"
        raise MisuseError(one_line("lanes do not divide the global batch", "lanes", f"{lanes}", expected))
    fitting = [one for one in divisors(batch) if one % world_size == 0]
    if lanes % world_size and not fitting:
        low = batch // world_size * world_size
        expected = (
            f"a multiple of world_size {world_size}, such as {_nearest([low, low + world_size], batch)}"
        )
        raise MisuseError(
            one_line("ranks do not share the global batch evenly", "global_batch", f"{batch}", expected)
        )
    _check_ranks(lanes, world_size, fitting)
    return lanes


def _token_lanes(catalog: Catalog, tokens: int, lanes: int | None, world_size: int) -> int:
    longest = max(stage.max_length for stage in catalog.stages if stage.samples)
    room = tokens // longest
    if lanes is None:
        lanes = min(1 << max(0, room.bit_length() - 1), MOST_LANES)
    if room < lanes:
        expected = (
            f"at least {lanes * longest}: {lanes} lanes of a sample of {longest}, the longest of a stage"
        )
        raise MisuseError(
            one_line("a slot has no room for one row of each lane", "batch_tokens", f"{tokens}", expected)
        )
    fitting = list(range(world_size, min(room, 4 * max(MOST_LANES, world_size)) + 1, world_size))
    if not fitting:
        expected = f"at least {world_size * longest}: a sample of {longest} for each of {world_size} ranks"
        raise MisuseError(
            one_line("a slot has no room for one row of each rank", "batch_tokens", f"{tokens}", expected)
        )
    _check_ranks(lanes, world_size, fitting)
    return lanes


def _check_ranks(lanes: int, world_size: int, fitting: Iterable[int]) -> None:
    if lanes % world_size:
        expected = f"a multiple of world_size {world_size}, such as {_nearest(fitting, lanes)}"
        todo = "Lanes are part of the order: choose them for every number of ranks the run may have."
        raise MisuseError(
            one_line("ranks do not share the lanes evenly", "lanes", f"{lanes}", expected, todo)
        )


def micro_sizes(
    schedule: Schedule, world_size: int, micro_batch: int | None, micro_tokens: int | None
) -> dict[int, int]:
    """Return the rows of a micro-batch for each size of a slot.

    Raises:
        MisuseError: Micro-batches do not fill a rank's share; the message names numbers that would do.
    """
    shares = {size: size // world_size for size in schedule.slot_sizes}
    if micro_tokens is not None:
        if micro_batch is not None or not isinstance(schedule, TokenSchedule):
            expected = "with batch_tokens, and without micro_batch"
            raise MisuseError(one_line("micro_tokens has no meaning here", "micro_tokens", expected=expected))
        tokens = whole("micro_tokens", micro_tokens)
        return {
            size: _micro_rows(share, tokens, schedule.batch_tokens // size) for size, share in shares.items()
        }
    if micro_batch is None:
        return shares
    micro = whole("micro_batch", micro_batch)
    for size, share in shares.items():
        if share % micro:
            fitting = [one for one in divisors(share) if all(other % one == 0 for other in shares.values())]
            expected = f"a divisor of {share} ({size} rows over {world_size} ranks), such as {_nearest(fitting, micro)}"
            raise MisuseError(
                one_line("micro-batches do not fill a rank's share", "micro_batch", f"{micro}", expected)
            )
    return dict.fromkeys(shares, micro)


def _micro_rows(share: int, tokens: int, longest: int) -> int:
    """Return the most rows whose tokens have room in a micro-batch and that divide a rank's share."""
    if tokens < longest:
        expected = f"at least {longest}, room for one sample"
        raise MisuseError(
            one_line("a micro-batch has no room for a sample", "micro_tokens", f"{tokens}", expected)
        )
    return max(rows for rows in divisors(share) if rows * longest <= tokens)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    low = [one for one in range(1, int(number**0.5) + 1) if number % one == 0]
    return sorted({*low, *(number // one for one in low)})


def _nearest(fitting: Iterable[int], wanted: int) -> str:
    """Return up to three numbers near the one wanted, as text."""
    near = sorted({one for one in fitting if one > 0}, key=lambda one: (abs(one - wanted), one))[:3]
    return ", ".join(map(str, sorted(near)))
