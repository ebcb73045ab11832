"""Counts of many documents go in, one array each; signals come out, with NaN where a signal is null.

Kernels only count. What is divided by what, and when the result means nothing, stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cleanfeed.signals.tables import SCRIPTS

Column: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = Mapping[str, Column]

MIN_SYMBOLS = 64
"""With fewer bytes or letters an entropy says how short the text is, not how it is made."""
MIN_WORDS = 20
"""With fewer words the share of repeated ones is a matter of chance."""
MAX_SPACELESS = 0.3
"""With a larger share of letters from scripts without spaces, measures of words mean nothing."""


def over(part: Column, whole: Column, where: npt.NDArray[np.bool_] | None = None) -> Column:
    """Return ``part / whole``, NaN where there is nothing to divide by or ``where`` is false."""
    applies = whole > 0 if where is None else (whole > 0) & where
    result: Column = np.divide(part, whole, out=np.full(len(whole), np.nan), where=applies)
    return result


def only(values: Column, where: npt.NDArray[np.bool_]) -> Column:
    """Return ``values``, NaN where ``where`` is false."""
    return np.where(where, values, np.nan)


def character_columns(c: Counts) -> dict[str, Column]:
    """Return the signals about characters."""
    solid = c["chars"] - c["space"]
    odd = c["private"] + c["unassigned"]
    scripted = np.sum([c[f"script_{name}"] for name in SCRIPTS], axis=0)
    many = c["letters"] >= MIN_SYMBOLS
    return {
        "chars": c["chars"],
        "bytes": c["bytes"],
        "visible_chars": solid - c["formats"] - c["control"],
        "letter_share": over(c["letters"] + c["marks"], solid),
        "digit_share": over(c["digits"], solid),
        "punct_share": over(c["punct"], solid),
        "symbol_share": over(c["symbols"], solid),
        "space_share": over(c["space"], c["chars"]),
        "upper_share": over(c["upper"], c["letters"]),
        "control_chars": c["control"],
        "control_share": over(c["control"], solid),
        "replacement_chars": c["replacements"],
        "replacement_share": over(c["replacements"], solid),
        "private_share": over(c["private"], solid),
        "unassigned_share": over(c["unassigned"], solid),
        "private_unassigned_share": over(odd, solid),
        "invisible_chars": c["invisible"],
        "invisible_share": over(c["invisible"], solid),
        "bidi_overrides": c["overrides"],
        "bidi_controls": c["bidi"],
        "tag_chars": c["tag_chars"],
        "mark_stack_share": over(c["stacked_marks"], solid),
        "longest_char_run": c["longest_char_run"],
        "char_run_share": over(c["ruler_chars"], solid),
        "byte_entropy": only(c["byte_bits"], c["bytes"] >= MIN_SYMBOLS),
        "letter_entropy": only(c["letter_bits"], many),
        "distinct_letters": only(c["distinct_letters"], many),
        **{f"script_{name}": over(c[f"script_{name}"], scripted) for name in SCRIPTS},
    }


def words_apply(c: Counts) -> npt.NDArray[np.bool_]:
    """Tell where measures of words mean something."""
    scripted = np.sum([c[f"script_{name}"] for name in SCRIPTS], axis=0)
    applies: npt.NDArray[np.bool_] = c["script_spaceless"] <= MAX_SPACELESS * scripted
    return applies


def word_columns(c: Counts) -> dict[str, Column]:
    """Return the signals about words."""
    spaced = words_apply(c)
    words = c["words"]
    return {
        "words": words,
        "sentences": c["sentences"],
        "mean_word_chars": over(c["word_chars"], words, spaced),
        "longest_word": only(c["longest_word"], spaced),
        "longest_run": c["longest_run"],
        "alpha_word_share": over(c["alpha_words"], words, spaced),
        "symbol_word_share": over(c["symbol_words"], words, spaced),
        "distinct_word_ratio": over(c["distinct"], c["kept_words"], spaced & (words >= MIN_WORDS)),
        "stop_words": c["stop_words"],
        "hash_word_ratio": over(c["hashes"], words, spaced),
        "ellipsis_word_ratio": over(c["dot_triples"] + c["ellipses"], words, spaced),
    }


def line_columns(c: Counts) -> dict[str, Column]:
    """Return the signals about lines."""
    spaced = words_apply(c)
    kept = c["kept_lines"]
    chars = c["line_chars"]
    return {
        "lines": c["lines"],
        "paragraphs": c["paragraphs"],
        "mean_line_chars": over(chars, kept),
        "longest_line": c["longest_line"],
        "bullet_lines": over(c["bullet_lines"], kept),
        "ellipsis_lines": over(c["ellipsis_lines"], kept),
        "terminal_lines": over(c["terminal_lines"], kept, spaced),
        "colon_lines": over(c["colon_lines"], kept),
        "short_lines": over(c["short_lines"], kept),
        "newline_word_ratio": over(c["newlines"], c["words"], spaced),
        "dup_line_share": over(c["dup_lines"], kept),
        "dup_line_chars": over(c["dup_line_chars"], chars),
        "dup_para_share": over(c["dup_paras"], c["paragraphs"]),
        "dup_para_chars": over(c["dup_para_chars"], chars),
        "template_line_share": over(c["dup_template_chars"], chars),
        "fineweb_dup_chars": over(c["dup_line_chars"], c["chars"] - c["newlines"]),
    }


def page_columns(c: Counts) -> dict[str, Column]:
    """Return C4's page signs."""
    return {
        "curly_braces": c["braces"],
        "lorem_ipsum": c["lorem"],
        "javascript_lines": c["javascript"],
        "policy_lines": c["policy"],
        "c4_sentences": c["c4_sentences"],
        "c4_line_chars": over(c["c4_chars"], c["line_chars"], words_apply(c)),
        "special_token_text": c["markers"],
    }


def repetition_columns(c: Counts) -> dict[str, Column]:
    """Return Gopher's shares of repeated n-grams."""
    applies = words_apply(c) & (c["words"] >= MIN_WORDS)
    names = [f"top_{length}gram" for length in range(2, 5)] + [f"dup_{length}gram" for length in range(5, 11)]
    return {f"{name}_chars": over(c[name], c["kept_chars"], applies) for name in names}


def view_columns(c: Counts) -> dict[str, Column]:
    """Return every signal measured on the decoded view, in the order of the declarations."""
    return character_columns(c) | word_columns(c) | line_columns(c) | page_columns(c) | repetition_columns(c)
