"""Signals about tokens against their plain definitions, and what is read off a vocabulary."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from cleanfeed.signals.tokens import TokenTables, byte_alphabet, measure_tokens, token_bytes
from cleanfeed.signals.tokens_signals import TOKEN_SIGNALS

TABLES = TokenTables(np.array([0, 0, 0, 0, 0, 0, 0, 1], np.uint8), 6)


def measured(documents, tables=TABLES, chars=None):
    ids = np.array([token for document in documents for token in document], np.int32)
    offsets = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    n_chars = np.array([3 * len(d) for d in documents] if chars is None else chars, np.int64)
    columns = measure_tokens(ids, offsets, n_chars, tables)
    assert list(columns) == [signal.name for signal in TOKEN_SIGNALS]
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def periodic(ids):
    """The definition: a unit of p tokens, and how often it follows itself from a place on, partial copies aside."""
    most, covered = 0, set()
    for period in range(1, 14):
        for start in range(len(ids) - 3 * period + 1):
            if start and start + period <= len(ids) and ids[start - 1] == ids[start - 1 + period]:
                continue
            stop = start + period
            while stop < len(ids) and ids[stop] == ids[stop - period]:
                stop += 1
            if (stop - start) // period >= 3:
                most = max(most, (stop - start) // period)
                if stop - start >= 16:
                    covered |= set(range(start, stop))
    return most, len(covered)


def test_an_empty_document_has_counts_of_zero_and_no_shares():
    (row,) = measured([[]])
    counts = {signal.name for signal in TOKEN_SIGNALS if signal.type == "int"}
    assert {name for name, value in row.items() if value == 0} == counts
    assert all(np.isnan(value) for name, value in row.items() if name not in counts)
    assert all(row[s.name] == s.empty or (s.empty is None and np.isnan(row[s.name])) for s in TOKEN_SIGNALS)


def test_each_signal_of_a_small_document():
    (row,) = measured([[1, 2, 2, 2, 6, 7, 7, 3, 1, 0] * 2], chars=[50])
    assert row == {
        "tokens": 20,
        "chars_per_token": 2.5,
        "byte_fallback_share": 0.2,
        "unk_share": 0.1,
        "distinct_token_ratio": 0.3,
        "longest_token_run": 3,
        "token_periods": 3,
        "token_period_share": 0.0,
    }


@pytest.mark.parametrize("period", [1, 2, 13, 14])
def test_a_unit_of_up_to_thirteen_tokens_is_counted(period):
    (row,) = measured([[*range(period)] * 32], TokenTables(np.zeros(20, np.uint8), -1))
    assert row["token_periods"] == (32 if period <= 13 else 0)
    assert row["token_period_share"] == (1.0 if period <= 13 else 0.0)
    assert np.isnan(row["unk_share"])


@settings(max_examples=300)
@given(
    st.lists(st.lists(st.integers(0, 7), max_size=60) | st.lists(st.integers(0, 1), max_size=60), max_size=5)
)
def test_every_document_agrees_with_the_definitions(documents):
    for ids, row in zip(documents, measured(documents), strict=True):
        most, covered = periodic(ids)
        assert (row["tokens"], row["token_periods"]) == (len(ids), most)
        if ids:
            assert row["token_period_share"] == covered / len(ids)
            assert row["byte_fallback_share"] == ids.count(7) / len(ids)
            assert row["unk_share"] == ids.count(6) / len(ids)
        if len(ids) >= 20:
            assert row["distinct_token_ratio"] == len(set(ids)) / len(ids)
        else:
            assert np.isnan(row["distinct_token_ratio"])


@given(st.lists(st.integers(0, 3), min_size=13, max_size=40), st.integers(3, 9), st.integers(1, 13))
def test_a_planted_period_is_never_missed(around, repeats, period):
    unit = [k % 8 for k in range(period)]
    (row,) = measured([around + unit * repeats + around])
    assert row["token_periods"] >= repeats


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["la la land über Maß"] * 9, trainer)
    return tokenizer


def test_a_byte_level_vocabulary_gives_the_bytes_of_each_token():
    tokenizer = byte_level()
    pieces = dict(token_bytes(tokenizer))
    ids = tokenizer.encode(" la über 今").ids
    assert b"".join(pieces[number] for number in ids) == " la über 今".encode()
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())


def test_bytes_of_a_character_are_fallback_and_whole_characters_are_not():
    tokenizer = byte_level()
    tables = TokenTables.of(tokenizer)
    ids = tokenizer.encode("la 今").ids
    (row,) = measured([ids], tables, [4])
    assert row["byte_fallback_share"] == 3 / len(ids)
    assert tables.unknown == -1
    again = pickle.loads(pickle.dumps(tables))
    assert np.array_equal(again.fallback, tables.fallback)


def test_byte_pieces_above_ascii_are_fallback():
    vocab = {"<unk>": 0, "a": 1, **{f"<0x{byte:02X}>": 2 + byte for byte in range(256)}}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tables = TokenTables.of(tokenizer)
    assert tables.unknown == 0
    assert np.flatnonzero(tables.fallback).tolist() == [2 + byte for byte in range(0x80, 256)]
    assert tokenizer.encode("aé").ids == [1, 2 + 0xC3, 2 + 0xA9]


@pytest.mark.parametrize(
    ("model", "unknown"),
    [
        (models.WordPiece({"[UNK]": 3, "a": 0, "##b": 1, "ü": 2}, unk_token="[UNK]"), 3),
        (models.Unigram([("a", -1.0), ("<unk>", -2.0)], 1, False), 1),
        (models.WordLevel({"a": 0}, "[UNK]"), -1),
    ],
)
def test_the_unknown_token_of_other_models(model, unknown):
    tables = TokenTables.of(Tokenizer(model))
    assert tables.unknown == unknown
    assert not tables.fallback.any()
