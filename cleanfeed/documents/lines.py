"""A stream of bytes goes in; blocks of whole lines, cut at byte 0x0A only, come out, and memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from msgspec import Struct

Read = Callable[[int], bytes]
"""Return at most that many bytes, none only after the end of the stream."""

HEAD_BYTES = 1024

NEAR_BYTES = 2**16
"""Most lines have their end within so many bytes: read first where only one line end is looked for."""


class Block(Struct, frozen=True):
    """Consecutive whole lines with their ends; the last line of a stream may have none."""

    data: bytes
    offset: int
    """Where the block starts in the stream."""
    torn: bool = False
    """The stream broke before the end of this one line."""


class LongLine(Struct, frozen=True):
    """A line over the limit, which was passed over without being held."""

    head: bytes
    offset: int
    size: int


def skip_line(read: Read, offset: int, block_bytes: int) -> tuple[int, bytes]:
    """Read past the next line end.

    Returns:
        Where the next line starts, and the bytes already read from there on.
    """
    while chunk := read(min(block_bytes, NEAR_BYTES)):
        end = chunk.find(b"\n") + 1
        if end:
            return offset + end, chunk[end:]
        offset += len(chunk)
    return offset, b""


def read_blocks(
    read: Read,
    *,
    offset: int = 0,
    held: bytes = b"",
    stop: int | None = None,
    block_bytes: int,
    max_line: int,
    broken: type[Exception],
) -> Iterator[Block | LongLine]:
    """Yield the lines of a stream in blocks of at most ``block_bytes``; a longer line is a block alone.

    Where the blocks are cut depends on the bytes alone, never on how the stream delivers them.

    Args:
        read: Source of the bytes after ``held``.
        offset: Place of the first byte of ``held`` in the stream; a line starts there.
        held: Bytes already read.
        stop: Only lines that start before this place are wanted.
        block_bytes: Size of a block.
        max_line: Longest line that is held.
        broken: What ``read`` raises when the rest of the stream cannot be read. The line that was cut then comes as
            a torn block, and the exception goes on.
    """
    data = held
    if len(held) > block_bytes:
        data, read = held[:block_bytes], _first(held[block_bytes:], read)
    while stop is None or offset < stop:
        near = block_bytes if stop is None else min(block_bytes, stop - offset + NEAR_BYTES)
        try:
            if stop is None or offset + block_bytes < stop:
                # Nearly every block: what was read goes into it as it is, and is copied once.
                chunk = read(block_bytes - len(data))
                if len(data) + len(chunk) == block_bytes and (end := chunk.rfind(b"\n") + 1):
                    yield Block(b"".join((data, memoryview(chunk)[:end])), offset)
                    offset, data = offset + len(data) + end, chunk[end:]
                    continue
                data += chunk
            # No further than to the end of the last line that is wanted: the stream may break behind it.
            while len(data) < block_bytes and (stop is None or data.find(b"\n", stop - 1 - offset) < 0):
                chunk = read((near if len(data) < near else block_bytes) - len(data))
                if not chunk:
                    break
                data += chunk
        except broken:
            yield from _torn(data, offset, max_line)
            raise
        if not data:
            return
        if stop is not None and offset + len(data) >= stop:
            end = data.find(b"\n", stop - 1 - offset) + 1
            if end:
                yield Block(data[:end], offset)
                return
        end = data.rfind(b"\n") + 1
        if end:
            yield Block(data[:end], offset)
            offset, data = offset + end, data[end:]
        elif len(data) < block_bytes:
            yield (
                Block(data, offset)
                if len(data) <= max_line
                else LongLine(data[:HEAD_BYTES], offset, len(data))
            )
            return
        else:
            line, size, data = yield from _long_line(read, data, offset, block_bytes, max_line, broken)
            yield line
            offset += size


def _first(held: bytes, read: Read) -> Read:
    """Return a source of some bytes and, after them, of those of another."""

    def both(size: int) -> bytes:
        nonlocal held
        if not held:
            return read(size)
        # Not filled up from the other, which may break: what was held would be lost with it.
        taken, held = held[:size], held[size:]
        return taken

    return both


def _long_line(
    read: Read, start: bytes, offset: int, block_bytes: int, max_line: int, broken: type[Exception]
) -> Generator[Block, None, tuple[Block | LongLine, int, bytes]]:
    """Read on to the end of a line that fills more than a block.

    Returns:
        The line, the bytes it takes in the stream, and the bytes read after it.
    """
    parts, size, rest, ended = [start], len(start), b"", 0
    try:
        while chunk := read(block_bytes):
            end = chunk.find(b"\n")
            ended = int(end >= 0)
            taken = chunk if end < 0 else chunk[: end + 1]
            size += len(taken)
            if size - ended <= max_line:
                parts.append(taken)
            else:
                del parts[1:]
            if ended:
                rest = chunk[end + 1 :]
                break
    except broken:
        if size <= max_line:
            yield Block(b"".join(parts), offset, torn=True)
        raise
    if size - ended <= max_line:
        return Block(b"".join(parts), offset), size, rest
    return LongLine(start[:HEAD_BYTES], offset, size - ended), size, rest


def _torn(data: bytes, offset: int, max_line: int) -> Iterator[Block]:
    """Yield what a broken stream left: whole lines, then the one that was cut."""
    end = data.rfind(b"\n") + 1
    if end:
        yield Block(data[:end], offset)
    if 0 < len(data) - end <= max_line:
        yield Block(data[end:], offset + end, torn=True)
