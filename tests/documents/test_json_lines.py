from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cleanfeed.documents import jsonl
from cleanfeed.documents.codecs import ByteStream
from cleanfeed.documents.record import Damage
from cleanfeed.errors import MisuseError

Read = Any


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_a_line_that_is_no_utf8_costs_one_line(read: Read) -> None:
    outcome = read(
        b'{"id":"a","text":"first line is fine"}\n'
        b'{"id":"b","text":"broken \xff\xfe here"}\n'
        b'{"id":"c","text":"third line is fine"}\n'
    )
    assert outcome.ids == ["a", "c"]
    assert outcome.texts == ["first line is fine", "third line is fine"]
    assert outcome.rows == [0, 2]
    [bad] = outcome.unreadable
    assert (bad.row, bad.line_format, bad.byte_offset, bad.reason) == (1, True, 39, "bad_utf8")
    assert bad.detail == "byte 0xff at byte 25 of the line is no UTF-8"
    assert bad.excerpt == '{"id":"b","text":"broken \ufffd\ufffd here"}'


def test_bytes_that_are_no_utf8_in_a_field_nobody_asked_for_cost_nothing(read: Read) -> None:
    data = b'{"id":"a","text":"x","url":"\xff"}\n'
    assert read(data).texts == ["x"]
    assert read(data, keep_fields=("url",)).reasons == [(0, "bad_utf8")]


def test_an_id_that_is_no_utf8_is_bad_utf8(read: Read) -> None:
    outcome = read(b'{"id":"\xff","text":"x"}\n{"id":"b","text":"y"}\n')
    assert outcome.reasons == [(0, "bad_utf8")]
    assert outcome.ids == ["b"]


def test_half_a_surrogate_pair_becomes_a_replacement_character_and_is_counted(read: Read) -> None:
    outcome = read(
        b'{"id":"s1","text":"half a pair \\ud83d then text"}\n'
        b'{"id":"s2","text":"a whole pair \\ud83d\\ude00 is fine"}\n'
        b'{"id":"s3","text":"\\ude00 \\ud83d\\ud83d\\ude00 \\ud83d\\u0041 \\\\ud83d \\ufffd"}\n'
        b'{"id":"s4","text":"ends \\uD83D"}\n'
    )
    assert outcome.texts == [
        "half a pair \ufffd then text",
        "a whole pair \U0001f600 is fine",
        "\ufffd \ufffd\U0001f600 \ufffdA \\ud83d \ufffd",
        "ends \ufffd",
    ]
    assert outcome.columns["lone_surrogates"] == [1, 0, 3, 1]
    assert outcome.unreadable == []


def test_half_a_pair_elsewhere_is_not_counted_against_the_text(read: Read) -> None:
    outcome = read(b'{"id":"\\ud800","text":"x","other":"\\udfff"}\n')
    assert (outcome.ids, outcome.texts) == (["\ufffd"], ["x"])
    assert outcome.columns["lone_surrogates"] == [0]


@pytest.mark.parametrize("escape", [r"\u0000", r"\u2028", r"\u0085", "\u2028", "\u0085", "\u2029", "\x7f"])
def test_text_keeps_every_character(read: Read, escape: str) -> None:
    outcome = read(f'{{"id":"n","text":"before{escape}after"}}\n{{"id":"m","text":"x"}}\n'.encode())
    assert outcome.texts == [json.loads(f'"before{escape}after"'), "x"]


def test_a_byte_order_mark_is_no_part_of_the_first_record(read: Read) -> None:
    data = b'\xef\xbb\xbf{"id":"first","text":"must not be lost"}\n{"id":"second","text":"ok"}\nbroken\n'
    outcome = read(data)
    assert outcome.ids == ["first", "second"]
    assert outcome.texts == ["must not be lost", "ok"]
    assert [(bad.row, bad.byte_offset) for bad in outcome.unreadable] == [(2, data.index(b"broken"))]


@pytest.mark.parametrize(
    ("encoding", "reason", "begins"),
    [
        ("utf-16", "utf16", "ff fe"),
        ("utf-16-le", "utf16", "7b 00"),
        ("utf-16-be", "utf16", "00 7b"),
        ("utf-32", "utf32", "ff fe 00 00"),
        ("utf-32-be", "utf32", "00 00 00 7b"),
    ],
)
def test_a_file_in_a_wide_encoding_gets_one_message(
    read: Read, encoding: str, reason: str, begins: str
) -> None:
    outcome = read((lines({"id": "1", "text": "hello"}) * 2000).decode().encode(encoding), piece_bytes=4096)
    name = reason.upper().replace("UTF", "UTF-")
    detail = f"looks like {name} (starts with {begins}); only UTF-8 is read"
    assert outcome.damage == [Damage(reason, 0, detail)]
    assert (outcome.texts, outcome.unreadable, outcome.pieces) == ([], [], 1)


def test_windows_line_ends_leave_no_trace_outside_the_text(read: Read) -> None:
    outcome = read(
        b'{"id":"w","text":"same line\\r\\nsame line\\n"}\r\n{"id":"x","text":"plain","k":1}\r\n\r\n',
        keep_fields=("k",),
    )
    assert outcome.texts == ["same line\r\nsame line\n", "plain"]
    assert outcome.ids == ["w", "x"]
    assert outcome.columns["k"] == [None, "1"]
    assert outcome.unreadable == []


def test_records_are_cut_at_line_feeds_only(read: Read) -> None:
    outcome = read('{"id":"u","text":"one\u2028two\u0085three\x0b\x1c"}\n'.replace("\x0b\x1c", "").encode())
    assert outcome.texts == ["one\u2028two\u0085three"]


@pytest.mark.parametrize("data", [b"", b"\n\n\n", b" \r\n\t\n", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_records_and_is_not_damaged(read: Read, data: bytes) -> None:
    outcome = read(data)
    assert (outcome.texts, outcome.unreadable, outcome.damage) == ([], [], [])


def test_two_objects_on_one_line_are_not_half_kept(read: Read) -> None:
    outcome = read(
        b'{"id":"a","text":"end of file one"}{"id":"b","text":"start of file two"}\n{"id":"c","text":"ok"}\n'
        b'{"id":"d","text":"x"}  {"id":"e","text":"y"}\n'
    )
    assert outcome.ids == ["c"]
    assert outcome.reasons == [(0, "two_objects_on_one_line"), (2, "two_objects_on_one_line")]
    assert outcome.unreadable[0].detail == "a second object starts at byte 35 of the line"


def test_two_objects_and_a_blank_line_do_not_cancel_out(read: Read) -> None:
    outcome = read(b'{"id":"a","text":"1"}{"id":"b","text":"2"}\n\n{"id":"c","text":"3"}\n')
    assert (outcome.ids, outcome.rows) == (["c"], [2])
    assert outcome.reasons == [(0, "two_objects_on_one_line")]


def test_an_object_over_two_lines_does_not_shift_the_rows(read: Read) -> None:
    outcome = read(
        b'{"id":"a","text":"1"}\n{"id":"b","m":\n{"x":1},"text":"2"}\n{"id":"c","text":"3"}{"id":"d","text":"4"}\n'
        b'{"id":"e","text":"5"}\n'
    )
    assert (outcome.ids, outcome.rows) == (["a", "e"], [0, 4])
    assert outcome.reasons == [(1, "bad_json"), (2, "bad_json"), (3, "two_objects_on_one_line")]


@pytest.mark.parametrize(
    "data",
    [
        b'[\n {"id": 1,\n  "text": "one"},\n {"id": 2,\n  "text": "two"}\n]\n',
        b'[{"id": 1, "text": "one"}, {"id": 2, "text": "two"}]',
        b'[\n{"id": 1, "text": "one"},\n{"id": 2, "text": "two"}\n]\n',
        b'[\n{"id": 1, "text": "one"}\n]\n',
        b'\xef\xbb\xbf\n  [{"id": 1, "text": "one"},\n',
    ],
)
def test_a_json_array_gets_one_message(read: Read, data: bytes) -> None:
    outcome = read(data, piece_bytes=16)
    assert outcome.damage == [Damage("json_array", 0, "not JSON Lines: looks like one JSON array")]
    assert (outcome.texts, outcome.unreadable) == ([], [])


def test_an_object_spread_over_lines_gets_one_message(read: Read) -> None:
    outcome = read(b'{\n "id": 1,\n "text": "one"\n}\n')
    detail = "not JSON Lines: looks like one JSON object spread over lines"
    assert outcome.damage == [Damage("json_array", 0, detail)]


@pytest.mark.parametrize("second", [b'{"text": "first"}', b'{"text": "' + b"x" * 2**17 + b'"}'])
def test_a_broken_first_line_costs_one_line_however_the_file_is_read(read: Read, second: bytes) -> None:
    data = b'[[[{"id": "a", "text": "lost"}\n' + second + b"\n"
    for size in (16, 2**16, 2**20):
        outcome = read(data, piece_bytes=size, batch_bytes=size)
        assert (outcome.texts, outcome.reasons) == ([json.loads(second)["text"]], [(0, "bad_json")])
        assert outcome.damage == []


def test_a_broken_stream_gives_the_same_lines_however_it_is_read(read: Read) -> None:
    lines = b'{"text":"a"}\n{"text":"' + b"x" * 2000 + b'"}\n{"text":"lost"}\n'
    data = gzip.compress(lines)[:-8] + b"\xff" * 8
    outcomes = [read(data, "in.jsonl.gz", batch_bytes=size) for size in (64, 2**16, 2**23)]
    assert [outcome.texts for outcome in outcomes] == [outcomes[0].texts] * 3
    assert [outcome.reasons for outcome in outcomes] == [outcomes[0].reasons] * 3
    assert outcomes[0].texts[:2] == ["a", "x" * 2000]
    assert [damage.reason for damage in outcomes[0].damage] == ["corrupt"]


def test_a_json_array_is_known_by_its_first_line_where_the_second_is_too_long_to_see(read: Read) -> None:
    for first in (b"[", b'[{"text": "a"},'):
        outcome = read(first + b'\n{"text": "' + b"x" * 2**17 + b'"}\n]\n')
        assert [damage.reason for damage in outcome.damage] == ["json_array"]


def test_a_first_line_that_is_a_list_costs_one_line(read: Read) -> None:
    outcome = read(b'[1, 2]\n{"id":"a","text":"x"}\n')
    assert (outcome.texts, outcome.reasons, outcome.damage) == (["x"], [(0, "not_an_object")], [])


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b"[]", "not_an_object", "the line is an array"),
        (b"12", "not_an_object", "the line is a number"),
        (b"null", "not_an_object", "the line is null"),
        (b'"x"', "not_an_object", "the line is a string"),
        (b"true", "not_an_object", "the line is true"),
        (b"[1", "bad_json", "Input data was truncated"),
        (b"hello", "bad_json", "invalid character (byte 0)"),
        (b'{"text":"cut', "bad_json", "Input data was truncated"),
        (b'{"text":"x",}', "bad_json", "trailing comma in object (byte 12)"),
        (b'{"text":"x"} y', "bad_json", "trailing characters (byte 14)"),
        (b'{"text":"a\tb"}', "bad_json", "invalid character (byte 10)"),
        (b'{"text":null}', "text_null", "the text is null"),
        (b'{"text":12}', "text_not_string", "the text is a number"),
        (b'{"text":["a","b"]}', "text_not_string", "the text is an array"),
        (b'{"text":{"t":"x"}}', "text_not_string", "the text is an object"),
        (b'{"text":true}', "text_not_string", "the text is true"),
        (b'{"content":"x"}', "no_text_field", "no field 'text'"),
    ],
)
def test_each_line_that_is_no_document_says_why(read: Read, line: bytes, reason: str, detail: str) -> None:
    outcome = read(b'{"id":"a","text":"ok"}\n' + line + b'\n{"id":"b","text":"ok"}\n')
    assert outcome.ids == ["a", "b"]
    [bad] = outcome.unreadable
    assert (bad.row, bad.byte_offset, bad.reason, bad.detail) == (1, 23, reason, detail)


def test_numbers_no_json_has_lose_no_document(read: Read) -> None:
    outcome = read(
        b'{"id":"a","text":"NaN stays","score":NaN,"x":[Infinity,-Infinity]}\n'
        b'{"id":NaN,"text":"b","score":0.5}\n{"id":"c","text":NaN}\n{"id":"d","text":"e","score":1e999}\n',
        quality="score",
    )
    assert outcome.texts == ["NaN stays", "b", "e"]
    assert outcome.ids == ["a", None, "d"]
    assert outcome.columns["quality_column"] == [None, 0.5, None]
    assert outcome.reasons == [(2, "text_null")]


def test_ids_keep_their_digits(read: Read) -> None:
    outcome = read(
        b'{"id":7,"text":"n"}\n{"id":"7","text":"s"}\n{"id":null,"text":"u"}\n{"text":"m"}\n'
        b'{"id":"' + b"x" * 300 + b'","text":"l"}\n{"id":99999999999999999999999,"text":"y"}\n'
        b'{"id":1.50,"text":"f"}\n{"id":-0,"text":"z"}\n{"id":"\\u0041\\n","text":"e"}\n'
    )
    assert outcome.ids == [
        "7", "7", None, None, "x" * 300, "99999999999999999999999", "1.50", "-0", "A\n",
    ]  # fmt: skip
    assert outcome.texts == list("nsumlyfze")


@pytest.mark.parametrize("ids", [[1, 2, None], ["a", None], [None], [True, {"b": ","}, [1, '"']]])
def test_ids_of_any_type_are_text(read: Read, ids: list[Any]) -> None:
    expected = [
        item if item is None or isinstance(item, str) else json.dumps(item, separators=(",", ":"))
        for item in ids
    ]
    data = b"".join(b'{"id":%s,"text":"x"}\n' % json.dumps(i, separators=(",", ":")).encode() for i in ids)
    assert read(data).ids == expected


def test_an_id_of_thousands_of_digits_is_not_believed(read: Read) -> None:
    outcome = read(b'{"id":' + b"9" * 4400 + b',"text":"x"}\n{"id":1,"n":' + b"9" * 4400 + b',"text":"z"}\n')
    assert outcome.reasons == [(0, "bad_json")]
    assert outcome.unreadable[0].detail == "the id is a number of 4400 characters"
    assert (outcome.ids, outcome.texts) == (["1"], ["z"])


def test_a_long_id_string_is_kept(read: Read) -> None:
    assert read(b'{"id":"' + b"x" * 5000 + b'","text":"l"}\n').ids == ["x" * 5000]


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_deep_nesting_is_bad_json(read: Read, depth: int) -> None:
    deep = b'{"id":1,"x":' + b"[" * depth + b"]" * depth + b',"text":"a"}\n'
    outcome = read(deep + b'{"id":2,"text":"b"}\n')
    assert (outcome.reasons, outcome.ids) == ([(0, "bad_json")], ["2"])
    assert outcome.unreadable[0].detail == "nested too deeply"


def test_how_deep_a_record_may_be_does_not_depend_on_the_caller(read: Read) -> None:
    data = b'{"id":1,"x":' + b"[" * 900 + b"]" * 900 + b',"text":"a"}\n'

    def from_deep_down(levels: int) -> Any:
        return from_deep_down(levels - 1) if levels else read(data)

    assert read(data).texts == from_deep_down(200).texts == ["a"]


def test_of_a_key_written_twice_the_last_counts(read: Read) -> None:
    outcome = read(
        b'{"text":"a","id":1,"text":"b","id":2}\n{"text":null,"text":"c"}\n{"text":"d","text":null}\n'
    )
    assert (outcome.texts, outcome.ids) == (["b", "c"], ["2", None])
    assert outcome.reasons == [(2, "text_null")]


def test_a_key_may_be_escaped(read: Read) -> None:
    assert read(b'{"te\\u0078t":"a"}\n').texts == ["a"]


def test_nested_text_is_found(read: Read) -> None:
    data = (
        b'{"id":1,"doc":{"body":{"text":"deep words"}}}\n{"id":2,"doc":{"body":null}}\n'
        b'{"id":3,"doc":{"body":{"text":null}}}\n{"id":4,"doc":"x"}\n{"id":5,"doc":{"body":{"text":"\\ud800"}}}\n'
    )
    outcome = read(data, text_field="doc.body.text")
    assert (outcome.ids, outcome.texts) == (["1", "5"], ["deep words", "\ufffd"])
    assert outcome.columns["lone_surrogates"] == [0, 1]
    assert outcome.reasons == [(1, "no_text_field"), (2, "text_null"), (3, "no_text_field")]
    with pytest.raises(MisuseError, match="no record has the text field"):
        read(data)


def test_a_nested_id_may_be_missing_at_any_level(read: Read) -> None:
    data = b'{"m":{"id":"a"},"text":"1"}\n{"m":{},"text":"2"}\n{"m":null,"text":"3"}\n'
    data += b'{"m":7,"text":"4"}\n{"text":"5"}\n'
    outcome = read(data, id_field="m.id")
    assert outcome.ids == ["a", None, None, None, None]
    assert outcome.texts == list("12345")


def test_a_flattened_key_is_found_by_the_same_name(read: Read) -> None:
    data = b'{"meta.text":"flat","meta.id":1}\n{"meta":{"text":"nested","id":2},"meta.text":"flat","meta.id":3}\n'
    outcome = read(data, text_field="meta.text", id_field="meta.id")
    assert (outcome.texts, outcome.ids) == (["flat", "nested"], ["1", "2"])


def test_a_flattened_id_beside_a_nested_text_is_found(read: Read) -> None:
    outcome = read(b'{"meta":{"text":"x"},"meta.id":3}\n', text_field="meta.text", id_field="meta.id")
    assert outcome.ids == ["3"]


def test_kept_fields_are_text_as_written(read: Read) -> None:
    outcome = read(
        b'{"text":"a","u":"http","n":1.0,"o":{"k": [1, "\xc3\xa9"]},"b":false,"z":null}\n{"text":"b"}\n',
        keep_fields=("u", "n", "o", "b", "z"),
    )
    assert {name: outcome.columns[name] for name in "unobz"} == {
        "u": ["http", None],
        "n": ["1.0", None],
        "o": ['{"k": [1, "é"]}', None],
        "b": ["false", None],
        "z": [None, None],
    }


def test_an_object_and_a_field_inside_it_can_both_be_asked_for(read: Read) -> None:
    outcome = read(
        b'{"m":{"text":"x","s":0.5}}\n', text_field="m.text", keep_fields=("m", "m.s"), quality="m.s"
    )
    assert outcome.texts == ["x"]
    assert outcome.columns["m"] == ['{"text":"x","s":0.5}']
    assert outcome.columns["m.s"] == ["0.5"]
    assert outcome.columns["quality_column"] == [0.5]


def test_the_text_can_be_the_id_too(read: Read) -> None:
    outcome = read(b'{"text":"x"}\n', id_field="text")
    assert (outcome.ids, outcome.texts) == (["x"], ["x"])


def test_quality_is_a_number_or_null(read: Read) -> None:
    data = b"".join(b'{"text":"x","q":%s}\n' % q for q in (b"1", b"-2.5e0", b'"3"', b"null", b"true", b"[1]"))
    assert read(data + b'{"text":"x"}\n', quality="q").columns["quality_column"] == [
        1.0, -2.5, None, None, None, None, None,
    ]  # fmt: skip


def test_a_field_no_record_has_is_misuse_and_names_the_keys(read: Read) -> None:
    data = b"".join(b'{"id":%d,"content":"real words %d"}\n' % (i, i) for i in range(50))
    with pytest.raises(MisuseError) as caught:
        read(data)
    assert str(caught.value) == (
        "no record has the text field: in.jsonl: got the keys id, content, expected 'text'. "
        "Name the field with the text with --text-field."
    )


def test_a_part_without_the_field_is_fine_where_another_part_has_it(read: Read) -> None:
    data = b'{"id":0,"text":"x"}\n' + b'{"id":1,"content":"real words"}\n' * 20
    outcome = read(data, piece_bytes=200)
    assert outcome.pieces > 2
    assert outcome.texts == ["x"]
    assert outcome.reasons == [(i, "no_text_field") for i in range(1, 21)]


def test_a_file_is_searched_for_the_field_once_and_not_once_a_part(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    def counted(path: str, compression: str, start: int) -> ByteStream:
        opened.append(start)
        return ByteStream(path, compression, start)

    monkeypatch.setattr(jsonl, "ByteStream", counted)
    bare = b'{"id":1,"content":"real words"}\n' * 20
    outcome = read(bare + b'{"id":0,"text":"x"}\n' + bare, piece_bytes=200)
    assert outcome.texts == ["x"]
    # From the start: the check before reading, the first part, and the search when that part has no text.
    assert opened.count(0) == 3
    assert len(opened) == outcome.pieces + 2


def test_a_field_no_part_has_is_misuse_too(read: Read) -> None:
    with pytest.raises(MisuseError, match="no record has the text field"):
        read(b'{"id":1,"content":"real words"}\n' * 20, piece_bytes=200)


def test_a_record_over_the_limit_costs_one_line_and_is_not_held(read: Read) -> None:
    big = b'{"id":"big","text":"' + b"word " * 10_000 + b'"}\n'
    data = b'{"id":"before","text":"ok"}\n' + big + b'{"id":"after","text":"ok"}\n'
    for batch_bytes in (100, 4096, 2**20):
        outcome = read(data, max_record_bytes=1024, batch_bytes=batch_bytes)
        assert outcome.ids == ["before", "after"]
        assert outcome.rows == [0, 2]
        [bad] = outcome.unreadable
        assert (bad.row, bad.byte_offset, bad.reason) == (1, 28, "record_too_large")
        assert bad.detail == f"{len(big) - 1} bytes"
        assert bad.excerpt.startswith('{"id":"big","text":"word word ')


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_record_of_exactly_the_limit_is_kept(read: Read, end: bytes) -> None:
    line = b'{"text":"' + b"x" * (1024 - 11 - end.count(b"\r")) + b'"}'
    for batch_bytes in (100, 1024, 4096):
        assert read(line + end, max_record_bytes=1024, batch_bytes=batch_bytes).reasons == []
        assert read(b" " + line + end, max_record_bytes=1024, batch_bytes=batch_bytes).reasons == [
            (0, "record_too_large")
        ]


def test_a_limit_stops_after_so_many_records(read: Read) -> None:
    data = b'{"text":"a"}\n\nbroken\n{"text":"b"}\nbroken\n{"text":"c"}\n'
    outcome = read(data, limit=3)
    assert (outcome.texts, outcome.reasons, outcome.records) == (["a", "b"], [(2, "bad_json")], 3)
    assert read(data, limit=0).records == 0
    assert read(data, limit=2).reasons == [(2, "bad_json")]
    assert read(data, limit=99).records == 5


RECORDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30).map(
        lambda text: json.dumps({"id": 1, "text": text}, ensure_ascii=False).encode()
    ),
    st.text(max_size=8).map(lambda text: json.dumps({"text": text}).encode()),
    st.sampled_from([b"", b" ", b"\r", b"{", b'{"text":null}', b'{"text":"a"}{"text":"b"}', b"\xff", b"[1]"]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(records=st.lists(RECORDS, max_size=12), size=st.integers(1, 300), batch=st.integers(1, 300))
def test_how_a_file_is_cut_never_changes_what_is_read(
    read: Read, records: list[bytes], size: int, batch: int
) -> None:
    data = b'{"text":"first"}\n' + b"\n".join(records)
    whole = read(data)
    cut = read(data, piece_bytes=size, batch_bytes=batch)
    assert cut.rows == whole.rows
    assert cut.ids == whole.ids
    assert cut.texts == whole.texts
    assert cut.columns == whole.columns
    assert cut.unreadable == whole.unreadable
    assert sorted([*whole.rows, *(row for row, _ in whole.reasons)]) == [
        i for i, line in enumerate(data.split(b"\n")) if line.strip(b" \t\r")
    ]


def test_batches_hold_no_more_than_they_may(read: Read) -> None:
    outcome = read(lines(*({"text": "x" * 50} for _ in range(100))), batch_bytes=1000)
    assert outcome.rows == list(range(100))
    assert outcome.batches >= 5
