"""Texts that broke other cleaners: each has the numbers that tell it from good text, and good text has others."""

from __future__ import annotations

import base64
import random

import pyarrow as pa
import pytest

from cleanfeed.signals.measure import measure_texts

ROW = "Row, little lantern, row\nRow, little lantern, row\nOver the dark and the cold below\nRow, little lantern, row\n"
SONG = (
    "Paper boat, paper boat, carry me slow\nDown where the copper-brown reeds like to grow\n" + ROW
    + "Candle and kettle are left on the shore\nNobody waiting to bolt up the door\n" + ROW
    + "Rain on the rudder and salt on the oar\nMorning will find what the evening swore\n" + ROW
)  # fmt: skip
CODE = "\n".join(
    f"static int f{i}(int a)\n{{\n    if (a > {i}) {{\n        return a;\n    }}\n    return {i};\n}}\n"
    for i in range(25)
)
CHINESE = (
    "今天下午我们沿着河边走了很久，风有一点凉。桥上有人在卖热茶，孩子们追着一只黄色的气球跑。"
    "回家的路上下起了小雨，我们在书店门口等了一会儿，老板给了我们两把旧伞。"
)
THAI = "เช้านี้ฝนตกเบาๆเราเดินไปตลาดเพื่อซื้อผลไม้และกลับมาทำอาหารกินกันที่บ้าน"
KHMER = "ថ្ងៃនេះយើងដើរទៅផ្សារដើម្បីទិញផ្លែឈើហើយត្រឡប់មកផ្ទះវិញ"
HINDI = "आज सुबह हल्की बारिश हुई और हम बाज़ार से फल लेकर पैदल घर लौटे।"
TAMIL = "இன்று காலை லேசான மழை பெய்தது, நாங்கள் சந்தைக்கு நடந்து சென்றோம்."
ARABIC = "خرجنا صباح اليوم إلى السوق \u200fواشترينا الفاكهة ثم عدنا إلى البيت مشيا على الأقدام."
PERSIAN = "می\u200cخواهم کتاب\u200cهای تازه را بخوانم و به خانه بروم."
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
WALES = "\U0001f3f4\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f"


def signals(text: str, *names: str) -> list[float]:
    columns = measure_texts(pa.array([text], pa.large_string()))
    return [round(float(columns[name][0]), 3) for name in names]


def null(text: str, *names: str) -> list[bool]:
    columns = measure_texts(pa.array([text], pa.large_string()))
    return [bool(columns[name][0] != columns[name][0]) for name in names]


def test_a_base64_word_of_ten_megabytes_is_one_long_run() -> None:
    text = base64.b64encode(random.Random(0).randbytes(7_500_000)).decode()
    assert signals(text, "longest_run", "words", "dup_line_share") == [10_000_000, 1, 0]


@pytest.mark.parametrize("char", ["a", "^", "\U0001f600"])
def test_one_character_many_times_is_one_character_run(char: str) -> None:
    assert signals(char * 250_000, "longest_char_run", "char_run_share") == [250_000, 1.0]


def test_a_short_definition_is_no_garbage() -> None:
    text = "Tide: the regular rise and fall of the sea."
    assert signals(text, "letter_share", "symbol_word_share", "char_run_share", "dup_line_share") == [
        0.943,
        0,
        0,
        0,
    ]
    assert (
        null(text, "distinct_word_ratio", "top_2gram_chars", "dup_5gram_chars", "letter_entropy")
        == [True] * 4
    )


def test_one_sentence_many_times_is_repeated_n_grams_and_no_repeated_line() -> None:
    text = "Accept all cookies to continue. " * 60
    # The first copy is not counted; the top 4-gram is "all cookies to continue.", 21 of 27 characters.
    assert signals(text, "dup_5gram_chars", "dup_10gram_chars", "top_4gram_chars", "dup_line_share") == [
        0.983, 0.983, 0.778, 0,
    ]  # fmt: skip


def test_menu_lines_are_repeated_lines() -> None:
    text = "\n".join(["Home", "Products", "About us", "Contact", "Home", "Login", "Cart (0)"] * 12)
    assert signals(text, "dup_line_share", "dup_line_chars") == [0.929, 0.924]


def test_a_song_has_many_repeated_lines_but_many_distinct_words() -> None:
    assert signals(SONG, "dup_line_share", "dup_5gram_chars", "distinct_word_ratio") == [0.556, 0.386, 0.427]


def test_code_has_many_repeated_lines_of_few_characters() -> None:
    assert signals(CODE, "dup_line_share", "dup_line_chars", "template_line_share") == [0.554, 0.211, 0.962]


def test_numbered_clauses_are_templates_and_repeated_n_grams() -> None:
    text = "\n".join(
        f"{i}. The parties agree that clause {i} of the schedule shall apply to the supply of goods."
        for i in range(1, 30)
    )
    assert signals(text, "dup_line_share", "template_line_share", "dup_5gram_chars") == [0.0, 0.966, 0.906]


def test_rulers_are_runs_of_one_character_among_words() -> None:
    text = (
        "Chapter One\n"
        + "-" * 80
        + "\nThe lamp had been lit before anyone came down to the kitchen, and the cat had "
        "taken the warm chair by the stove.\n" + "=" * 80
    )
    assert signals(text, "longest_char_run", "char_run_share", "letter_share", "alpha_word_share") == [
        80, 0.615, 0.377, 0.926,
    ]  # fmt: skip


@pytest.mark.parametrize("text", [CHINESE, THAI, KHMER, HINDI, TAMIL, ARABIC, PERSIAN])
def test_prose_of_any_script_is_letters(text: str) -> None:
    letters, stacks, hidden, run = signals(
        text, "letter_share", "mark_stack_share", "invisible_chars", "longest_char_run"
    )
    assert letters > 0.88
    assert [stacks, hidden] == [0, 0]
    assert run <= 2


def test_each_chinese_character_is_a_word() -> None:
    names = ("words", "longest_word", "mean_word_chars", "longest_run", "sentences", "alpha_word_share")
    assert signals(CHINESE, *names) == [
        72, 2, 1.097, 1, 3, 1.0,
    ]  # fmt: skip


def test_repeated_chinese_is_repeated() -> None:
    assert signals("我们沿着河边走了很久。" * 20, "dup_5gram_chars", "dup_10gram_chars") == [0.95, 0.95]


@pytest.mark.parametrize("text", [THAI, KHMER])
def test_measures_of_words_do_not_speak_for_scripts_without_spaces(text: str) -> None:
    names = (
        "mean_word_chars",
        "longest_word",
        "alpha_word_share",
        "distinct_word_ratio",
        "dup_5gram_chars",
        "terminal_lines",
    )
    assert null(text, *names) == [True] * 6
    assert signals(text, "script_spaceless", "longest_run") == [1.0, 0]


def test_amharic_words_are_cut_at_the_wordspace() -> None:
    assert signals("ትምህርት፡ለእያንዳንዱ፡ሰው፡ሁኔታ።", "words", "longest_word", "terminal_lines") == [4, 7, 1]


def test_thai_without_end_is_no_long_run() -> None:
    assert signals(THAI * 100, "longest_run") == [0]


def test_emoji_families_and_flags_hide_nothing() -> None:
    text = f"Picnic today {FAMILY} by the lake {WALES}, bring bread and the blue blanket \u2764\ufe0f."
    assert signals(text, "invisible_chars", "tag_chars") == [0, 0]


def test_a_lone_joiner_shows_nothing() -> None:
    assert signals("\u200d", "visible_chars", "invisible_chars", "words") == [0, 1, 1]
    assert signals("\u200d\u200d\ufe0f a", "visible_chars", "invisible_chars") == [1, 3]
    assert signals(WALES, "visible_chars") == [1]


def test_stacked_marks_are_marks_past_the_fourth_on_a_letter() -> None:
    text = " ".join(
        "".join(ch + "\u0301\u0316\u0334" * 12 for ch in w) for w in "the door is not a door".split()
    )
    assert signals(text, "mark_stack_share", "letter_share") == [round(32 / 37, 3), 1.0]


def test_direction_overrides_are_counted_and_marks_of_ordinary_arabic_are_not() -> None:
    code = 'if access_level != "user\u202e \u2066// admin only\u2069 \u2066" {'
    assert signals(code, "bidi_overrides", "bidi_controls") == [1, 4]
    assert signals("Access GRANTED \u202eDENIED \u0645", "bidi_overrides") == [1]
    assert signals(ARABIC, "bidi_overrides", "bidi_controls") == [0, 0]


def test_a_payload_in_tag_characters_is_counted() -> None:
    payload = "".join(chr(0xE0000 + ord(ch)) for ch in "hidden words here")
    assert signals(f"A recipe for barley soup.{payload} Stir well.", "tag_chars", "invisible_chars") == [
        17,
        17,
    ]


def test_lost_bytes_are_a_share() -> None:
    bad = "\ufffd" * 200 + " some text " + "\ufffd" * 50
    good = "The café menu lost one letter: cr\ufffdme br\u00fbl\u00e9e, but the rest of this long sentence is intact."
    assert signals(bad, "replacement_chars", "replacement_share", "letter_share") == [250, 0.969, 0.031]
    assert signals(good, "replacement_chars", "replacement_share") == [1, 0.014]


def test_nul_is_one_control_character() -> None:
    assert signals("before\x00after, and then", "control_chars", "chars", "words") == [1, 22, 3]


def test_lines_that_end_in_crlf_equal_those_that_end_in_lf() -> None:
    text = "same line\r\nsame line\nsame line\r\n"
    assert signals(text, "lines", "dup_line_share", "longest_line") == [3, 0.667, 9]


def test_blank_lines_are_no_lines() -> None:
    text = "one here\n\n\ntwo there\n\n \nthree\n\n"
    assert signals(text, "lines", "paragraphs", "dup_line_share", "dup_para_share") == [3, 3, 0, 0]


def test_words_joined_without_a_space_are_told_apart() -> None:
    assert signals(
        "ab c a bc " + " ".join(f"w{k}" for k in range(20)), "top_2gram_chars", "distinct_word_ratio"
    ) == [0, 1]


def test_a_few_distinct_words_are_not_repetitive() -> None:
    text = " ".join(f"word{k}" for k in range(24))
    assert signals(text, "top_2gram_chars", "top_3gram_chars", "top_4gram_chars", "dup_5gram_chars") == [
        0,
        0,
        0,
        0,
    ]


def test_eight_equal_words_and_more_never_exceed_one() -> None:
    assert signals("spam " * 200, "top_2gram_chars", "top_4gram_chars", "dup_5gram_chars") == [
        1.0,
        1.0,
        0.995,
    ]


def test_russian_words_are_measured_in_characters() -> None:
    assert signals("Сегодня утром прошёл небольшой дождь", "mean_word_chars", "longest_word") == [6.4, 9]


def test_special_tokens_in_the_text_are_counted() -> None:
    text = (
        "In this chapter we explain why the marker <|endoftext|> separates documents, and what </s> and [MASK] do in "
        "other vocabularies."
    )
    assert signals(text, "special_token_text") == [3]
    assert signals("if a <b> c [PADX] <|x y|> <||> </sup> [MASK", "special_token_text") == [0]


def test_a_hex_dump_has_few_letters() -> None:
    r = random.Random(4)
    text = "\n".join(
        f"{i * 16:08x}  " + " ".join(f"{r.randrange(256):02x}" for _ in range(16)) for i in range(80)
    )
    assert signals(text, "letter_share", "dup_line_share", "mean_word_chars") == [0.303, 0.0, 2.353]


def test_minified_code_is_one_long_line() -> None:
    body = "".join(f"var {chr(97 + i % 26)}{i}=function(n){{return n*{i}+t[{i}]}};" for i in range(200))
    text = "!function(e,t){" + body + "}(window,[]);"
    assert signals(text, "lines", "curly_braces", "mean_word_chars") == [1, 201, 19.197]
    assert signals(text, "longest_line", "chars")[0] == len(text)


def test_dna_uses_four_letters() -> None:
    r = random.Random(6)
    text = ">sample_1 synthetic\n" + "\n".join(
        "".join(r.choice("ACGT") for _ in range(60)) for _ in range(60)
    )
    entropy, letters = signals(text, "letter_entropy", "distinct_letters")
    assert entropy < 2.1
    assert letters == 13
    assert signals(CHINESE, "letter_entropy")[0] > 5


def test_latex_is_mostly_letters() -> None:
    text = (
        r"Let $f(x)=\sum_{n\ge 0} a_n x^n$ converge for $|x|<R$. Then "
        + r"\begin{align} \nabla\cdot E &= \rho/\varepsilon_0 \\ \nabla\times B &= \mu_0 J \end{align} " * 2
        + "and the claim follows by comparing terms of equal degree."
    )
    assert signals(text, "letter_share")[0] > 0.7
    assert signals(text, "symbol_word_share")[0] < 0.25


def test_a_service_log_is_one_template_and_no_repeated_line() -> None:
    r = random.Random(7)
    text = "\n".join(
        f"2031-04-0{i % 9 + 1}T08:{i % 60:02d}:11Z INFO worker-{i % 4} heartbeat ok latency_ms={r.randint(3, 99)}"
        for i in range(120)
    )
    template, same = signals(text, "template_line_share", "dup_line_share")
    assert template > 0.98
    assert same < 0.1


def test_failed_character_recognition_is_words_without_letters() -> None:
    r = random.Random(8)
    text = " ".join(
        "".join(r.choice("il1|/\\.,;'`~^_-()") for _ in range(r.randint(1, 7))) for _ in range(400)
    )
    share, letters = signals(text, "symbol_word_share", "letter_share")
    assert share > 0.45
    assert letters < 0.13


def test_a_page_for_c4() -> None:
    text = (
        "This line has five good words.\nThis one ends without a mark\nToo short.\n"
        "We would like to enable JavaScript today.\nRead our Privacy Policy before you go on.\n"
        "This sentence trails off and away...\nLorem ipsum dolor sit amet it is.\n"
        'He said: "That is quite enough now."\n'
    )
    assert signals(text, "c4_sentences", "javascript_lines", "policy_lines", "lorem_ipsum", "terminal_lines") == [
        3, 1, 1, 1, 0.875,
    ]  # fmt: skip
    assert signals(text, "c4_line_chars")[0] == round((30 + 33 + 36) / 255, 3)


@pytest.mark.parametrize(
    ("line", "bullet"),
    [("- item", 1), ("* item", 1), ("+ item", 1), ("• item", 1), ("•item", 1), ("-5 degrees", 0),
     ("**bold** text", 0), ("-----", 0),
     ("– said he", 0), ("· item", 1)],
)  # fmt: skip
def test_list_marks(line: str, bullet: float) -> None:
    assert signals(line, "bullet_lines") == [bullet]


@pytest.mark.parametrize(
    ("line", "ends"),
    [("Done.", 1), ("Done?", 1), ("Done!”", 1), ('Done."', 1), ("(Done.)", 1), ("Done", 0), ("Done:", 0), ("Done,", 0),
     ("完了。", 1), ("完了", 0), ("हो गया।", 1), ("تم؟", 1), ("Ավարտ։", 1), ("Wait…", 1), ("Wait...", 1), ("3.5", 0)],
)  # fmt: skip
def test_lines_end_in_marks_of_any_script(line: str, ends: float) -> None:
    assert signals(line, "terminal_lines") == [ends]


def test_sentences_end_before_white_space_or_with_a_wide_mark() -> None:
    text = "It is 3.5 m. See example.org! “Really?” 好。好！好… No end"
    assert signals(text, "sentences") == [6]
