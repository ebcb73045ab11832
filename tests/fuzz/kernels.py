"""Bytes go in as a recipe for a text; every number that is measured on it is held against its declaration.

The text lies in memory so that it ends where a page ends that nobody may touch: reading a byte too far ends the
process.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanfeed.curriculum.reference import count_features
from cleanfeed.curriculum.samples import split_ids, split_text
from cleanfeed.curriculum.tokenizer import TextEncoder, safe_pieces
from cleanfeed.rules.pipeline import load_pipeline
from cleanfeed.rules.ruleset import RuleSet
from cleanfeed.signals.measure import measure_texts
from cleanfeed.signals.minhash import signatures
from cleanfeed.signals.registry import SIGNALS, TEXT_SIGNALS
from cleanfeed.signals.spans import worst_spans
from cleanfeed.signals.tokens import TokenTables, measure_tokens

ATOMS = (
    "a", "b", "ab", "abc", "the ", "Paper boat ", "\n", "\r\n", "\t", " ", "  ", "\x00", "\x7f", "\u0085", "\u2028",
    "0", "9", "f", "deadbeef", "QUJD", "/+==", "-", "=", "...", ". ", "! ", ", ", "{", "}", "{\n", "lorem ipsum",
    "http://", "www.", "<|endoftext|>", "</s>", "#", "- ", "\u2022 ", "1. ", "\u2026", "\u200b", "\ufeff", "\u00ad",
    "\u202e", "\u200d", "\u0301", "\u0e49", "e\u0301", "\U000e0041", "\ue000", "\ufffd", "\u00c3\u00a4",
    "\u00e2\u20ac\u2122",
    "\u5929", "\u6c34\u3002", "\u304b", "\uac00", "\u0e01", "\u1780", "\u0905\u093e", "\u0bb5\u0bc8",
    "\u0627", "\u05d0",
    "\U0001f600", "\U0001f468\u200d\U0001f469", "\U0001f1e6\U0001f1e8", "\U0010ffff",
    "\u0378", "data:image/png;base64,",
    "%20", "\\x00", "0x1f ", "ACGT", "\u0421\u043b\u043e\u0432\u043e ", "\u00df", "I", "\u0130", "\ua000",
    "\u3000", "\u00a0",
)  # fmt: skip
REPEATS = (1, 1, 1, 2, 3, 5, 8, 13, 64, 300, 4097)
MOST_BYTES = 1 << 17
TOKENIZER = Path(__file__).parents[2] / "data_samples" / "tokenizer.json"
ENCODER = TextEncoder(str(TOKENIZER))
TABLES = TokenTables.of(ENCODER.tokenizer)
RULES = [RuleSet(load_pipeline(name, ()).rules, tokenizer=True) for name in ("web_text", "gopher", "c4")]
PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)


def text_of(data: bytes) -> str:
    """Return the text a recipe stands for: atoms, repeats of what is there so far or of an atom, raw bytes."""
    parts: list[str] = []
    size = place = 0
    while place + 1 < len(data) and size < MOST_BYTES:
        first, second = data[place], data[place + 1]
        if first < 160:
            part = ATOMS[first % len(ATOMS)] * REPEATS[second % len(REPEATS)]
        elif first < 200:
            part = "".join(parts[-1 - second % 8 :]) * REPEATS[(second >> 3) % len(REPEATS)]
        elif first < 230:
            part = data[place + 1 : place + 1 + second % 64].decode("utf-8", "replace")
            place += second % 64
        else:
            code = (first << 16 | second << 8 | data[(place + 2) % len(data)]) * 2654435761 % 0x110000
            part = "" if 0xD800 <= code < 0xE000 else chr(code) * REPEATS[second % 5]
        part = part[: max(0, (MOST_BYTES - size) // 2)]
        parts.append(part)
        size += len(part.encode())
        place += 2
    return "".join(parts)


def guarded(text: bytes) -> tuple[pa.LargeStringArray, mmap.mmap]:
    """Return one text as an array whose bytes end right before memory that may not be read."""
    pages = max(1, -(-len(text) // PAGE))
    memory = mmap.mmap(-1, (pages + 1) * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = pages * PAGE - len(text)
    memory[start : start + len(text)] = text
    assert LIBC.mprotect(ctypes.c_void_p(address + pages * PAGE), ctypes.c_size_t(PAGE), 0) == 0
    data = pa.foreign_buffer(address + start, len(text), memory)
    offsets = pa.py_buffer(np.array([0, len(text)], dtype=np.int64))
    return pa.LargeStringArray.from_buffers(1, offsets, data), memory


def target(data: bytes) -> None:
    """Measure a text every way there is."""
    text = text_of(data)
    raw = text.encode()
    alone, memory = guarded(raw)
    found = measure_texts(alone)
    _declared({name: float(values[0]) for name, values in found.items()}, text)
    among = pa.array(["before \u00e4", text, "after\n"], pa.large_string())
    for name, values in measure_texts(among).items():
        assert _same(values[1], found[name][0]), f"{name} depends on the neighbours"
    for ngram, hashes in ((5, 128), (1, 1), (3, 7)):
        signatures(alone, ngram=ngram, hashes=hashes)
    assert count_features(alone, 1000).min() >= 0
    _spans(text[: 1 << 14])
    _tokens(text[: 1 << 13], found)
    _parts(raw, text)
    del alone, memory


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _declared(found: dict[str, float], text: str) -> None:
    for signal in SIGNALS:
        if signal.name not in found:
            continue
        value = found[signal.name]
        if math.isnan(value):
            assert signal.null_when, f"{signal.name} is null"
            continue
        assert signal.low <= value <= signal.high, f"{signal.name} is {value}"
        assert math.isfinite(value), signal.name
        assert signal.type == "float" or value == int(value), f"{signal.name} is {value}"
    if "chars" in found:
        assert found["chars"] == len(text)
        assert found["bytes"] == len(text.encode())


def _spans(text: str) -> None:
    for span in worst_spans(text, [signal.name for signal in TEXT_SIGNALS]):
        assert 0 <= span.start < span.end <= len(text), span


def _tokens(text: str, found: dict[str, np.ndarray]) -> None:
    assert "".join(safe_pieces(text, 100)) == text
    ids, offsets = ENCODER.encode([text, ""])
    assert offsets.tolist() == [0, len(ids), len(ids)]
    measured = measure_tokens(ids, offsets, np.array([len(text), 0]), TABLES)
    for number in (0, 1):
        _declared({name: float(values[number]) for name, values in measured.items()}, text)
    signals = {name: np.concatenate([values, values]) for name, values in found.items()} | measured
    signals |= {name: np.zeros(2) for name in ("lone_surrogates", "rare_token_share")}
    for rules in RULES:
        rules.evaluate(signals)
    if not len(ids):
        return
    for limit in (1, 7, 1000):
        kinds, token_chars = ENCODER.token_starts, ENCODER.token_chars
        start, stop, chars = np.zeros(1, np.int64), np.array([len(ids)]), np.array([len(text)])
        ranges = split_ids(ids, kinds, token_chars, start, stop, chars, limit)
        assert ranges.start[0] == 0
        assert ranges.length.sum() == len(ids)
        assert ranges.chars.sum() == len(text)
        assert ranges.length.max() <= limit
        assert ranges.length.min() >= 1


def _parts(raw: bytes, text: str) -> None:
    if not raw:
        return
    data = np.frombuffer(raw, np.uint8)
    for limit in (97, 5000) if len(text) < 20_000 else (5000,):
        size = np.array([len(text)])
        ranges = split_text(data, np.zeros(1, np.int64), np.array([len(raw)]), size, limit)
        stops = ranges.start + ranges.length
        assert (ranges.start[1:] == stops[:-1]).all()
        assert stops[-1] == len(raw)
        assert ranges.chars.max() <= limit
        parts = [raw[a:b].decode() for a, b in zip(ranges.start.tolist(), stops.tolist(), strict=True)]
        assert [len(part) for part in parts] == ranges.chars.tolist()


SEEDS = [bytes(range(start, start + 24)) for start in range(0, 240, 12)] + [
    bytes([0, 10] * 3 + [9, 0, 165, 70]),
    bytes([29, 3, 30, 3] * 10 + [170, 255]),
    bytes([61, 9, 44, 9, 45, 8]),
]
