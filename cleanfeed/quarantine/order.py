"""The sampler's state at the start of an attempt goes in; the order it trained in, as a pure schedule, comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cleanfeed.feed.catalog import Catalog
from cleanfeed.feed.order import ORDER_VERSION
from cleanfeed.feed.schedule import RowSchedule, Schedule
from cleanfeed.feed.segments import stage_plan

NEEDED = ("order_version", "seed", "lanes", "epochs", "drop_last", "schedule", "global_batch")


def schedule_of(catalog: Catalog, state: Mapping[str, Any]) -> Schedule | None:
    """Return the schedule of a run, or None where its state does not tell, or tells of an order of another version.

    Args:
        catalog: The curriculum it is trained on.
        state: What ``sampler.state_dict()`` returned.
    """
    if any(name not in state for name in NEEDED) or state["order_version"] != ORDER_VERSION:
        return None
    if state["global_batch"] is None:
        return None
    return RowSchedule(
        catalog,
        int(state["global_batch"]),
        seed=int(state["seed"]),
        epochs=int(state["epochs"]),
        lanes=int(state["lanes"]),
        drop_last=bool(state["drop_last"]),
        plan=stage_plan(str(state["schedule"])),
    )
