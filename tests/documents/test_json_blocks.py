"""The compiled way to read a block of JSON Lines gives what the other ways give, or refuses the block."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanfeed.documents import json_blocks
from cleanfeed.documents.fields import Columns, Fields
from cleanfeed.documents.jsonl import BlockReader
from cleanfeed.documents.lines import Block
from cleanfeed.settings import DocumentSettings


def fields_of(*, limit: int, **options: Any) -> Fields:
    # Lower than settings allow it, so that small blocks meet it.
    return Fields(DocumentSettings(**options, max_record_bytes=limit), "score")


WANTED = fields_of(limit=300, keep_fields=("url", "n\u00e4me"))
PLAIN = Fields(DocumentSettings())


def listed(columns: Columns) -> list[object]:
    arrays = [columns.texts, columns.ids, *columns.kept]
    arrays += [] if columns.quality is None else [columns.quality]
    for array in arrays:
        array.validate(full=True)
    types = [str(array.type) for array in arrays]
    rows = (columns.rows, columns.lone)
    return [
        *(array.to_pylist() for array in arrays),
        *types,
        *((array.dtype, array.tolist()) for array in rows),
        columns.unreadable,
    ]


def read(data: bytes, fields: Fields = PLAIN) -> Columns | None:
    """Read a block by compiled code; what is not refused is what the other ways give."""
    reader = BlockReader(fields)
    found = reader._compiled(data, 7)
    if found is not None:
        expected = reader._whole(data, 7) or reader._by_line(Block(data, 0), 7)[0]
        assert listed(found) == listed(expected)
    return found


def texts(data: bytes, fields: Fields = PLAIN) -> list[str] | None:
    found = read(data, fields)
    return None if found is None else found.texts.to_pylist()


CODES = st.integers(0, 0xFFFF) | st.integers(0xD700, 0xE0FF) | st.sampled_from([0, 0x7F, 0x80, 0x7FF, 0x800])
LENGTHS = st.integers(0, 4) | st.integers(58, 68) | st.integers(122, 132)
UNITS = st.tuples(CODES, st.sampled_from(["\\u%04x", "\\u%04X"])).map(
    lambda pair: (pair[1] % pair[0]).encode()
)
PAIRS = st.characters(min_codepoint=0x10000).map(lambda char: json.dumps(char)[1:-1].encode())
PIECES = st.one_of(
    LENGTHS.map(lambda length: b"a" * length),
    st.sampled_from([rb"\n", rb"\"", rb"\\", rb"\/", rb"\b", rb"\f", rb"\r", rb"\t"]),
    UNITS,
    PAIRS,
    st.text(max_size=3).map(
        lambda text: json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace")
    ),
)
ODD_PIECES = st.one_of(
    st.sampled_from([b"\\x", b"\\", b"\\u12", b"\\u12g4", b"\\ud83d\\n", b"\t", b"\n", b"\0", b"\x7f", b'"']),
    st.binary(max_size=3),
)


def strings(*, odd: bool) -> st.SearchStrategy[bytes]:
    pieces = PIECES | ODD_PIECES if odd else PIECES
    return st.lists(pieces, max_size=6).map(lambda parts: b'"' + b"".join(parts) + b'"')


NUMBERS = st.one_of(
    st.sampled_from(
        [b"0", b"-0", b"0.97", b"123", b"-1.5e-07", b"1E+9", b"2e99", b"1" * 32, b"0." + b"9" * 30]
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: json.dumps(number).encode()),
    st.integers().map(lambda number: str(number).encode()),
)
WORDS = st.sampled_from([b"true", b"false", b"null"])
ODD_SCALARS = st.one_of(
    st.sampled_from(
        [b"01", b"1.", b".5", b"-", b"+1", b"1e", b"1e+", b"1e999", b"9" * 40, b"NaN", b"-Infinity"]
    ),
    st.sampled_from([b"tru", b"nul", b"True", b"falsey", b"truefalse", b"", b"'a'", b"1 2", b"null1"]),
    st.text("0123456789+-.eE", max_size=8).map(str.encode),
)
BLANKS = st.sampled_from([b"", b"", b"", b" ", b"\t", b" \r "])


def containers(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    members = st.tuples(strings(odd=False), BLANKS, inner).map(lambda m: m[0] + m[1] + b":" + m[1] + m[2])
    return st.one_of(
        st.tuples(BLANKS, st.lists(inner, max_size=3)).map(
            lambda v: b"[" + v[0] + b",".join(v[1]) + v[0] + b"]"
        ),
        st.tuples(BLANKS, st.lists(members, max_size=3)).map(lambda v: b"{" + v[0] + b",".join(v[1]) + b"}"),
        st.sampled_from([b"[1,]", b"{1:2}", b'{"a" 1}', b'{"a":1,}', b"[}", b"{]", b"[", b"{", b"]", b"}"]),
    )


VALUES = st.one_of(
    strings(odd=False),
    NUMBERS,
    WORDS,
    st.recursive(strings(odd=False) | NUMBERS | WORDS, containers, max_leaves=5),
    st.integers(30, 34).map(lambda depth: b"[" * depth + b"]" * depth),
    strings(odd=True),
    ODD_SCALARS,
)
KEYS = st.sampled_from(
    [
        b"text",
        b"id",
        b"url",
        b"score",
        "n\u00e4me".encode(),
        b"",
        b"tex",
        b"texts",
        b"n\\u00e4me",
        b"t\\ext",
        b"n\xe4me",
    ]
)
MEMBERS = st.tuples(BLANKS, KEYS, BLANKS, VALUES).map(
    lambda parts: parts[0] + b'"' + parts[1] + b'"' + parts[2] + b":" + parts[2] + parts[3] + parts[0]
)
TEXTS = strings(odd=False).map(lambda value: b'"text":' + value)
ENDS = st.sampled_from([b"}\n", b"}\n", b"}\n", b"}\r\n", b"} \n", b"}", b",}\n", b"}\n\n", b"}{}\n", b"]\n"])


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    members = draw(st.lists(MEMBERS, max_size=4))
    members.insert(draw(st.integers(0, len(members))), draw(TEXTS))
    return draw(st.sampled_from([b"{", b"{", b"{", b" {", b"[", b""])) + b",".join(members) + draw(ENDS)


REGULAR_LINES = st.tuples(
    strings(odd=False), st.lists(NUMBERS | WORDS | strings(odd=False), min_size=4, max_size=4)
).map(
    lambda line: (
        b'{"id":%s,"text":%s,"url":%s, "score" : %s,"meta":{"a":[%s,[]]}}\n'
        % (line[1][0], line[0], *line[1][1:])
    )
)


@settings(max_examples=600)
@given(st.lists(lines() | REGULAR_LINES, min_size=1, max_size=3).map(b"".join))
def test_a_block_is_refused_or_read_as_by_the_other_ways(data: bytes) -> None:
    read(data, WANTED)


@settings(max_examples=600)
@given(st.data(), st.lists(REGULAR_LINES, min_size=1, max_size=2).map(b"".join))
def test_a_block_with_some_bytes_changed_is_refused_or_read_as_by_the_other_ways(
    data: st.DataObject, block: bytes
) -> None:
    place = st.integers(0, len(block) - 1)
    new = st.binary(max_size=2) | st.sampled_from(
        [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"0", b"u"]
    )
    for start, size, put in data.draw(st.lists(st.tuples(place, st.integers(0, 2), new), max_size=2)):
        block = block[:start] + put + block[start + size :]
    read(block, WANTED)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"text": st.text(), "id": st.text() | st.integers(-(2**63), 2**64) | st.none()}
        ),
        min_size=1,
    )
)
def test_what_json_writes_is_not_refused(records: list[dict[str, object]]) -> None:
    found = texts(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    assert found == [record["text"] for record in records]


ORDINARY = {
    "fineweb": {
        "text": 'A "page"\nof the web \u00e4\u4e2d\U0001f600',
        "id": "<urn:uuid:39147604-bfbe-4ed5-b19c-54105f8ae8a7>",
        "dump": "CC-MAIN-2013-20",
        "url": "http://example.com/a/b?c=d",
        "date": "2013-05-18T05:48:59Z",
        "file_path": "s3://commoncrawl/crawl-data/CC-MAIN-2013-20/x.warc.gz",
        "language": "en",
        "language_score": 0.9736230373382568,
        "token_count": 717,
    },
    "c4": {"text": "Beginners BBQ Class", "timestamp": "2019-04-25T12:57:54Z", "url": "https://klyq.com/x"},
    "nested": {
        "text": "x",
        "meta": {"pile_set_name": "ArXiv", "tags": ["a", "b"], "none": {}},
        "added": None,
    },
}


@pytest.mark.parametrize("name", sorted(ORDINARY))
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_ordinary_records_are_not_refused(name: str, end: bytes, ascii_only: bool) -> None:
    record = ORDINARY[name]
    line = json.dumps(record, ensure_ascii=ascii_only).encode() + end
    fields = Fields(DocumentSettings(keep_fields=("url", "date")), "language_score")
    assert texts(line * 3, fields) == [record["text"]] * 3


@pytest.mark.parametrize("escape", [r"\n", r"\"", r"\\", r"\u00e4", r"\u0000", r"\ud83d\ude00", r"\uFFFF"])
@pytest.mark.parametrize("after", [0, 200])
def test_an_escape_is_read_at_every_place(escape: str, after: int) -> None:
    for before in range(131):
        text = "a" * before + escape + escape + "b" * after
        expected = json.loads(f'"{text}"')
        assert texts(f'{{"text":"{text}","id":"{text}"}}\n'.encode()) == [expected]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b'{"text":"a"}',
        b'{"text":"a"}\n\n',
        b' {"text":"a"}\n',
        b'{"text":"a"} \n',
        b'{"text":"a"}{"text":"b"}\n',
        b"{}\n",
        b'{"id":1}\n',
        b'{"text":null}\n',
        b'{"text":["a"]}\n',
        b'{"text":"a","text":1}\n',
        b'{"text":"a","text":"b"}\n',
        b'{"text":"\\ud83d"}\n',
        b'{"text":"\\ude00\\ud83d"}\n',
        b'{"text":"\xff"}\n',
        b'{"text":"\xed\xa0\x80"}\n',
        b'{"text":"a\tb"}\n',
        b'{"text":"a","id":' + b"9" * 33 + b"}\n",
        b'{"text":"a","id":1e100}\n',
        b'{"text":"a","x":' + b"[" * 32 + b"]" * 32 + b"}\n",
        b'{"text":"a","id":"' + b"a" * 4300 + b'"}\n',
        b'{"te\\u0078t":"a","text":"a"}\n',
    ],
)
def test_what_is_out_of_the_ordinary_is_refused(line: bytes) -> None:
    assert read(b'{"text":"before"}\n' + line) is None or line == b""


def test_a_line_over_the_limit_is_refused() -> None:
    line = b'{"text":"%s"}\n'
    few = fields_of(limit=100)
    assert texts(line % (b"a" * 89), few) == ["a" * 89]
    assert texts(line % (b"a" * 90), few) is None


def test_of_repeated_keys_the_last_one_counts() -> None:
    found = read(b'{"id":1,"text":"b\\n","id":[2]}\n')
    assert found is not None
    assert (found.texts.to_pylist(), found.ids.to_pylist()) == (["b\n"], ["[2]"])


def test_the_kernel_is_compiled_for_one_kind_of_arguments() -> None:
    assert texts(b'{"text":""}\n') == [""]
    assert len(json_blocks.read_lines.kinds) == 1


LOADING = r"""
import sys
from cleanfeed.documents.fields import Fields
from cleanfeed.documents.jsonl import KERNEL_BYTES, BlockReader
from cleanfeed.documents.lines import Block
from cleanfeed.settings import DocumentSettings

reader = BlockReader(Fields(DocumentSettings()))
line = b'{"text":"a"}\n'
for lines in (1, KERNEL_BYTES // len(line) + 1):
    columns, count = reader.read(Block(line * lines, 0), 0)
    assert len(columns.texts) == count == lines
    print("llvmlite" in sys.modules)
"""


def test_only_a_large_block_loads_the_compiled_code() -> None:
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


GUARDED = r"""
import ctypes, mmap, json
import numpy as np
from cleanfeed.documents.json_blocks import BlockScanner, read_lines

PAGE = mmap.PAGESIZE
held = []

def guarded(size):
    "Bytes whose end is the end of the memory that may be read."
    pages = -(-size // PAGE) + 1
    area = mmap.mmap(-1, pages * PAGE)
    held.append(area)
    whole = np.frombuffer(area, np.uint8)
    end = whole.ctypes.data + (pages - 1) * PAGE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(PAGE), 0) == 0
    return whole[(pages - 1) * PAGE - size : (pages - 1) * PAGE]

scanner = BlockScanner(["text", "id"])
known = set()
for size in [*range(200), 4000, 4096, 5000]:
    for unit in ("a", "\\n", "\\u00e4", "\\ud83d\\ude00", "\u4e2d"):
        text = (unit * size)[: size - size % len(unit)]
        for line in (f'{{"text":"{text}"}}', f'{{"text":"a","id":"{text}"}}', f'{{"id":1,"x":"{text}'):
            data = line.encode() + b"\n"
            block, out = guarded(len(data)), guarded(len(data))
            block[:] = np.frombuffer(data, np.uint8)
            block.flags.writeable = False
            offsets, spans = np.zeros(2, np.int64), np.full(2, -1)
            good = read_lines(block, 10**6, scanner._names, scanner._ends, out, offsets, spans)
            if good:
                assert out[: offsets[1]].tobytes().decode() == json.loads(line)["text"]
            known.add((good, line.endswith("}")))
            del block, out
            held.clear()
assert known == {(True, True), (False, False)}, known
assert len(read_lines.kinds) == 1
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is guarded by a call of Linux")
@pytest.mark.parametrize("checked", ["0", "1"])
def test_nothing_is_read_or_written_beyond_a_block(tmp_path: Path, checked: str) -> None:
    folder = {"NUMBA_CACHE_DIR": str(tmp_path)} if checked == "1" else {}
    environment = {**os.environ, **folder, "NUMBA_BOUNDSCHECK": checked}
    done = subprocess.run([sys.executable, "-c", GUARDED], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
