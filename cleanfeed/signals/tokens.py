"""Token ids of many documents go in; one column for each signal about tokens comes out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from cleanfeed.kernel import Kernel, inner
from cleanfeed.signals.tokens_signals import TOKEN_SIGNALS

MAX_PERIOD = 13
MIN_TIMES = 3
MIN_SPAN = 16
"""Shorter periodic stretches count for ``token_periods`` alone: three equal tokens in a row are no sign of anything."""
MIN_DISTINCT = 20


def byte_alphabet() -> dict[str, int]:
    """Return the printable characters that byte-level BPE writes for the 256 bytes, as GPT-2 chose them."""
    own = [byte for byte in range(256) if 0x21 <= byte <= 0x7E or (byte >= 0xA1 and byte != 0xAD)]
    moved = sorted(set(range(256)) - set(own))
    return {chr(byte): byte for byte in own} | {chr(256 + place): byte for place, byte in enumerate(moved)}


def token_bytes(tokenizer: Any) -> Iterator[tuple[int, bytes]]:
    """Yield every id of a tokenizer's vocabulary with the bytes it stands for.

    Args:
        tokenizer: A ``tokenizers.Tokenizer``.
    """
    spec = json.loads(tokenizer.to_str())
    parts = json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])
    alphabet = byte_alphabet() if '"ByteLevel"' in parts else {}
    for piece, number in tokenizer.get_vocab(with_added_tokens=True).items():
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            yield number, bytes.fromhex(piece[3:5])
        elif alphabet and all(char in alphabet for char in piece):
            yield number, bytes(alphabet[char] for char in piece)
        else:
            yield number, piece.replace("\u2581", " ").encode()


class TokenTables(Struct, frozen=True):
    """What has to be known of a vocabulary to measure ids of it; plain arrays, so that it travels between processes."""

    fallback: npt.NDArray[np.uint8]
    """1 for each id that stands for no whole character, shape [vocabulary]."""
    unknown: int
    """Id of the unknown token, -1 where there is none."""

    @classmethod
    def of(cls, tokenizer: Any) -> TokenTables:
        """Return the tables of a ``tokenizers.Tokenizer``."""
        vocab: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        fallback = np.zeros(max(vocab.values(), default=-1) + 1, np.uint8)
        for number, data in token_bytes(tokenizer):
            fallback[number] = not _is_utf8(data)
        model = json.loads(tokenizer.to_str())["model"]
        unknown = model.get("unk_id")
        if unknown is None:
            unknown = vocab.get(model.get("unk_token") or "", -1)
        return cls(fallback, int(unknown))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@inner
def _repeats(ids: Any, period: int, marks: Any) -> int:
    """Mark the stretches of a document that repeat with a period; return the most repeats, 0 below ``MIN_TIMES``."""
    n = len(ids)
    most, run = 0, 0
    for i in range(period, n + 1):
        if i < n and ids[i] == ids[i - period]:
            run += 1
            continue
        if run >= (MIN_TIMES - 1) * period:
            span = run + period
            most = max(most, span // period)
            if span >= MIN_SPAN:
                marks[i - span : i] = 1
        run = 0
    return most


@Kernel
def _measure(
    ids: Any, offsets: Any, n_chars: Any, fallback: Any, unknown: int, seen: Any, marks: Any, out: Any
) -> None:
    for d in range(len(offsets) - 1):
        own = ids[offsets[d] : offsets[d + 1]]
        n = len(own)
        broken, lost, distinct, run, longest, before = 0, 0, 0, 0, 0, -1
        for token in own:
            broken += fallback[token]
            lost += token == unknown
            distinct += seen[token] != d
            seen[token] = d
            run = run + 1 if token == before else 1
            longest = max(longest, run)
            before = token
        marks[:n] = 0
        times = 0
        for period in range(1, min(MAX_PERIOD, n // MIN_TIMES) + 1):
            times = max(times, _repeats(own, period, marks))
        out[d, :] = np.nan
        out[d, 0], out[d, 5], out[d, 6] = n, longest, times
        if n:
            out[d, 1] = n_chars[d] / n
            out[d, 2] = broken / n
            if unknown >= 0:
                out[d, 3] = lost / n
            if n >= MIN_DISTINCT:
                out[d, 4] = distinct / n
            out[d, 7] = marks[:n].sum() / n


def measure_tokens(
    ids: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    n_chars: npt.NDArray[np.int64],
    tables: TokenTables,
) -> dict[str, npt.NDArray[np.float64]]:
    """Return every signal about tokens of each document, by name; NaN where a signal is null.

    Args:
        ids: Documents in a row, all below the size of the vocabulary.
        offsets: Shape [documents + 1].
        n_chars: Code points of each document's text.
        tables: Of the tokenizer that made the ids.
    """
    size = len(offsets) - 1
    longest = int(np.diff(offsets).max(initial=0))
    out = np.empty((size, len(TOKEN_SIGNALS)), np.float64)
    seen = np.full(len(tables.fallback), -1, np.int64)
    marks = np.empty(longest, np.uint8)
    _measure(ids, offsets, n_chars, tables.fallback, tables.unknown, seen, marks, out)
    columns = np.ascontiguousarray(out.T)
    return {signal.name: columns[k] for k, signal in enumerate(TOKEN_SIGNALS)}
