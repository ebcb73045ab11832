"""torchdata's StatefulDataLoader goes on after the batch it delivered last, with the sampler or on its own."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torchdata")
from torchdata.stateful_dataloader import StatefulDataLoader

from cleanfeed import Curriculum, CurriculumSampler
from cleanfeed.feed.collators import PadCollator

from .builds import sample_hash, write_build

Loader = StatefulDataLoader[Any]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
]


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory: pytest.TempPathFactory) -> Curriculum:
    return Curriculum(write_build(tmp_path_factory.mktemp("build") / "out", (25, 3), (1, 5), (40, 4)))


def loader_of(curriculum: Curriculum, workers: int, every: int = 1) -> tuple[CurriculumSampler, Loader]:
    sampler = CurriculumSampler(curriculum, 6, 2, seed=3, epochs=2, lanes=6)
    loader = StatefulDataLoader(
        curriculum,
        batch_sampler=sampler,
        collate_fn=PadCollator(0),
        num_workers=workers,
        snapshot_every_n_steps=every,
        multiprocessing_context="fork" if workers else None,
    )
    return sampler, loader


def ids(batches: Any) -> list[list[int]]:
    return [batch["sample_ids"].tolist() for batch in batches]


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (0, 5), (2, 1)])
@pytest.mark.parametrize("delivered", [0, 7, 12])
def test_its_state_is_of_the_batch_delivered_last(
    curriculum: Curriculum, workers: int, every: int, delivered: int
) -> None:
    expected = ids(loader_of(curriculum, 0)[1])
    _, loader = loader_of(curriculum, workers, every)
    batches = iter(loader)
    assert ids(next(batches) for _ in range(delivered)) == expected[:delivered]
    state = loader.state_dict()
    sampler, resumed = loader_of(curriculum, workers, every)
    resumed.load_state_dict(state)
    rest = iter(resumed)
    assert ids(next(rest) for _ in range(3)) == expected[delivered : delivered + 3]
    again = resumed.state_dict()
    _, twice = loader_of(curriculum, workers, every)
    twice.load_state_dict(again)
    assert ids(twice) == expected[delivered + 3 :]
    if every == 1:
        assert sampler.committed == delivered // 3


def test_the_sampler_s_own_state_is_of_what_was_committed(curriculum: Curriculum) -> None:
    expected = ids(loader_of(curriculum, 0)[1])
    sampler, loader = loader_of(curriculum, 2)
    batches = iter(loader)
    for _ in range(2):
        ids(next(batches) for _ in range(3))
        sampler.commit()
    next(batches)
    resumed, other = loader_of(curriculum, 2)
    resumed.load_state_dict(sampler.state_dict())
    assert ids(other) == expected[6:]


def test_exclusions_travel_with_its_state(curriculum: Curriculum) -> None:
    sampler, loader = loader_of(curriculum, 0)
    sampler.skip(1, 2)
    sampler.quarantine([sample_hash(row) for row in sampler.slot_rows(3).tolist()[:2]])
    batches = iter(loader)
    ids(next(batches) for _ in range(3))
    _, resumed = loader_of(curriculum, 0)
    resumed.load_state_dict(loader.state_dict())
    assert ids(resumed)[:2] == [[-1, -1], sampler.slot_rows(3).tolist()[2:4]]
