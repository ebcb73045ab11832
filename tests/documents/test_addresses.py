"""Inputs behind an address are read like files, and a store that fails is not taken for a file that is damaged."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cleanfeed.documents import addresses
from cleanfeed.documents.addresses import open_address
from cleanfeed.documents.plan import plan_inputs
from cleanfeed.documents.read import read_piece
from cleanfeed.errors import CleanfeedError
from cleanfeed.settings import DocumentSettings

from .conftest import read_all

TEXTS = [f"text number {number} of some length" for number in range(50)]


def jsonl() -> bytes:
    return b"".join(b'{"text": "%s"}\n' % text.encode() for text in TEXTS)


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": TEXTS}), sink, row_group_size=10)
    return sink.getvalue()


def arrow() -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": TEXTS}), max_chunksize=10)
    return sink.getvalue()


FILES = {
    "a.jsonl": jsonl(),
    "a.jsonl.gz": gzip.compress(jsonl()),
    "a.parquet": parquet(),
    "a.arrow": arrow(),
    "a.txt": TEXTS[0].encode(),
}


@pytest.fixture
def store() -> Iterator[MemoryFileSystem]:
    system = fsspec.filesystem("memory")
    for name, data in FILES.items():
        system.pipe_file(f"/in/{name}", data)
    yield system
    system.store.clear()


class BrokenFile(io.BytesIO):
    """A file of a store that has the end of it left, and answers no more where the beginning is asked for."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() < len(self.getvalue()) // 2:
            raise RuntimeError("connection\nlost")
        return super().read(size)


@pytest.mark.parametrize("name", FILES)
def test_a_store_that_fails_while_a_file_is_read_stops_who_reads(
    store: MemoryFileSystem, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"memory://in/{name}"
    assert read_all([address]).texts == (TEXTS if name != "a.txt" else TEXTS[:1])
    (piece,) = plan_inputs([address]).pieces
    monkeypatch.setattr(MemoryFileSystem, "open", lambda *_, **__: BrokenFile(FILES[name]))
    batches, _ = read_piece(piece, DocumentSettings())
    expected = (
        rf"^cannot read from the store: memory://+in/{name}: got connection lost\. When the store answers"
    )
    with pytest.raises(CleanfeedError, match=expected):
        list(batches)


@pytest.mark.usefixtures("store")
def test_of_a_file_that_is_read_here_and_there_only_what_is_asked_for_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, object]] = []
    opened = MemoryFileSystem.open

    def noted(self: MemoryFileSystem, path: str, mode: str, **how: object) -> object:
        asked.append(how)
        return opened(self, path, mode)

    monkeypatch.setattr(MemoryFileSystem, "open", noted)
    monkeypatch.setattr(MemoryFileSystem, "async_impl", True)
    for jumps in (True, False):
        with open_address("memory://in/a.txt", jumps=jumps) as file:
            assert file.read(4) == b"text"
            assert (file.tell(), file.seek(0), file.closed) == (4, 0, False)
    assert asked == [
        {"cache_type": "none"},
        {"cache_type": "readahead", "block_size": addresses.READ_AHEAD},
    ]
