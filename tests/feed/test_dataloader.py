"""Torch's DataLoader delivers the sampler's order whole, with any workers, over epochs, and after a kill."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from cleanfeed.errors import CurriculumError
from cleanfeed.feed.collators import FlattenCollator, PadCollator
from cleanfeed.feed.dataset import Curriculum
from cleanfeed.feed.sampler import CurriculumSampler

from .conftest import ids_of
from .test_dataset import flip_in_page

WORKERS = [
    pytest.param(0, None, id="0"),
    *(pytest.param(workers, "fork", id=f"{workers}-fork") for workers in (1, 2, 4)),
    pytest.param(2, "spawn", id="2-spawn"),
    pytest.param(2, "forkserver", id="2-forkserver"),
]
# Python 3.12 warns of any fork in a process with threads, and torch itself has some.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning"),
]


def sampler_of(curriculum: Curriculum, **options: Any) -> CurriculumSampler:
    return CurriculumSampler(
        curriculum, **{"global_batch": 12, "micro_batch": 4, "epochs": 2, "seed": 3, "lanes": 4} | options
    )


def loader_of(
    sampler: CurriculumSampler, workers: int, method: str | None, **options: Any
) -> DataLoader[Any]:
    return DataLoader(
        sampler.curriculum,  # type: ignore[arg-type]
        batch_sampler=sampler,
        collate_fn=options.pop("collate_fn", PadCollator(0)),
        num_workers=workers,
        multiprocessing_context=method,
        **options,
    )


def order_of(sampler: CurriculumSampler, first: int = 0) -> list[int]:
    """Return the rows of this rank's slots as the pure order says."""
    return np.concatenate([sampler.rank_rows(slot) for slot in range(first, sampler.n_slots)]).tolist()


@pytest.mark.parametrize(("workers", "method"), WORKERS)
def test_what_is_delivered_does_not_depend_on_workers(
    curriculum: Curriculum, table: pa.Table, workers: int, method: str | None
):
    sampler = sampler_of(curriculum, drop_last=False)
    slot = next(slot for slot in range(9, sampler.n_slots))
    sampler.quarantine(sampler.sample_hashes(slot)[:3])
    expected = ids_of(table)
    delivered, labelled = [], 0
    collate = PadCollator(0, max_length=200)
    for batch in loader_of(sampler, workers, method, collate_fn=collate):
        for row, ids, labels in zip(
            batch["sample_ids"].tolist(), batch["input_ids"], batch["labels"], strict=True
        ):
            right = [] if row < 0 else expected[row][:200].tolist()
            assert ids.tolist() == right + [0] * (len(ids) - len(right))
            labelled += int((labels != -100).sum())
            delivered.append(row)
    assert len(delivered) == len(sampler) * 4
    wanted = [sampler.slot_rows(slot) for slot in range(sampler.n_slots)]
    assert delivered == [max(-1, row) for row in np.concatenate(wanted).tolist()]
    assert delivered.count(-1) == 6 + sampler.n_slots * 12 - 2 * len(curriculum)
    lengths = [len(expected[row]) for row in delivered if row >= 0]
    assert collate.truncated == sum(length > 200 for length in lengths) > 0
    assert collate.truncated_tokens == sum(lengths) - labelled


def test_text_samples_go_through_workers(text_build: Path):
    sampler = sampler_of(Curriculum(text_build), epochs=1)
    by_hand = [item["text"] for item in sampler.curriculum.__getitems__(order_of(sampler))]  # type: ignore[attr-defined]
    assert [text for batch in loader_of(sampler, 2, "fork") for text in batch["text"]] == by_hand


def test_flattened_batches_go_through_workers(curriculum: Curriculum):
    sampler = sampler_of(curriculum, epochs=1)
    loader = loader_of(sampler, 1, "fork", collate_fn=FlattenCollator(0))
    for batch in loader:
        assert batch["cu_seqlens"][-1] == batch["input_ids"].shape[1]
        assert int(batch["cu_seqlens"].diff().max()) == batch["max_length_q"]


def test_persistent_workers_go_on_from_the_committed_cursor_over_epochs(curriculum: Curriculum):
    sampler = sampler_of(curriculum)
    loader = loader_of(sampler, 2, "fork", persistent_workers=True, prefetch_factor=3)
    trained: list[int] = []
    for stop in (5, 30, sampler.n_slots):  # the second pass ends in the second epoch
        rows: list[int] = []
        for batch in loader:
            rows += batch["sample_ids"].tolist()
            if len(rows) == 12:
                trained += rows
                rows = []
                sampler.commit()
                if sampler.committed == stop:
                    break
        assert sampler.committed == stop
    assert trained == order_of(sampler)
    assert list(loader) == []


def test_ranks_with_workers_share_one_global_batch(curriculum: Curriculum):
    whole = order_of(sampler_of(curriculum))
    shares = []
    for rank in range(2):
        sampler = sampler_of(curriculum, rank=rank, world_size=2, micro_batch=3)
        shares.append(
            [row for batch in loader_of(sampler, 1, "fork") for row in batch["sample_ids"].tolist()]
        )
    slots = [np.array(share).reshape(-1, 6) for share in shares]
    together = np.sort(np.concatenate(slots, axis=1), axis=1)
    assert together.tolist() == np.sort(np.array(whole).reshape(-1, 12), axis=1).tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_flipped_byte_raises_before_its_batch_is_delivered(copied: Path, workers: int):
    name, rows = flip_in_page(copied)
    sampler = sampler_of(Curriculum(copied), epochs=1)
    delivered: list[int] = []
    batches = iter(loader_of(sampler, workers, "fork" if workers else None))
    with pytest.raises(CurriculumError, match=rf"{name}, row group 1"):
        delivered.extend(row for batch in batches for row in batch["sample_ids"].tolist())
    order = order_of(sampler)
    first = min(order.index(row) for row in rows)
    assert delivered == order[: first // 4 * 4]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning needs a device")
def test_batches_can_be_pinned(curriculum: Curriculum):
    for collate in (PadCollator(0), FlattenCollator(0)):
        loader = loader_of(sampler_of(curriculum, epochs=1), 0, None, collate_fn=collate, pin_memory=True)
        batch = next(iter(loader))
        assert all(value.is_pinned() for value in batch.values() if isinstance(value, torch.Tensor))


def test_killed_with_prefetch_in_flight_and_resumed_no_sample_is_lost_or_comes_twice(
    tokens_build: Path, tmp_path: Path
):
    log, state = tmp_path / "log", tmp_path / "state"
    command = [
        sys.executable,
        str(Path(__file__).with_name("loop.py")),
        str(tokens_build),
        str(log),
        str(state),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for steps in (7, 60):
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment,
            bufsize=0,
        ) as loop:
            assert loop.stdin is not None
            assert loop.stdout is not None
            ahead = [int(loop.stdout.readline())]
            for _ in range(steps - 1):
                loop.stdin.write(b"\n")
                ahead.append(int(loop.stdout.readline()))
            os.killpg(loop.pid, signal.SIGKILL)
        assert loop.returncode == -signal.SIGKILL
        assert max(ahead) > 1  # slots were under way in the workers
    # What the kill came in the middle of may stand in the log; the state does not know of it.
    with log.open("ab") as file:
        file.write(b"[1, 2")
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
    trained = [row for line in log.read_text().splitlines() for row in json.loads(line)]
    sampler = CurriculumSampler(Curriculum(tokens_build), global_batch=6, micro_batch=2, epochs=2, seed=7)
    assert trained == order_of(sampler)
    samples = len(sampler.curriculum)  # type: ignore[arg-type]
    assert sorted(trained[:samples]) == list(range(samples))
