"""A ledger of a million steps is made; how long its report takes, in a process of its own, comes out.

    python benchmarks/report.py [STEPS] [--limit SECONDS]

The run has one incident with 160 suspect samples and no curriculum at hand, so that the ledger alone is measured. The
floor is that of a call that does nothing: interpreter and imports.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from processes import run

from cleanfeed.runs.incident_files import write_incident
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import begin_attempt
from cleanfeed.runs.records import Attempt, Incident, LedgerLine, SkipRange, Suspect, SuspectSample

STEPS = 1_000_000
ROUNDS = 3
LIMIT = 3.0
"""Seconds a report over a million steps may take."""


def line(step: int, dice: random.Random) -> LedgerLine:
    """Return a line such as a run of a language model writes."""
    loss = 2.2 + 6.0 * math.exp(-step / 5000) + dice.gauss(0, 0.03)
    return LedgerLine(
        attempt=1,
        step=step,
        epoch=0,
        slot=step - 1,
        stage=step // 250_000,
        batch_hash=f"{dice.getrandbits(128):032x}",
        samples=512,
        tokens=1_048_576,
        loss=loss,
        worst_micro_loss=loss + abs(dice.gauss(0, 0.2)),
        grad_norm=math.exp(dice.gauss(-1.2, 0.15)),
        lr=3e-4,
        time=1.79e9 + 2.5 * step,
        metrics={"tokens_per_second": 400_000.0 + dice.gauss(0, 1000)},
    )


def make_run(folder: Path, steps: int) -> RunDir:
    """Write a run with one incident near its end."""
    found, dice = RunDir(folder), random.Random(1)
    begin_attempt(found, Attempt(1, 1.79e9, 0, None, "start", None, str(folder / "gone"), "0" * 32, {}))
    # Whole lines at once: a call of write for each would measure this script.
    encoder = msgspec.json.Encoder()
    with found.attempt_lines(1).open("wb") as file:
        for first in range(1, steps + 1, 10_000):
            last = min(first + 10_000, steps + 1)
            file.write(b"".join(encoder.encode(line(step, dice)) + b"\n" for step in range(first, last)))
    onset = steps - 200
    hashes = [f"{dice.getrandbits(128):032x}" for _ in range(160)]
    write_incident(
        found,
        Incident(
            incident_id=1,
            opened_at=1.79e9,
            attempt=1,
            epoch=0,
            onset_step=onset,
            trip_step=onset + 3,
            rule="robust_z",
            detail={"signal": "loss", "value": 5.1, "limit": 2.5, "z": 40.0},
            policy={},
            action="skip_step",
            metrics=[line(step, dice) for step in range(onset - 32, onset + 4)],
            suspects=[Suspect(1, onset + at, 0, onset + at, "ab" * 16, 9.0 - at) for at in range(10)],
            samples=[
                SuspectSample(
                    name, f"doc-{at}", "dump.jsonl", at, "suspected", "its loss", "guard", 1.79e9, onset, 3.0
                )
                for at, name in enumerate(hashes)
            ],
            skip_ranges=[SkipRange(1, 0, onset, onset + 3)],
        ),
    )
    return found


def main(arguments: list[str]) -> int:
    """Measure and print; 1 where a report took longer than the limit."""
    limit = float(arguments[arguments.index("--limit") + 1]) if "--limit" in arguments else LIMIT
    steps = int(arguments[0]) if arguments and arguments[0].isdigit() else STEPS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        began = time.perf_counter()
        made = make_run(folder, steps)
        size = made.attempt_lines(1).stat().st_size
        print(f"ledger: {steps:,} steps, {size / 1e6:,.0f} MB, made in {time.perf_counter() - began:.1f} s")
        program = [sys.executable, "-m", "cleanfeed"]
        floor = min(run([*program, "--version"]).seconds for _ in range(ROUNDS))
        print(f"floor, cleanfeed --version: {floor:.2f} s")
        worst = 0.0
        for shown, extra in (
            ("terminal", []),
            ("json", ["--json"]),
            ("html", ["--html", str(folder / "r.html")]),
        ):
            results = [run([*program, "quarantine", "report", str(folder), *extra]) for _ in range(ROUNDS)]
            best = min(results, key=lambda result: result.seconds)
            worst = max(worst, best.seconds)
            peak = max(best.peaks) / 2**20
            print(
                f"report, {shown}: {best.seconds:.2f} s, {best.processor_seconds:.2f} s of processor, {peak:,.0f} MiB"
            )
    print(f"limit {limit:.1f} s: {'kept' if worst <= limit else 'broken'}")
    return 0 if worst <= limit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
