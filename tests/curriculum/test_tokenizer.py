"""Encoding: text never becomes a control token, pieces change nothing, wrong files are refused in one line."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.curriculum.tokenizer import (
    LARGEST_PIECE_CHARS,
    PIECE_CHARS,
    STARTS_LINE,
    STARTS_WORD,
    TextEncoder,
    safe_pieces,
)
from cleanfeed.errors import MisuseError

SAMPLE = Path(__file__).parents[2] / "data_samples" / "tokenizer.json"


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return TextEncoder(str(SAMPLE))


def test_a_special_token_written_in_a_text_is_encoded_as_its_characters(encoder: TextEncoder):
    text = "the marker <|endoftext|> separates documents"
    ids, offsets = encoder.encode([text])
    assert encoder.end_of_text_id not in ids
    assert encoder.decode(ids.tolist()) == text
    assert offsets.tolist() == [0, len(ids)]


def test_an_end_of_text_token_not_marked_as_special_does_not_match_in_text_either(tmp_path: Path):
    spec = json.loads(SAMPLE.read_text())
    for token in spec["added_tokens"]:
        token["special"] = False
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec))
    loose = TextEncoder(str(path))
    ids, _ = loose.encode(["a <|endoftext|> b"])
    assert loose.end_of_text_id not in ids


@given(texts=st.lists(st.text(max_size=50), max_size=5))
def test_offsets_part_the_ids_into_the_texts(encoder: TextEncoder, texts: list[str]):
    ids, offsets = encoder.encode(texts)
    parts = [ids[a:b].tolist() for a, b in pairwise(offsets)]
    assert parts == [encoder.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert [encoder.decode(part) for part in parts] == texts


def test_a_text_encoded_in_pieces_has_the_ids_of_the_whole(
    encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch
):
    text = "The ferry leaves at dawn,  and nobody waits.\n\n  We count the boats (seven) 12 345.\t" * 20
    assert encoder.piece_chars == PIECE_CHARS
    whole = encoder.encode([text])[0].tolist()
    monkeypatch.setattr(encoder, "piece_chars", 100)
    assert encoder.encode([text, text])[0].tolist() == whole * 2


def test_a_tokenizer_that_marks_the_start_of_a_text_gets_it_whole(tmp_path: Path):
    spec = json.loads(SAMPLE.read_text())
    spec["normalizer"] = {"type": "Prepend", "prepend": "_"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec))
    assert TextEncoder(str(path)).piece_chars == LARGEST_PIECE_CHARS


@given(st.text(alphabet="ab \n日", max_size=200), st.integers(4, 50))
def test_pieces_join_to_the_text_and_keep_the_limit(text: str, limit: int):
    pieces = list(safe_pieces(text, limit))
    assert "".join(pieces) == text
    assert all(len(piece) <= limit for piece in pieces)
    assert all(pieces) or text == ""


def test_the_tables_know_what_each_id_starts_and_how_many_characters_begin_in_it(encoder: TextEncoder):
    text = "Zwei Wörter\nund 日本語 \U0001f600"
    ids = encoder.encode([text])[0]
    assert int(encoder.token_chars[ids].sum()) == len(text)
    pieces = [encoder.tokenizer.id_to_token(int(token)) for token in ids]
    for piece, kind in zip(pieces, encoder.token_starts[ids].tolist(), strict=True):
        assert (kind == STARTS_LINE) == piece.startswith("Ċ")
        assert (kind == STARTS_WORD) == piece.startswith("Ġ")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "cannot read the tokenizer"),
        (b"not json", "cannot read"),
        (b"{}", "no 'model'"),
        (b"[1]", "no 'model'"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(tmp_path: Path, content: bytes | None, part: str):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MisuseError) as caught:
        TextEncoder(str(path))
    assert part in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_end_of_text_token_is_refused_and_named():
    with pytest.raises(MisuseError, match=r"no end-of-text token.*expected <\|stop\|>"):
        TextEncoder(str(SAMPLE), "<|stop|>")
