"""A zstd file goes in; its frames come out cut into header, blocks and checksum, so that each can be decoded alone.

A block holds at most 128 KiB of text. Feeding a decoder block by block bounds the memory, keeps everything before a
corrupt block, and tells a file that ends inside a frame from one that ends after it. Format: RFC 8878, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from msgspec import Struct

FRAME_MAGIC = 0xFD2FB528
SKIPPABLE_MAGIC = 0x184D2A50
_DICTIONARY_BYTES = (0, 1, 2, 4)
_RLE, _RESERVED = 1, 3


class Part(Struct, frozen=True):
    """A piece of a frame that a decoder takes in one go."""

    data: bytes
    offset: int
    first: bool
    """A frame starts here and needs a new decoder."""
    whole: bool = True
    """False where the file ends inside this part."""


class NotAFrame(Exception):
    """Bytes that are no zstd frame stand at ``offset``, where one should start or go on."""

    def __init__(self, offset: int, detail: str) -> None:
        super().__init__(offset, detail)
        self.offset = offset
        self.detail = detail


class _Reader:
    """Counts what is read, and gives less than asked for only at the end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.offset = 0

    def take(self, size: int) -> bytes:
        parts = []
        while size and (chunk := self._read(size)):
            parts.append(chunk)
            size -= len(chunk)
            self.offset += len(chunk)
        return b"".join(parts)


def frame_parts(read: Callable[[int], bytes]) -> Iterator[Part]:
    """Yield the parts of all frames; skippable frames are passed over. A part that is not whole is the last.

    Raises:
        NotAFrame: After the parts before it.
    """
    source = _Reader(read)
    while True:
        start = source.offset
        magic = source.take(4)
        if not magic:
            return
        number = int.from_bytes(magic, "little")
        if len(magic) == 4 and number & 0xFFFFFFF0 == SKIPPABLE_MAGIC:
            if not _skip(source):
                yield Part(b"", source.offset, first=False, whole=False)
                return
        elif len(magic) == 4 and number == FRAME_MAGIC:
            whole = yield from _frame(source, magic, start)
            if not whole:
                return
        elif FRAME_MAGIC.to_bytes(4, "little").startswith(magic):
            yield Part(b"", source.offset, first=False, whole=False)
            return
        else:
            raise NotAFrame(start, "bytes that are no zstd frame")


def _skip(source: _Reader) -> bool:
    """Pass over the rest of a skippable frame; False where the file ends in it."""
    size = source.take(4)
    left = int.from_bytes(size, "little")
    while left and (chunk := source.take(min(left, 2**20))):
        left -= len(chunk)
    return len(size) == 4 and not left


def _frame(source: _Reader, magic: bytes, start: int) -> Generator[Part, None, bool]:
    """Yield the parts of one frame whose magic was read; return whether it was whole."""
    header = magic + source.take(1)
    missing = 0
    if len(header) == 5:
        kind = header[4]
        single = kind >> 5 & 1
        content_bytes = (single, 2, 4, 8)[kind >> 6]
        rest = (1 - single) + _DICTIONARY_BYTES[kind & 3] + content_bytes
        header += source.take(rest)
        missing = 5 + rest - len(header)
    if len(header) < 5 or missing:
        yield Part(header, start, first=True, whole=False)
        return False
    yield Part(header, start, first=True)
    last = False
    while not last:
        place = source.offset
        head = source.take(3)
        number = int.from_bytes(head, "little")
        last, form, size = bool(number & 1), number >> 1 & 3, number >> 3
        if form == _RESERVED:
            raise NotAFrame(place, "a block of a reserved type")
        body = source.take(1 if form == _RLE else size) if len(head) == 3 else b""
        whole = len(head) == 3 and len(body) == (1 if form == _RLE else size)
        yield Part(head + body, place, first=False, whole=whole)
        if not whole:
            return False
    if kind >> 2 & 1:
        place = source.offset
        checksum = source.take(4)
        yield Part(checksum, place, first=False, whole=len(checksum) == 4)
        return len(checksum) == 4
    return True
