"""Lines of a stream come in blocks: each line once, whatever is read at a time, and little is read that is not used."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.documents import lines
from cleanfeed.documents.lines import NEAR_BYTES, Block, read_blocks, skip_line


def blocks(data: bytes, start: int, stop: int | None, block_bytes: int) -> Iterator[Block | lines.LongLine]:
    """Yield the blocks of the lines that start in ``[start, stop)``."""
    stream = io.BytesIO(data)
    offset, held = 0, b""
    if start:
        stream.seek(start - 1)
        offset, held = skip_line(stream.read, start - 1, block_bytes)
    yield from read_blocks(
        stream.read,
        offset=offset,
        held=held,
        stop=stop,
        block_bytes=block_bytes,
        max_line=1000,
        broken=OSError,
    )


def piece(data: bytes, start: int, stop: int | None, block_bytes: int) -> list[Block | lines.LongLine]:
    return list(blocks(data, start, stop, block_bytes))


@given(
    texts=st.lists(st.binary(max_size=60).map(lambda text: text.replace(b"\n", b" ")), max_size=20),
    cuts=st.lists(st.integers(1, 400), max_size=4, unique=True),
    block_bytes=st.integers(1, 100),
    near=st.integers(1, 100),
)
def test_pieces_of_a_file_give_each_line_once_and_the_same_blocks_whatever_is_read_first(
    texts: list[bytes], cuts: list[int], block_bytes: int, near: int
) -> None:
    data = b"".join(text + b"\n" for text in texts)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), None]
    with mock.patch.object(lines, "NEAR_BYTES", near):
        found = [piece(data, edges[i] or 0, edges[i + 1], block_bytes) for i in range(len(edges) - 1)]
    every = [block for part in found for block in part]
    assert all(isinstance(block, Block) for block in every)
    assert b"".join(block.data for block in every if isinstance(block, Block)) == data
    with mock.patch.object(lines, "NEAR_BYTES", 1000):
        assert found == [piece(data, edges[i] or 0, edges[i + 1], block_bytes) for i in range(len(edges) - 1)]


def test_little_is_read_before_and_behind_the_lines_of_a_piece() -> None:
    data = b"0123456789\n" * 100_000
    read = 0

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal read
            found = super().read(size)
            read += len(found)
            return found

    with mock.patch.object(io, "BytesIO", Counted):
        found = piece(data, 500_000, 700_000, 2**23)
    assert sum(len(block.data) for block in found if isinstance(block, Block)) == 200_002
    assert read <= 200_002 + 2 * NEAR_BYTES


def test_a_stream_that_breaks_gives_each_line_before_it_once() -> None:
    data = b"0123456789\n" * 40

    class Breaks(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            found = super().read(min(size or 0, 200 - self.tell()))
            if not found:
                raise OSError("broken")
            return found

    def lines_until_broken(start: int, stop: int | None) -> Iterator[bytes]:
        with mock.patch.object(io, "BytesIO", Breaks), suppress(OSError):
            for block in blocks(data, start, stop, 2**20):
                assert isinstance(block, Block)
                yield block.data

    # The second stretch begins behind the line that the first one ends in, and breaks inside one.
    assert list(lines_until_broken(0, 150)) == [data[:154]]
    assert list(lines_until_broken(150, None)) == [data[154:198], data[198:200]]
