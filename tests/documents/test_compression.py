from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from cleanfeed.documents.codecs import ByteStream, compression_of
from cleanfeed.documents.record import Damage

Read = Any
ROWS = [json.dumps({"id": i, "text": f"row {i} {i * i} " * 20}).encode() + b"\n" for i in range(2000)]
RAW = b"".join(ROWS)


def zstd(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstd,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
SKIPPABLE = b"\x53\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"


@pytest.mark.parametrize("name", COMPRESS)
def test_compression_is_told_by_the_bytes_and_not_by_the_name(read: Read, name: str) -> None:
    data = COMPRESS[name](RAW)
    assert compression_of(data) == name
    for file in ("in.jsonl", "in.jsonl.gz", "in.json.zst"):
        outcome = read(data, file)
        assert (outcome.ids, outcome.damage) == ([str(i) for i in range(2000)], [])


def test_a_plain_file_may_be_named_as_if_compressed(read: Read) -> None:
    assert read(b'{"id":1,"text":"ok"}\n', "in.jsonl.gz").texts == ["ok"]


@pytest.mark.parametrize("name", COMPRESS)
@pytest.mark.parametrize("cut", [1, 3, 1000, 1999])
def test_all_members_are_read_and_lines_may_cross_them(read: Read, name: str, cut: int) -> None:
    compress = COMPRESS[name]
    middle = len(RAW) * cut // 2000
    outcome = read(compress(RAW[:middle]) + compress(b"") + compress(RAW[middle:]))
    assert (outcome.ids, outcome.damage) == ([str(i) for i in range(2000)], [])


@pytest.mark.parametrize("name", ["gzip", "bz2", "xz"])
def test_zeros_that_pad_a_member_are_passed_over(read: Read, name: str) -> None:
    part = COMPRESS[name](ROWS[0])
    outcome = read(part + b"\0" * 512 + part + b"\0" * 600_000)
    assert (outcome.ids, outcome.damage) == (["0", "0"], [])


def test_frames_that_are_to_be_skipped_are(read: Read) -> None:
    outcome = read(SKIPPABLE + zstd(ROWS[0]) + SKIPPABLE + zstd(ROWS[1]) + SKIPPABLE)
    assert (outcome.ids, outcome.damage) == (["0", "1"], [])


@pytest.mark.parametrize(
    "options",
    [
        {"write_checksum": True},
        {"write_content_size": False},
        {"level": 19},
        {"compression_params": zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)},
    ],
)
def test_frames_of_every_form_are_read(read: Read, options: dict[str, Any]) -> None:
    assert read(zstd(RAW, **options)).records == 2000
    compressor = zstandard.ZstdCompressor(**options).compressobj()
    assert read(compressor.compress(RAW) + compressor.flush()).records == 2000


@pytest.mark.parametrize(
    "data", [gzip.compress(b""), zstd(b""), bz2.compress(b""), lzma.compress(b""), SKIPPABLE]
)
def test_a_compressed_file_with_nothing_in_it_is_empty(read: Read, data: bytes) -> None:
    outcome = read(data)
    assert (outcome.records, outcome.damage) == (0, [])


def test_a_gzip_file_without_its_last_bytes_gives_all_rows_and_the_place(read: Read) -> None:
    data = gzip.compress(RAW)
    outcome = read(data[:-4])
    assert outcome.ids == [str(i) for i in range(2000)]
    assert outcome.damage == [Damage("truncated", len(data) - 4, "the file ends inside a gzip stream")]


def test_a_last_line_without_its_end_is_used_where_it_is_whole(read: Read) -> None:
    assert read(gzip.compress(RAW[:-1])[:-4]).records == 2000


@pytest.mark.parametrize("name", COMPRESS)
def test_a_file_cut_in_half_gives_what_can_be_decoded(read: Read, name: str) -> None:
    whole = COMPRESS[name](RAW)
    data = whole[: len(whole) // 2]
    outcome = read(data)
    assert outcome.damage[0].reason == "truncated"
    assert outcome.damage[0].byte_offset == len(data)
    assert outcome.ids == [str(i) for i in range(outcome.records)]
    assert outcome.unreadable == []
    decodable = {
        "gzip": lambda: zlib.decompressobj(31).decompress(data),
        "bz2": lambda: bz2.BZ2Decompressor().decompress(data),
        "xz": lambda: lzma.LZMADecompressor().decompress(data),
        "zstd": lambda: zstandard.ZstdDecompressor().decompressobj().decompress(data),
    }[name]()
    assert outcome.records == decodable.count(b"\n")


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 8, 12, -1, -3])
def test_a_zstd_file_cut_anywhere_is_truncated(read: Read, cut: int) -> None:
    frame = zstd(ROWS[0], write_checksum=True)
    data = frame + frame[:cut]
    outcome = read(data)
    assert outcome.damage == [Damage("truncated", len(data), "the file ends inside a zstd frame")]
    assert set(outcome.ids) == {"0"}


def test_a_cut_in_a_skippable_frame_is_truncated(read: Read) -> None:
    outcome = read(zstd(ROWS[0]) + SKIPPABLE[:-2])
    assert (outcome.ids, outcome.damage[0].reason) == (["0"], "truncated")


@pytest.mark.parametrize("name", COMPRESS)
def test_bytes_after_the_last_member_are_corrupt(read: Read, name: str) -> None:
    member = COMPRESS[name](ROWS[0])
    outcome = read(member + b"garbage that follows")
    assert outcome.ids == ["0"]
    assert (outcome.damage[0].reason, outcome.damage[0].byte_offset) == ("corrupt", len(member))


def stored(data: bytes) -> bytes:
    """Compress without compressing: a flipped byte is found by the checksum only."""
    compressor = zlib.compressobj(0, zlib.DEFLATED, 31)
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize("name", ["gzip", "zstd", "bz2", "xz"])
def test_what_precedes_a_corrupt_place_is_used(read: Read, name: str) -> None:
    data = bytearray(COMPRESS[name](RAW) + COMPRESS[name](RAW))
    first = len(data) // 2
    data[first + first // 2 : first + first // 2 + 8] = b"\xff" * 8
    outcome = read(bytes(data))
    assert outcome.damage[0].reason == "corrupt"
    assert first < (outcome.damage[0].byte_offset or 0) <= len(data)
    assert outcome.ids[:2000] == [str(i) for i in range(2000)]


def test_a_wrong_checksum_costs_no_record(read: Read) -> None:
    data = gzip.compress(RAW)
    outcome = read(data[:-8] + b"\0" * 8)
    assert (outcome.records, outcome.damage[0].reason) == (2000, "corrupt")
    frame = zstd(RAW, write_checksum=True)
    outcome = read(frame[:-1] + bytes([frame[-1] ^ 1]))
    assert (outcome.records, outcome.damage[0].reason) == (2000, "corrupt")


def test_a_block_of_a_reserved_type_is_corrupt(read: Read) -> None:
    header = b"\x28\xb5\x2f\xfd\x20\x01"
    outcome = read(zstd(ROWS[0]) + header + b"\x07\x00\x00x")
    assert (outcome.ids, outcome.damage[0].detail) == (["0"], "a block of a reserved type")


@pytest.mark.parametrize("name", COMPRESS)
def test_a_small_file_that_expands_a_thousandfold_comes_in_steps(tmp_path: Any, name: str) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(COMPRESS[name](b"a" * 5_000_000))
    with ByteStream(str(path), name) as stream:
        sizes = []
        while chunk := stream.read(2**20):
            sizes.append(len(chunk))
            assert sum(map(len, stream._held)) <= 2**20
    assert sum(sizes) == 5_000_000


def test_a_text_that_begins_like_bzip2_is_plain() -> None:
    assert compression_of(b"BZh is how bzip2 begins") == "none"
    assert compression_of(bz2.compress(b"")) == compression_of(bz2.compress(b"x")) == "bz2"


def test_a_file_that_is_gone_is_damage(read: Read, tmp_path: Any) -> None:
    from cleanfeed.documents.plan import plan_inputs
    from cleanfeed.documents.read import read_piece
    from cleanfeed.settings import DocumentSettings

    for name in ("a.jsonl", "a.txt", "a.parquet", "a.arrow"):
        path = tmp_path / name
        path.write_bytes(b'{"text":"x"}\n' if name == "a.jsonl" else b"x")
        [piece] = plan_inputs([str(path)]).pieces
        path.unlink()
        batches, result = read_piece(piece, DocumentSettings())
        assert list(batches) == []
        assert result.damage is not None
        assert result.damage.reason == "unreadable_file"
