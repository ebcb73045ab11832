"""Unicode goes in (the interpreter's own data and block ranges); small tables of character classes come out.

A character belongs to one of about a hundred *classes*, and each class has a word of bits (:class:`Tables.flags`):
what it is (letter, mark, digit, ...), how it cuts text into words, and in the top four bits its script. Kernels
count characters by class and fold the bits afterwards, so one table look-up a character serves every measure.
"""

from __future__ import annotations

import sys
import unicodedata
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanfeed.kernel_cache import KeptFile
from cleanfeed.kernel_code import fingerprint

SPACE = 1 << 0
"""Unicode White_Space and the Ethiopic wordspace."""
LETTER = 1 << 1
MARK = 1 << 2
NUMBER = 1 << 3
PUNCT = 1 << 4
SYMBOL = 1 << 5
UPPER = 1 << 6
CJK = 1 << 7
"""Han, kana and Yi: each character counts as one word."""
SPACELESS = 1 << 8
"""Scripts that put no space between words, other than the above: Thai, Lao, Khmer, Burmese, Tibetan and kin."""
TERMINAL = 1 << 9
"""Ends a sentence or a line of prose, in any script."""
WIDE = 1 << 10
"""A terminal mark that needs no white space after it."""
CLOSER = 1 << 11
"""A quote or bracket that may follow a terminal mark."""
COLON = 1 << 12
ELLIPSIS = 1 << 13
BULLET = 1 << 14
STACKING = 1 << 15
"""Nonspacing and enclosing marks: these pile up on their base."""
FORMAT = 1 << 16
"""Shows nothing by itself: category Cf and variation selectors."""
JOINER = 1 << 17
ZERO_WIDTH = 1 << 18
TAG = 1 << 19
VARIATION = 1 << 20
OVERRIDE = 1 << 21
BIDI = 1 << 22
CONTROL = 1 << 23
"""Category Cc without white space."""
PRIVATE = 1 << 24
UNASSIGNED = 1 << 25
REPLACEMENT = 1 << 26
DIGIT = 1 << 27
"""A decimal digit of any script."""
SCRIPT_SHIFT = 28

SCRIPTS = (
    "latin",
    "cyrillic",
    "greek",
    "arabic",
    "hebrew",
    "indic",
    "han",
    "kana",
    "hangul",
    "spaceless",
    "other",
)
"""Script ``i`` is stored as ``i + 1``; 0 is a character of no script or of any."""

_RANGES: dict[str, tuple[tuple[int, int], ...]] = {
    "latin": (
        (0x41, 0x2FF), (0x1D00, 0x1DBF), (0x1E00, 0x1EFF), (0x2071, 0x2071), (0x207F, 0x209C), (0x2C60, 0x2C7F),
        (0xA722, 0xA7FF), (0xAB30, 0xAB6F), (0xFB00, 0xFB06), (0xFF21, 0xFF5A), (0x10780, 0x107BF),
        (0x1DF00, 0x1DFFF),
    ),
    "cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F), (0x1E030, 0x1E08F)),
    "greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "arabic": (
        (0x600, 0x6FF), (0x750, 0x77F), (0x870, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC), (0x10EC0, 0x10EFF),
        (0x1EE00, 0x1EEFF),
    ),
    "hebrew": ((0x590, 0x5FF), (0xFB1D, 0xFB4F)),
    "indic": ((0x900, 0xDFF), (0x1CD0, 0x1CFF), (0xA8E0, 0xA8FF), (0x11000, 0x1137F), (0x11400, 0x116FF)),
    "han": (
        (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3038, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
        (0xF900, 0xFAFF), (0x20000, 0x323AF),
    ),
    "kana": (
        (0x3031, 0x3035), (0x3041, 0x309F), (0x30A0, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F),
    ),
    "hangul": ((0x1100, 0x11FF), (0x3131, 0x318E), (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xFFA0, 0xFFDC)),
    "spaceless": (
        (0xE00, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0x1B00, 0x1B7F), (0xA980, 0xA9DF),
        (0xA9E0, 0xA9FF), (0xAA60, 0xAADF),
    ),
    "none": (  # marks that take the script of their base
        (0x300, 0x36F), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE00, 0xFE2F), (0xE0100, 0xE01EF),
    ),
}  # fmt: skip

_YI = (0xA000, 0xA4CF)

_WHITE = (
    *range(9, 14),
    0x20,
    0x85,
    0xA0,
    0x1361,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
)
_TERMINAL = (
    *map(ord, ".!?…‽؟۔։"), 0x37E, 0x61D, 0x61E, *range(0x700, 0x703), 0x7F9, 0x837, 0x839, 0x83D, 0x83E, 0x964,
    0x965, *range(0xF0D, 0xF13), 0x104A, 0x104B, 0x1362, 0x1367, 0x1368, 0x166E, 0x1735, 0x1736, 0x17D4, 0x17D5,
    0x17DA, 0x1803, 0x1809, 0x1944, 0x1945, *range(0x1AA8, 0x1AAC), 0x1B5A, 0x1B5B, 0x1B5E, 0x1B5F, 0x1B7D, 0x1B7E,
    0x1C3B, 0x1C3C, 0x1C7E, 0x1C7F, 0x203C, *range(0x2047, 0x204A), 0x2E2E, 0x2E3C, 0x2E53, 0x2E54, 0xA4FF, 0xA60E,
    0xA60F, 0xA6F3, 0xA6F7, 0xA876, 0xA877, 0xA8CE, 0xA8CF, 0xA92F, 0xA9C8, 0xA9C9, *range(0xAA5D, 0xAA60), 0xAAF0,
    0xAAF1, 0xABEB, 0xFE52, 0xFE56, 0xFE57, 0x10A56, 0x10A57, 0x11047, 0x11048, *range(0x110BE, 0x110C2),
    *range(0x11141, 0x11144), 0x111C5, 0x111C6, 0x111CD, 0x111DE, 0x111DF, 0x1144B, 0x1144C, 0x115C2, 0x115C3,
    0x11641, 0x11642, 0x1173C, 0x1173D, 0x1173E, 0x16AF5, 0x1E95E, 0x1E95F,
)  # fmt: skip
_WIDE = (0x3002, 0xFF01, 0xFF0E, 0xFF1F, 0xFF61)
_BULLETS = (*map(ord, "•‣⁃∙●○◦■□▪▫◆◇◾◽►▶▸★☆❖➢➤✓✔⦿"), 0xB7, 0x30FB, 0xFF65, 0xF0B7)

_BITS: tuple[tuple[tuple[int, ...], int], ...] = (
    (_WHITE, SPACE),
    (_TERMINAL, TERMINAL),
    (_WIDE, TERMINAL | WIDE),
    (
        (*map(ord, "\"')]}»›’”"), 0x300D, 0x300F, 0x3009, 0x300B, 0x3011, 0x3015, 0xFF09, 0xFF3D, 0xFF5D),
        CLOSER,
    ),
    ((0x3A, 0xFF1A, 0xFE55), COLON),
    ((0x2026, 0x22EF, 0xFE19), ELLIPSIS | TERMINAL),
    (_BULLETS, BULLET),
    ((0x200C, 0x200D), JOINER),
    ((0x180E, 0x200B, *range(0x2060, 0x2065), *range(0x206A, 0x2070), 0xFEFF), ZERO_WIDTH),
    ((0xE0001, *range(0xE0020, 0xE0080)), TAG),
    ((0x202D, 0x202E), OVERRIDE),
    ((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), BIDI),
    ((0xFFFD,), REPLACEMENT),
)

_CATEGORY: dict[str, int] = {
    "Lu": LETTER | UPPER, "Lt": LETTER | UPPER, "Ll": LETTER, "Lm": LETTER, "Lo": LETTER, "Mn": MARK | STACKING,
    "Mc": MARK, "Me": MARK | STACKING, "Nd": NUMBER | DIGIT, "Nl": NUMBER, "No": NUMBER, "Pc": PUNCT, "Pd": PUNCT,
    "Ps": PUNCT, "Pe": PUNCT, "Pi": PUNCT, "Pf": PUNCT, "Po": PUNCT, "Sm": SYMBOL, "Sc": SYMBOL, "Sk": SYMBOL,
    "So": SYMBOL, "Zs": SPACE, "Zl": SPACE, "Zp": SPACE, "Cc": CONTROL, "Cf": FORMAT, "Cs": UNASSIGNED,
    "Co": PRIVATE, "Cn": UNASSIGNED,
}  # fmt: skip

_DENSE = 0x32400
"""Below this every code point is looked up; above it only tags and private use are assigned, as of Unicode 17."""
_HIGH_BLOCKS = (0xF0000, 0xFFF00, 0x10FF00, 0xE0000, 0xE0100)
"""Blocks above it that are not like all others of their plane; the first stands for private use."""
_UNUSED = 0xD0000


class Tables(NamedTuple):
    """Character classes as arrays a kernel can read; ``class_of(cp) = classes[blocks[cp >> 8] * 256 + (cp & 255)]``."""

    ascii_flags: npt.NDArray[np.int64]
    ascii_classes: npt.NDArray[np.uint8]
    blocks: npt.NDArray[np.int64]
    classes: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.int64]


ASCII_CLASSES_AT = 128
BLOCKS_AT = 256
FLAGS_AT = BLOCKS_AT + 0x1100
CLASSES_AT = FLAGS_AT + 256
"""Where the parts of :func:`packed_tables` begin; the flags of ASCII come first."""


@lru_cache(maxsize=1)
def packed_tables() -> npt.NDArray[np.int64]:
    """Return the tables as one array: each array a kernel takes costs compile time in it and in all it calls.

    ``class_of(cp) = packed[packed[BLOCKS_AT + (cp >> 8)] + (cp & 255)]`` and ``flags = packed[FLAGS_AT + class]``.
    """
    kept = KeptFile(f"tables-{sys.byteorder}-{unicodedata.unidata_version}", fingerprint("signals"))
    data = kept.load()
    if data is None:
        data = _packed(tables()).tobytes()
        kept.save(data)
    return np.frombuffer(data, np.int64)


def _packed(parts: Tables) -> npt.NDArray[np.int64]:
    packed = np.zeros(CLASSES_AT + len(parts.classes), np.int64)
    packed[:128] = parts.ascii_flags
    packed[ASCII_CLASSES_AT : ASCII_CLASSES_AT + 128] = parts.ascii_classes
    packed[BLOCKS_AT:FLAGS_AT] = CLASSES_AT + 256 * parts.blocks
    packed[FLAGS_AT : FLAGS_AT + len(parts.flags)] = parts.flags
    packed[CLASSES_AT:] = parts.classes
    return packed


@lru_cache(maxsize=1)
def tables() -> Tables:
    """Return the tables, built once a process in some tens of milliseconds."""
    spans = ((0, _DENSE), *((first, first + 256) for first in _HIGH_BLOCKS))
    points = np.concatenate(
        (*(_flags_between(*span) for span in spans), _flags_between(_UNUSED, _UNUSED + 256))
    )
    ordered = np.sort(points)  # np.unique would import numpy.ma, which takes as long as all of this
    flags = ordered[np.append(True, np.diff(ordered) != 0)]
    ids = np.searchsorted(flags, points).astype(np.uint8)
    numbers: dict[bytes, int] = {}
    row_of = [numbers.setdefault(row.tobytes(), len(numbers)) for row in ids.reshape(-1, 256)]
    blocks = np.full(0x1100, row_of[-1], dtype=np.int64)
    blocks[0xF00:] = row_of[_DENSE >> 8]
    blocks[: _DENSE >> 8] = row_of[: _DENSE >> 8]
    for first, row in zip(_HIGH_BLOCKS, row_of[_DENSE >> 8 :], strict=False):
        blocks[first >> 8] = row
    classes = np.frombuffer(b"".join(numbers), dtype=np.uint8)
    ascii_classes = ids[:128].copy()
    return Tables(flags[ascii_classes], ascii_classes, blocks, classes, flags)


def _flags_between(first: int, stop: int) -> npt.NDArray[np.int64]:
    """Return the bits of the code points ``first`` to ``stop - 1``."""
    category = unicodedata.category
    named = map(_CATEGORY.__getitem__, map(category, map(chr, range(first, stop))))
    flags = np.fromiter(named, dtype=np.int64, count=stop - first)

    def span(low: int, high: int) -> slice:
        return slice(max(low - first, 0), max(high + 1 - first, 0))

    for points, bits in _BITS:
        inside = [point - first for point in points if first <= point < stop]
        flags[inside] |= bits
    space = (flags & SPACE) != 0
    flags[space] = SPACE
    flags[(flags & REPLACEMENT) != 0] = REPLACEMENT
    for low, high in ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF)):
        flags[span(low, high)] = FORMAT | VARIATION
    _add_scripts(flags, span)
    return flags


def _add_scripts(flags: npt.NDArray[np.int64], span: Any) -> None:
    """Add script, CJK and spaceless bits to letters and marks, in place."""
    script = np.full(len(flags), len(SCRIPTS), dtype=np.int64)
    for name, ranges in _RANGES.items():
        number = 0 if name == "none" else SCRIPTS.index(name) + 1
        for low, high in ranges:
            script[span(low, high)] = number
    textual = (flags & (LETTER | MARK)) != 0
    # The ideographic zero and the Suzhou numerals are numbers to Unicode, characters of the script to a reader.
    han_number = (script == SCRIPTS.index("han") + 1) & ((flags & NUMBER) != 0)
    flags[han_number] |= LETTER
    textual |= han_number
    script[~textual] = 0
    letters = (flags & LETTER) != 0
    cjk = letters & np.isin(script, [SCRIPTS.index("han") + 1, SCRIPTS.index("kana") + 1])
    yi = np.zeros(len(flags), dtype=bool)
    yi[span(*_YI)] = True
    flags[cjk | (letters & yi)] |= CJK
    flags[script == SCRIPTS.index("spaceless") + 1] |= SPACELESS
    flags |= script << SCRIPT_SHIFT
