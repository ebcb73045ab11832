"""A curriculum goes in; a small GPT trained on it under the guard comes out, with its ledger and its incidents.

Run it as a script, or under ``torchrun`` for several ranks::

    python pipelines/train_gpt.py out/ --run runs/a --validation held-out/

The model is a pre-norm decoder: RMSNorm (arXiv:1910.07467), rotary positions (arXiv:2104.09864), optional
QK-norm (arXiv:2302.05442), a SwiGLU feed-forward (arXiv:2002.05202), tied embeddings and a z-loss
(PaLM, arXiv:2204.02311). The learning rate warms up linearly and falls along a cosine to a floor.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from cleanfeed import Checkpoints, Curriculum, CurriculumSampler, PadCollator, Policy, TrainingGuard

IGNORED = -100


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model."""

    vocab_size: int
    context: int = 512
    width: int = 128
    layers: int = 4
    heads: int = 4
    qk_norm: bool = True
    z_loss: float = 1e-4
    """Weight of the mean squared log-partition."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train."""

    global_batch: int = 16
    micro_batch: int = 8
    epochs: int = 1
    seed: int = 0
    lr: float = 2e-3
    floor: float = 0.1
    """Learning rate at the end, as a share of the peak."""
    warmup: int = 40
    weight_decay: float = 0.1
    clip: float = 1.0
    save_every: int = 50
    workers: int = 0
    bf16: bool = False


class RMSNorm(nn.Module):
    """Root-mean-square norm with a gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with unit root mean square along its last axis."""
        return F.rms_norm(x, (x.shape[-1],), self.gain, 1e-6)


def rotary(context: int, head: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the rotary positions, each of shape [context, head / 2]."""
    rates = 10_000.0 ** (-torch.arange(0, head, 2).float() / head)
    angles = torch.arange(context).float()[:, None] * rates
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return ``x`` of shape [rows, heads, length, head] turned by its positions."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Block(nn.Module):
    """Attention and a gated feed-forward, each behind its norm."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width, head = config.width, config.width // config.heads
        self.heads = config.heads
        self.attention_norm, self.ffn_norm = RMSNorm(width), RMSNorm(width)
        self.query_norm: nn.Module = RMSNorm(head) if config.qk_norm else nn.Identity()
        self.key_norm: nn.Module = RMSNorm(head) if config.qk_norm else nn.Identity()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        hidden = width * 8 // 3 // 8 * 8
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [rows, length, width] to the same shape."""
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        )
        q, k = rotate(self.query_norm(q), cos, sin), rotate(self.key_norm(k), cos, sin)
        # Padding stands at the end of a row, so the causal mask alone keeps it from every real token.
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class GPT(nn.Module):
    """A small decoder-only transformer."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        cos, sin = rotary(config.context, config.width // config.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        for block in self.blocks:
            # The residual stream grows with depth: its writers start smaller.
            nn.init.normal_(block.out.weight, std=0.02 / math.sqrt(2 * config.layers))
            nn.init.normal_(block.down.weight, std=0.02 / math.sqrt(2 * config.layers))

    def forward(self, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch (with the z-loss) and the plain loss of each row.

        Args:
            input_ids: Token ids, int64 of shape [rows, length].
            labels: The same ids, -100 where no loss is wanted; not shifted.

        Returns:
            The token-weighted mean loss, a scalar; and the mean loss of each row, of shape [rows] and
            detached, 0 for a row without labels.
        """
        length = input_ids.shape[1]
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        logits = F.linear(self.norm(x), self.embed.weight).float()[:, :-1]
        targets = labels[:, 1:]
        wanted = targets != IGNORED
        total = logits.logsumexp(dim=-1)
        right = logits.gather(-1, targets.clamp(min=0)[..., None]).squeeze(-1)
        losses = (total - right) * wanted
        tokens = wanted.sum().clamp(min=1)
        loss = losses.sum() / tokens + self.config.z_loss * (total.square() * wanted).sum() / tokens
        per_row = losses.detach().sum(dim=1) / wanted.sum(dim=1).clamp(min=1)
        return loss, per_row


def learning_rate(config: TrainConfig, steps: int) -> Any:
    """Return the schedule's factor of the peak learning rate as a function of the step."""

    def factor(step: int) -> float:
        if step < config.warmup:
            return (step + 1) / config.warmup
        done = min(1.0, (step - config.warmup) / max(1, steps - config.warmup))
        return config.floor + (1 - config.floor) * 0.5 * (1 + math.cos(math.pi * done))

    return factor


def optimizer_for(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return AdamW that decays matrices alone."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95), eps=1e-8)


@torch.no_grad()
def validation_loss(model: GPT, curriculum: Curriculum, rows: int = 16) -> float:
    """Return the mean loss in nats a token over all of a held-out curriculum."""
    collate = PadCollator(pad_id=0, max_length=model.config.context)
    total, tokens = 0.0, 0
    model.eval()
    for first in range(0, len(curriculum), rows):
        batch = collate(curriculum.__getitems__(list(range(first, min(first + rows, len(curriculum))))))
        _, per_row = model(batch["input_ids"], batch["labels"])
        counts = (batch["labels"][:, 1:] != IGNORED).sum(dim=1)
        total += float((per_row.double() * counts).sum())
        tokens += int(counts.sum())
    model.train()
    return total / max(1, tokens)


@dataclass
class Trained:
    """What a finished run has to say."""

    steps: int
    last_loss: float
    validation: float | None


def train(
    curriculum: Curriculum,
    run: Path,
    gpt: GPTConfig,
    config: TrainConfig,
    *,
    validation: Curriculum | None = None,
    policy: Policy | None = None,
    guarded: bool = True,
) -> Trained:
    """Train one model over a curriculum.

    Args:
        curriculum: A finished build with a tokenizer.
        run: Run directory: ledger, incidents, quarantine and checkpoints.
        gpt: The model.
        config: How to train it.
        validation: A held-out curriculum, measured once at the end.
        policy: What the guard does; its defaults where it is None.
        guarded: Without the guard, every step is taken as it comes.
    """
    torch.manual_seed(config.seed)
    model = GPT(gpt)
    network: nn.Module = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = optimizer_for(model, config)
    sampler = CurriculumSampler(
        curriculum,
        global_batch=config.global_batch,
        micro_batch=config.micro_batch,
        seed=config.seed,
        epochs=config.epochs,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate(config, sampler.n_slots))
    loader = DataLoader(
        curriculum,
        batch_sampler=sampler,
        collate_fn=PadCollator(pad_id=0, max_length=gpt.context),
        num_workers=config.workers,
        multiprocessing_context="forkserver" if config.workers else None,
    )
    if guarded:
        checkpoints = Checkpoints.of(model, optimizer, scheduler, every=config.save_every)
        guard = TrainingGuard(
            sampler, run_dir=run, checkpoints=checkpoints, policy=policy or Policy(), optimizer=optimizer
        )
        losses = guarded_steps(guard, loader, network, optimizer, scheduler, config)
    else:
        losses = bare_steps(sampler, loader, network, optimizer, scheduler, config)
    steps, last = 0, math.nan
    for last in losses:
        steps += 1
        if steps % 50 == 0 and is_first_rank():
            print(f"  step {steps:5d}   loss {last:.3f}", file=sys.stderr)
    measured = validation_loss(model, validation) if validation is not None else None
    return Trained(steps, last, measured)


def guarded_steps(
    guard: TrainingGuard,
    loader: DataLoader[Any],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    config: TrainConfig,
) -> Iterator[float]:
    """Train under the guard; yield the loss of each step."""
    for step in guard.steps(loader):
        total = 0.0
        for batch in step:
            with precision(config):
                loss, per_row = network(batch["input_ids"], batch["labels"])
            (loss * step.weight).backward()
            step.observe(loss, per_sample_loss=per_row)
            total += float(loss.detach()) * step.weight
        grad_norm = nn.utils.clip_grad_norm_(network.parameters(), config.clip)
        if step.accept(grad_norm):
            optimizer.step()
            scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        step.commit()
        yield total


def bare_steps(
    sampler: CurriculumSampler,
    loader: DataLoader[Any],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    config: TrainConfig,
) -> Iterator[float]:
    """Train without a guard; yield the loss of each step."""
    batches = iter(loader)
    while (slot := sampler.next_slot(sampler.committed)) is not None:
        total, parts = 0.0, [next(batches) for _ in range(sampler.micro_batches(slot))]
        for batch, weight in zip(parts, weights(parts), strict=True):
            with precision(config):
                loss, _ = network(batch["input_ids"], batch["labels"])
            (loss * weight).backward()
            total += float(loss.detach()) * weight
        nn.utils.clip_grad_norm_(network.parameters(), config.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        sampler.commit(slot)
        yield total


def weights(parts: list[Any]) -> list[float]:
    """Return what each micro-batch weighs in the mean over the label tokens of all, as ``step.weight`` has it."""
    counts = [float((batch["labels"][:, 1:] != IGNORED).sum()) for batch in parts]
    whole, ranks = torch.tensor(sum(counts), dtype=torch.float64), 1
    if dist.is_initialized():
        dist.all_reduce(whole)
        ranks = dist.get_world_size()
    return [ranks * count / max(1.0, whole.item()) for count in counts]


def precision(config: TrainConfig) -> Any:
    """Return the context a forward pass runs in: bfloat16 autocast, or nothing."""
    return torch.autocast("cpu", dtype=torch.bfloat16) if config.bf16 else nullcontext()


def is_first_rank() -> bool:
    """Return whether this process speaks for the run."""
    return not dist.is_initialized() or dist.get_rank() == 0


def options() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT on a curriculum, under the guard.")
    parser.add_argument("curriculum", help="a finished build with a tokenizer")
    parser.add_argument("--run", type=Path, required=True, help="run directory")
    parser.add_argument("--validation", help="a held-out build, measured at the end")
    parser.add_argument("--no-guard", action="store_true", help="take every step as it comes")
    for name, value in (asdict(GPTConfig(vocab_size=0)) | asdict(TrainConfig())).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=value)
        elif name != "vocab_size":
            parser.add_argument(flag, type=type(value), default=value)
    return parser


def main() -> None:
    """Train as the command line says, and print the result as JSON."""
    given = vars(options().parse_args())
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    curriculum = Curriculum(given["curriculum"])
    vocab = curriculum.catalog.vocab_size
    if vocab is None:
        raise SystemExit(
            f"the curriculum holds text, not tokens: {given['curriculum']}. Build it with --tokenizer."
        )
    gpt = GPTConfig(vocab, **{one.name: given[one.name] for one in fields(GPTConfig) if one.name in given})
    config = TrainConfig(**{one.name: given[one.name] for one in fields(TrainConfig)})
    validation = Curriculum(given["validation"]) if given["validation"] else None
    result = train(
        curriculum, given["run"], gpt, config, validation=validation, guarded=not given["no_guard"]
    )
    if is_first_rank():
        print(json.dumps(asdict(result)))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
