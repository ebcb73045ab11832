"""A small curriculum, a small model and a training loop, with the tensors the model saw written down."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader

from cleanfeed import Checkpoints, Curriculum, CurriculumSampler, PadCollator, Policy, TrainingGuard
from cleanfeed.build.runner import BuildRequest, build
from cleanfeed.rules.pipeline import load_pipeline
from tests.build.conftest import Silent

PIPELINE = """\
name: lenient
description: Lets everything through.
duplicates: {method: off}
quality:
  score: [{signal: letter_share, bad: 0.2, good: 0.9}]
curriculum:
  bands: [{name: any, max_tokens: 256, max_chars: 20000}]
  tiers: [{name: any}]
  row_group_tokens: 512
rules: []
"""
HEALTHY, POISON = 48, 48
"""Words of each kind: healthy text never uses the latter."""
VOCABULARY = 1 + HEALTHY + POISON
END = "<eos>"


def _words() -> list[str]:
    letters = "bcdfghjklmnprstvz"
    made = [a + vowel + b for vowel in "aeiou" for a in letters for b in "nrst"]
    return made[: HEALTHY + POISON]


def make_tokenizer(path: Path) -> None:
    """Write a tokenizer of one token a word."""
    names = [END, *_words()]
    tokenizer = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=END)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(path))


def healthy(number: int, length: int | None = None) -> str:
    """Return text in which each word tells something about the next."""
    dice = random.Random(number)
    words, at = [], dice.randrange(HEALTHY)
    for _ in range(length or dice.randint(20, 30)):
        words.append(_words()[at])
        at = (at * 5 + dice.choice((1, 1, 2, 7))) % HEALTHY
    return " ".join(words)


def poison(number: int, length: int = 60) -> str:
    """Return text of words that healthy text never uses, in no order."""
    dice = random.Random(-1 - number)
    return " ".join(dice.choice(_words()[HEALTHY:]) for _ in range(length))


def make_curriculum(folder: Path, documents: int = 320, poisoned: Sequence[int] = ()) -> Path:
    """Build a curriculum; documents with the numbers in ``poisoned`` are poison."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder / "tokenizer.json")
    (folder / "pipeline.yaml").write_text(PIPELINE)
    with (folder / "in.jsonl").open("w") as file:
        for number in range(documents):
            text = poison(number) if number in poisoned else healthy(number)
            file.write(json.dumps({"id": f"doc-{number}", "text": text}) + "\n")
    pipeline = load_pipeline(str(folder / "pipeline.yaml"))
    request = BuildRequest(
        (str(folder / "in.jsonl"),), str(folder / "out"), pipeline, tokenizer=str(folder / "tokenizer.json")
    )
    build(request, Silent())
    return folder / "out"


KINDS: dict[str, Callable[[np.ndarray[Any, Any], np.random.Generator], np.ndarray[Any, Any]]] = {
    "unseen words": lambda ids, dice: dice.integers(1 + HEALTHY, VOCABULARY, size=len(ids)),
    "one word": lambda ids, dice: np.full(len(ids), dice.integers(1 + HEALTHY, VOCABULARY)),
    "two words in turn": lambda ids, dice: np.resize(
        dice.integers(1 + HEALTHY, VOCABULARY, size=2), len(ids)
    ),
    "counting": lambda ids, dice: 1 + HEALTHY + np.arange(len(ids)) % POISON,
    "no order": lambda ids, dice: dice.integers(1, 1 + HEALTHY, size=len(ids)),
    "backwards": lambda ids, dice: ids[::-1].copy(),
    "another script": lambda ids, dice: 1 + HEALTHY + ids % POISON,
    "half of it": lambda ids, dice: np.where(
        dice.random(len(ids)) < 0.5, dice.integers(1 + HEALTHY, VOCABULARY, size=len(ids)), ids
    ),
    "end marks": lambda ids, dice: np.zeros(len(ids)),
    "all but its beginning": lambda ids, dice: np.where(
        np.arange(len(ids)) < 4, ids, 1 + HEALTHY + ids % POISON
    ),
}
"""Ways for a sample to be bad: its ids go in, others of the same number come out."""


class Poisoned(PadCollator):
    """Delivers some rows as bad data, wherever they come.

    Args:
        rows: Row numbers.
        kind: Of `KINDS`.
    """

    def __init__(self, rows: Collection[int], kind: str = "unseen words") -> None:
        super().__init__(pad_id=0)
        self.rows, self.kind = frozenset(rows), kind

    def __call__(self, batch: Any) -> dict[str, Any]:
        found = super().__call__(batch)
        for at, row in enumerate(found["sample_ids"].tolist()):
            if row in self.rows:
                length = int(found["attention_mask"][at].sum())
                ids = found["input_ids"][at, :length].numpy()
                words = torch.from_numpy(
                    np.asarray(KINDS[self.kind](ids, np.random.default_rng(row)), np.int64)
                )
                found["input_ids"][at, :length] = words
                found["labels"][at, :length] = words
        return found


class Tiny(torch.nn.Module):
    """Next-word model of two layers."""

    def __init__(self, seed: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.nn.Embedding(VOCABULARY, 16)
        self.out = torch.nn.Linear(16, VOCABULARY)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        self.seen: list[str] = []

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is not None:
            for row, length in zip(input_ids, mask.sum(1).tolist(), strict=True):
                self.seen.append(xxhash.xxh3_128_hexdigest(row[:length].numpy().astype(np.int32).tobytes()))
        return self.out(torch.nn.functional.dropout(self.embedding(input_ids), self.dropout))


def losses(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean loss and that of each row."""
    flat = torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), reduction="none"
    ).reshape(labels.shape[0], -1)
    count = (labels[:, 1:] != -100).sum(1)
    return flat.sum() / count.sum().clamp(min=1), flat.sum(1) / count.clamp(min=1)


@dataclass
class Seen:
    """What a run of the loop saw."""

    guard: TrainingGuard
    model: Tiny
    optimizer: torch.optim.Optimizer
    hashes: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    """Hash of each row the model saw, by attempt and step; those of this rank."""
    accepted: dict[tuple[int, int], bool] = field(default_factory=dict)
    weights: dict[tuple[int, int], str] = field(default_factory=dict)
    """Hash of the weights after each step."""


def weights_of(model: torch.nn.Module) -> str:
    """Return a hash of all weights."""
    data = b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in model.state_dict().values())
    return xxhash.xxh3_128_hexdigest(data)


QUIET = Policy(grace=10**9)
"""No statistical rule ever speaks."""


def train(
    curriculum: str | Path,
    run: Path,
    *,
    steps: int | None = None,
    batch: int = 8,
    micro: int = 8,
    epochs: int = 1,
    lanes: int | None = None,
    policy: Policy = QUIET,
    every: int = 10,
    lr: float = 0.05,
    dropout: float = 0.0,
    checkpoints: bool = True,
    per_sample: bool = False,
    poisoned: Collection[int] = (),
    kind: str = "unseen words",
    workers: int = 0,
    loader: dict[str, Any] | None = None,
    before_step: Callable[[Seen, Any], None] | None = None,
    on_loss: Callable[[Seen, Any, torch.Tensor], torch.Tensor] | None = None,
    settings: dict[str, Any] | None = None,
    **guard_settings: Any,
) -> Seen:
    """Train from where ``run`` stands until the data or ``steps`` are done."""
    torch.set_num_threads(1)
    data = Curriculum(curriculum)
    sampler = CurriculumSampler(data, global_batch=batch, micro_batch=micro, epochs=epochs, lanes=lanes)
    more = {"num_workers": workers, **(loader or {})}
    batches = DataLoader(data, batch_sampler=sampler, collate_fn=Poisoned(poisoned, kind), **more)
    model = Tiny(dropout=dropout)
    inner: torch.nn.Module = model
    if sampler.world_size > 1:
        inner = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    ring = Checkpoints.of(inner, optimizer, every=every, **(settings or {})) if checkpoints else None
    guard = TrainingGuard(sampler, run, ring, policy, **guard_settings)
    seen = Seen(guard, model, optimizer)
    for step in guard.steps(batches):
        if before_step is not None:
            before_step(seen, step)
        model.seen.clear()
        for one in step:
            mean, rows = losses(inner(one["input_ids"], one["attention_mask"]), one["labels"])
            if on_loss is not None:
                mean = on_loss(seen, step, mean)
            (mean * step.weight).backward()
            step.observe(mean, rows if per_sample else None)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step.accept(norm):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        where = (guard.attempt, step.number)
        seen.hashes[where] = list(model.seen)
        seen.accepted[where] = bool(step.accepted)
        seen.weights[where] = weights_of(model)
        step.commit()
        if steps is not None and step.number >= steps:
            break
    guard.close()
    return seen
