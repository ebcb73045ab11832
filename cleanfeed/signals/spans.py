"""A text and names of signals go in; the stretches of the text that each signal speaks of come out, longest first.

For reading only: nothing here decides anything. Shares over the whole text (letters, entropy, scripts, ...) have no
place of their own and give no span.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from cleanfeed.signals import blobs, mojibake, periods, tables

MOST_SPANS = 5
"""Spans given for one signal."""
LOOKED_AT = 2_000_000
"""Repeated lines and word runs are looked for in this many characters from the start."""

Spans = list[tuple[int, int]]
Mask = npt.NDArray[np.bool_]

_LISTED = 10_000
_MARKERS = re.compile(r"<\|[^\s<>|]{1,36}\|>|</?s>|<(?:unk|pad|bos|eos|mask)>|\[(?:CLS|SEP|PAD|UNK|MASK)\]")
_POLICY = re.compile(
    "terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies", re.IGNORECASE
)
_DIGITS = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a text, in code points, and the signal it belongs to."""

    signal: str
    start: int
    end: int


def worst_spans(text: str, names: Sequence[str]) -> list[Span]:
    """Return the longest stretches for each signal, at most ``MOST_SPANS``; signals keep the order given.

    Args:
        text: A text without lone surrogates.
        names: Names of signals; those without a place in the text are passed over.
    """
    document = _Document(text)
    found: list[Span] = []
    for name in names:
        finder = _FINDERS.get(name)
        if finder is None or not text:
            continue
        spans = sorted(set(finder(document)), key=lambda span: (span[0] - span[1], span[0]))
        found += [Span(name, start, end) for start, end in spans[:MOST_SPANS]]
    return found


class _Document:
    """A text in the forms the searches need, each made when it is first asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def data(self) -> npt.NDArray[np.uint8]:
        """UTF-8."""
        return np.frombuffer(self.text.encode(), np.uint8)

    @property
    def whole(self) -> npt.NDArray[np.int64]:
        """Where it starts and stops in ``data``."""
        return np.array([0, len(self.data)])

    @property
    def chars(self) -> npt.NDArray[np.int64]:
        """How many code points it has."""
        return np.array([len(self.text)])

    @cached_property
    def points(self) -> npt.NDArray[np.uint32]:
        """Code points."""
        return np.frombuffer(self.text.encode("utf-32-le"), np.uint32)

    @cached_property
    def flags(self) -> npt.NDArray[np.int64]:
        """Class bits of each code point."""
        known = tables.tables()
        rows = known.blocks[self.points >> np.uint32(8)] * 256
        flags: npt.NDArray[np.int64] = known.flags[known.classes[rows + (self.points & np.uint32(255))]]
        return flags

    def has(self, bits: int) -> Mask:
        """Tell for each code point whether it has one of some bits."""
        mask: Mask = (self.flags & bits) != 0
        return mask

    def from_bytes(self, spans: Iterable[tuple[int, int]]) -> Spans:
        """Turn places in the UTF-8 into places in the text."""
        spans = list(spans)
        if len(self.data) == len(self.text):
            return spans
        before = np.concatenate(([0], np.cumsum((self.data & 0xC0) != 0x80)))
        return [(int(before[start]), int(before[end])) for start, end in spans]

    @cached_property
    def lines(self) -> Spans:
        """Lines with something in them, without white space around it, in the part that is looked at."""
        found, start = [], 0
        for line in self.text[:LOOKED_AT].split("\n"):
            stripped = line.strip()
            if stripped:
                left = start + line.index(stripped[0])
                found.append((left, left + len(stripped)))
            start += len(line) + 1
        return found

    @cached_property
    def words(self) -> Spans:
        """Runs without white space in the part that is looked at; a Chinese or Japanese character is a word."""
        space, single = self.has(tables.SPACE)[:LOOKED_AT], self.has(tables.CJK)[:LOOKED_AT]
        alone = np.flatnonzero(single)
        edges = np.concatenate((_edges(~space & ~single), np.stack((alone, alone + 1), axis=1)))
        return _pairs(edges[np.argsort(edges[:, 0])])

    def grams(self, length: int) -> tuple[Spans, Iterable[Hashable]]:
        """Return the words of the part that is looked at, and all runs of ``length`` of them as keys."""
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(self.text[start:end], len(numbers)) for start, end in self.words]
        return self.words, zip(*(ids[k:] for k in range(length)), strict=False)


def _edges(mask: Mask) -> npt.NDArray[np.int64]:
    """Return start and end of each stretch where a mask holds, shape [stretches, 2]."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return edges.astype(np.int64).reshape(-1, 2)


def _pairs(edges: npt.NDArray[np.int64]) -> Spans:
    return [(start, end) for start, end in edges.tolist()]


def _longest(edges: npt.NDArray[np.int64], least: int = 1) -> Spans:
    """Return the longest stretches, chosen before millions of them become Python objects."""
    sizes = edges[:, 1] - edges[:, 0]
    return _pairs(edges[np.argsort(-sizes, kind="stable")[:MOST_SPANS]][: int((sizes >= least).sum())])


def _joined(spans: Iterable[tuple[int, int]], gap: Callable[[int, int], bool]) -> Spans:
    """Join neighbours that overlap, touch, or have nothing to tell between them; ``spans`` ascend."""
    joined: Spans = []
    for start, end in spans:
        if joined and (start <= joined[-1][1] or gap(joined[-1][1], start)):
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _matches(pattern: re.Pattern[str], document: _Document) -> Spans:
    return [match.span() for match in pattern.finditer(document.text)]


def _of_bits(bits: int, least: int, document: _Document) -> Spans:
    return _longest(_edges(document.has(bits)), least)


def _periodic(document: _Document) -> Spans:
    data = document.data
    scratch = periods.make_period_scratch(len(data))
    found = periods.scan_periods(data, document.whole, document.chars, scratch, np.empty((1, 6)))
    return document.from_bytes(periods.period_runs(scratch, found))


def _blobs(kinds: frozenset[int], document: _Document) -> Spans:
    listed = np.zeros((_LISTED, 3), np.int64)
    found = blobs.scan_blobs(document.data, document.whole, listed, np.empty((1, 7)))
    return document.from_bytes(
        (int(start), int(stop)) for kind, start, stop in listed[:found] if not kinds or int(kind) in kinds
    )


def _mojibake(document: _Document) -> Spans:
    listed = np.zeros((_LISTED, 3), np.int64)
    found = mojibake.scan_mojibake(document.data, document.whole, document.chars, listed, np.empty((1, 1)))
    return document.from_bytes((int(start), int(stop)) for _, start, stop in listed[:found])


def _char_runs(document: _Document) -> Spans:
    """Stretches of ten or more of one character that is not white space."""
    points = document.points
    starts = np.concatenate(([0], np.flatnonzero(points[1:] != points[:-1]) + 1, [len(points)]))
    long = np.flatnonzero(np.diff(starts) >= 10)
    solid = ~document.has(tables.SPACE)
    return [(int(starts[k]), int(starts[k + 1])) for k in long if solid[starts[k]]]


def _unbroken(document: _Document) -> Spans:
    return _longest(_edges(~document.has(tables.SPACE | tables.CJK | tables.SPACELESS)))


def _long_words(document: _Document) -> Spans:
    return _longest(_edges(~document.has(tables.SPACE | tables.CJK)))


def _mark_stacks(document: _Document) -> Spans:
    """Characters with five or more marks on them."""
    edges = _edges(document.has(tables.STACKING))
    stacks = _pairs(edges[edges[:, 1] - edges[:, 0] >= 5])
    return _joined(((max(start - 1, 0), end) for start, end in stacks), lambda end, start: start - end <= 1)


def _tags(document: _Document) -> Spans:
    """Tag characters that do not continue a flag."""
    return [
        (start, end)
        for start, end in _pairs(_edges(document.has(tables.TAG)))
        if document.text[start - 1 : start] != "🏴"
    ]


def _invisible(document: _Document) -> Spans:
    return _longest(_edges(document.has(tables.ZERO_WIDTH))) + _tags(document)


def _symbol_words(document: _Document) -> Spans:
    """Words without a letter, mark or number, joined with neighbours of their kind."""
    shows = document.has(tables.LETTER | tables.MARK | tables.NUMBER)
    before = np.concatenate(([0], np.cumsum(shows)))
    words = [(start, end) for start, end in document.words if before[start] == before[end]]
    text = document.text
    return _joined(words, lambda end, start: start - end < 8 and text[end:start].isspace())


def _repeated(keys: Iterable[Hashable]) -> Iterator[int]:
    """Yield the places of keys that came before."""
    seen: set[Hashable] = set()
    for place, key in enumerate(keys):
        if key in seen:
            yield place
        seen.add(key)


def _most_frequent_words(length: int, document: _Document) -> Spans:
    """All places of the run of ``length`` words that comes most often."""
    words, grams = document.grams(length)
    places: dict[Hashable, list[int]] = {}
    for place, gram in enumerate(grams):
        places.setdefault(gram, []).append(place)
    best = max(places.values(), key=len, default=[])
    found = ((words[place][0], words[place + length - 1][1]) for place in best if len(best) > 1)
    return _joined(found, lambda end, start: False)


def _between_lines(document: _Document) -> Callable[[int, int], bool]:
    text = document.text
    return lambda end, start: not text[end:start].strip()


def _repeated_lines(fold: bool, document: _Document) -> Spans:
    text = document.text
    lines = document.lines
    keys = (_DIGITS.sub("0", text[start:end]) if fold else text[start:end] for start, end in lines)
    return _joined([lines[place] for place in _repeated(keys)], _between_lines(document))


def _repeated_paragraphs(document: _Document) -> Spans:
    text = document.text
    whole = _joined(document.lines, lambda end, start: text.count("\n", end, start) == 1)
    return [whole[place] for place in _repeated(text[start:end] for start, end in whole)]


def _repeated_words(length: int, document: _Document) -> Spans:
    """Runs of ``length`` words that came before."""
    words, grams = document.grams(length)
    found = ((words[place][0], words[place + length - 1][1]) for place in _repeated(grams))
    return _joined(found, lambda end, start: False)


def _lines_ending(endings: tuple[str, ...], document: _Document) -> Spans:
    return [span for span in document.lines if document.text.endswith(endings, *span)]


def _lines_with(word: str, document: _Document) -> Spans:
    return [(start, end) for start, end in document.lines if word in document.text[start:end].lower()]


_ANY_BLOB: frozenset[int] = frozenset()

_FINDERS: dict[str, Callable[[_Document], Spans]] = {
    **dict.fromkeys(
        (
            "lz_ratio", "periodic_share", "periodic_longest", "periodic_repeats", "periodic_period", "token_periods",
            "token_period_share", "longest_token_run",
        ),
        _periodic,
    ),
    **dict.fromkeys(("blob_share", "longest_blob"), partial(_blobs, _ANY_BLOB)),
    "base64_share": partial(_blobs, frozenset({blobs.BASE64})),
    "hex_share": partial(_blobs, frozenset({blobs.HEX})),
    "hex_dump_share": partial(_blobs, frozenset({blobs.DUMP})),
    "data_uri_share": partial(_blobs, frozenset({blobs.DATA_URI})),
    "id_share": partial(_blobs, frozenset({blobs.IDENTITY})),
    "mojibake_share": _mojibake,
    **dict.fromkeys(("longest_char_run", "char_run_share"), _char_runs),
    **dict.fromkeys(("longest_word", "mean_word_chars"), _long_words),
    "longest_run": _unbroken,
    **dict.fromkeys(("longest_line", "mean_line_chars"), lambda document: document.lines),
    "symbol_word_share": _symbol_words,
    "space_share": partial(_of_bits, tables.SPACE, 8),
    "digit_share": partial(_of_bits, tables.DIGIT, 8),
    **dict.fromkeys(("replacement_chars", "replacement_share"), partial(_of_bits, tables.REPLACEMENT, 1)),
    **dict.fromkeys(("control_chars", "control_share"), partial(_of_bits, tables.CONTROL, 1)),
    "private_share": partial(_of_bits, tables.PRIVATE, 1),
    "unassigned_share": partial(_of_bits, tables.UNASSIGNED, 1),
    "private_unassigned_share": partial(_of_bits, tables.PRIVATE | tables.UNASSIGNED, 1),
    "bidi_overrides": partial(_of_bits, tables.OVERRIDE, 1),
    "bidi_controls": partial(_of_bits, tables.BIDI, 1),
    "tag_chars": _tags,
    **dict.fromkeys(("invisible_chars", "invisible_share"), _invisible),
    "mark_stack_share": _mark_stacks,
    "special_token_text": partial(_matches, _MARKERS),
    "policy_lines": partial(_matches, _POLICY),
    "lorem_ipsum": partial(_matches, re.compile(r"lorem\s{1,9}ipsum", re.IGNORECASE)),
    "javascript_lines": partial(_lines_with, "javascript"),
    "curly_braces": partial(_matches, re.compile("{")),
    "ellipsis_lines": partial(_lines_ending, ("...", "…")),
    "colon_lines": partial(_lines_ending, (":",)),
    **dict.fromkeys(("dup_line_share", "dup_line_chars", "fineweb_dup_chars"), partial(_repeated_lines, False)),
    "template_line_share": partial(_repeated_lines, True),
    **dict.fromkeys(("dup_para_share", "dup_para_chars"), _repeated_paragraphs),
    **{f"top_{length}gram_chars": partial(_most_frequent_words, length) for length in range(2, 5)},
    **{f"dup_{length}gram_chars": partial(_repeated_words, length) for length in range(5, 11)},
}  # fmt: skip
