"""Memory of a batch is used again when the last tensor of it is gone, and never before."""

import gc
import pickle
import random

import numpy as np
import pytest
import torch

from cleanfeed.feed.buffers import MOST_FREE, Blocks
from cleanfeed.feed.collators import FlattenCollator, PadCollator

from .test_collators import batch


def test_memory_is_used_again_once_it_is_free():
    blocks = Blocks()
    _, first = blocks.block(3, 8, 100)
    place = first.data_ptr()
    del _, first
    assert blocks.block(3, 8, 90)[1].data_ptr() == place


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[1],
        lambda tensor: tensor.unbind()[2][3:],
        lambda tensor: tensor.numpy()[0],
        lambda tensor: tensor.view(-1)[-1],
        lambda tensor: tensor.detach().untyped_storage(),
        lambda tensor: memoryview(tensor.numpy()),
    ],
)
def test_memory_is_not_used_again_while_anything_looks_at_it(keep):
    blocks = Blocks()
    _, tensor = blocks.block(3, 5, 7)
    place = tensor.data_ptr()
    kept = keep(tensor)
    del _, tensor
    gc.collect()
    held = [blocks.block(3, 5, 7)[1] for _ in range(3)]
    assert place not in {other.data_ptr() for other in held}
    assert kept is not None


def test_kept_batches_never_change():
    dice = random.Random(4)
    for collate in (PadCollator(0), FlattenCollator(0)):
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(300):
            rows = [[dice.randrange(1, 1000)] * dice.randrange(1, 60) for _ in range(dice.randrange(1, 9))]
            found = collate(batch(*rows))
            tensor = dice.choice([found["input_ids"], found["labels"][0], found["labels"].view(-1)[1:]])
            kept.append((tensor, tensor.clone()))
            if len(kept) > dice.randrange(1, 20):
                kept.pop(dice.randrange(len(kept)))
            assert all(torch.equal(now, then) for now, then in kept)


def test_little_is_kept_for_later():
    blocks = Blocks()
    held = [blocks.block(1000)[1] for _ in range(50)]
    places = {tensor.data_ptr() for tensor in held}
    held.clear()
    again = [blocks.block(1000)[1] for _ in range(MOST_FREE)]
    assert {tensor.data_ptr() for tensor in again} <= places
    assert len(blocks._free) == 0


def test_memory_stays_in_its_process():
    blocks = Blocks()
    blocks.block(10)
    assert len(pickle.loads(pickle.dumps(blocks))._free) == 0


def test_what_is_given_out_can_be_filled():
    array, tensor = Blocks().block(2, 3)
    array[...] = np.arange(6).reshape(2, 3)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert Blocks().block(3, 0, 5)[1].shape == (3, 0, 5)
