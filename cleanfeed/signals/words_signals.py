"""Declarations of the signals about words, in column order."""

from __future__ import annotations

import math

from cleanfeed.signals.signal import Signal, count, share

SPACELESS = (
    "more than 30 % of letters are of scripts without spaces (Thai, Lao, Khmer, Burmese, Tibetan, ...)"
)
FEW_WORDS = "there are fewer than 20 words, or " + SPACELESS
_NO_WORD = "there is no word, or " + SPACELESS
_GOPHER = "Gopher (Rae et al. 2021), A.1.1"

WORD_SIGNALS: tuple[Signal, ...] = (
    count("words", "Words: runs of characters without white space; each Chinese or Japanese character is one word."),
    count(
        "sentences",
        "Sentence ends: a terminal mark of any script, with closing quotes or brackets, before white space or the end; "
        "full-width marks need no white space.",
    ),
    Signal(
        "mean_word_chars", "float", 1.0, math.inf, "Characters a word, on average.", None, _NO_WORD, _GOPHER,
    ),
    count("longest_word", "Characters of the longest word.", null_when=SPACELESS),
    count(
        "longest_run",
        "Longest run of characters without white space, Chinese and Japanese characters and letters of scripts without "
        "spaces.",
    ),
    share("alpha_word_share", "Share of words with at least one letter.", null_when=_NO_WORD, source=_GOPHER),
    share(
        "symbol_word_share", "Share of words without a letter, mark or number of any script.", null_when=_NO_WORD
    ),
    share("distinct_word_ratio", "Different words (by case too) over words.", null_when=FEW_WORDS),
    count(
        "stop_words",
        "How many of the words the, be, to, of, and, that, have, with occur, in any case.",
        source=_GOPHER, high=8.0,
    ),
    Signal(
        "hash_word_ratio", "float", 0.0, math.inf, "Number signs (#) over words.", None, _NO_WORD, _GOPHER,
    ),
    Signal(
        "ellipsis_word_ratio", "float", 0.0, math.inf,
        "Ellipses (three full stops in a row, or one character) over words.", None, _NO_WORD, _GOPHER,
    ),
)  # fmt: skip
