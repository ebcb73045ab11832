"""Collators give a model exactly the tokens of the samples, and nothing to learn from anywhere else."""

import pickle
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cleanfeed.curriculum.tokenizer import TextEncoder
from cleanfeed.errors import MisuseError
from cleanfeed.feed.collators import FlattenCollator, PadCollator
from cleanfeed.feed.dataset import Curriculum
from cleanfeed.feed.rows import NO_TOKENS, Rows
from cleanfeed.feed.samples import FILLER, NO_SAMPLE, Samples

from ..build.conftest import TOKENIZER
from .conftest import read_all

PAD = 99


def batch(*rows: list[int], limits: list[int] | None = None) -> Samples:
    """Return samples 0, 1, 2 and so on with these ids."""
    return mixed([(ids, False) for ids in rows], limits)


def mixed(rows: list[tuple[list[int], bool]], limits: list[int] | None = None) -> Samples:
    """Return samples with these ids; those that are marked are pad rows in their place."""
    return Samples(
        np.array([NO_SAMPLE if pad else number for number, (_, pad) in enumerate(rows)], dtype=np.int64),
        np.array([len(ids) for ids, _ in rows], dtype=np.int64),
        np.array(limits or [0] * len(rows), dtype=np.int64),
        Rows.of(NO_TOKENS if pad else np.array(ids, dtype=np.int32) for ids, pad in rows),
    )


def lists(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in found.items()
    }


def test_rows_are_padded_on_the_right():
    assert lists(PadCollator(PAD)(batch([5, 6, 7], [8]))) == {
        "input_ids": [[5, 6, 7], [8, PAD, PAD]],
        "labels": [[5, 6, 7], [8, -100, -100]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "sample_ids": [0, 1],
    }


def test_a_pad_row_keeps_the_shape_and_holds_nothing_to_learn():
    assert lists(PadCollator(PAD)(mixed([([5, 6, 7], True), ([8, 9], False), ([], True)]))) == {
        "input_ids": [[PAD, PAD, PAD], [8, 9, PAD], [PAD, PAD, PAD]],
        "labels": [[-100, -100, -100], [8, 9, -100], [-100, -100, -100]],
        "attention_mask": [[1, 0, 0], [1, 1, 0], [1, 0, 0]],
        "sample_ids": [-1, 1, -1],
    }


@pytest.mark.parametrize("collate", [PadCollator(0), FlattenCollator(0)], ids=["pad", "flatten"])
def test_a_batch_without_rows_has_tensors_without_rows(collate: PadCollator | FlattenCollator):
    none = np.zeros(0, dtype=np.int64)
    batch = collate(Samples(none, none, none, Rows.of([])))
    assert batch["sample_ids"].shape == (0,)
    assert batch["input_ids"].numel() == batch["labels"].numel() == 0


def test_a_batch_of_fillers_is_one_position_wide():
    found = PadCollator(PAD)(mixed([([], True), ([], True)]))
    assert found["input_ids"].shape == found["labels"].shape == found["attention_mask"].shape == (2, 1)


def test_samples_are_laid_end_to_end():
    found = FlattenCollator(PAD)(mixed([([5, 6, 7], False), ([8, 9], True), ([4], False), ([], True)]))
    starts, longest = [0, 3, 5, 6, 7], 3
    assert lists(found) == {
        "input_ids": [[5, 6, 7, PAD, PAD, 4, PAD]],
        "labels": [[-100, 6, 7, -100, -100, -100, -100]],
        "position_ids": [[0, 1, 2, 0, 1, 0, 0]],
        "sample_ids": [0, -1, 2, -1],
        "cu_seqlens": starts,
        "max_seqlen": longest,
        "cu_seq_lens_q": starts,
        "cu_seq_lens_k": starts,
        "max_length_q": longest,
        "max_length_k": longest,
    }
    assert found["cu_seqlens"].dtype == torch.int32
    assert type(found["max_length_q"]) is int


ROWS = st.lists(
    st.tuples(st.lists(st.integers(0, 2**31 - 1), max_size=30), st.booleans()), min_size=1, max_size=12
)


@given(ROWS, st.sampled_from([None, 1, 8]), st.sampled_from([None, 1, 5, 40]))
def test_padding_is_what_a_loop_over_tokens_would_do(
    rows: list[tuple[list[int], bool]], multiple: int | None, most: int | None
):
    found = PadCollator(PAD, max_length=most, to_multiple_of=multiple)(mixed(rows))
    width = max(1, *(min(len(ids), most or len(ids)) for ids, _ in rows))
    width = -(-width // (multiple or 1)) * (multiple or 1)
    for row, (ids, pad) in enumerate(rows):
        kept = [] if pad else ids[:most]
        rest = width - len(kept)
        assert found["input_ids"][row].tolist() == kept + [PAD] * rest
        assert found["labels"][row].tolist() == kept + [-100] * rest
        assert found["attention_mask"][row].tolist() == ([1] * (len(kept) or 1) + [0] * rest)[:width]
    assert {value.dtype for value in found.values()} == {torch.int64}


@given(ROWS)
def test_both_collators_hold_the_same_labelled_tokens(rows: list[tuple[list[int], bool]]):
    flat, padded = FlattenCollator(PAD)(mixed(rows)), PadCollator(PAD)(mixed(rows))
    assert flat["sample_ids"].tolist() == padded["sample_ids"].tolist()
    bounds = flat["cu_seqlens"].tolist()
    assert len(bounds) == len(rows) + 1
    assert bounds[-1] == flat["input_ids"].shape[1] == flat["position_ids"].shape[1]
    for row, (start, stop) in enumerate(pairwise(bounds)):
        mask = padded["labels"][row, 1:] != -100
        assert flat["labels"][0, start] == -100
        part = flat["labels"][0, start + 1 : stop]
        assert part[part != -100].tolist() == padded["labels"][row, 1:][mask].tolist()
        assert flat["position_ids"][0, start:stop].tolist() == list(range(stop - start))


def test_shapes_can_be_those_of_the_stage_or_always_the_same():
    rows = batch([1, 2, 3], [4], limits=[10, 6])
    assert PadCollator(PAD, pad_to="stage")(rows)["input_ids"].shape == (2, 10)
    assert PadCollator(PAD, pad_to="stage", max_length=7)(rows)["input_ids"].shape == (2, 7)
    assert PadCollator(PAD, pad_to="max_length", max_length=32)(rows)["input_ids"].shape == (2, 32)
    assert PadCollator(PAD, pad_to="stage", to_multiple_of=8)(rows)["input_ids"].shape == (2, 16)


def test_a_stage_has_one_shape(curriculum: Curriculum):
    collate = PadCollator(PAD, pad_to="stage")
    for stage in curriculum.catalog.stages:
        for first in range(stage.first_row, stage.first_row + stage.samples):
            assert collate([curriculum[first]])["input_ids"].shape == (1, stage.max_length)


def test_what_is_cut_off_is_counted_and_pad_rows_are_not():
    collate = PadCollator(PAD, max_length=2)
    found = collate(mixed([([1, 2, 3, 4], False), ([5, 6], False), ([7, 8, 9], True)]))
    assert found["input_ids"].tolist() == [[1, 2], [5, 6], [PAD, PAD]]
    assert (collate.truncated, collate.truncated_tokens) == (1, 2)
    collate(batch([1, 2, 3]))
    assert (collate.truncated, collate.truncated_tokens) == (2, 3)
    flat = FlattenCollator(PAD, max_length=2)
    assert flat(batch([1, 2, 3], [4]))["cu_seqlens"].tolist() == [0, 2, 3]
    assert (flat.truncated, flat.truncated_tokens) == (1, 1)
    assert PadCollator(PAD).truncated == 0


def test_a_list_of_items_gives_the_same_batch(curriculum: Curriculum):
    asked = [3, ~250, FILLER, 120]
    for collate in (PadCollator(PAD), PadCollator(PAD, pad_to="stage"), FlattenCollator(PAD)):
        rows = curriculum.__getitems__(asked)
        assert lists(collate(list(rows))) == lists(collate(rows))


def test_items_of_another_dataset_need_only_ids():
    assert lists(PadCollator(PAD)([{"input_ids": [1, 2]}, {"input_ids": [3], "sample_id": 8}])) == {
        "input_ids": [[1, 2], [3, PAD]],
        "labels": [[1, 2], [3, -100]],
        "attention_mask": [[1, 1], [1, 0]],
        "sample_ids": [-1, 8],
    }


# Texts.


def test_without_a_tokenizer_texts_are_given_out_but_not_those_of_pad_rows(text_build: Path):
    texts = read_all(text_build).column("text").to_pylist()
    found = PadCollator(PAD)(Curriculum(text_build).__getitems__([2, ~3, FILLER]))
    assert lists(found) == {"text": [texts[2], "", ""], "sample_ids": [2, -1, -1]}
    with pytest.raises(MisuseError, match="no token ids to lay end to end"):
        FlattenCollator(PAD)(Curriculum(text_build).__getitems__([2]))


def as_hugging_face(texts: list[str]) -> dict[str, list[list[int]]]:
    return {"input_ids": [encoding.ids for encoding in Tokenizer.from_file(TOKENIZER).encode_batch(texts)]}


@pytest.mark.parametrize("tokenizer", [TOKENIZER, Tokenizer.from_file(TOKENIZER), as_hugging_face])
def test_texts_are_encoded_with_any_kind_of_tokenizer(text_build: Path, tokenizer: Any):
    curriculum = Curriculum(text_build)
    texts = read_all(text_build).column("text").to_pylist()
    flat, offsets = TextEncoder(TOKENIZER).encode([texts[2], texts[3]])
    ids, blanked = flat[: offsets[1]].tolist(), int(offsets[2] - offsets[1])
    collate = pickle.loads(pickle.dumps(PadCollator(PAD, tokenizer=tokenizer)))
    found = collate(curriculum.__getitems__([2, ~3, FILLER]))
    width = max(len(ids), blanked)
    assert found["input_ids"][0].tolist() == ids + [PAD] * (width - len(ids))
    assert (found["input_ids"][1:] == PAD).all()
    assert (found["labels"][1:] == -100).all()
    assert found["sample_ids"].tolist() == [2, -1, -1]
    flattened = FlattenCollator(PAD, tokenizer=tokenizer)(curriculum.__getitems__([2, ~3, FILLER]))
    assert flattened["cu_seqlens"].tolist() == [0, len(ids), len(ids) + blanked, len(ids) + blanked + 1]


def test_a_wrong_tokenizer_file_is_refused_before_workers_start(tmp_path: Path):
    with pytest.raises(MisuseError, match=r"none\.json"):
        PadCollator(PAD, tokenizer=str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_length": 0},
            "wrong argument: PadCollator(max_length=): got 0, expected a whole number of at least 1",
        ),
        (
            {"to_multiple_of": 0},
            "wrong argument: PadCollator(to_multiple_of=): got 0, expected a whole number of at least 1",
        ),
        (
            {"pad_to": "batch"},
            "unknown pad_to: PadCollator: got 'batch', expected longest, stage or max_length",
        ),
        (
            {"pad_to": "max_length"},
            "no length to pad to: PadCollator: got pad_to max_length, expected max_length",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(MisuseError, match=re.escape(message)):
        PadCollator(PAD, **options)


def test_tensors_can_be_changed_by_the_loop():
    rows = batch([1, 2], [3])
    for found in (PadCollator(PAD)(rows), FlattenCollator(PAD)(rows)):
        found["input_ids"] += 1
        found["labels"].fill_(0)
    assert [item["input_ids"].tolist() for item in rows] == [[1, 2], [3]]


@pytest.mark.parametrize("collate", [PadCollator(0), FlattenCollator(0)])
def test_a_row_with_more_ids_than_its_length_is_refused(collate: PadCollator | FlattenCollator):
    batch = [
        {"sample_id": 7, "length": 3, "input_ids": np.arange(4)},
        {"sample_id": 8, "input_ids": np.arange(2)},
    ]
    with pytest.raises(MisuseError) as refused:
        collate(batch)
    assert str(refused.value) == (
        "a row has more ids than its length says: sample 7: got 4 ids, expected at most 3. "
        "Change length together with input_ids, or leave it out."
    )
