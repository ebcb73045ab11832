"""A file of any compression goes in; its decompressed bytes come out, to the last one that can be had.

Compression is told by the first bytes, never by the name. Where a stream is cut or corrupt, everything before that
place is given first; then :class:`BrokenStream` says where and why.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Protocol

import zstandard

from cleanfeed.documents.addresses import open_address
from cleanfeed.documents.zstd_frames import NotAFrame, frame_parts

READ_BYTES = 2**18
"""Compressed bytes read at a time."""

STEP_BYTES = 2**20
"""Bytes a decoder may give at a time, so that a small file that expands a thousandfold does not fill the memory."""

WINDOW_BYTES = 2**31
"""Largest zstd window: what ``zstd --long=31`` writes."""

MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00"}


class BrokenStream(Exception):
    """The rest of a file cannot be read."""

    def __init__(self, reason: str, offset: int, detail: str) -> None:
        super().__init__(reason, offset, detail)
        self.reason = reason
        self.offset = offset
        """Place in the file as it lies on disk."""
        self.detail = detail


def compression_of(head: bytes) -> str:
    """Return ``gzip``, ``zstd``, ``bz2``, ``xz`` or ``none`` by the first bytes of a file."""
    if head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:
        return "zstd"  # begins with a frame that is skipped, as parallel compressors write
    for name, magic in MAGIC.items():
        # The block size and the mark of a block or of the end keep a text that begins with "BZh" apart.
        if head.startswith(magic) and (name != "bz2" or head[4:7] in (b"1AY", b"\x17\x72\x45")):
            return name
    return "none"


def open_raw(path: str, *, jumps: bool = False) -> IO[bytes]:
    """Open a local path or an fsspec address as it is; ``jumps`` where it is not read from front to back."""
    return open_address(path, jumps=jumps) if "://" in path else Path(path).open("rb")


class ByteStream:
    """The decompressed bytes of one file, read in pieces of any size."""

    def __init__(self, path: str, compression: str, start: int = 0) -> None:
        """Open a file.

        Args:
            path: Local path or fsspec address.
            compression: What :func:`compression_of` says.
            start: Where to start; only for files that are not compressed.

        Raises:
            BrokenStream: The file cannot be opened.
        """
        self._path = path
        self._held: list[bytes] = []
        self._broken: BrokenStream | None = None
        try:
            self._raw = open_raw(path)
            if start:
                self._raw.seek(start)
        except (OSError, ValueError) as error:
            raise BrokenStream("unreadable_file", 0, _said(error)) from error
        self._consumed = start
        if compression == "none":
            self._chunks: Iterator[bytes] | None = None
        else:
            self._chunks = self._zstd() if compression == "zstd" else self._members(compression)

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer where the stream ends or breaks, and none after its end.

        Raises:
            BrokenStream: All bytes that can be had were given.
        """
        have = sum(map(len, self._held))
        try:
            while have < size and self._broken is None:
                chunk = self._read_raw(size - have) if self._chunks is None else next(self._chunks, b"")
                if not chunk:
                    break
                self._held.append(chunk)
                have += len(chunk)
        except BrokenStream as broken:
            self._broken = broken
        if not have and size and self._broken is not None:
            raise self._broken
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held = [data[size:]] if len(data) > size else []
        return data[:size]

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_raw(self, size: int) -> bytes:
        """Read from the file as it lies on disk."""
        try:
            data = self._raw.read(size)
        except (OSError, ValueError) as error:
            raise BrokenStream("unreadable_file", self._consumed, _said(error)) from error
        self._consumed += len(data)
        return data

    def _zstd(self) -> Iterator[bytes]:
        """Yield the text of all frames, block by block."""
        decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES)
        frame = decompressor.decompressobj()
        try:
            for part in frame_parts(self._read_raw):
                if part.first:
                    frame = decompressor.decompressobj()
                try:
                    data = frame.decompress(part.data) if part.data else b""
                except zstandard.ZstdError as error:
                    raise BrokenStream("corrupt", part.offset, _said(error)) from error
                if data:
                    yield data
                if not part.whole:
                    raise BrokenStream("truncated", self._consumed, "the file ends inside a zstd frame")
        except NotAFrame as error:
            raise BrokenStream("corrupt", error.offset, error.detail) from error

    def _members(self, compression: str) -> Iterator[bytes]:
        """Yield the text of all gzip members, bzip2 streams or xz streams of the file."""
        magic = MAGIC[compression]
        start, data = 0, self._read_raw(READ_BYTES)
        while data:
            decoder, fed, given = _DECODERS[compression](), 0, 0
            while not decoder.finished:
                if not data:
                    raise BrokenStream(
                        "truncated", start + fed, f"the file ends inside a {compression} stream"
                    )
                try:
                    for text in decoder.feed(data):
                        given += len(text)
                        yield text
                except _ERRORS as error:
                    place = yield from self._carefully(compression, start, given)
                    raise BrokenStream("corrupt", place, _said(error)) from error
                fed += len(data)
                data = decoder.rest if decoder.finished else self._read_raw(READ_BYTES)
            start += fed - len(data)
            start, data = self._next_member(start, data)
            if data and data[: len(magic)] != magic[: len(data)]:
                raise BrokenStream("corrupt", start, f"bytes after a {compression} stream that are none")

    def _next_member(self, start: int, data: bytes) -> tuple[int, bytes]:
        """Pass over the zeros that may pad a member; return where the next starts and its first bytes."""
        while not data.lstrip(b"\0"):
            start += len(data)
            data = self._read_raw(READ_BYTES)
            if not data:
                return start, data
        padding = len(data) - len(data.lstrip(b"\0"))
        data = data[padding:]
        return start + padding, data if len(data) >= 8 else data + self._read_raw(READ_BYTES)

    def _carefully(self, compression: str, start: int, given: int) -> Generator[bytes, None, int]:
        """Decode a member again from its start, and yield what comes after the bytes already given.

        A decoder that fails drops what it had decoded in that call. The last stretch is therefore decoded one byte
        at a time, which loses nothing.

        Returns:
            Where the file is corrupt.
        """
        decoder, seen, place = _DECODERS[compression](), 0, start
        with open_raw(self._path) as raw:
            raw.seek(start)
            while data := raw.read(READ_BYTES // 16):
                decoder.careful = decoder.careful or seen + 2 * STEP_BYTES > given
                for single in (data[i : i + 1] for i in range(len(data))) if decoder.careful else (data,):
                    try:
                        for text in decoder.feed(single):
                            seen += len(text)
                            if seen > given:
                                yield text[max(0, len(text) - (seen - given)) :]
                    except _ERRORS:
                        return place
                    place += len(single)
        return place


class _Decoder(Protocol):
    """Decodes one member of a file."""

    careful: bool
    """Give single bytes."""

    @property
    def finished(self) -> bool:
        """The end of the member was seen."""

    @property
    def rest(self) -> bytes:
        """What was fed after the end of the member."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what some more compressed bytes decode to."""


class _Gzip:
    """One gzip member."""

    def __init__(self) -> None:
        self.careful = False
        self._inflate = zlib.decompressobj(wbits=31)

    @property
    def finished(self) -> bool:
        return self._inflate.eof

    @property
    def rest(self) -> bytes:
        return self._inflate.unused_data

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            step = 1 if self.careful else STEP_BYTES
            text = self._inflate.decompress(data, step)
            data = self._inflate.unconsumed_tail
            if text:
                yield text
            if self._inflate.eof or (not data and len(text) < step):
                return


class _Buffered:
    """One bzip2 or xz stream."""

    def __init__(self, decompressor: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self.careful = False
        self._decompressor = decompressor

    @property
    def finished(self) -> bool:
        return self._decompressor.eof

    @property
    def rest(self) -> bytes:
        return self._decompressor.unused_data

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            text = self._decompressor.decompress(data, 1 if self.careful else STEP_BYTES)
            data = b""
            if text:
                yield text
            if self._decompressor.eof or self._decompressor.needs_input:
                return


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gzip": _Gzip,
    "bz2": lambda: _Buffered(bz2.BZ2Decompressor()),
    "xz": lambda: _Buffered(lzma.LZMADecompressor(lzma.FORMAT_XZ)),
}

_ERRORS = (zlib.error, lzma.LZMAError, OSError, EOFError)
"""What a decoder raises on bytes it cannot decode; bz2 raises OSError."""


def _said(error: Exception) -> str:
    """Return an exception's message on one line, without the path it may hold."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join(text.split())
