"""Encoded data is found to the character; words, names, paths and sequences are not taken for it."""

from __future__ import annotations

import base64
import hashlib
import random
import uuid
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cleanfeed.signals.blobs import BASE64, BLOB_COUNTS, DATA_URI, DUMP, HEX, IDENTITY, OTHER, scan_blobs

RNG = random.Random(11)
RAW = RNG.randbytes(900)
PLAIN = base64.b64encode(RAW).decode()
PROSE = "The cat had taken the warm chair by the stove, and nobody spoke of the letter. "


def measured(text):
    data = np.frombuffer(text.encode(), np.uint8)
    listed, out = np.zeros((2000, 3), np.int64), np.empty((1, len(BLOB_COUNTS)))
    found = scan_blobs(data, np.array([0, len(data)]), listed, out)
    return out[0].astype(int).tolist(), [tuple(row) for row in listed[:found].tolist()]


def dump(form, rows=80):
    lines = []
    for i in range(rows):
        row = RNG.randbytes(16)
        shown = "".join(chr(33 + byte % 90) for byte in row)
        single = " ".join(f"{byte:02x}" for byte in row)
        double = " ".join(row[k : k + 2].hex() for k in range(0, 16, 2))
        lines.append(
            {
                "plain": f"{i * 16:08x}  {single}",
                "canonical": f"{i * 16:08x}  {single[:23]}  {single[24:]}  |{shown}|",
                "xxd": f"{i * 16:08x}: {double}  {shown}",
                "od": f"{i * 16:07x} {double}",
                "bare": single.upper(),
            }[form]
        )
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (PLAIN, BASE64),
        (base64.urlsafe_b64encode(RAW).decode(), BASE64),
        (base64.encodebytes(RAW).decode().rstrip("\n"), BASE64),
        (base64.encodebytes(RAW).decode().rstrip("\n").replace("\n", "\r\n"), BASE64),
        (base64.encodebytes(RAW).decode().rstrip("\n").replace("\n", "\n    "), BASE64),
        (PLAIN[:64] + "\n" + PLAIN[64:128] + "\n" + PLAIN[128:135] + "=", BASE64),
        (PLAIN[:40], BASE64),
        (RAW.hex(), HEX),
        (RAW.hex().upper(), HEX),
        ("0x" + RAW[:60].hex(), HEX),
        ("\n".join(RAW[k : k + 30].hex() for k in range(0, 900, 30)), HEX),
        ("data:image/png;base64," + PLAIN, DATA_URI),
        ("data:;base64," + PLAIN[:24], DATA_URI),
        ("550e8400-e29b-41d4-a716-446655440000", IDENTITY),
        (hashlib.md5(b"x").hexdigest(), IDENTITY),
        (hashlib.sha1(b"x").hexdigest(), IDENTITY),
        (hashlib.sha256(b"x").hexdigest(), IDENTITY),
        ("\n".join(hashlib.sha256(bytes([k])).hexdigest() for k in range(20)), IDENTITY),
        (base64.b32encode(RAW).decode().rstrip("="), OTHER),
        ("".join(RNG.choice("0123456789abcdefghijklmnopqrstuvwxyz") for _ in range(300)), OTHER),
        ("".join(RNG.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(300)), OTHER),
        (dump("plain"), DUMP),
        (dump("bare"), DUMP),
    ],
)
@pytest.mark.parametrize("around", [("", ""), (PROSE, "\n\n" + PROSE), ("Größe 今天 '", "' nach dem Essen.")])
def test_a_blob_is_one_piece_of_its_kind(text, kind, around):
    counts, listed = measured(around[0] + text + around[1])
    start = len(around[0].encode())
    assert listed == [(kind, start, start + len(text))]
    assert counts == [len(text), *(len(text) * (k == kind) for k in range(1, 7))]


@pytest.mark.parametrize(("form", "share"), [("canonical", 0.7), ("xxd", 0.55), ("od", 1.0)])
def test_rows_of_a_dump_with_other_columns_are_found_row_by_row(form, share):
    text = dump(form)
    counts, _ = measured(text)
    assert counts[DUMP] / len(text) == pytest.approx(share, abs=0.05)
    assert sum(counts[1:]) == counts[DUMP]


def test_numbers_without_letters_are_a_dump_only_beside_one():
    zeros = "\n".join(f"{i * 16:08x}  " + " ".join(["00"] * 16) + "  |................|" for i in range(4))
    table = "\n".join(" ".join(str(RNG.randrange(10, 99)) for _ in range(10)) for _ in range(40))
    assert measured(zeros)[0] == measured(table)[0] == [0] * 7
    assert measured(dump("canonical", 4) + "\n" + zeros)[0][DUMP] == 4 * 58 + 4 * 57


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        PROSE,
        "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
        "Rindfleischetikettierungsueberwachungsaufgabenuebertragungsgesetzesentwurfsvorlagen",
        "AbstractSingletonProxyFactoryBeanTestCaseDelegateImplForHTTPServer3",
        "thisIsAnExampleOfATestNameThatIsVeryLongAndHas2Digits",
        "_ZN5boost6python6detail17caller_arityILj1EE4implclEP7_objectS5_",
        "this_is_a_very_long_snake_case_identifier_name_with_many_parts_v2",
        "THIS_IS_A_CONSTANT_NAME_THAT_IS_LONG_AND_SHOUTS_2",
        "https://example.com/en/news/2019/some-long-title-here-2019-05/And-A-Title-In-Capitals/index.html",
        "/usr/local/lib/python3/dist-packages/NumPy/core/tests/TestMultiArray",
        "\n".join("".join(RNG.choice("ACGT") for _ in range(60)) for _ in range(60)),
        "".join(RNG.choice("ACGT") for _ in range(6000)),
        "\n".join("".join(RNG.choice("ACDEFGHIKLMNPQRSTVWY") for _ in range(60)) for _ in range(60)),
        "".join(RNG.choice("0123456789") for _ in range(6000)),
        "1\n22\n333\n4444\n" * 2000,
        "a" * 100_000,
        "-" * 500 + "\n" + "=" * 500 + "\n" + "_" * 500,
        "今天下午我们沿着河边走了很久" * 40,
        "เช้านี้ฝนตกเบาๆเราเดินไปตลาดเพื่อซื้อผลไม้" * 20,
        "be a bad fed cab add dad ace bee fee dab ebb fad " * 20,
        "-----BEGIN CERTIFICATE-----",
    ],
)
def test_ordinary_long_words_are_no_blobs(text):
    assert measured(text) == ([0] * 7, [])


@pytest.mark.parametrize("seed", range(60))
def test_random_bytes_are_found_in_base64_of_any_length(seed):
    rng = random.Random(seed)
    text = base64.b64encode(rng.randbytes(rng.randrange(40, 400))).decode()
    assert measured(PROSE + text + " " + PROSE)[1] == [(BASE64, len(PROSE), len(PROSE) + len(text))]


def test_each_part_of_a_signed_token_is_a_blob():
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    body = base64.urlsafe_b64encode(RAW[:48]).decode()
    token = f"{head}.{body}.{base64.urlsafe_b64encode(RAW[50:82]).decode().rstrip('=')}"
    assert measured(token)[0][BASE64] == len(token) - 2


def test_a_list_of_ids_is_counted_line_by_line():
    lines = [str(uuid.UUID(int=RNG.getrandbits(128))) for _ in range(30)]
    counts, listed = measured("\n".join(lines))
    assert counts == [36, 0, 0, 0, 0, 36 * 30, 0]
    assert len(listed) == 30


def test_blobs_beyond_the_list_are_still_counted():
    data = np.frombuffer(("\n\n".join([PLAIN[:100]] * 5)).encode(), np.uint8)
    out, listed = np.empty((1, 7)), np.zeros((2, 3), np.int64)
    assert scan_blobs(data, np.array([0, len(data)]), listed, out) == 2
    assert out[0, BASE64] == 500


PIECES = st.sampled_from(
    [
        PLAIN[:50],
        PLAIN[100:176],
        RAW[:20].hex(),
        "2f 3a ",
        "00 ",
        "0010: ",
        "data:",
        ";base64,",
        "word ",
        "\n",
        "=",
        "é",
    ]
)


@settings(max_examples=300)
@example(["data:", "\x80", ";base64,", "bSXPc0xJod0nPk2Pq19b240QmewF6P3Hwdc0d3ZIq3O94gGCUE"])
@given(st.lists(PIECES | st.text(max_size=5), max_size=40))
def test_pieces_are_apart_ascii_and_add_up(parts):
    text = "".join(parts).encode("utf-8", "ignore").decode()
    data = text.encode()
    counts, listed = measured(text)
    assert all(a[2] <= b[1] for a, b in pairwise(listed))
    for kind, start, stop in listed:
        assert 0 <= start < stop <= len(data)
        assert data[start:stop].isascii()
        assert 1 <= kind <= 6
    for kind in (BASE64, HEX, DATA_URI, IDENTITY, OTHER):
        assert counts[kind] == sum(stop - start for k, start, stop in listed if k == kind)
    assert counts[DUMP] >= sum(stop - start for k, start, stop in listed if k == DUMP)
    assert counts[0] == max((stop - start for _, start, stop in listed), default=0)
    assert sum(counts[1:]) <= len(text)
