"""The state of a sampler and one to be taken up go in; nothing, or every difference that forbids it, comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cleanfeed.errors import ResumeError, one_line
from cleanfeed.feed.catalog import Catalog
from cleanfeed.feed.order import ORDER_VERSION
from cleanfeed.feed.schedule import RowSchedule, Schedule
from cleanfeed.feed.segments import stage_plan
from cleanfeed.feed.token_schedule import TokenSchedule

STATE_VERSION = 1
SAME = ("order_version", "curriculum", "seed", "lanes", "global_batch", "batch_tokens", "schedule")
"""What decides which rows a slot holds: another value means another run."""
KINDS = {"committed": int, "epochs": int, "skipped": list, "quarantined": Mapping}
"""What some parts of a state must be."""
ALSO = ("epochs", "drop_last", "committed", "skipped", "quarantined")


def check_state(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Check that a state is one of the same run, on however many ranks.

    Args:
        state: What is to be taken up.
        own: The state of the sampler that is to take it up.

    Raises:
        ResumeError: It is not; the message names every difference.
    """
    where = "load_state_dict"
    if not isinstance(state, Mapping) or "version" not in state:
        raise ResumeError(one_line("not a state of a sampler", where, expected="what state_dict() returned"))
    if state["version"] != STATE_VERSION:
        raise ResumeError(
            one_line(
                "a state of another version",
                where,
                str(state["version"]),
                str(STATE_VERSION),
                "Take it up with the version of cleanfeed that wrote it.",
            )
        )
    missing = [name for name in (*SAME, *ALSO) if name not in state]
    if missing:
        raise ResumeError(one_line("a state is incomplete", where, f"no {', '.join(missing)}"))
    odd = [name for name, kind in KINDS.items() if not isinstance(state[name], kind)]
    if odd:
        got = ", ".join(f"{name} of type {type(state[name]).__name__}" for name in odd)
        raise ResumeError(one_line("not a state of a sampler", where, got, "what state_dict() returned"))
    different = [name for name in SAME if state[name] != own[name]]
    if different:
        raise ResumeError(
            one_line(
                f"the state is of another run, {', '.join(different)} differ"
                + ("s" if len(different) == 1 else ""),
                where,
                ", ".join(f"{name} {state[name]}" for name in different),
                ", ".join(f"{name} {own[name]}" for name in different),
                "Make the sampler as it was, or start a new run.",
            )
        )


def schedule_of(catalog: Catalog, state: Mapping[str, Any]) -> Schedule:
    """Return the schedule a state speaks of, for whoever reads a run without training it.

    Args:
        catalog: The curriculum.
        state: What ``sampler.state_dict()`` returned.

    Raises:
        ResumeError: It is no state, or one of another curriculum or order version.
    """
    here = {**state, "order_version": ORDER_VERSION, "curriculum": catalog.digest}
    check_state(state, here)
    settings = {name: state[name] for name in ("seed", "epochs", "lanes", "drop_last")}
    plan = stage_plan(state["schedule"])
    if state["global_batch"] is not None:
        return RowSchedule(catalog, state["global_batch"], plan=plan, **settings)
    return TokenSchedule(catalog, state["batch_tokens"], plan=plan, **settings)
