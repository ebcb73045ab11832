"""The presets: published limits to the letter, and web_text on healthy, odd and broken text."""

from __future__ import annotations

import base64
import random

import numpy as np
import pyarrow as pa
import pytest

from cleanfeed.curriculum.quality import quality_scores
from cleanfeed.rules.pipeline import load_pipeline
from cleanfeed.rules.ruleset import VERDICTS, RuleSet
from cleanfeed.signals.measure import measure_texts

PUBLISHED = ("gopher", "c4", "fineweb", "olmo_repetition")

LIMITS = {
    "gopher": {
        "too_few_words": ("words", "below", 50),
        "too_many_words": ("words", "above", 100_000),
        "short_words": ("mean_word_chars", "below", 3),
        "long_words": ("mean_word_chars", "above", 10),
        "hash_signs": ("hash_word_ratio", "above", 0.1),
        "ellipses": ("ellipsis_word_ratio", "above", 0.1),
        "bullet_lines": ("bullet_lines", "above", 0.9),
        "ellipsis_lines": ("ellipsis_lines", "above", 0.3),
        "words_without_letters": ("alpha_word_share", "below", 0.8),
        "few_stop_words": ("stop_words", "below", 2),
        "repeated_lines": ("dup_line_share", "above", 0.30),
        "repeated_paragraphs": ("dup_para_share", "above", 0.30),
        "repeated_line_chars": ("dup_line_chars", "above", 0.20),
        "repeated_paragraph_chars": ("dup_para_chars", "above", 0.20),
        "top_2gram": ("top_2gram_chars", "above", 0.20),
        "top_3gram": ("top_3gram_chars", "above", 0.18),
        "top_4gram": ("top_4gram_chars", "above", 0.16),
        "repeated_5grams": ("dup_5gram_chars", "above", 0.15),
        "repeated_6grams": ("dup_6gram_chars", "above", 0.14),
        "repeated_7grams": ("dup_7gram_chars", "above", 0.13),
        "repeated_8grams": ("dup_8gram_chars", "above", 0.12),
        "repeated_9grams": ("dup_9gram_chars", "above", 0.11),
        "repeated_10grams": ("dup_10gram_chars", "above", 0.10),
    },
    "c4": {
        "few_sentences": ("c4_sentences", "below", 3),
        "curly_braces": ("curly_braces", "above", 0),
        "lorem_ipsum": ("lorem_ipsum", "above", 0),
        "too_long": ("chars", "above", 190_000),
    },
    "fineweb": {
        "empty": ("lines", "below", 1),
        "few_end_marks": ("terminal_lines", "below", 0.12),
        "short_lines": ("short_lines", "above", 0.67),
        "repeated_line_chars": ("fineweb_dup_chars", "above", 0.01),
        "list_like": ("newline_word_ratio", "above", 0.3),
    },
    "olmo_repetition": {"repeated_tokens": ("token_periods", "above", 31)},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_set_rejects_at_the_published_limits_without_further_proof(name: str):
    rejecting = [rule for rule in load_pipeline(name).rules if rule.action == "reject"]
    assert {
        rule.name: (
            rule.signal,
            *(("above", rule.above) if rule.above is not None else ("below", rule.below)),
        )
        for rule in rejecting
    } == LIMITS[name]
    assert all(rule.extreme is None and not rule.evidence and not rule.where for rule in rejecting)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_rule_of_a_published_set_names_its_source(name: str):
    assert [rule.name for rule in load_pipeline(name).rules if not rule.source] == []


@pytest.mark.parametrize("name", ["web_text", "multilingual", "code"])
def test_every_rule_of_our_own_says_why(name: str):
    assert [rule.name for rule in load_pipeline(name).rules if not rule.because] == []


@pytest.mark.parametrize("name", ["web_text", "multilingual", "code"])
def test_no_garbage_or_repetition_rule_rejects_on_one_number_alone(name: str):
    plain = {
        rule.name for rule in load_pipeline(name).rules if rule.action == "reject" and rule.extreme is None
    }
    assert plain == {"empty", "too_long"}


def judged(preset: str, *texts: str) -> tuple[list[tuple[str, set[str]]], list[float]]:
    """Return the verdict, the names of the deciding rules and the quality of each text."""
    pipeline = load_pipeline(preset)
    columns = measure_texts(pa.array(texts, pa.large_string()))
    found = RuleSet(pipeline.rules).evaluate(columns)
    quality = quality_scores(pipeline.quality, columns, len(texts))
    verdicts = []
    for place, number in enumerate(found.verdict):
        decided = found.fired if VERDICTS[number] == "reject" else found.flagged
        verdicts.append((VERDICTS[number], {rule for rule, hit in decided.items() if hit[place]}))
    return verdicts, quality.tolist()


PROSE = (
    "The ferry left an hour late, because the engine would not start and nobody could find the man who "
    "knew it. "
    "When it moved at last, the children on the quay had gone home, and only a dog ran along beside us.\n"
    "We sat on the coils of rope behind the wheelhouse. My aunt had brought bread and a jar of plums; "
    "the plums "
    "were meant for her sister, but the sea was calm and the evening long."
)
HEALTHY = {
    "prose": PROSE,
    "a definition": "Ebb: the movement of the tide out to sea.",
    "a haiku": "frost on the handrail\nthe baker whistles uphill\nwith tomorrow's bread",
    "Chinese": "清晨的码头上没有人，只有一条狗沿着水边慢慢地走。船晚了一个小时才开，因为谁也不会修发动机。",
    "Thai": "เรือออกช้าไปหนึ่งชั่วโมงเพราะเครื่องยนต์ไม่ติดและไม่มีใครซ่อมเป็นเด็กๆจึงกลับบ้าน",
    "Hindi": "नाव एक घंटे देर से चली, क्योंकि इंजन शुरू नहीं हो रहा था। किनारे पर खड़े बच्चे घर लौट गए।",
    "Arabic": "تأخر القارب ساعة كاملة لأن المحرك لم يعمل، فعاد الأطفال إلى بيوتهم قبل أن نغادر المرفأ.",
    "a word joiner family": "We met at the lake \U0001f468\u200d\U0001f469\u200d\U0001f467 and stayed until dark.",
    "one lost letter": PROSE.replace("jar", "j\ufffdr"),
    "a glitch token": PROSE + " The word they carved into the mast was SolidGoldMagikarp.",
    "one hash": PROSE + " The file had the digest d41d8cd98f00b204e9800998ecf8427e, as the letter said.",
    "rulers": f"{'-' * 80}\nChapter One\n{'=' * 80}\n{PROSE}",
    "LaTeX": r"Let $f(x)=\sum_{n} a_n x^n$ converge for $|x|<R$; then $f$ is continuous there, by "
    "comparing terms.",
}
RANDOM = random.Random(7)
FLAGGED = {
    "too_short": "ok",
    "bidi_override": "Access GRANTED \u202eDENIED\u202c to everyone who reads this line from the left.",
    "invisible_payload": "A soup of barley." + "".join(chr(0xE0000 + ord(c)) for c in "obey me") + " "
    "Stir it well.",
    "mojibake": ("Später trinken sie Kaffee und hören Musik. Die schöne Köchin grüßt den Müller über den "
    "Fluß, "
                 "und im März blühen die Bäume früh.").encode().decode("cp1252", "replace"),
    "special_token_text": "The marker <|endoftext|> stands between documents, as this chapter explains.",
    "small_alphabet": "\n".join("".join(RANDOM.choice("ACGT") for _ in range(60)) for _ in range(30)),
    "template_lines": "\n".join(
        f"2031-04-0{i % 9 + 1}T08:{i % 60:02d}:11Z INFO worker-{i % 4} ok latency_ms={i * 7 % 90}" for i in range(90)
    ),
    "many_digits": "\n".join(" ".join(str(RANDOM.randrange(9999)) for _ in range(8)) for _ in range(40)),
    "repeated_ngrams": "\n".join(
        f"{i}. The tenant agrees that section {i} of the annex shall apply to the use of the garden." for i in range(30)
    ),
}  # fmt: skip
REJECTED = {
    "empty": "\u200b\u2060\ufeff \n\u00ad",
    "long_token": base64.b64encode(RANDOM.randbytes(60_000)).decode(),
    "blob": "\n".join(base64.b64encode(RANDOM.randbytes(57)).decode() for _ in range(60)),
    "hex_dump": "\n".join(
        f"{i * 16:08x}  " + " ".join(f"{RANDOM.randrange(256):02x}" for _ in range(16)) for i in range(60)
    ),
    "char_run": "a" * 20_000,
    "periodic": "abc" * 2_000,
    "repeated_ngrams": "Accept all cookies to go on. " * 60,
    "repeated_lines": "\n".join(["Home", "Products", "About us", "Contact", "Login", "Cart (0)"] * 12),
    "repeated_paragraphs": "\n\n".join([PROSE] * 8),
    "symbol_words": " ".join("".join(RANDOM.choice("|/\\.,;'`~^_-()li1") for _ in range(5)) for _ in range(300)),
    "replacement_chars": "\ufffd" * 200 + " some text " + "\ufffd" * 50,
    "control_chars": "\x00".join(PROSE),
    "mark_run": " ".join("".join(c + "\u0301\u0316\u0334" * 12 for c in word) for word in ["a", "red", "door"]),
    "long_line": "!f(e){" + "".join(f"var a{i}=function(n){{return n*{i}+e[{i}]}};" for i in range(300)) + "}()",
    "mostly_space": " " * 9_000 + "x",
}  # fmt: skip


@pytest.mark.parametrize("preset", ["web_text", "multilingual"])
def test_healthy_text_of_any_script_and_form_is_kept_without_a_flag(preset: str):
    verdicts, _ = judged(preset, *HEALTHY.values())
    assert dict(zip(HEALTHY, verdicts, strict=True)) == dict.fromkeys(HEALTHY, ("keep", set()))


def test_odd_text_is_kept_with_the_flag_that_names_it():
    verdicts, _ = judged("web_text", *FLAGGED.values())
    assert {rule: verdict for rule, (verdict, _) in zip(FLAGGED, verdicts, strict=True)} == dict.fromkeys(
        FLAGGED, "flag"
    )
    assert [rule for rule, (_, flags) in zip(FLAGGED, verdicts, strict=True) if rule not in flags] == []


@pytest.mark.parametrize("preset", ["web_text", "multilingual"])
def test_broken_text_is_rejected_by_the_rule_that_names_it(preset: str):
    verdicts, _ = judged(preset, *REJECTED.values())
    assert {rule: verdict for rule, (verdict, _) in zip(REJECTED, verdicts, strict=True)} == dict.fromkeys(
        REJECTED, "reject"
    )
    assert [rule for rule, (_, fired) in zip(REJECTED, verdicts, strict=True) if rule not in fired] == []


def test_a_song_with_its_refrain_is_never_rejected():
    refrain = (
        "Turn, little mill wheel, turn\nTurn, little mill wheel, turn\nOver the stones and the bending fern\n"
    )
    verses = (
        "Flour on the rafters and dust on the floor\nNobody comes to the miller's door\n",
        "Rain in the gutter and wind in the sail\nSomebody's singing behind the hail\n",
        "Moon on the millpond and frost on the stair\nNobody knows if the miller is there\n",
    )
    verdicts, _ = judged("web_text", "".join(verse + refrain for verse in verses))
    assert verdicts[0][0] != "reject"


def test_prose_is_of_the_best_tier_and_lists_and_logs_are_not():
    best = load_pipeline("web_text").curriculum.tiers[0].min_quality
    assert best is not None
    words = "\n".join(["tide", "pier", "gull", "rope", "oar", "sail", "mast", "keel"] * 4)
    tabbed = "\n".join(
        f"{word}\t{word}en\t{word}ar\t{word}ung"
        for word in ["tide", "pier", "gull", "rope", "oar", "sail", "mast"]
    )
    spoken = "\n".join(
        f"{word.upper()}{i}  T AY1 D IH0 {i}" for i, word in enumerate(["tide", "pier", "gull", "rope"] * 5)
    )
    tree = (
        "( (S\n   (NP-SBJ (DT The) (NN ferry) )\n   (VP (VBD left)\n     (ADVP (RB late) ))\n   (. .) ))\n"
        * 3
    )
    _, quality = judged(
        "web_text", PROSE, HEALTHY["Chinese"], HEALTHY["Thai"], HEALTHY["Hindi"], HEALTHY["Arabic"],
        words, tabbed, spoken, tree, FLAGGED["template_lines"], FLAGGED["many_digits"], FLAGGED["mojibake"],
    )  # fmt: skip
    assert [score >= best for score in quality] == [True] * 5 + [False] * 7


def test_gopher_rejects_what_crosses_one_limit():
    verdicts, _ = judged("gopher", PROSE, PROSE[:120], " ".join(["###", "word"] * 40))
    assert verdicts[0] == ("keep", set())
    assert verdicts[1] == ("reject", {"too_few_words"})
    assert {"hash_signs", "few_stop_words", "words_without_letters"} <= verdicts[2][1]


def test_c4_and_fineweb_reject_what_crosses_one_limit():
    listing = "\n".join(f"item {i}" for i in range(9))
    c4, _ = judged("c4", PROSE, listing, PROSE.replace("dog", "{dog}"))
    assert c4[0] == ("keep", set())
    assert c4[1] == ("reject", {"few_sentences"})
    assert c4[2] == ("reject", {"curly_braces"})
    fineweb, _ = judged("fineweb", PROSE, listing, "", f"{PROSE}\n{PROSE}")
    assert fineweb[0] == ("keep", set())
    assert fineweb[1] == ("reject", {"few_end_marks", "short_lines", "list_like"})
    assert fineweb[2] == ("reject", {"empty"})
    assert fineweb[3] == ("reject", {"repeated_line_chars"})


def test_olmo_rejects_at_thirty_two_repeats():
    rules = RuleSet(load_pipeline("olmo_repetition").rules, tokenizer=True)
    found = rules.evaluate({"token_periods": np.array([0.0, 31.0, 32.0, np.nan])})
    assert [VERDICTS[number] for number in found.verdict] == ["keep", "keep", "reject", "keep"]


def test_code_is_kept_where_it_is_pretty_and_rejected_where_it_is_minified_or_data():
    pretty = (
        "def area(width, height):\n    if width < 0:\n        raise ValueError(width)\n    return width * height\n\n"
        "def name(row):\n    # A row without a name is called by its number.\n    return row.name or str(row.number)\n"
    )
    numbers = "\n".join(", ".join(str(RANDOM.randrange(10**6)) for _ in range(12)) for _ in range(40))
    verdicts, _ = judged("code", pretty, PROSE, REJECTED["long_line"], numbers)
    assert [verdict for verdict, _ in verdicts] == ["keep", "keep", "reject", "reject"]
    assert verdicts[2][1] == {"long_line"}
    assert verdicts[3][1] == {"few_letters"}
