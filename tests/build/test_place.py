"""A sample of a build that keeps texts has the text of its document, or its part of it, whatever the tokenizer does."""

from pathlib import Path

import duckdb
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from cleanfeed.build.explain import explain_document
from cleanfeed.build.verify import verify

from .conftest import WORDS, Build, prose, write_jsonl

NAMES = ["<unk>", "<|endoftext|>", *"▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,"]
LONG = "\n".join(f"  {prose(n)}  Übergröße, 中文 and\tso on" for n in range(12))


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """A tokenizer that does not give back what it took: spaces and accents change, and it knows few letters."""
    names = [*NAMES, *(f"▁{word}" for word in WORDS)]
    made = Tokenizer(models.Unigram([(name, -2.0) for name in names], 0, False))
    made.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(tmp_path / "unigram.json"))
    return str(tmp_path / "unigram.json")


def test_the_texts_of_the_parts_of_a_document_join_to_it_and_are_as_long_as_they_say(
    tmp_path: Path, run: Build, tokenizer: str
):
    texts = {"long": LONG, "short": prose(99), "accents": "Señor Muñoz lived in the old town. " + prose(98)}
    records = [{"id": name, "text": text} for name, text in texts.items()]
    run(
        write_jsonl(tmp_path / "a.jsonl", records),
        tokenizer=tokenizer,
        keep_text=True,
        sets=[
            "curriculum.bands=[{name: all, max_tokens: 64, max_chars: 999}]",
            "curriculum.row_group_tokens=200",
            "curriculum.file_row_groups=1",
            "rules=[]",
        ],
    )
    with duckdb.connect() as store:
        query = "SELECT doc_id, part, n_chars, text FROM read_parquet(?) ORDER BY doc_id, part"
        found = store.execute(query, [str(tmp_path / "out/curriculum/*/*.parquet")]).fetchall()
    joined = {name: "".join(text for doc, _, _, text in found if doc == name) for name in texts}
    assert joined == texts
    assert [chars for _, _, chars, _ in found] == [len(text) for *_, text in found]
    assert max(part for _, part, _, _ in found) > 10
    assert explain_document(str(tmp_path / "out"), "long").text == LONG
    verify(str(tmp_path / "out"))


def test_no_span_is_shown_in_a_text_that_the_ids_do_not_give_back(tmp_path: Path, run: Build, tokenizer: str):
    records = [{"id": "lost", "text": LONG}, {"id": "rejected", "text": "g4ODg4OD" * 2000}]
    run(write_jsonl(tmp_path / "a.jsonl", records), tokenizer=tokenizer, sets=["duplicates.method=off"])
    kept = explain_document(str(tmp_path / "out"), "lost")
    assert (kept.verdict != "reject", kept.text, kept.spans) == (True, None, [])
    assert explain_document(str(tmp_path / "out"), "rejected").text == records[1]["text"]
