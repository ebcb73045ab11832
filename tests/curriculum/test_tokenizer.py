"""Encoding: text never becomes a control token, pieces change nothing, wrong files are refused in one line."""

import base64
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

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
from cleanfeed.errors import CleanfeedError, MisuseError

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


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(random.Random(1).randbytes(30_000)).decode(),
        "".join(random.Random(2).choices("abcdefghijklmnopqrstuvwxyz", k=40_000)),
        "今天下午我们沿着河边走了很久，风有一点凉。" * 900,
        "".join(random.Random(3).choices("0123456789", k=40_000)),
        "เช้านี้ฝนตกเบาๆเราเดินไปตลาดเพื่อซื้อผลไม้และกลับมาทำอาหารกินกันที่บ้าน" * 300,
    ],
    ids=["base64", "letters", "Chinese", "digits", "Thai"],
)
def test_a_run_without_white_space_is_cut_where_the_ids_stay_those_of_the_whole(
    encoder: TextEncoder, text: str, monkeypatch: pytest.MonkeyPatch
):
    whole = encoder.tokenizer.encode(text, add_special_tokens=False).ids
    monkeypatch.setattr(encoder, "piece_chars", 1000)
    assert encoder.encode([text])[0].tolist() == whole


class Panic(BaseException):
    """What a binding to native code raises: no Exception."""


class Fragile:
    """A tokenizer that fails on some texts in the way it is told to."""

    def __init__(self, tokenizer: Any, error: type[BaseException]) -> None:
        self.tokenizer, self.error = tokenizer, error

    def encode_batch_fast(self, pieces: list[str], **options: Any) -> Any:
        if any("fragile" in piece for piece in pieces):
            raise self.error("stack overflow")
        return self.tokenizer.encode_batch_fast(pieces, **options)


@pytest.mark.parametrize("error", [Panic, Exception, RuntimeError])
def test_a_text_the_tokenizer_fails_on_costs_no_other(
    encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
):
    texts = ["one", "fragile", "two words", "x " * 600 + "fragile", "three"]
    expected = [encoder.encode([text])[0].tolist() if "fragile" not in text else [] for text in texts]
    monkeypatch.setattr(encoder, "piece_chars", 1000)
    monkeypatch.setattr(encoder, "tokenizer", Fragile(encoder.tokenizer, error))
    failed: set[int] = set()
    begun: list[tuple[int, int]] = []
    ids, offsets = encoder.encode(texts, failed=failed, begun=lambda first, last: begun.append((first, last)))
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected
    assert failed == {1, 3}
    assert begun[:3] == [(0, 4), (0, 0), (1, 1)]
    with pytest.raises(CleanfeedError, match=r"the tokenizer fails on a text: .*: got text 1"):
        encoder.encode(texts)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_is_no_failure_of_the_tokenizer(
    encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
):
    monkeypatch.setattr(encoder, "tokenizer", Fragile(encoder.tokenizer, error))
    with pytest.raises(error):
        encoder.encode(["one", "fragile"], failed=set())


def test_a_tokenizer_that_can_encode_nothing_any_more_is_loaded_anew(encoder: TextEncoder):
    class Broken:
        def encode_batch_fast(self, pieces: list[str], **options: Any) -> Any:
            raise Panic("poisoned")

    good = encoder.tokenizer
    try:
        expected = encoder.encode(["one", "two"])[0].tolist()
        encoder.tokenizer = Broken()
        failed: set[int] = set()
        assert encoder.encode(["one", "two"], failed=failed)[0].tolist() == expected
        assert failed == set()
    finally:
        encoder.tokenizer = good


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
        (b'{"model": 1}', "of another kind"),
        (b'{"model": {"vocab": 1}}', "cannot read"),
        (b'{"model": {"vocab": [1]}}', "cannot read"),
        (
            b'{"model": {"vocab": {"</s>": "x"}}, "added_tokens": [{"content": "</s>", "id": 0}]}',
            "cannot read",
        ),
        (b'{"model": {"vocab": {}}, "added_tokens": [{"content": "</s>"}]}', "of another kind"),
        (b'{"model": {"vocab": {}}, "added_tokens": [1]}', "of another kind"),
        (b'{"model": {"vocab": {}}, "added_tokens": null}', "no end-of-text token"),
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
