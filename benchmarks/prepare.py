"""Prepares what the benchmark runs on: real text goes in, JSONL files and a tokenizer come out.

The text is repeated in rounds until it is large enough. From the second round on the paragraphs of each
document are rotated by the number of the round, so that no two documents are the same and each still
reads, repeats and compresses like itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from cleanfeed.documents.plan import plan_inputs
from cleanfeed.documents.read import read_piece
from cleanfeed.settings import DocumentSettings

DATA = Path(__file__).resolve().parent / "data"
MB = 1_000_000
VOCABULARY = 16_384
TOKENIZED_MB = 60
SAMPLE_MB = 4
SAMPLE_LONGEST = 100_000


@dataclass(frozen=True)
class Prepared:
    """Files made from one source of text."""

    large: Path
    half: Path
    tokenized: Path
    sample: Path
    tokenizer: Path


def _fingerprint(source: Path) -> str:
    """Return a short name for what lies at the source, so that other text is never taken for it."""
    files = [(file.source, file.size) for file in plan_inputs([str(source)]).files]
    return hashlib.blake2b(json.dumps([str(source.resolve()), files]).encode(), digest_size=4).hexdigest()


def read_texts(source: Path, limit: int) -> list[str]:
    """Return the texts of the input up to so many bytes, unreadable records left out."""
    settings = DocumentSettings()
    texts: list[str] = []
    size = 0
    for piece in plan_inputs([str(source)]).pieces:
        batches, _ = read_piece(piece, settings)
        for batch in batches:
            texts += batch.table["text"].to_pylist()
            size += batch.table["text"].nbytes
            if size >= limit:
                return texts
    return texts


def rotated(text: str, turns: int) -> str:
    """Return the text with its paragraphs (or lines, sentences, words) moved round by so many places."""
    if turns == 0:
        return text
    for mark in ("\n\n", "\n", ". ", " "):
        parts = text.split(mark)
        if len(parts) > turns:
            return mark.join(parts[turns:] + parts[:turns])
    return text[turns % max(1, len(text)) :] + text[: turns % max(1, len(text))]


def write_rounds(path: Path, texts: list[str], rounds: int) -> None:
    """Write the texts so many times over, each round rotated further."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as out:
        for turn in range(rounds):
            for number, text in enumerate(texts):
                out.write(
                    json.dumps({"id": f"{number}.{turn}", "text": rotated(text, turn)}, ensure_ascii=False)
                    + "\n"
                )
    partial.rename(path)


def write_some(path: Path, texts: list[str], limit: int, longest: int | None = None) -> None:
    """Write every k-th text, so that about ``limit`` bytes of an even mixture come out."""
    fitting = [text for text in texts if longest is None or len(text) <= longest]
    total = sum(len(text.encode()) for text in fitting)
    every = max(1.0, total / limit)
    chosen = [fitting[int(i * every)] for i in range(int(len(fitting) / every))]
    write_rounds(path, chosen, 1)


def train_tokenizer(path: Path, texts: list[str]) -> None:
    """Train a byte-level BPE on the text itself, so that its tokens are as long as those of a real one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text[:200_000] for text in texts), trainer)
    tokenizer.save(str(path))


def prepare(source: Path, megabytes: int) -> Prepared:
    """Make what is not there yet, and say where everything lies."""
    folder = (
        DATA / f"{re.sub(r'[^A-Za-z0-9]+', '_', source.resolve().name)}_{megabytes}_{_fingerprint(source)}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    made = Prepared(
        large=folder / "large.jsonl",
        half=folder / "half.jsonl",
        tokenized=folder / "tokenized.jsonl",
        sample=folder / "sample.jsonl",
        tokenizer=folder / "tokenizer.json",
    )
    if all(path.exists() for path in (made.large, made.half, made.tokenized, made.sample, made.tokenizer)):
        return made
    texts = read_texts(source, megabytes * MB)
    size = sum(len(text.encode()) for text in texts)
    if size == 0:
        raise SystemExit(f"Nothing to read: {source}: got no text.")
    rounds = 2 * -(-megabytes * MB // (2 * size))
    write_rounds(made.large, texts, rounds)
    write_rounds(made.half, texts, rounds // 2)
    if size >= TOKENIZED_MB * MB:
        write_some(made.tokenized, texts, TOKENIZED_MB * MB)
    else:
        write_rounds(made.tokenized, texts, max(1, round(TOKENIZED_MB * MB / size)))
    write_some(made.sample, texts, SAMPLE_MB * MB, SAMPLE_LONGEST)
    train_tokenizer(made.tokenizer, texts)
    return made
