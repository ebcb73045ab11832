"""Inputs that broke other pipelines go through a whole build, all at once, and each has the outcome it should have."""

import base64
import bz2
import gzip
import itertools
import lzma
import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from cleanfeed.build.verify import verify

from .conftest import TOKENIZER, Build, prose, write_jsonl

REFRAIN = (
    "Row, little lantern, row\nRow, little lantern, row\n"
    "Over the dark and the cold below\nRow, little lantern, row\n"
)
SONG = (
    "Paper boat, paper boat, carry me slow\nDown where the copper-brown reeds like to grow\n" + REFRAIN
    + "Candle and kettle are left on the shore\nNobody waiting to bolt up the door\n" + REFRAIN
    + "Rain on the rudder and salt on the oar\nMorning will find what the evening swore\n" + REFRAIN
)  # fmt: skip
POEM = "\n".join(
    ["The tide forgets the names we wrote in sand", "A heron lifts and does not look behind",
     "We count the boats that never came to land", "The tide forgets the names we wrote in sand",
     "My father mended nets with one good hand", "We count the boats that never came to land"]
)  # fmt: skip
CODE = "\n".join(
    f"static int f{i}(int a)\n{{\n    if (a > {i}) {{\n        return a;\n    }}\n    return {i};\n}}\n"
    for i in range(25)
)
GERMAN = (
    "Der Müller grüßt die schöne Köchin über den Fluß. Später trinken sie Kaffee und hören Musik. Im März blühen "
    "die Bäume früh, und die Mädchen pflücken Äpfel vom Vorjahr aus dem kühlen Keller. Größere Körbe stehen davor."
)
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
SCOTLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
DICE = random.Random(11)


def book() -> str:
    """Return 3 MB of sentences of words whose frequencies fall off as those of real words do."""
    dice = random.Random(2)
    parts = ["ba", "lo", "mi", "ren", "tas", "ko", "vel", "shu", "dar", "in", "e", "ost"]
    words = ["".join(dice.choice(parts) for _ in range(dice.randint(1, 4))) for _ in range(6000)]
    weights = list(itertools.accumulate(1 / (k + 3) for k in range(6000)))
    return " ".join(
        " ".join(dice.choices(words, cum_weights=weights, k=dice.randint(6, 18))).capitalize() + "."
        for _ in range(40_000)
    )


KEPT, FLAGGED, REJECTED = ("keep",), ("keep", "flag"), ("reject",)

TEXTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    # name: text, verdicts allowed, rule that must be among the reasons
    "A05 NUL": (prose(1) + " before\x00after " + prose(2), KEPT, ""),
    "A11 separators": (prose(3) + "\u2028" + prose(4) + "\u0085" + prose(5), FLAGGED, ""),
    "C11 empty": ("", REJECTED, "empty"),
    "C11 blank": ("   \n\t ", REJECTED, "empty"),
    "C11 wide blank": ("\u00a0\u3000\u00a0", REJECTED, "empty"),
    "C11 lines": ("\n\n\n", REJECTED, "empty"),
    "C12 invisible": ("\u200b\u2060\ufeff" * 50, REJECTED, "empty"),
    "C12 soft hyphens": ("\u00ad" * 30, REJECTED, "empty"),
    "C12 marks of direction": ("\u200e\u200f", REJECTED, "empty"),
    "C13 a letter": ("a", FLAGGED, "too_short"),
    "C13 two words": ("two words", FLAGGED, "too_short"),
    "C13 a digit": ("1", FLAGGED, "too_short"),
    "F01 a word of base64": (base64.b64encode(DICE.randbytes(750_000)).decode(), REJECTED, "long_token"),
    "F03 letter": ("a" * 1_000_000, REJECTED, "char_run"),
    "F03 sign": ("^" * 1_000_000, REJECTED, "char_run"),
    "F03 emoji": ("\U0001f600" * 250_000, REJECTED, "char_run"),
    "F05 book": (book(), ("flag",), "long_document"),
    "F06 definition": ("Tide: the regular rise and fall of the sea.", KEPT, ""),
    "F06 haiku": (
        "Old pier at low tide\na crab signs its name in mud\nthe gulls correct it", KEPT, "",
    ),
    "G01 abc": ("abc" * 5000, REJECTED, "periodic"),
    "G01 signs": ("=-" * 4000, REJECTED, "periodic"),
    "G01 ha": ("ha" * 3000, REJECTED, "periodic"),
    "G03 sentence": ("Accept all cookies to continue. " * 60, REJECTED, "repeated_ngrams"),
    "G04 menu": (
        "\n".join(["Home", "Products", "About us", "Contact", "Home", "Login", "Cart (0)"] * 12),
        REJECTED, "repeated_lines",
    ),
    "G05 song": (SONG, FLAGGED, ""),
    "G06 poem": (POEM, KEPT, ""),
    "G07 code": (CODE, FLAGGED, ""),
    "G09 clauses": (
        "\n".join(
            f"{i}. The parties agree that clause {i} of the schedule shall apply to the supply of goods."
            for i in range(1, 30)
        ),
        ("flag",), "repeated_ngrams",
    ),
    "G11 rulers": (
        "Chapter One\n" + "-" * 80 + "\nThe lamp had been lit before anyone came down to the kitchen, and the cat "
        "had taken the warm chair by the stove.\n" + "=" * 80, FLAGGED, "",
    ),
    "H01 Chinese": (
        "今天下午我们沿着河边走了很久，风有一点凉。桥上有人在卖热茶，孩子们追着一只黄色的气球跑。"
        "回家的路上下起了小雨，我们在书店门口等了一会儿，老板给了我们两把旧伞。", KEPT, "",
    ),
    "H02 Thai": ("เช้านี้ฝนตกเบาๆเราเดินไปตลาดเพื่อซื้อผลไม้และกลับมาทำอาหารกินกันที่บ้าน", KEPT, ""),
    "H02 Khmer": ("ថ្ងៃនេះយើងដើរទៅផ្សារដើម្បីទិញផ្លែឈើហើយត្រឡប់មកផ្ទះវិញ", KEPT, ""),
    "H03 Hindi": ("आज सुबह हल्की बारिश हुई और हम बाज़ार से फल लेकर पैदल घर लौटे।", KEPT, ""),
    "H03 Tamil": ("இன்று காலை லேசான மழை பெய்தது, நாங்கள் சந்தைக்கு நடந்து சென்றோம்.", KEPT, ""),
    "H05 family": (f"Picnic today {FAMILY} by the lake, bring bread and the blue blanket.", KEPT, ""),
    "H05 joiner": ("\u200d", REJECTED, "empty"),
    "H05 joiners and a letter": ("\u200d\u200d\ufe0f a", FLAGGED, "too_short"),
    "H05 flag": (SCOTLAND, FLAGGED, "too_short"),
    "H07 marks": (
        " ".join("".join(ch + "\u0301\u0316\u0334" * 12 for ch in w) for w in "the door is not a door".split()),
        REJECTED, "mark_run",
    ),
    "H08 override in code": (
        'if access_level != "user\u202e \u2066// admin only\u2069 \u2066" { return true; }', ("flag",), "bidi_override",
    ),
    "H08 Arabic": (
        "خرجنا صباح اليوم إلى السوق \u200fواشترينا الفاكهة ثم عدنا إلى البيت مشيا على الأقدام.", KEPT, "",
    ),
    "H09 payload": (
        "A recipe for barley soup." + "".join(chr(0xE0000 + ord(ch)) for ch in "hidden words here") + " Stir well.",
        ("flag",), "invisible_payload",
    ),
    "H10 mojibake": (GERMAN.encode().decode("cp1252", "replace"), ("flag",), "mojibake"),
    "H12 lost": ("\ufffd" * 200 + " some text " + "\ufffd" * 50, REJECTED, "replacement_chars"),
    "H12 one lost letter": (
        "The café menu lost one letter: cr\ufffdme br\u00fbl\u00e9e, but the rest of this long sentence is intact and "
        "readable.", KEPT, "",
    ),
    "I01 glitch token": (prose(6) + " The word was SolidGoldMagikarp. " + prose(7), KEPT, ""),
    "I03 special tokens": (
        "In this chapter we explain why the marker <|endoftext|> separates documents, and what </s> and [MASK] do in "
        "other vocabularies.", ("flag",), "special_token_text",
    ),
    "I07 hex dump": (
        "\n".join(
            f"{i * 16:08x}  " + " ".join(f"{DICE.randrange(256):02x}" for _ in range(16)) for i in range(80)
        ),
        REJECTED, "hex_dump",
    ),
    "I09 minified": (
        "!function(e,t){" + "".join(
            f"var {chr(97 + i % 26)}{i}=function(n){{return n*{i}+t[{i}]}};" for i in range(200)
        ) + "}(window,[]);",
        REJECTED, "long_line",
    ),
    "I10 DNA": (
        ">sample_1 synthetic\n" + "\n".join("".join(DICE.choice("ACGT") for _ in range(60)) for _ in range(60)),
        ("flag", "reject"), "small_alphabet",
    ),
    "I11 LaTeX": (
        r"Let $f(x)=\sum_{n\ge 0} a_n x^n$ converge for $|x|<R$. Then " + r"\begin{align} \nabla\cdot E &= "
        r"\rho/\varepsilon_0 \\ \nabla\times B &= \mu_0 J \end{align} " * 2
        + "and the claim follows by comparing terms of equal degree.", FLAGGED, "",
    ),
    "I12 log": (
        "\n".join(
            f"2031-04-0{i % 9 + 1}T08:{i % 60:02d}:11Z INFO worker-{i % 4} heartbeat ok "
            f"latency_ms={DICE.randint(3, 99)}"
            for i in range(120)
        ),
        ("flag",), "template_lines",
    ),
    "I13 failed recognition": (
        " ".join(
            "".join(DICE.choice("il1|/\\.,;'`~^_-()") for _ in range(DICE.randint(1, 7))) for _ in range(400)
        ),
        REJECTED, "symbol_words",
    ),
    "J01 letters and a mark": ("a" * 99_999 + "!", REJECTED, "char_run"),
    "J01 dots": ("." * 100_000 + "a", REJECTED, "char_run"),
    "J01 link": ("<a href='" + "x" * 100_000, REJECTED, "char_run"),
    "J03 spaces": (" " * 200_000 + "x", REJECTED, "mostly_space"),
}  # fmt: skip


def rows(out: Path, pattern: str, columns: str, order: str = "ALL") -> list[tuple[Any, ...]]:
    with duckdb.connect() as store:
        query = f"SELECT {columns} FROM read_parquet(?) ORDER BY {order}"
        return store.execute(query, [str(out / pattern)]).fetchall()


@pytest.mark.parametrize("tokenizer", [None, TOKENIZER])
def test_texts_of_every_hard_kind_have_the_verdict_they_should_have(
    tmp_path: Path, run: Build, tokenizer: str | None
):
    source = write_jsonl(
        tmp_path / "in.jsonl", [{"id": name, "text": case[0]} for name, case in TEXTS.items()]
    )
    run(source, tokenizer=tokenizer, keep_text=True, sets=["duplicates.method=off"])
    out = tmp_path / "out"
    found = {
        name: (verdict, {reason["rule"] for reason in reasons})
        for name, verdict, reasons in rows(out, "signals/*.parquet", "doc_id, verdict, reasons")
    }
    assert {
        name: found[name]
        for name, (_, allowed, rule) in TEXTS.items()
        if found[name][0] not in allowed or (rule and rule not in found[name][1])
    } == {}
    # Whatever the verdict, the text is stored as it came; of a document in parts the parts are.
    texts: dict[str, str] = {}
    for name, text in [
        *rows(out, "curriculum/*/*.parquet", "doc_id, text", "doc_id, part"),
        *rows(out, "rejected/*.parquet", "doc_id, text"),
    ]:
        texts[name] = texts.get(name, "") + text
    changed = [name for name, (text, _, _) in TEXTS.items() if texts[name] != text]
    assert changed == []
    verify(str(out))


GOOD = b'{"id":"%s","text":"A line that is well and says so at some length."}\n'
ROWS = b"".join(b'{"id":"r%d","text":"row %d of a file that is cut"}\n' % (n, n) for n in range(2000))
HALF = gzip.compress(ROWS)

FILES: dict[str, tuple[bytes, int, list[tuple[int, str]], str]] = {
    # name: bytes, documents, unreadable (line or row and reason), damage
    "a01.jsonl": (GOOD % b"a" + b'{"id":"b","text":"broken \xff\xfe here"}\n' + GOOD % b"c", 2, [(2, "bad_utf8")], ""),
    "a01-forms.jsonl": (
        # A lone continuation, an overlong slash, a surrogate in UTF-8, beyond U+10FFFF, a cut sequence.
        b"".join(
            b'{"text":"x %s y"}\n' % bad
            for bad in (b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82")
        ),
        0, [(n, "bad_utf8") for n in range(1, 6)], "",
    ),
    "a03.jsonl": (
        b'{"id":"s1","text":"half a pair \\ud83d then text"}\n{"text":"whole \\ud83d\\ude00 here"}\n', 2, [], "",
    ),
    "a05.jsonl": (b'{"id":"n","text":"before\\u0000after, and then a normal sentence follows"}\n', 1, [], ""),
    "a07.jsonl": (b"\xef\xbb\xbf" + GOOD % b"first" + GOOD % b"second", 2, [], ""),
    "a07-inside.jsonl": (GOOD % b"a" + b"\xef\xbb\xbf" + GOOD % b"b", 1, [(2, "bad_json")], ""),
    "a09.jsonl": ('{"text":"wide"}\n'.encode("utf-16"), 0, [], "utf16"),
    "a10.jsonl": ((GOOD % b"a" + GOOD % b"b").replace(b"\n", b"\r\n"), 2, [], ""),
    "a11.jsonl": ('{"text":"one\u2028two\u0085three\u2029four"}\n'.encode(), 1, [], ""),
    "b01.jsonl.gz": (HALF[: len(HALF) // 2], -1, [], "truncated"),
    "b01-4.jsonl.gz": (HALF[:-4], 2000, [], "truncated"),
    "b03.jsonl.gz": (gzip.compress(GOOD % b"a") + gzip.compress(GOOD % b"b" + GOOD % b"c"), 3, [], ""),
    "b03.jsonl.bz2": (bz2.compress(GOOD % b"a") + bz2.compress(GOOD % b"b"), 2, [], ""),
    "b03.jsonl.xz": (lzma.compress(GOOD % b"a") + lzma.compress(GOOD % b"b"), 2, [], ""),
    "b04.jsonl.zst": (
        zstandard.compress(GOOD % b"a") + b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip" + zstandard.compress(GOOD % b"b"),
        2, [], "",
    ),
    "b04-cut.jsonl.zst": (zstandard.compress(ROWS)[:-9], -1, [], "truncated"),
    "b05.jsonl.gz": (GOOD % b"plain", 1, [], ""),
    "b05.jsonl": (gzip.compress(GOOD % b"packed"), 1, [], ""),
    "b06-zero.jsonl": (b"", 0, [], ""),
    "b06-lines.jsonl": (b"\n\n\n", 0, [], ""),
    "b06.jsonl.gz": (gzip.compress(b""), 0, [], ""),
    "b06-none.jsonl.gz": (b"", 0, [], ""),
    "b07.jsonl": (
        b'{"id":"a","text":"end of file one"}{"id":"b","text":"start of file two"}\n' + GOOD % b"c", 1,
        [(1, "two_objects_on_one_line")], "",
    ),
    "b09.jsonl": (b'[\n {"id": 1,\n  "text": "one"},\n {"id": 2,\n  "text": "two"}\n]\n', 0, [], "json_array"),
    "c02.jsonl": (b'{"id":1,"text":null}\n' + GOOD % b"2", 1, [(1, "text_null")], ""),
    "c03.jsonl": (
        b'{"text":12}\n{"text":["a","b"]}\n{"text":{"t":"x"}}\n{"text":true}\n' + GOOD % b"5", 1,
        [(n, "text_not_string") for n in range(1, 5)], "",
    ),
    "c01-some.jsonl": (b'{"content":"lost"}\n' + GOOD % b"2", 1, [(1, "no_text_field")], ""),
    "c06.jsonl": (b'{"id":"7","text":"about rivers"}\n{"id":"7","text":"about engines"}\n', 2, [], ""),
    "c07.jsonl": (
        b'{"id":7,"text":"n is a number"}\n{"id":"7","text":"s is a string"}\n{"id":null,"text":"u is null"}\n'
        b'{"text":"m is missing"}\n{"id":"' + b"x" * 300 + b'","text":"l is long"}\n', 5, [], "",
    ),
    "c08.jsonl": (
        b'{"id":' + b"9" * 4400 + b',"text":"x"}\n{"id":99999999999999999999999,"text":"y has a large id"}\n'
        + GOOD % b"1", 2,
        [(1, "bad_json")], "",
    ),
    "deep.jsonl": (b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"\n" + GOOD % b"after", 1, [(1, "bad_json")], ""),
    "twice.jsonl": (b'{"text":"not this one, which is first","text":"this one counts, being last"}\n', 1, [], ""),
    "text.txt": (b"A whole file that is one document.\n", 1, [], ""),
}  # fmt: skip


def table(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


WELL = "A row of a table that is well and says so at some length."
NO_GROUPS = pa.BufferOutputStream()
with pq.ParquetWriter(NO_GROUPS, pa.schema([("text", pa.string())])):
    pass
FILES |= {
    "d01-a.parquet": (table(title=pa.nulls(2), text=[WELL, WELL + " Twice."]), 2, [], ""),
    "d01-b.parquet": (table(title=["a", "b"], text=[None, WELL + " Thrice."]), 1, [(0, "text_null")], ""),
    "d04.parquet": (table(text=pa.array([WELL, WELL]).dictionary_encode()), 2, [], ""),
    "d06.parquet": (NO_GROUPS.getvalue().to_pybytes(), 0, [], ""),
    "d-footer.parquet": (table(text=[WELL])[:-20], 0, [], "no_footer"),
    "d11.parquet": (
        table(
            label=pa.array([1, 2]), text=[WELL, WELL + " And labels."],
            messages=pa.array([[{"role": "a", "content": "b"}], None]),
        ), 2, [], "",
    ),
}  # fmt: skip


def test_files_of_every_hard_kind_cost_no_more_than_what_is_broken(tmp_path: Path, run: Build):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, (data, *_) in FILES.items():
        (folder / name).write_bytes(data)
    report = run(folder, sets=["duplicates.method=off"])
    out = tmp_path / "out"
    assert report.exit_code == 3
    lost: dict[str, list[tuple[int, str]]] = {name: [] for name in FILES}
    found = rows(out, "unreadable/*.parquet", 'source, coalesce(line, "row"), reason, byte_offset')
    for source, line, reason, offset in found:
        lost[source].append((line, reason))
        assert (offset is None) == source.endswith(".parquet")
    inputs = {entry["source"]: entry for entry in report.manifest["inputs"]}
    outcomes = {
        name: (
            inputs[name]["counts"]["read"] - inputs[name]["counts"]["unreadable"],
            lost[name],
            (inputs[name]["damage"] or {"reason": ""})["reason"],
        )
        for name in FILES
    }
    expected = {
        name: (outcomes[name][0] if documents < 0 else documents, unreadable, damage)
        for name, (_, documents, unreadable, damage) in FILES.items()
    }
    assert outcomes == expected
    assert 900 <= outcomes["b01.jsonl.gz"][0] <= 1100
    assert verify(str(out)).counts == report.manifest["counts"]


def test_a_line_of_over_a_hundred_megabytes_is_skipped_or_read_and_the_next_one_is_read(
    tmp_path: Path, run: Build
):
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(b'{"id":"big","text":"')
        for _ in range(120):
            file.write(b"word " * 200_000)
        file.write(b'"}\n' + GOOD % b"after")
    manifest = run(path, sets=["documents.max_record_bytes=50000000"]).manifest
    assert (manifest["counts"]["kept"], manifest["unreadable_by_reason"]) == (1, {"record_too_large": 1})
    assert rows(tmp_path / "out", "unreadable/*.parquet", "line, reason") == [(1, "record_too_large")]
    again = run(path, out=tmp_path / "again").manifest
    assert (again["counts"]["kept"], again["counts"]["rejected"]) == (1, 1)
    verify(str(tmp_path / "again"))


def test_more_text_in_a_column_than_32_bits_can_count_is_read(
    tmp_path: Path, run: Build, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("cleanfeed.documents.fields.BATCH_BYTES", 1 << 16)
    texts = [prose(number, sentences=20) for number in range(400)]
    chunks = [pa.array(texts[:200], pa.large_string()), pa.array(texts[200:], pa.large_string())]
    pq.write_table(pa.table({"text": pa.chunked_array(chunks)}), tmp_path / "in.parquet")
    manifest = run(tmp_path / "in.parquet").manifest
    assert manifest["counts"]["read"] == 400
    schema = pq.read_schema(next((tmp_path / "out" / "curriculum").rglob("*.parquet")))
    assert schema.field("text").type == pa.large_string()
    verify(str(tmp_path / "out"))
