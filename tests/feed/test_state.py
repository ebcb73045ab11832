"""A state says which run it is of, and is enough to work its slots out again."""

from __future__ import annotations

from typing import Any

import pytest

from cleanfeed import CurriculumSampler
from cleanfeed.errors import ResumeError
from cleanfeed.feed.state import schedule_of

from .builds import catalog_of_sizes


class OnlyCatalog:
    """What the sampler needs of a curriculum until hashes are asked for."""

    catalog = catalog_of_sizes((70, 7), (30, 5), (20, 3))


@pytest.mark.parametrize(
    "options",
    [
        {"global_batch": 6, "lanes": 2, "epochs": 3, "schedule": "blend:50"},
        {"batch_tokens": 70, "drop_last": False, "schedule": "cycle:2", "seed": 9},
    ],
)
def test_the_schedule_of_a_state_is_the_sampler_s(options: dict[str, Any]) -> None:
    curriculum: Any = OnlyCatalog()
    sampler = CurriculumSampler(curriculum, **options)
    schedule = schedule_of(curriculum.catalog, sampler.state_dict())
    assert schedule.n_slots == sampler.n_slots
    for slot in range(schedule.n_slots):
        assert schedule.rows(slot).tolist() == sampler.slot_rows(slot).tolist()


def test_the_schedule_of_another_curriculum_is_not_worked_out() -> None:
    curriculum: Any = OnlyCatalog()
    state = CurriculumSampler(curriculum, 10).state_dict()
    for change, name in (({"curriculum": "f" * 32}, "curriculum"), ({"order_version": 2}, "order_version")):
        with pytest.raises(ResumeError, match=rf"^the state is of another run, {name} differs: "):
            schedule_of(curriculum.catalog, {**state, **change})
