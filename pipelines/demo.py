"""A folder goes in; the whole story comes out there: a build, a spike, a rollback, a quarantine, a finished training.

Three small models are trained on the same notes: ``guarded`` and ``unguarded`` on a curriculum into which a pocket of
bad pages was let through, ``clean`` on one built with the rules on. Run by ``make demo``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
from demo_corpus import write
from train_gpt import GPTConfig, TrainConfig, Trained, train

from cleanfeed import Curriculum, Policy

TOKENIZER = Path("data_samples/tokenizer.json")
CLEANFEED = [sys.executable, "-m", "cleanfeed"]
ONE_STAGE = [
    "--set",
    "curriculum.tiers=[{name: all}]",
    "--set",
    "curriculum.bands=[{name: all, max_tokens: 1024, max_chars: 8192}]",
]
GPT = {"width": 64, "layers": 2, "heads": 4, "context": 1024}
TRAIN = TrainConfig(global_batch=8, micro_batch=4, lr=3e-3, warmup=40, save_every=25)
POLICY = Policy(
    # A run of 400 steps: everything is shorter than for weeks of training.
    grace=120,
    window=64,
    margin=10,
    promote_after=30,
    recover_within=30,
    pre=2,
    # Without "skip_step", which would turn the bad batches away before they do harm: a rollback is to be seen here.
    actions=("record", "rollback", "lower_lr", "halt"),
)


def main() -> None:
    """Tell the story in the folder named on the command line."""
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    if sys.argv[2:]:
        print(json.dumps(run(out, sys.argv[2])))
        return
    began = time.monotonic()
    shutil.rmtree(
        out / "runs", ignore_errors=True
    )  # a run that is there would be gone on with, not made again
    title("Notes and a pocket of bad pages, built with the rules off, on, and held-out notes")
    write(out / "corpus", TOKENIZER)
    build(out, "poisoned", "train.jsonl", "--set", "rules=[]")
    build(out, "clean", "train.jsonl")
    build(out, "held-out", "held_out.jsonl")
    title("Training: guarded here, unguarded and clean beside it")
    beside = {
        name: subprocess.Popen(
            [sys.executable, __file__, str(out), name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for name in ("unguarded", "clean")
    }
    results = {"guarded": run(out, "guarded")}
    for name, process in beside.items():
        told, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"the {name} run failed with exit code {process.returncode}")
        results[name] = json.loads(told)
    title("What the engineer on call reads")
    page = out / "report.html"
    cleanfeed("quarantine", "report", str(out / "runs/guarded"), "--html", str(page))
    cleanfeed("quarantine", "report", str(out / "runs/guarded"), "--incident", "1")
    cleanfeed("ledger", "audit", str(out / "runs/guarded"))
    title("Loss on held-out notes, nats a token")
    clean = results["clean"]["validation"]
    for name in ("guarded", "unguarded", "clean"):
        loss = results[name]["validation"]
        print(f"  {name:10} {loss:.4f}   {loss / clean - 1:+.2%}")
    print(f"\n{time.monotonic() - began:.0f} s. The report as a page: {page}")


def run(out: Path, name: str) -> dict[str, float | None]:
    """Train one of the three models."""
    curriculum = Curriculum(str(out / ("clean" if name == "clean" else "poisoned")))
    vocabulary = curriculum.catalog.vocab_size
    assert vocabulary is not None, "built with a tokenizer"
    result: Trained = train(
        curriculum,
        out / "runs" / name,
        GPTConfig(vocabulary, **GPT),
        TRAIN,
        validation=Curriculum(str(out / "held-out")),
        policy=POLICY,
        guarded=name == "guarded",
    )
    return {"steps": result.steps, "validation": result.validation}


def build(out: Path, name: str, corpus: str, *options: str) -> None:
    """Build one curriculum of one stage."""
    where = ["--out", str(out / name), "--overwrite", "--tokenizer", str(TOKENIZER)]
    cleanfeed("build", str(out / "corpus" / corpus), *where, *ONE_STAGE, *options)


def cleanfeed(*arguments: str) -> None:
    """Run a command of cleanfeed as a user would, and show what it prints."""
    print("$ cleanfeed " + " ".join(arguments), flush=True)
    subprocess.run([*CLEANFEED, *arguments], check=True, stderr=subprocess.DEVNULL)


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n── {text}\n", flush=True)


if __name__ == "__main__":
    main()
