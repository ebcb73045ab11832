"""The first bytes of a file go in; what kind of file it is, or why it is no JSON Lines, comes out."""

from __future__ import annotations

from pathlib import PurePosixPath

from cleanfeed.documents.json_record import is_json, is_object
from cleanfeed.documents.record import Damage
from cleanfeed.documents.work import Kind

BOM = b"\xef\xbb\xbf"

SHAPE_BYTES = 2**16
"""What is looked at; always as much, so that a file is the same however it is cut and read."""

_WIDE_BOMS = {
    b"\xff\xfe\x00\x00": "utf32",
    b"\x00\x00\xfe\xff": "utf32",
    b"\xff\xfe": "utf16",
    b"\xfe\xff": "utf16",
}
_WIDE_BRACES = {b"{\0\0\0": "utf32", b"\0\0\0{": "utf32", b"{\0": "utf16", b"\0{": "utf16"}


def wide_encoding(head: bytes) -> Damage | None:
    """Return the damage of a file in UTF-16 or UTF-32, by its byte order mark or by how an object begins in it."""
    for mark, name in {**_WIDE_BOMS, **_WIDE_BRACES}.items():
        if head.startswith(mark):
            looks = f"looks like {name.upper().replace('UTF', 'UTF-')} (starts with {mark.hex(' ')})"
            return Damage(name, 0, looks + "; only UTF-8 is read")
    return None


def shape_damage(head: bytes) -> Damage | None:
    """Return why a file is no JSON Lines at all, so that it gets one message and not one for each line.

    Args:
        head: The first `SHAPE_BYTES` of the decompressed file; what more there is does not count.
    """
    head = head[:SHAPE_BYTES]
    wide = wide_encoding(head)
    if wide is not None:
        return wide
    first, second, third = _first_lines(head.removeprefix(BOM))
    if first.startswith(b"["):
        # A line may be an array by mistake; it is the whole file if it goes on or if nothing comes after it.
        if (is_json(first) and second) or (is_object(second) and third[:1] != b"]"):
            return None
        # A second line too long to be seen whole is believed by how it begins, unless the first one is not over.
        if (
            len(head) == SHAPE_BYTES
            and head.endswith(second)
            and second.startswith(b"{")
            and first[-1] not in b"[,:{"
        ):
            return None
        return Damage("json_array", 0, "not JSON Lines: looks like one JSON array")
    if first == b"{" and second and not second.startswith(b"{"):
        return Damage("json_array", 0, "not JSON Lines: looks like one JSON object spread over lines")
    return None


def _first_lines(head: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the first three lines that are not blank, without the space around them; empty where there is none."""
    lines: list[bytes] = []
    position = 0
    while position < len(head) and len(lines) < 3:
        end = head.find(b"\n", position)
        end = len(head) if end < 0 else end
        line = head[position:end].strip()
        if line:
            lines.append(line)
        position = end + 1
    return tuple(lines + [b""] * (3 - len(lines)))  # type: ignore[return-value]


SUFFIXES: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".txt": "text",
    ".text": "text",
}
"""What a file is by its name, after a suffix of its compression."""

_COMPRESSION_SUFFIXES = frozenset((".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz"))


def suffix_of(name: str) -> str:
    """Return the last suffix of a file name, one of a compression left out."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    while suffixes and suffixes[-1] in _COMPRESSION_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def kind_of(name: str, head: bytes) -> Kind | None:
    """Return what kind of file this is, by its content first and then by its name; None where it is none.

    Args:
        name: The file's name.
        head: Its first bytes, decompressed.
    """
    named = SUFFIXES.get(suffix_of(name))
    if named == "text":
        return named
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"ARROW1\0\0") or (head.startswith(b"\xff\xff\xff\xff") and named != "jsonl"):
        return "arrow"
    if named == "jsonl":
        return named
    first = _first_lines(head.removeprefix(BOM))[0]
    # A first line longer than what was read is believed by its first key.
    if is_object(first) or (first.startswith(b'{"') and b"\n" not in head.strip()):
        return "jsonl"
    return named


def is_spread_object(head: bytes) -> bool:
    """Whether a JSON file is one object spread over lines: settings, not documents."""
    first, second, _ = _first_lines(head.removeprefix(BOM))
    return first == b"{" and bool(second) and not second.startswith(b"{")
