"""Texts of the worst kinds go in, at sizes a factor of ten apart; what a byte of each costs comes out.

``python benchmarks/growth.py [--sizes 1 10 100] [--only KIND] [--json]``. Time is CPU time of one thread, the least of
the runs. A cost a byte that stays the same from the smallest to the largest size is linear; the last column is the
ratio of the two, and above ``MOST`` the command fails.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from cleanfeed.build.engine import set_up_libraries
from cleanfeed.curriculum.tokenizer import TextEncoder
from cleanfeed.signals.measure import measure_texts, warm_up
from cleanfeed.signals.minhash import signatures, warm_up_minhash
from cleanfeed.signals.tokens import TokenTables, measure_tokens

MIB = 10**6
MOST = 2.0
"""A cost a byte at the largest size that is this many times that at the smallest is not linear."""

TOKENIZER = Path(__file__).resolve().parent.parent / "data_samples" / "tokenizer.json"


def _filled(unit: str, size: int) -> str:
    """Return a unit repeated up to about ``size`` bytes of UTF-8."""
    return unit * (size // len(unit.encode()))


def _random(alphabet: str, size: int) -> str:
    codes = np.frombuffer(alphabet.encode("utf-32-le"), np.uint32)
    dice = np.random.default_rng(1)
    return (
        dice.choice(codes, size // len(alphabet[0].encode())).astype(np.uint32).tobytes().decode("utf-32-le")
    )


def _words(size: int) -> str:
    """Return distinct words, none twice."""
    letters = np.frombuffer(string.ascii_lowercase.encode(), np.uint8)
    numbers = np.arange(size // 7)
    places = np.stack([numbers // 26**k % 26 for k in range(6)] + [np.full(len(numbers), 26)], axis=1)
    return np.append(letters, np.uint8(32))[places].astype(np.uint8).tobytes().decode()


def _near_period(size: int) -> str:
    """Return a period of 97 letters in which one letter in a thousand is changed."""
    text = np.frombuffer((_random(string.ascii_lowercase, 97) * (size // 97)).encode(), np.uint8).copy()
    dice = np.random.default_rng(2)
    places = dice.integers(0, len(text), len(text) // 1000)
    text[places] = ord("a") + dice.integers(0, 26, len(places))
    return text.tobytes().decode()


def _fibonacci(size: int) -> str:
    before, text = "a", "ab"
    while len(text) < size:
        before, text = text, text + before
    return text[:size]


def _thue_morse(size: int) -> str:
    bits: npt.NDArray[np.uint8] = np.zeros(1, np.uint8)
    while len(bits) < size:
        bits = np.concatenate([bits, 1 - bits])
    return (bits[:size] + ord("a")).astype(np.uint8).tobytes().decode()


def _prose(size: int) -> str:
    dice = random.Random(3)
    words = ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 9))) for _ in range(20_000)]
    return " ".join(dice.choices(words, k=size // 5))[:size]


def _again(size: int) -> str:
    """Return one text again and again, many times whatever the size: all of its n-grams repeat."""
    return _filled(_prose(2**16) + "\n", size)


KINDS: dict[str, Callable[[int], str]] = {
    "one letter": lambda size: _filled("a", size),
    **{f"period {n}": (lambda size, n=n: _filled(string.ascii_lowercase[:n], size)) for n in range(2, 14)},
    "near-periodic": _near_period,
    "Fibonacci word": _fibonacci,
    "Thue-Morse word": _thue_morse,
    "random letters": lambda size: _random(string.ascii_lowercase, size),
    "base64": lambda size: _random(string.ascii_letters + string.digits + "+/", size),
    "digits": lambda size: _random(string.digits, size),
    "DNA": lambda size: _random("ACGT", size),
    "random latin-1": lambda size: _random("".join(map(chr, range(0x80, 0x100))), size),
    "newlines": lambda size: _filled("\n", size),
    "spaces": lambda size: _filled(" ", size),
    "NUL": lambda size: _filled("\0", size),
    "brackets": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "nested JSON": lambda size: '{"a":' * (size // 7) + "1" + "}" * (size // 7),
    "one word": lambda size: _filled("word ", size),
    "distinct words": _words,
    "one line again and again": lambda size: _filled("the same line once more\n", size),
    "one-letter lines": lambda size: _filled("a\n", size),
    "combining marks": lambda size: "a" + _filled("\u0301", size),
    "CJK": lambda size: _random("".join(map(chr, range(0x4E00, 0x4E00 + 3000))), size),
    "one CJK character": lambda size: _filled("\u5929", size),
    "emoji joined": lambda size: _filled("\U0001f468\u200d\U0001f469\u200d", size),
    "Thai": lambda size: _filled("\u0e01\u0e49\u0e32", size),
    "prose": _prose,
    "prose again": _again,
}


def _measure(texts: pa.LargeStringArray) -> None:
    measure_texts(texts)


def _sign(texts: pa.LargeStringArray) -> None:
    signatures(texts, ngram=5, hashes=128)


def _tokeniser() -> Callable[[pa.LargeStringArray], None]:
    encoder = TextEncoder(str(TOKENIZER))
    tables = TokenTables.of(encoder.tokenizer)

    def tokenise(texts: pa.LargeStringArray) -> None:
        ids, offsets = encoder.encode(texts.to_pylist())
        measure_tokens(ids, offsets, np.array([len(texts[0].as_py())]), tables)

    return tokenise


def seconds(work: Callable[[pa.LargeStringArray], None], texts: pa.LargeStringArray, runs: int) -> float:
    """Return the least CPU time of some runs."""
    found = []
    for _ in range(runs):
        started = time.thread_time()
        work(texts)
        found.append(time.thread_time() - started)
    return min(found)


def measured(sizes: list[float], only: str, parts: list[str]) -> Iterator[tuple[str, str, list[float]]]:
    """Yield part, kind and nanoseconds a byte at each size."""
    works = {"signals": _measure, "signatures": _sign, "tokens": _tokeniser()}
    for part in parts:
        for kind, make in KINDS.items():
            if only not in kind:
                continue
            costs = []
            for size in sizes:
                texts = pa.array([make(int(size * MIB))], pa.large_string())
                held = len(texts[0].as_buffer())
                runs = 3 if held <= 2 * MIB else 1
                costs.append(1e9 * seconds(works[part], texts, runs) / held)
                del texts
            yield part, kind, costs


def main() -> int:
    """Measure and print; return 1 where something is not linear."""
    set_up_libraries()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 10, 100], help="MB of text")
    parser.add_argument("--parts", nargs="+", default=["signals", "signatures", "tokens"])
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warm_up()
    warm_up_minhash()
    table = Table("part", "kind", *(f"{size:g} MB" for size in given.sizes), "ratio", title="ns a byte")
    rows, worst = [], 0.0
    for part, kind, costs in measured(given.sizes, given.only, given.parts):
        ratio = costs[-1] / costs[0]
        worst = max(worst, ratio)
        rows.append({"part": part, "kind": kind, "ns_per_byte": costs, "ratio": ratio})
        table.add_row(part, kind, *(f"{cost:.1f}" for cost in costs), f"{ratio:.2f}")
        print(part, kind, *(f"{cost:.1f}" for cost in costs), f"{ratio:.2f}", file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps(rows, indent=2))
    else:
        Console().print(table)
        print(f"largest ratio {worst:.2f}, at most {MOST} is linear")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
