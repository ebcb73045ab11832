"""Real text goes in; how many planted near-copies are found, and how many others are, comes out.

``python near_duplicates.py TEXT... [--set bands=14 --set rows=8]``. Documents the default pipeline keeps are copied
with a share of their words changed, each to a word of another document: words anywhere, or one passage. The truth is
counted in Python, apart from the kernels: the Jaccard similarity of the sets of n-grams.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from cleanfeed.curriculum.duplicates import NEAR, find_duplicates
from cleanfeed.documents.plan import plan_inputs
from cleanfeed.documents.read import read_piece
from cleanfeed.rules.pipeline import load_pipeline
from cleanfeed.rules.ruleset import KEEP, RuleSet
from cleanfeed.settings import DocumentSettings, DuplicateSettings
from cleanfeed.signals.measure import measure_texts
from cleanfeed.signals.minhash import band_keys, equal_places, signature_array, signatures
from cleanfeed.signals.word_hashes import ALONE, SPACED, word_table

EDITS = ((0.05, "anywhere"), (0.2, "anywhere"), (0.5, "anywhere"), (0.2, "one passage"), (0.5, "one passage"))
LEAST_WORDS = 50
Grams = frozenset[tuple[str, ...]]


def healthy(paths: list[str]) -> list[str]:
    """Return the different texts that the default pipeline keeps without a flag."""
    rules = RuleSet(load_pipeline("web_text").rules, tokenizer=False)
    texts: dict[str, None] = {}
    for piece in plan_inputs(paths).pieces:
        for batch in read_piece(piece, DocumentSettings())[0]:
            column = batch.table.column("text")
            chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            kept = rules.evaluate(measure_texts(chunk)).verdict == KEEP
            texts |= dict.fromkeys(chunk.filter(pa.array(kept)).to_pylist())
    return list(texts)


def spans(text: str) -> list[tuple[int, int]]:
    """Return where the words of a text lie."""
    table, found, start = word_table(), [], -1
    for at, char in enumerate(text):
        kind = int(table[ord(char)]) >> 21 if ord(char) < len(table) else 0
        if start >= 0 and kind != SPACED:
            found.append((start, at))
            start = -1
        if kind == ALONE:
            found.append((at, at + 1))
        elif kind == SPACED and start < 0:
            start = at
    return [*found, (start, len(text))] if start >= 0 else found


def grams(text: str, ngram: int) -> Grams:
    words = [text[start:stop].lower() for start, stop in spans(text)]
    return frozenset(tuple(words[i : i + ngram]) for i in range(max(1, len(words) - ngram + 1)))


def jaccard(left: Grams, right: Grams) -> float:
    common = len(left & right)
    return common / (len(left) + len(right) - common)


def edited(text: str, share: float, where: str, vocabulary: list[str], chance: random.Random) -> str:
    """Return the text with a share of its words changed."""
    words = spans(text)
    count = round(share * len(words))
    first = chance.randrange(len(words) - count + 1)
    chosen = chance.sample(range(len(words)), count) if where == "anywhere" else range(first, first + count)
    parts, end = [], 0
    for number in sorted(chosen):
        start, stop = words[number]
        new = chance.choice(vocabulary)
        while new.lower() == text[start:stop].lower():
            new = chance.choice(vocabulary)
        parts += [text[end:start], new]
        end = stop
    return "".join([*parts, text[end:]])


def alike_by_count(every: list[Grams], limit: float) -> dict[tuple[int, int], float]:
    """Return all pairs that are truly at least so similar."""
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, found in enumerate(every):
        for gram in found:
            holders[gram].append(number)
    common = Counter(pair for held in holders.values() if len(held) > 1 for pair in combinations(held, 2))
    found: dict[tuple[int, int], float] = {}
    for (one, two), count in common.items():
        similarity = count / (len(every[one]) + len(every[two]) - count)
        if similarity >= limit:
            found[one, two] = similarity
    return found


@dataclass
class Corpus:
    """Texts with their signatures and band keys."""

    texts: list[str]
    signatures: np.ndarray
    keys: np.ndarray

    @classmethod
    def of(cls, texts: list[str], settings: DuplicateSettings) -> Corpus:
        """Sign the texts."""
        found, _ = signatures(
            pa.array(texts, pa.large_string()), ngram=settings.ngram, hashes=settings.bands * settings.rows
        )
        return cls(texts, found, band_keys(found, settings.bands))

    def grouped(self, settings: DuplicateSettings) -> dict[int, int]:
        """Return each near-duplicate and what it is a copy of, by the whole way the build goes."""
        with tempfile.TemporaryDirectory() as folder:
            path, out = Path(folder) / "in.parquet", Path(folder) / "out.parquet"
            rows = len(self.texts)
            columns = {
                "position": pa.array(range(rows), pa.int64()),
                "content_hash": pa.array([i.to_bytes(16, "big") for i in range(rows)], pa.binary(16)),
                "quality": pa.nulls(rows, pa.float32()),
                "signature": signature_array(self.signatures, np.ones(rows, np.bool_)),
            }
            pq.write_table(pa.table(columns), path)
            find_duplicates([path], out, settings, scratch=Path(folder) / "scratch")
            table = pq.read_table(out).to_pylist()
        return {row["position"]: row["duplicate_of"] for row in table if row["kind"] == NEAR}


def planted(texts: list[str], every: list[Grams], settings: DuplicateSettings) -> Iterator[dict[str, object]]:
    """Yield for each kind of edit what became of the copies."""
    vocabulary = [text[start:stop] for text in texts for start, stop in spans(text)[:200]]
    size = len(texts)
    for share, where in EDITS:
        chance = random.Random(f"{share} {where}")
        copies = [edited(text, share, where, vocabulary, chance) for text in texts]
        true = np.array(
            [jaccard(one, grams(copy, settings.ngram)) for one, copy in zip(every, copies, strict=True)]
        )
        corpus = Corpus.of([*texts, *copies], settings)
        alike = equal_places(corpus.signatures[:size], corpus.signatures[size:]) / corpus.signatures.shape[1]
        compared = (corpus.keys[:size] == corpus.keys[size:]).any(axis=1)
        removed = corpus.grouped(settings)
        ours = {copy: of for copy, of in removed.items() if of == copy - size}
        near = true >= settings.min_similarity
        hit = np.array([size + i in ours for i in range(size)])
        yield {
            "changed": share,
            "where": where,
            "documents": size,
            "true_similarity": [round(float(value), 3) for value in np.quantile(true, [0.1, 0.5, 0.9])],
            "error_of_estimate": float(np.std(alike - true)),
            "compared": float(compared.mean()),
            "recall_of_copies": len(ours) / size,
            "truly_near": float(near.mean()),
            "recall_of_truly_near": float(hit[near].mean()) if near.any() else None,
            "removed": len(removed),
            "precision_copies": len(ours) / len(removed) if removed else None,
            "precision_truly_near": float(near[hit].sum()) / len(removed) if removed else None,
        }


def natural(every: list[Grams], texts: list[str], settings: DuplicateSettings) -> dict[str, object]:
    """Return how the documents' own pairs compare with the truth."""
    truth = alike_by_count(every, settings.min_similarity / 2)
    near = {pair for pair, similarity in truth.items() if similarity >= settings.min_similarity}
    corpus = Corpus.of(texts, settings)
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, row in enumerate(corpus.keys.tolist()):
        for band, key in enumerate(row):
            buckets[band, key].append(number)
    compared = {pair for held in buckets.values() for pair in combinations(held, 2)}
    least = settings.min_similarity * corpus.signatures.shape[1]
    found = {
        pair for pair in compared if (corpus.signatures[pair[0]] == corpus.signatures[pair[1]]).sum() >= least
    }
    return {
        "documents": len(texts),
        "truly_near_pairs": len(near),
        "compared_pairs": len(compared),
        "found_pairs": len(found),
        "recall": len(near & found) / max(1, len(near)),
        "precision": len(near & found) / max(1, len(found)),
        "least_true_similarity_found": min((truth.get(pair, 0.0) for pair in found), default=None),
        "removed": len(corpus.grouped(settings)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--set", action="append", default=[], metavar="key=value")
    parser.add_argument("--documents", type=int, default=2000)
    arguments = parser.parse_args()
    given = {key: yaml.safe_load(value) for key, value in (item.split("=", 1) for item in arguments.set)}
    settings = msgspec.convert({"method": "near", **given}, DuplicateSettings)
    start = time.perf_counter()
    texts = [text for text in healthy(arguments.paths) if len(spans(text)) >= LEAST_WORDS]
    every = [grams(text, settings.ngram) for text in texts]
    own = natural(every, texts, settings)
    # Documents with a relative in the corpus are no clean ground to plant in.
    related = {number for pair in alike_by_count(every, settings.min_similarity / 4) for number in pair}
    alone = [number for number in range(len(texts)) if number not in related][: arguments.documents]
    found = planted([texts[i] for i in alone], [every[i] for i in alone], settings)
    print(
        json.dumps(
            {"settings": msgspec.to_builtins(settings), "planted": list(found), "natural": own}, indent=1
        )
    )
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
