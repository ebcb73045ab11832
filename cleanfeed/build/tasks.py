"""A plan of pieces and a pipeline go in; the tasks of a build, and everything a worker must know, come out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from cleanfeed.curriculum.copies import copies_folder
from cleanfeed.curriculum.paths import AnyPath, fetched
from cleanfeed.curriculum.tokenizer import TextEncoder
from cleanfeed.documents.addresses import reached
from cleanfeed.documents.plan import Piece
from cleanfeed.rules.ruleset import RuleSet
from cleanfeed.settings import Pipeline
from cleanfeed.signals.tokens import TokenTables

TASK_BYTES = 16 * 2**20
"""Text of a task (bytes): small files share one, large ones are cut. The result does not depend on the workers."""

TOKENISED_TASK_BYTES = 2 * 2**20
"""The same with a tokenizer, which takes twenty times as long: smaller tasks keep all workers busy to the end."""

TASK_PIECES = 2048
SEGMENT_BYTES, SEGMENT_DOCUMENTS = 64 * 2**20, 1 << 18
"""A spool file ends after this much text or this many documents; a task of one large compressed file has many."""

SEGMENTS, TASKS = 256, 1024
"""Larger inputs get larger segments and tasks: a file of the curriculum is made from all segments, and a segment
never spans tasks, so there must not be more of either than can be opened for every file."""

EXPANSION = 4
"""Text is taken to be this many times larger than a compressed or columnar file."""


class Task(Struct, frozen=True):
    """Some consecutive pieces that one worker takes from files to a spool."""

    index: int
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Bytes on disk this task reads, for progress."""
        return sum(piece.bytes for piece in self.pieces)


class Segment(Struct, frozen=True):
    """Some consecutive documents of a task, in one spool file."""

    index: int
    """Position among the segments of all tasks."""
    task: Task
    number: int
    """Position among the segments of its task."""


class Context(Struct, frozen=True):
    """What every worker of a build must know; small and picklable."""

    pipeline: Pipeline
    out: AnyPath
    tokenizer: str | AnyPath | None = None
    """A file on this machine, or what every machine can reach."""
    keep_text: bool = False
    scale: int = 1
    """How many times larger than usual the segments are."""
    task_scale: int = 1
    """How many times larger than usual the tasks are."""

    @property
    def work(self) -> AnyPath:
        """Folder of everything that is not finished."""
        return work_folder(self.out)

    @property
    def scratch(self) -> Path:
        """Folder of this machine for what no other process reads."""
        work = self.work
        return work if isinstance(work, Path) else copies_folder(work.copies)

    @property
    def has_text(self) -> bool:
        """Whether samples carry their text."""
        return self.tokenizer is None or self.keep_text

    def encoder(self) -> TextEncoder | None:
        """Return the tokenizer, loaded once a process."""
        if self.tokenizer is None:
            return None
        file = self._tokenizer_file()
        return _encoder(file, self.pipeline.curriculum.end_of_text, stamp(file))

    def token_tables(self) -> TokenTables:
        """Return what measuring ids needs to know of the tokenizer, worked out once a process."""
        file = self._tokenizer_file()
        return _token_tables(file, self.pipeline.curriculum.end_of_text, stamp(file))

    def _tokenizer_file(self) -> str:
        assert self.tokenizer is not None
        return self.tokenizer if isinstance(self.tokenizer, str) else str(fetched(self.tokenizer))

    def rules(self) -> RuleSet:
        """Return the rules, compiled once a process."""
        return _rules(self.pipeline, self.tokenizer is not None)


def work_folder(out: AnyPath) -> AnyPath:
    """Return the folder in OUT that holds everything unfinished."""
    return out / ".work"


def stamp(path: str | Path) -> tuple[int | str, ...]:
    """Return what changes when a file is replaced, so that what was loaded from it is not taken for it any more."""
    if "://" in str(path):
        store, key = reached(str(path), use_listings_cache=False)
        return (str(store.ukey(key)),)
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=2)
def _encoder(path: str, end_of_text: str | None, stamped: tuple[int | str, ...]) -> TextEncoder:
    return TextEncoder(path, end_of_text)


@lru_cache(maxsize=2)
def _token_tables(path: str, end_of_text: str | None, stamped: tuple[int | str, ...]) -> TokenTables:
    return TokenTables.of(_encoder(path, end_of_text, stamped).tokenizer)


@lru_cache(maxsize=2)
def _rules(pipeline: Pipeline, tokenizer: bool) -> RuleSet:
    return RuleSet(pipeline.rules, tokenizer=tokenizer)


def _text_bytes(piece: Piece) -> int:
    plain = piece.file.compression == "none" and piece.file.kind in ("jsonl", "text")
    return piece.bytes * (1 if plain else EXPANSION)


def task_bytes(*, tokenizer: bool) -> int:
    """Return how much text a task has."""
    return TOKENISED_TASK_BYTES if tokenizer else TASK_BYTES


def is_small(pieces: Iterable[Piece]) -> bool:
    """Return whether an input is so small that starting processes would take longer than the work."""
    return sum(map(_text_bytes, pieces)) <= TASK_BYTES


def scales_of(pieces: Iterable[Piece], *, tokenizer: bool) -> tuple[int, int]:
    """Return how many times larger than usual the segments, and the tasks, of an input must be for there to be few."""
    text = sum(map(_text_bytes, pieces))
    return 1 + text // (SEGMENTS * SEGMENT_BYTES), 1 + text // (TASKS * task_bytes(tokenizer=tokenizer))


def tasks_of(pieces: Iterable[Piece], most: int) -> Iterator[Task]:
    """Yield the tasks of a plan: neighbouring pieces together, up to ``most`` bytes of text."""
    held: list[Piece] = []
    held_bytes = index = 0
    for piece in pieces:
        size = _text_bytes(piece)
        if held and (held_bytes + size > most or len(held) >= TASK_PIECES):
            yield Task(index, tuple(held))
            held, held_bytes, index = [], 0, index + 1
        held.append(piece)
        held_bytes += size
    if held:
        yield Task(index, tuple(held))
