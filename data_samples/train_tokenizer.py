"""Trains the small byte-level BPE of the samples: the written texts go in, tokenizer.json comes out.

Run it from anywhere: ``python data_samples/train_tokenizer.py [FILE]``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pathologies
from make_samples import HERE, written
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 3_000
END_OF_TEXT = "<|endoftext|>"


def texts() -> list[str]:
    """Return the texts it learns from: what is healthy, and what is regular enough to be kept."""
    records = [*written("languages"), *written("genres"), *pathologies.machine()]
    return [record.text for record in records if record.verdict != "reject"]


def train() -> Tokenizer:
    """Return a tokenizer that can spell every byte and closes documents with ``<|endoftext|>``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def main() -> int:
    """Write tokenizer.json to the file named on the command line, by default beside this script."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "tokenizer.json"
    tokenizer = train()
    tokenizer.save(str(path), pretty=False)
    print(f"{tokenizer.get_vocab_size()} tokens in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
