"""The command line of the fuzzers."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Target = Callable[[bytes], None]


def changed(dice: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return bytes with one to six things done to them."""
    for _ in range(dice.randint(1, 6)):
        start, stop = sorted(dice.choices(range(len(data) + 1), k=2))
        if dice.random() < 0.7:
            stop = min(stop, start + dice.randint(1, 16))
        kind = dice.randrange(8)
        if kind == 0:
            data = data[:start] + dice.randbytes(dice.randint(1, 9)) + data[start:]
        elif kind == 1:
            data = data[:start] + data[stop:]
        elif kind == 2:
            data = data[:stop] + data[start:stop] * dice.choice((1, 2, 7, 40)) + data[stop:]
        elif kind == 3 and data:
            place = dice.randrange(len(data))
            data = data[:place] + bytes([data[place] ^ 1 << dice.randrange(8)]) + data[place + 1 :]
        elif kind == 4:
            data = data[stop:] + data[:stop]
        elif kind == 5:
            other = dice.choice(others)
            low, high = sorted(dice.choices(range(len(other) + 1), k=2))
            data = data[:start] + other[low:high] + data[stop:]
        elif kind == 6:
            data = data[:start] + bytes(stop - start) + data[stop:]
        else:
            data = data[:start] + dice.choice((b"\xff" * 4, b"\x00\x00\x00\x80", b"\x7f" * 8)) + data[stop:]
    return data[: 1 << 18]


def at_random(target: Target, seeds: Sequence[bytes], seconds: float, seed: int, last: Path) -> int:
    """Try changed seeds until the time is over; return how many."""
    dice, end, tries = random.Random(seed), time.monotonic() + seconds, 0
    pool = list(seeds)
    while time.monotonic() < end:
        data = changed(dice, dice.choice(pool), pool)
        last.write_bytes(data)
        target(data)
        tries += 1
        if dice.random() < 0.05:
            # Changes add up: some of what was tried is changed further.
            pool.append(data)
            if len(pool) > len(seeds) + 500:
                del pool[len(seeds) + dice.randrange(500)]
    return tries


def guided(target: Target, seeds: Sequence[bytes], seconds: float, seed: int, last: Path) -> None:
    """Let atheris look for inputs that reach new code; it ends the process."""
    import atheris

    folder = last.with_suffix(".corpus")
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(seeds):
        (folder / f"seed-{number:03d}").write_bytes(data)

    def one(data: bytes) -> None:
        last.write_bytes(data)
        target(data)

    options = [f"-max_total_time={int(seconds)}", f"-seed={seed}", "-max_len=65536", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={last}.", str(folder)], one)
    atheris.Fuzz()


def main() -> None:
    """Run a fuzzer as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=["readers", "kernels"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--last", type=Path, default=Path("fuzz-last.bin"))
    parser.add_argument("--again", type=Path)
    parser.add_argument("--at-random", action="store_true", help="do without atheris")
    given = parser.parse_args()
    try:
        import atheris
    except ImportError:
        atheris = None
    with_guide = atheris is not None and given.target == "readers" and not given.at_random
    if given.target == "kernels":
        from tests.fuzz.kernels import SEEDS, target
    elif with_guide:
        with atheris.instrument_imports(include=["cleanfeed.documents"]):
            from tests.fuzz.readers import SEEDS, target
    else:
        from tests.fuzz.readers import SEEDS, target
    if given.again is not None:
        target(given.again.read_bytes())
    elif with_guide:
        guided(target, SEEDS, given.seconds, given.seed, given.last)
    else:
        tries = at_random(target, SEEDS, given.seconds, given.seed, given.last)
        print(f"{given.target}: {tries} inputs, nothing found")


main()
