"""Declarations of C4's page signs, in column order."""

from __future__ import annotations

from cleanfeed.signals.signal import Signal, count, share
from cleanfeed.signals.words_signals import SPACELESS

_C4 = "C4 (Raffel et al. 2020), as in c4_utils.py of TensorFlow Datasets"

PAGE_SIGNALS: tuple[Signal, ...] = (
    count("curly_braces", "Opening curly brackets.", source=_C4),
    count(
        "lorem_ipsum", "Times a word ending in lorem is followed by one beginning with ipsum, in one line.", source=_C4
    ),
    count("javascript_lines", "Lines with javascript in a word, in any case.", source=_C4),
    count(
        "policy_lines",
        "Lines with terms of use, privacy policy, cookie policy, uses cookies, use of cookies or use cookies, in any "
        "case.",
        source=_C4,
    ),
    count(
        "c4_sentences",
        "Sentence ends in lines C4 keeps: they end in . ? ! or a straight double quote and not in three dots, have at "
        "least five words, none of more than 1,000 characters, no javascript and no policy phrase.",
        source=_C4,
    ),
    share(
        "c4_line_chars", "Characters of lines C4 keeps, over characters of lines.",
        null_when=f"there is no line with a word, or {SPACELESS}", source=_C4,
    ),
    count(
        "special_token_text",
        "Markers of tokenizers written in the text: <|...|> without white space inside, <s>, </s>, <unk>, <pad>, "
        "<bos>, <eos>, <mask>, [CLS], [SEP], [PAD], [UNK], [MASK].",
    ),
)  # fmt: skip
