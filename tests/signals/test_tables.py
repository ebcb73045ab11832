"""The character tables say what the interpreter's Unicode data says, for every code point there is."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest

from cleanfeed.kernel_cache import VARIABLE
from cleanfeed.signals import tables
from cleanfeed.signals.tables import (
    ASCII_CLASSES_AT,
    BLOCKS_AT,
    FLAGS_AT,
    SCRIPT_SHIFT,
    SCRIPTS,
    packed_tables,
)

ALL = np.arange(0x110000)


def flags_of_all() -> np.ndarray:
    packed = packed_tables()
    return packed[FLAGS_AT + packed[packed[BLOCKS_AT + (ALL >> 8)] + (ALL & 255)]]


def script_of(char: str) -> str:
    number = int(flags_of_all()[ord(char)]) >> SCRIPT_SHIFT
    return (None, *SCRIPTS)[number] or "none"


def test_letters_marks_digits_and_the_rest_are_those_of_unicodedata() -> None:
    flags = flags_of_all()
    categories = np.array([unicodedata.category(chr(point)) for point in ALL])
    white = np.isin(ALL, tables._WHITE)
    selectors = ((ALL >= 0xFE00) & (ALL <= 0xFE0F)) | ((ALL >= 0xE0100) & (ALL <= 0xE01EF))
    usual = ~white & ~selectors & (ALL != 0xFFFD)
    for bit, wanted in [
        (tables.MARK, ["Mn", "Mc", "Me"]),
        (tables.STACKING, ["Mn", "Me"]),
        (tables.UPPER, ["Lu", "Lt"]),
        (tables.NUMBER, ["Nd", "Nl", "No"]),
        (tables.DIGIT, ["Nd"]),
        (tables.PUNCT, ["Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"]),
        (tables.SYMBOL, ["Sm", "Sc", "Sk", "So"]),
        (tables.CONTROL, ["Cc"]),
        (tables.PRIVATE, ["Co"]),
        (tables.UNASSIGNED, ["Cn", "Cs"]),
    ]:
        expected = np.isin(categories, wanted) & usual
        assert ALL[((flags & bit) != 0) != expected].tolist() == []
    letters = np.isin(categories, ["Lu", "Ll", "Lt", "Lm", "Lo"]) & usual
    only_here = ALL[((flags & tables.LETTER) != 0) != letters]
    assert [chr(point) for point in only_here] == list("〇〡〢〣〤〥〦〧〨〩〸〹〺")
    assert ALL[((flags & tables.SPACE) != 0)].tolist() == sorted(tables._WHITE)
    assert np.array_equal((flags & tables.FORMAT) != 0, (np.isin(categories, ["Cf"]) & usual) | selectors)


def test_kept_tables_are_those_that_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    expected, whole, built = packed_tables().tolist(), tables.tables(), []

    def building() -> tables.Tables:
        built.append("anew")
        return whole

    monkeypatch.setattr(tables, "tables", building)
    assert packed_tables.__wrapped__().tolist() == expected
    (file,) = tmp_path.iterdir()
    assert packed_tables.__wrapped__().tolist() == expected
    assert built == ["anew"]
    file.write_bytes(file.read_bytes()[:-8])
    assert packed_tables.__wrapped__().tolist() == expected
    assert built == ["anew", "anew"]
    assert list(tmp_path.iterdir()) == [file]


def test_the_classes_of_ascii_are_those_of_the_whole_table() -> None:
    packed = packed_tables()
    assert packed[:128].tolist() == flags_of_all()[:128].tolist()
    assert (
        packed[FLAGS_AT + packed[ASCII_CLASSES_AT : ASCII_CLASSES_AT + 128]].tolist() == packed[:128].tolist()
    )


@pytest.mark.parametrize(
    ("char", "script"),
    [
        ("é", "latin"), ("ﬁ", "latin"), ("ж", "cyrillic"), ("ἀ", "greek"), ("ش", "arabic"), ("ﷺ", "arabic"),
        ("א", "hebrew"),
        ("हि"[1], "indic"), ("இ", "indic"), ("天", "han"), ("々", "han"), ("〇", "han"), ("𠀀", "han"),
        ("か", "kana"), ("ー", "kana"),
        ("ｶ", "kana"), ("가", "hangul"), ("ᄀ", "hangul"), ("ก", "spaceless"), ("ລ", "spaceless"), ("ក", "spaceless"),
        ("မ", "spaceless"), ("བ", "spaceless"), ("ա", "other"), ("ሀ", "other"), ("ꀀ", "other"), ("\u0301", "none"),
        ("1", "none"), (".", "none"),
    ],
)  # fmt: skip
def test_scripts(char: str, script: str) -> None:
    assert script_of(char) == script
