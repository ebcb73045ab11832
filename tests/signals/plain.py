"""A text goes in; every signal of the decoded view comes out, computed in the slowest and plainest way there is."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from cleanfeed.signals import tables

WHITE = {chr(point) for point in tables._WHITE}
TERMINAL = {chr(point) for point in tables._TERMINAL + tables._WIDE} | {"…", "⋯", "︙"}
WIDE = {chr(point) for point in tables._WIDE}
CLOSERS = set("\"')]}»›’”」』〉》】〕）］｝")
BULLETS = {chr(point) for point in tables._BULLETS}
STOPS = {"the", "be", "to", "of", "and", "that", "have", "with"}
POLICIES = (
    r"terms\s+of\s+use|privacy\s+policy|cookie\s+policy|uses\s+cookies|use\s+of\s+cookies|use\s+cookies"
)
MARKERS = "<s> </s> <unk> <pad> <bos> <eos> <mask> [CLS] [SEP] [PAD] [UNK] [MASK]".split()

Value = float | None


def category(char: str) -> str:
    if char in WHITE:
        return "space"
    if char == "\ufffd":
        return "lost"
    if 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF:
        return "Vs"
    return unicodedata.category(char)


def script(char: str) -> str | None:
    """Script of a letter or mark."""
    han_number = category(char)[0] == "N" and inside(char, tables._RANGES["han"])
    if category(char)[0] not in "LM" and not han_number:
        return None
    for name, ranges in tables._RANGES.items():
        if inside(char, ranges):
            return None if name == "none" else name
    return "other"


def inside(char: str, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(low <= ord(char) <= high for low, high in ranges)


def is_letter(char: str) -> bool:
    return category(char)[0] == "L" or (category(char)[0] == "N" and script(char) == "han")


def is_cjk(char: str) -> bool:
    return is_letter(char) and (script(char) in ("han", "kana") or inside(char, [tables._YI]))


def is_wordy(char: str) -> bool:
    return is_letter(char) or category(char)[0] == "N"


def cut_words(text: str) -> list[tuple[int, int]]:
    words: list[tuple[int, int]] = []
    start = None
    for k, char in enumerate(text + " "):
        if start is not None:
            inner = text[start:k]
            boundary = (is_cjk(char) and any(map(is_wordy, inner))) or (
                is_wordy(char) and any(map(is_cjk, inner))
            )
            if char in WHITE or boundary:
                words.append((start, k))
                start = None
        if start is None and char not in WHITE:
            start = k
    return words


def end_mark(word: str) -> str:
    """The last character that is no closing quote or bracket."""
    rest = word.rstrip("".join(CLOSERS))
    return rest[-1] if rest else ""


def sentence_ends(text: str, start: int, stop: int, words: list[tuple[int, int]]) -> int:
    """Sentence ends in a stretch of the text that holds whole words."""
    wide = sum(text[k] in WIDE and not (k and text[k - 1] in WIDE) for k in range(start, stop))
    spaced = 0
    for left, right in words:
        if start <= left and right <= stop and (right == len(text) or text[right] in WHITE):
            mark = end_mark(text[left:right])
            spaced += mark in TERMINAL and mark not in WIDE
    return wide + spaced


def entropy(symbols: Iterable[object]) -> float:
    counts = Counter(symbols)
    total = sum(counts.values())
    return -sum(n / total * math.log2(n / total) for n in counts.values()) if total else 0.0


def over(part: float, whole: float) -> Value:
    return part / whole if whole else None


def runs(text: str) -> list[tuple[str, int]]:
    return [(char, len(list(group))) for char, group in groupby(text) if char not in WHITE]


def longest_run(text: str) -> int:
    pieces = re.split("[" + "".join(map(re.escape, WHITE)) + "]", text)
    best = 0
    for piece in pieces:
        current = 0
        for char in piece:
            current = 0 if is_cjk(char) or script(char) == "spaceless" else current + 1
            best = max(best, current)
    return best


def stacked_marks(text: str) -> int:
    found = depth = 0
    for char in text:
        depth = depth + 1 if category(char) in ("Mn", "Me") else 0
        found += depth > 4
    return found


def tag_chars(text: str) -> int:
    found, flag, before = 0, False, ""
    for char in text:
        if is_tag(char):
            flag = before == "\U0001f3f4" or (flag and is_tag(before))
            found += not flag
        before = char
    return found


def is_tag(char: str) -> bool:
    return char != "" and (char == "\U000e0001" or 0xE0020 <= ord(char) <= 0xE007F)


def is_hidden(char: str, before: str) -> bool:
    kind = category(before) if before else ""
    if char in "\u200c\u200d":
        shaped = kind in ("Mn", "Me", "Vs") or kind[:1] == "S"
        return not shaped and (
            before == "" or script(before) not in ("spaceless", "arabic", "hebrew", "indic", "other")
        )
    if category(char) == "Vs":
        return before == "" or kind in ("space", "Cf", "Vs")
    zero = char in "\u180e\u200b\ufeff" or 0x2060 <= ord(char) <= 0x2064 or 0x206A <= ord(char) <= 0x206F
    return zero and (before == "" or script(before) != "spaceless")


def hidden(text: str) -> int:
    return tag_chars(text) + sum(
        is_hidden(char, text[k - 1] if k else "") for k, char in enumerate(text) if not is_tag(char)
    )


def markers(text: str) -> int:
    named = re.findall(r"<\|[^\x00-\x20<>\[\]]+\|>", text)
    short = sum(text.count(marker) for marker in MARKERS)
    return short + sum(len(name.encode()) <= 40 for name in named)


def repeated(keys: Sequence[object]) -> list[int]:
    """Places whose key was there before."""
    return [k for k, key in enumerate(keys) if key in keys[:k]]


def covered(places: Iterable[int], length: int, sizes: list[int]) -> int:
    words = {w for place in places for w in range(place, place + length)}
    return sum(sizes[w] for w in words)


def top_gram(words: list[str], length: int) -> int:
    sizes = list(map(len, words))
    grams = [tuple(words[k : k + length]) for k in range(len(words) - length + 1)]
    counts = {gram: n for gram, n in Counter(grams).items() if n > 1}
    if not counts:
        return 0
    best = max(
        counts, key=lambda gram: (counts[gram], sum(map(len, gram)))
    )  # max takes the earliest of equals
    return covered((k for k, gram in enumerate(grams) if gram == best), length, sizes)


def dup_grams(words: list[str], length: int) -> int:
    grams = [tuple(words[k : k + length]) for k in range(len(words) - length + 1)]
    return covered(repeated(grams), length, list(map(len, words)))


class Line:
    def __init__(
        self, text: str, start: int, words: list[tuple[int, int]], whole: list[tuple[int, int]]
    ) -> None:
        self.words = [text[left:right] for left, right in words]
        self.apart = [k == 0 or words[k - 1][1] != words[k][0] for k in range(len(words))]
        self.text = text[words[0][0] : words[-1][1]]
        self.key = tuple(zip(self.words, self.apart, strict=True))
        self.template = tuple((re.sub("[0-9]+", "0", word), apart) for word, apart in self.key)
        self.sentences = sentence_ends(text, words[0][0], words[-1][1], whole)
        self.new = False


def cut_lines(text: str) -> list[Line]:
    words = cut_words(text)
    lines: list[Line] = []
    start, blank = 0, True
    for raw in text.split("\n"):
        inside_line = [word for word in words if start <= word[0] < start + len(raw)]
        if inside_line:
            line = Line(text, start, inside_line, words)
            line.new = blank
            lines.append(line)
        blank = not inside_line
        start += len(raw) + 1
    return lines


def characters(text: str) -> dict[str, Value]:
    kinds = [category(char) for char in text]
    solid = sum(kind != "space" for kind in kinds)

    def count(test: Callable[[str], bool]) -> int:
        return sum(map(test, kinds))

    odd = {"private": count(lambda k: k == "Co"), "unassigned": count(lambda k: k in ("Cn", "Cs"))}
    letters = [char for char in text if is_letter(char)]
    low = [ord(char) | 0x20 if char < "\x80" else ord(char) & 255 for char in letters]
    scripts = Counter(name for name in map(script, text) if name)
    formats = count(lambda k: k in ("Cf", "Vs"))
    control = count(lambda k: k == "Cc")
    lost = count(lambda k: k == "lost")
    data = text.encode()
    big = len(letters) >= 64
    return {
        "chars": len(text),
        "bytes": len(data),
        "visible_chars": solid - formats - control,
        "letter_share": over(len(letters) + count(lambda k: k[0] == "M"), solid),
        "digit_share": over(count(lambda k: k == "Nd"), solid),
        "punct_share": over(count(lambda k: k[0] == "P"), solid),
        "symbol_share": over(count(lambda k: k[0] == "S"), solid),
        "space_share": over(len(text) - solid, len(text)),
        "upper_share": over(count(lambda k: k in ("Lu", "Lt")), len(letters)),
        "control_chars": control,
        "control_share": over(control, solid),
        "replacement_chars": lost,
        "replacement_share": over(lost, solid),
        "private_share": over(odd["private"], solid),
        "unassigned_share": over(odd["unassigned"], solid),
        "private_unassigned_share": over(sum(odd.values()), solid),
        "invisible_chars": hidden(text),
        "invisible_share": over(hidden(text), solid),
        "bidi_overrides": sum(char in "\u202d\u202e" for char in text),
        "bidi_controls": sum("\u202a" <= char <= "\u202e" or "\u2066" <= char <= "\u2069" for char in text),
        "tag_chars": tag_chars(text),
        "mark_stack_share": over(stacked_marks(text), solid),
        "longest_char_run": max((n for _, n in runs(text)), default=0),
        "char_run_share": over(sum(n for _, n in runs(text) if n >= 10), solid),
        "byte_entropy": entropy(data) if len(data) >= 64 else None,
        "letter_entropy": entropy(low) if big else None,
        "distinct_letters": len(set(low)) if big else None,
        **{f"script_{name}": over(scripts[name], sum(scripts.values())) for name in tables.SCRIPTS},
    }


def words(text: str, spaced: bool) -> dict[str, Value]:
    cut = cut_words(text)
    found = [text[left:right] for left, right in cut]
    ellipses = text.count("...") + sum(char in "…⋯︙" for char in text)
    values: dict[str, Value] = {
        "mean_word_chars": over(sum(map(len, found)), len(found)),
        "longest_word": max(map(len, found), default=0),
        "alpha_word_share": over(sum(any(map(is_letter, word)) for word in found), len(found)),
        "symbol_word_share": over(
            sum(not any(is_wordy(c) or category(c) in ("Mn", "Me", "Mc") for c in word) for word in found),
            len(found),
        ),
        "distinct_word_ratio": over(len(set(found)), len(found)) if len(found) >= 20 else None,
        "hash_word_ratio": over(text.count("#"), len(found)),
        "ellipsis_word_ratio": over(ellipses, len(found)),
    }
    if not spaced:
        values = dict.fromkeys(values)
    values |= {
        "words": len(found),
        "sentences": sentence_ends(text, 0, len(text), cut),
        "longest_run": longest_run(text),
        "stop_words": len({word.lower() for word in found if word.isascii()} & STOPS),
    }
    for length in range(2, 11):
        name = f"{'top' if length < 5 else 'dup'}_{length}gram_chars"
        gram = top_gram if length < 5 else dup_grams
        fits = spaced and len(found) >= 20
        values[name] = gram(found, length) / sum(map(len, found)) if fits else None
    return values


def lines(text: str, spaced: bool) -> dict[str, Value]:
    found = cut_lines(text)
    sizes = [len(line.text) for line in found]
    chars, number = sum(sizes), len(found)
    paragraphs: list[list[Line]] = []
    for line in found:
        if line.new:
            paragraphs.append([])
        paragraphs[-1].append(line)
    same = repeated([line.key for line in found])
    templates = repeated([line.template for line in found])
    same_paragraphs = repeated([tuple(line.key for line in lines) for lines in paragraphs])
    copied = sum(sizes[k] for k in same)

    def part(test: Callable[[Line], bool]) -> Value:
        return over(sum(map(test, found)), number)

    total_words = len(cut_words(text))
    return {
        "lines": number,
        "paragraphs": len(paragraphs),
        "mean_line_chars": over(chars, number),
        "longest_line": max(sizes, default=0),
        "bullet_lines": part(lambda line: line.words[0][0] in BULLETS or line.words[0] in "-*+"),
        "ellipsis_lines": part(lambda line: line.text.endswith(("...", "…", "⋯", "︙"))),
        "terminal_lines": part(lambda line: end_mark(line.words[-1]) in TERMINAL) if spaced else None,
        "colon_lines": part(lambda line: line.text[-1] in ":：﹕"),
        "short_lines": part(lambda line: len(line.text) <= 30),
        "newline_word_ratio": over(text.count("\n"), total_words) if spaced else None,
        "dup_line_share": over(len(same), number),
        "dup_line_chars": over(copied, chars),
        "dup_para_share": over(len(same_paragraphs), len(paragraphs)),
        "dup_para_chars": over(sum(len(line.text) for k in same_paragraphs for line in paragraphs[k]), chars),
        "template_line_share": over(sum(sizes[k] for k in templates), chars),
        "fineweb_dup_chars": over(copied, len(text) - text.count("\n")),
    }


def page(text: str, spaced: bool) -> dict[str, Value]:
    found = cut_lines(text)
    scripts = [any("javascript" in word.lower() for word in line.words) for line in found]
    policies = [re.search(POLICIES, line.text.lower()) is not None for line in found]
    kept = [
        line
        for line, script, policy in zip(found, scripts, policies, strict=True)
        if not script
        and not policy
        and len(line.words) >= 5
        and max(map(len, line.words)) <= 1000
        and line.text[-1] in '.?!"'
        and not line.text.endswith("...")
    ]
    chars = sum(len(line.text) for line in found)
    return {
        "curly_braces": text.count("{"),
        "lorem_ipsum": sum(len(re.findall(r"lorem\s+ipsum", line.text.lower())) for line in found),
        "javascript_lines": sum(scripts),
        "policy_lines": sum(policies),
        "c4_sentences": sum(line.sentences for line in kept),
        "c4_line_chars": over(sum(len(line.text) for line in kept), chars) if spaced else None,
        "special_token_text": markers(text),
    }


def measure(text: str) -> dict[str, Value]:
    """Every signal of the decoded view."""
    found = characters(text)
    spaced = not (found["script_spaceless"] or 0.0) > 0.3
    return found | words(text, spaced) | lines(text, spaced) | page(text, spaced)
