"""UTF-8 read as another encoding is found; healthy text of any language is not taken for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanfeed.signals.mojibake import MOJIBAKE_COUNTS, scan_mojibake

HEALTHY = {
    "German": "„Der Spaß“, sagte Frau Müller über den Fluß. MENÜ“ – Größere Körbe stehen vor der Tür…",
    "French": "L’été dernier, «\xa0où étais-tu\xa0?\xa0» «\xa0l’été\xa0» l’été…” — À côté, le CAFÉ» français, cœur",
    "Portuguese": "NÃO É A MANHÃ. “AMANHÃ” MAÇÃ… A MAÇÔ não. São 20\xa0°C, à “noite”",
    "Sami": "Juohke olbmos lea vuoigatvuohta eallimii, ášši, mášši ja dášše",
    "Russian": "Привет, как дела? Сегодня хорошая погода. Сёмга, Рёбра, «Сёстры», С… и Р»",
    "Ukrainian": "Січень у Марії з академії, Рік, Сіль, Сєверодонецьк, її лінії",
    "Serbian": "Ђорђе и Љубица, Џеп, Њива, ћевап",
    "Chinese": "今天下午我们沿着河边走了很久，风有一点凉。",
    "Hindi": "आज सुबह हल्की बारिश हुई और हम पैदल घर लौटे।",
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng",
    "emoji": "Picnic today 😀 by the lake",
    "one character": "Ã",
    "lost bytes": "cr\ufffdme br\u00fbl\u00e9e \ufffd\ufffd",
}


def measured(text):
    data = np.frombuffer(text.encode(), np.uint8)
    listed, out = np.zeros((5000, 3), np.int64), np.empty((1, len(MOJIBAKE_COUNTS)))
    found = scan_mojibake(data, np.array([0, len(data)]), np.array([len(text)]), listed, out)
    return int(out[0, 0]), [data[start:stop].tobytes().decode() for _, start, stop in listed[:found]]


@pytest.mark.parametrize("language", HEALTHY)
def test_healthy_text_has_none(language):
    assert measured(HEALTHY[language] * 3) == (0, [])


@pytest.mark.parametrize(
    ("text", "encoding", "broken"),
    [
        ("Müller grüßt", "cp1252", ["Ã¼", "Ã¼ÃŸ"]),
        ("Müller grüßt", "latin-1", ["Ã¼", "Ã¼Ã\x9f"]),
        ("Ämter, Öl, É, Í", "cp1252", ["Ã„", "Ã–", "Ã‰", "Ã\ufffd"]),
        ("it’s “so” — 20 °C", "cp1252", ["â€™", "â€œ", "â€\ufffd", "â€”", "Â°"]),
        ("it’s “so” — yes", "cp1251", ["вЂ™", "вЂњ", "вЂќ", "вЂ”"]),
        ("Привет, мир", "cp1251", ["РџСЂРёРІРµС‚", "РјРёСЂ"]),
        ("Привет, мир", "cp1252", ["ÐŸÑ€Ð¸Ð²ÐµÑ‚", "Ð¼Ð¸Ñ€"]),
        ("Рік", "cp1251", ["Р\xa0С–Рє"]),
        ("今天", "latin-1", ["ä»\x8aå¤©"]),
        ("hi 😀", "cp1252", ["ðŸ˜€"]),
        ("ü".encode().decode("cp1252"), "cp1252", ["ÃƒÂ¼"]),
        ("FLÜSSE", "cp1252", ["Ãœ"]),
    ],
)
def test_broken_characters_are_found(text, encoding, broken):
    mangled = text.encode().decode(encoding, "replace")
    assert measured(mangled) == (sum(map(len, broken)), broken)


def test_the_share_of_a_broken_page_is_large_in_every_encoding():
    for language, encoding in (
        ("Russian", "cp1251"),
        ("Chinese", "latin-1"),
        ("Hindi", "cp1252"),
        ("Ukrainian", "cp1252"),
    ):
        mangled = HEALTHY[language].encode().decode(encoding, "replace")
        assert measured(mangled)[0] / len(mangled) > 0.7


@pytest.mark.parametrize("text", ["Ã", "Ã\xa4"[:1], "aâ€", "Ð", "â", "ð\x9f", "Р", "вЂ", "é\xa0", "Ð\x9fÑ"])
def test_a_sequence_cut_off_by_the_end_is_no_error(text):
    assert measured(text)[0] in (0, 2)


@settings(max_examples=300)
@given(st.text(alphabet="ÃÂâÐÑéРСв¼©€™“”\x9f\xa0°…äß\ufffd今😀a ", max_size=40))
def test_found_pieces_are_in_the_text_and_add_up(text):
    count, pieces = measured(text)
    assert count == sum(map(len, pieces)) <= len(text)
    place = 0
    for piece in pieces:
        place = text.index(piece, place) + len(piece)


@settings(max_examples=200)
@given(
    st.text(alphabet="абвгдежзиклмнопрстуфхцчшщэюя", min_size=3, max_size=30),
    st.sampled_from(["cp1251", "latin-1"]),
)
def test_every_broken_russian_word_is_found_whole(word, encoding):
    mangled = word.encode().decode(encoding, "replace")
    assert measured(f"a {mangled} b") == (len(mangled), [mangled])


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_ascii_has_none(text):
    assert measured(text) == (0, [])
