"""A seed goes in; a small made-up corpus for the demo comes out: healthy notes, a pocket of bad pages, held-out notes.

The notes are sentences of a small grammar about villages, boats and weather, so that a small model learns them in
half a minute and a spike shows. The bad pages are what real crawls hold: encoded bytes, one sign over and over, text
in a broken encoding, words run together.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash
from tokenizers import Tokenizer

from cleanfeed.curriculum.order import shuffle_keys

PLACES = "Arden Brook Corrie Dunmore Elvan Farrow Glen Holm Inver Jarrow Kelso Lorne Moss Norvik Orrin Penrith".split()
PEOPLE = "Ada Bram Cora Dov Edda Finn Greta Hale Ines Joss Kaja Lars Mona Nils Oona Piet Rosa Sven Tilda Ugo".split()
WORK = "baker carpenter doctor farmer fisher gardener joiner miller potter sailor shepherd smith tailor teacher".split()
THINGS = "barrel basket bell boat bridge cart chair clock door gate kettle ladder lamp net oar plough rope sail".split()
GOODS = "apples barley beans bread butter cheese cloth eggs fish flour honey milk oats onions pears salt wool".split()
WEATHER = "bright calm clear cloudy cold damp dry foggy mild rainy stormy warm wet windy".split()
SEASONS = "spring summer autumn winter".split()
TIMES = "morning noon evening night".split()
VERBS = "bought built carried cleaned counted found fixed left made moved painted sold weighed".split()
WHERE = (
    "at the harbour|by the mill|in the barn|near the church|on the hill|under the bridge|at the market".split(
        "|"
    )
)

SENTENCES = (
    "In {season} the {time} at {place} was {weather}, and {person} the {work} {verb} a {thing} {where}.",
    "{person} {verb} {number} {goods} {where}, because the {season} had been {weather}.",
    "The {work} of {place} asked {person} for {goods}, but there were only {number} left.",
    "When the {thing} was {verb} by {person}, the {work} said that the day would be {weather}.",
    "Every {time} {person} walked from {place} to the market and {verb} {goods}.",
    "It was a {weather} {time}; the {thing} stood {where} and nobody {verb} it.",
    "{person} and {other} {verb} the {thing} together and shared the {goods}.",
    "After {number} days the {goods} were {verb}, and {place} had a {weather} {season}.",
)


def note(rng: random.Random) -> str:
    """Return one healthy document of two to five sentences about one place."""
    place, person, other = rng.choice(PLACES), rng.choice(PEOPLE), rng.choice(PEOPLE)
    season, work = rng.choice(SEASONS), rng.choice(WORK)
    sentences = (
        rng.choice(SENTENCES).format(
            place=place,
            person=person,
            other=other,
            season=season,
            work=work,
            thing=rng.choice(THINGS),
            goods=rng.choice(GOODS),
            weather=rng.choice(WEATHER),
            time=rng.choice(TIMES),
            verb=rng.choice(VERBS),
            where=rng.choice(WHERE),
            number=rng.randint(2, 40),
        )
        for _ in range(rng.randint(2, 5))
    )
    return " ".join(sentences)


def bad_page(rng: random.Random, kind: int) -> str:
    """Return one document of a kind that has broken real runs."""
    if kind == 0:
        return base64.b64encode(rng.randbytes(rng.randint(500, 600))).decode()
    if kind == 1:
        return rng.choice("\\|~^") * rng.randint(500, 700)
    if kind == 2:
        text = "".join(rng.choice("äöüßéèêçñœ€“”") for _ in range(60))
        return text.encode().decode("latin-1") * 3
    words = [word for group in (THINGS, GOODS, WORK, WEATHER, VERBS) for word in group]
    return "".join(rng.choice(words).upper()[::-1] for _ in range(150))


def pocket(
    rng: random.Random, tokenizer: Path, first_row: int, pages: int, window: tuple[float, float]
) -> Iterator[str]:
    """Yield bad pages that the shuffle of a one-stage curriculum puts side by side.

    A shuffle spreads whatever it can; pockets come from corpora that were written in the order of their sites. To
    make one all the same, candidates are drawn until their shuffle key falls into a narrow window.

    Args:
        rng: Source of the candidates.
        tokenizer: The tokenizer the curriculum will be built with; the key depends on the ids.
        first_row: Record number of the first page in its file.
        pages: How many.
        window: Part of the stage they come to lie in, as shares of it.
    """
    encoder = Tokenizer.from_file(str(tokenizer))
    end_of_text = encoder.token_to_id("<|endoftext|>")
    for number in range(pages):
        while True:
            page = bad_page(rng, number % 4)
            ids = [*encoder.encode(page).ids, end_of_text]
            digest = xxhash.xxh3_128_digest(np.asarray(ids, dtype="<i4").tobytes())
            hashes = np.frombuffer(digest, dtype=np.uint8).reshape(1, 16)
            row, zero = np.array([first_row + number]), np.array([0])
            key = shuffle_keys(hashes, 0, zero, row, zero.astype(np.int32))[0]
            if window[0] <= int(key) / 2**64 < window[1]:
                yield page
                break


def write(
    folder: Path,
    tokenizer: Path,
    *,
    seed: int = 0,
    notes: int = 4000,
    held_out: int = 200,
    pages: int = 12,
    window: tuple[float, float] = (0.6, 0.606),
) -> None:
    """Write ``train.jsonl`` (notes, then the pocket of bad pages) and ``held_out.jsonl`` (notes of another seed)."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    train = [{"id": f"note-{number:05d}", "text": note(rng)} for number in range(notes)]
    found = pocket(rng, tokenizer, notes, pages, window)
    train += [{"id": f"bad-page-{number:02d}", "text": text} for number, text in enumerate(found)]
    rng = random.Random(seed + 1)
    held = [{"id": f"held-out-{number:04d}", "text": note(rng)} for number in range(held_out)]
    for name, documents in (("train.jsonl", train), ("held_out.jsonl", held)):
        lines = (json.dumps(document) + "\n" for document in documents)
        (folder / name).write_text("".join(lines), encoding="utf-8")
