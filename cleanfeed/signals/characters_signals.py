"""Declarations of the signals about characters, in column order."""

from __future__ import annotations

from cleanfeed.signals.signal import Signal, count, share

_SOLID = "there is no character but white space"
_UNSCRIPTED = "there is no letter of any script"
_UNICODE = "Unicode character database"

_SCRIPT_NAMES = {
    "latin": "Latin",
    "cyrillic": "Cyrillic",
    "greek": "Greek or Coptic",
    "arabic": "Arabic",
    "hebrew": "Hebrew",
    "indic": "Devanagari, Bengali, Tamil and the other scripts of India",
    "han": "Chinese characters",
    "kana": "Japanese kana",
    "hangul": "Korean",
    "spaceless": "Thai, Lao, Khmer, Burmese, Tibetan and other scripts without spaces between words",
    "other": "any script not named by another signal",
}


def _scripts() -> tuple[Signal, ...]:
    return tuple(
        share(
            f"script_{name}",
            f"Share of letters and marks that are {text}; marks that take the script of their base are left out.",
            null_when=_UNSCRIPTED,
            source=_UNICODE,
        )
        for name, text in _SCRIPT_NAMES.items()
    )


def _solid(name: str, what: str, source: str = _UNICODE) -> Signal:
    return share(
        name, f"{what}, as a share of characters that are not white space.", null_when=_SOLID, source=source
    )


CHARACTER_SIGNALS: tuple[Signal, ...] = (
    count("chars", "Characters (code points)."),
    count("bytes", "Bytes in UTF-8."),
    count("visible_chars", "Characters that show: no white space, control or format character, no variation selector."),
    _solid("letter_share", "Letters and marks (categories L and M)"),
    _solid("digit_share", "Decimal digits of any script (category Nd)"),
    _solid("punct_share", "Punctuation (category P)"),
    _solid("symbol_share", "Symbols (category S, without U+FFFD)"),
    share("space_share", "White space as a share of characters.", null_when="the text is empty", source=_UNICODE),
    share("upper_share", "Upper and title case, as a share of letters.", null_when="there is none", source=_UNICODE),
    count("control_chars", "Control characters (category Cc) that are not white space."),
    count("replacement_chars", "U+FFFD, which stands where bytes were lost."),
    _solid("replacement_share", "U+FFFD", "cleanfeed"),
    _solid("private_share", "Private-use characters (category Co)"),
    _solid("unassigned_share", "Code points without a character (category Cn)"),
    _solid("private_unassigned_share", "Private-use characters and code points without a character"),
    count(
        "invisible_chars",
        "Characters nobody sees, without a reason to be there: zero-width characters (but not between characters of "
        "scripts without spaces), joiners that do not follow an emoji, a mark or a script that uses them, variation "
        "selectors that follow nothing, tag characters outside a flag.",
    ),
    _solid("invisible_share", "Characters counted by invisible_chars", "cleanfeed"),
    count("bidi_overrides", "Overrides of the writing direction: U+202D and U+202E."),
    count("bidi_controls", "Embeddings, overrides and isolates of the writing direction: U+202A-202E, U+2066-2069."),
    count("tag_chars", "Tag characters (U+E0001, U+E0020-E007F) that do not continue a black flag."),
    _solid("mark_stack_share", "Nonspacing and enclosing marks at the fifth or a later place on one base", "cleanfeed"),
    count("longest_char_run", "Longest run of one character without white space."),
    _solid("char_run_share", "Characters in runs of ten or more of one character", "cleanfeed"),
    Signal(
        "byte_entropy", "float", 0.0, 8.0, "Shannon entropy of the bytes, in bits a byte.", None,
        "there are fewer than 64 bytes", "Shannon 1948",
    ),
    Signal(
        "letter_entropy", "float", 0.0, 8.0,
        "Shannon entropy of the letters, in bits a letter; letters count as equal when the last eight bits of their "
        "code points are, ASCII in any case, so for large alphabets this is a lower bound.",
        None, "there are fewer than 64 letters", "Shannon 1948",
    ),
    Signal(
        "distinct_letters", "int", 1.0, 256.0, "Different letters, told apart as for letter_entropy.", None,
        "there are fewer than 64 letters", "cleanfeed",
    ),
    _solid("control_share", "Control characters (category Cc)"),
    *_scripts(),
)  # fmt: skip
