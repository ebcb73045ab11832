"""A ``tokenizer.json`` and texts go in; token ids come out, in which text never turns into a control token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from cleanfeed.errors import CleanfeedError, MisuseError, one_line
from cleanfeed.signals.tokens import token_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<|im_end|>",
    "[EOS]",
    "<|endofdocument|>",
    "[SEP]",
)
"""Names under which tokenizers keep their end-of-text token, tried in this order."""

PIECE_CHARS = 1 << 14
"""Longer texts are encoded in pieces of this many code points at most, cut before a space between two letters, where
that gives the same ids. Measured on texts of over 200,000 characters: 1.4 times as fast as encoding them whole."""

LARGEST_PIECE_CHARS = 1 << 20
"""Texts longer than this are encoded in pieces whatever the tokenizer, since an encoder needs about 150 bytes a token;
with a tokenizer that joins words, a token or two at each cut may differ from those of the whole text."""

PROBES = ("the cat sat on the mat", "Öl und Wasser", "день и ночь", "x = a + b", "a b c")

BATCH_CHARS = 1 << 19
"""Code points handed to the encoder at once."""

INSIDE_CHARACTER, INSIDE_WORD, STARTS_WORD, STARTS_LINE = range(4)

TRIES, BESIDE = 8, 32
"""Places tried for a cut in a run without white space, and code points on each side that are looked at."""

IntArray = npt.NDArray[np.int32]
Apart = Callable[[str, str], bool]


class TextEncoder:
    """Encodes documents with one tokenizer file; the same text always gives the same ids.

    Special tokens written in a text are encoded as ordinary characters, truncation and padding are off, and the
    template that adds special tokens is not applied.

    Args:
        path: A ``tokenizer.json`` of the ``tokenizers`` library.
        end_of_text: The token that closes a document; by default the tokenizer's own.

    Raises:
        MisuseError: The file is missing, is no tokenizer, or has no such end-of-text token.
    """

    def __init__(self, path: str, end_of_text: str | None = None) -> None:
        self.path = path
        try:
            raw = Path(path).read_bytes()
            spec = json.loads(raw)
            known = _named_tokens(spec)
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        except (AttributeError, KeyError, TypeError) as error:
            raise _unreadable(path, ValueError("a part of it is missing or of another kind")) from error
        self.raw = raw
        self.digest = xxhash.xxh3_128_hexdigest(raw)
        self.end_of_text, self.end_of_text_id = _end_of_text(*known, path, end_of_text)
        spec["truncation"] = spec["padding"] = None
        for token in spec.get("added_tokens") or ():
            # Only special tokens can be kept from matching inside text; the end of a document must be one.
            token["special"] = token.get("special", False) or token["id"] == self.end_of_text_id
        try:
            self._spec = json.dumps(spec)
            self.tokenizer = self._loaded()
            self.piece_chars = PIECE_CHARS if self._cuts_well() else LARGEST_PIECE_CHARS
        except Exception as error:  # the library raises bare Exception, here or at its first word
            raise _unreadable(path, error) from error
        self.vocab_size: int = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(
        self,
        texts: Sequence[str],
        *,
        begun: Callable[[int, int], None] = lambda first, last: None,
        failed: set[int] | None = None,
    ) -> tuple[IntArray, npt.NDArray[np.int64]]:
        """Return the ids of all texts in a row and, for n texts, the n + 1 offsets between them.

        No end-of-text token is added.

        Args:
            texts: What to encode.
            begun: Called with the numbers of the first and the last text that are encoded next.
            failed: Takes the numbers of texts that the tokenizer fails on, which have no ids then.

        Raises:
            CleanfeedError: The tokenizer fails on a text, and there is no ``failed``.
        """
        broken: set[int] = set()
        found: list[tuple[int, IntArray]] = []
        for owners, pieces in _encoder_batches(texts, self.piece_chars, self._apart):
            begun(owners[0], owners[-1])
            try:
                found += zip(owners, self._ids(pieces), strict=True)
            except BaseException as error:  # noqa: BLE001 - a panic is no Exception
                self._go_on(error)
                found += self._one_by_one(owners, pieces, begun, broken)
        if failed is not None:
            failed |= broken
        elif broken:
            raise CleanfeedError(one_line("the tokenizer fails on a text", self.path, f"text {min(broken)}"))
        lengths = np.zeros(len(texts) + 1, dtype=np.int64)
        for owner, ids in found:
            lengths[owner + 1] += 0 if owner in broken else len(ids)
        flat = [ids for owner, ids in found if owner not in broken]
        return (np.concatenate(flat) if flat else np.empty(0, dtype=np.int32)), np.cumsum(lengths)

    def _apart(self, left: str, right: str) -> bool:
        """Return whether two neighbouring parts of a text have, each by itself, the ids they have together."""
        try:
            one, other, both = (ids.tolist() for ids in self._ids([left, right, left + right]))
        except BaseException as error:  # noqa: BLE001 - a panic is no Exception
            self._go_on(error)
            return True
        return bool(one + other == both)

    def _ids(self, pieces: Sequence[str]) -> list[IntArray]:
        encodings = self.tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        # A third of the time of making arrays of lists.
        return [
            np.frombuffer(pack(f"{len(ids)}i", *ids), dtype=np.int32)
            for ids in (encoding.ids for encoding in encodings)
        ]

    def _one_by_one(
        self,
        owners: Sequence[int],
        pieces: Sequence[str],
        begun: Callable[[int, int], None],
        broken: set[int],
    ) -> Iterator[tuple[int, IntArray]]:
        """Yield (text number, ids) of the pieces that can be encoded; add the texts of the others to ``broken``."""
        for owner, piece in zip(owners, pieces, strict=True):
            if owner in broken:
                continue
            begun(owner, owner)
            try:
                (ids,) = self._ids([piece])
            except BaseException as error:  # noqa: BLE001 - a panic is no Exception
                self._go_on(error)
                broken.add(owner)
            else:
                yield owner, ids

    def _go_on(self, error: BaseException) -> None:
        """Raise what is no failure of the tokenizer; load it anew where it can encode nothing any more.

        A panic of its native code is a ``BaseException`` (``pyo3_runtime.PanicException``), and may leave locks behind
        that nobody opens.
        """
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)):
            raise error
        try:
            self._ids([PROBES[0]])
        except BaseException as worse:
            if isinstance(worse, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)):
                raise
            self.tokenizer = self._loaded()

    def _loaded(self) -> Tokenizer:
        from tokenizers import Tokenizer  # only where there is one

        tokenizer = Tokenizer.from_str(self._spec)
        tokenizer.encode_special_tokens = True
        return tokenizer

    def _cuts_well(self) -> bool:
        """Return whether a text cut before spaces has the ids of the whole, as with nearly every tokenizer."""

        def ids(text: str) -> list[int]:
            found: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
            return found

        pieces = [
            [part if n == 0 else " " + part for n, part in enumerate(probe.split(" "))] for probe in PROBES
        ]
        return all(
            ids(probe) == [token for part in parts for token in ids(part)]
            for probe, parts in zip(PROBES, pieces, strict=True)
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids, control tokens left out."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    @cached_property
    def _token_bytes(self) -> list[tuple[int, bytes]]:
        return list(token_bytes(self.tokenizer))

    @cached_property
    def token_starts(self) -> npt.NDArray[np.uint8]:
        """For each id: does it start inside a character, inside a word, a word, or a line (shape [vocab])."""
        starts = np.full(self.vocab_size, INSIDE_WORD, dtype=np.uint8)
        for token, data in self._token_bytes:
            if data and 0x80 <= data[0] < 0xC0:
                starts[token] = INSIDE_CHARACTER
            elif data[:1] in (b"\n", b"\r"):
                starts[token] = STARTS_LINE
            elif data[:1] in (b" ", b"\t"):
                starts[token] = STARTS_WORD
        return starts

    @cached_property
    def token_chars(self) -> npt.NDArray[np.int32]:
        """For each id: how many code points begin in it (shape [vocab])."""
        chars = np.zeros(self.vocab_size, dtype=np.int32)
        for token, data in self._token_bytes:
            chars[token] = sum(1 for byte in data if not 0x80 <= byte < 0xC0)
        return chars


def _unreadable(path: str, error: Exception) -> MisuseError:
    got = (isinstance(error, OSError) and error.strerror) or str(error)
    return MisuseError(
        one_line("cannot read the tokenizer", path, got, "a tokenizer.json of the tokenizers library")
    )


def _named_tokens(spec: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids of the added tokens of a file and of those of its model, by name; wrong kinds raise."""
    if not isinstance(spec, dict) or "model" not in spec:
        raise ValueError("no 'model' in it")
    added = {token["content"]: int(token["id"]) for token in spec.get("added_tokens") or ()}
    vocab = spec["model"].get("vocab") or {}
    return added, dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}


def _end_of_text(
    added: dict[str, int], vocab: dict[str, int], path: str, wanted: str | None
) -> tuple[str, int]:
    """Return name and id of the token that closes a document."""
    known = {**vocab, **added}
    for name in (wanted,) if wanted is not None else END_OF_TEXT_NAMES:
        if name in known and (wanted is not None or name in added):
            return name, known[name]
    raise MisuseError(
        one_line(
            "no end-of-text token in the tokenizer",
            path,
            f"special tokens {', '.join(list(added)[:8]) or 'none'}",
            wanted or "one of " + ", ".join(END_OF_TEXT_NAMES),
            "Name it in the pipeline: curriculum.end_of_text.",
        )
    )


def _encoder_batches(
    texts: Sequence[str], piece_chars: int, apart: Apart
) -> Iterator[tuple[list[int], list[str]]]:
    """Yield (text numbers, pieces) with at most ``BATCH_CHARS`` code points each."""
    owners: list[int] = []
    pieces: list[str] = []
    held = 0
    for number, text in enumerate(texts):
        for piece in safe_pieces(text, piece_chars, apart):
            if held and held + len(piece) > BATCH_CHARS:
                yield owners, pieces
                owners, pieces, held = [], [], 0
            owners.append(number)
            pieces.append(piece)
            held += len(piece)
    if pieces:
        yield owners, pieces


def safe_pieces(text: str, limit: int, apart: Apart = lambda left, right: True) -> Iterator[str]:
    """Yield ``text`` in pieces of at most ``limit`` code points, cut where an encoder would begin a new word.

    The cut is put before the last space between two letters, else before the last white space. In a run without any,
    it is put where the parts beside it have the same ids together and apart. For a tokenizer that looks no further
    than the ``BESIDE`` code points on each side these are the ids of the whole run. Where there is no such place near
    the limit (a letter repeated without end, which is joined from its start), some tokens at the cut may differ.

    Args:
        text: What to cut.
        limit: Most code points in a piece.
        apart: Tells of two neighbouring parts whether they may be encoded by themselves.
    """
    start = 0
    while len(text) - start > limit:
        low, high = start + limit // 2, start + limit
        cut = _cut_before_space(text, low, high)
        if cut is None:
            places = range(high, max(low, high - TRIES), -1)
            beside = ((text[max(start, p - BESIDE) : p], text[p : p + BESIDE]) for p in places)
            cut = next((p for p, parts in zip(places, beside, strict=True) if apart(*parts)), high)
        yield text[start:cut]
        start = cut
    if start < len(text) or not text:
        yield text[start:]


def _cut_before_space(text: str, low: int, high: int) -> int | None:
    place = text.rfind(" ", low, high)
    fallback = place
    tries = 0
    while place > low and tries < 1000:
        if text[place - 1].isalpha() and text[place + 1 : place + 2].isalpha():
            return place
        place = text.rfind(" ", low, place)
        tries += 1
    if fallback > low:
        return fallback
    line = text.rfind("\n", low, high)
    return line if line > low else None
