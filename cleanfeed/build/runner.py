"""A request goes in; a finished build, or the same one going on where a killed one stopped, comes out.

Phases over tasks and their segments: measure, compare, settle, place. Between them stands what only all together can
say: counts over the corpus, which documents are copies of others, then the histogram that puts samples into stages.
Finished work is in the journal and never repeated.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from cleanfeed.build.attempts import Attempts, Findings
from cleanfeed.build.candidates import candidates, candidates_path, group
from cleanfeed.build.engine import Call, LocalEngine
from cleanfeed.build.engines import engine_for, for_workers
from cleanfeed.build.journal import Journal, request_of
from cleanfeed.build.judge import Corpus
from cleanfeed.build.kernels import compile_kernels, kernels_ready, load_kernels
from cleanfeed.build.layout import FileSpec, StageTotals, add_up, files_of, read_index
from cleanfeed.build.lock import only_build
from cleanfeed.build.manifest import exit_code, first_damage, make_manifest, write_manifest
from cleanfeed.build.measure import (
    Measured,
    corpus_path,
    measure,
    measured_files,
    read_corpus_counts,
    unreadable_path,
)
from cleanfeed.build.occupied import (
    TOKENIZER_BEGUN,
    TOKENIZER_NAME,
    drop_asides,
    drop_unfinished,
    finished_build,
    forget,
    refuse_occupied,
    remove_old,
    remove_work,
    strangers,
    take_up_removal,
)
from cleanfeed.build.place import place
from cleanfeed.build.queries import disk_errors, repeated_ids
from cleanfeed.build.request import BuildRequest, Prepared, Progress, prepare
from cleanfeed.build.settle import Settled, samples_path, settle, settled_files
from cleanfeed.build.spool import Spool
from cleanfeed.build.tasks import Segment, Task, task_bytes, tasks_of
from cleanfeed.curriculum.duplicates import DuplicateCounts
from cleanfeed.curriculum.durable import write_bytes, written_aside
from cleanfeed.curriculum.paths import AnyPath, copies_dropped
from cleanfeed.curriculum.stages import Tiers
from cleanfeed.documents.jsonl import KERNEL_BYTES
from cleanfeed.errors import CleanfeedError, MisuseError, NothingReadableError, one_line
from cleanfeed.settings import DocumentSettings

__all__ = ["BuildReport", "BuildRequest", "Progress", "build"]


class BuildReport(Struct, frozen=True):
    """What came of a build."""

    manifest: dict[str, Any]
    seconds: float
    already_done: bool

    @property
    def exit_code(self) -> int:
        """0, or 3 where an input file was damaged."""
        return exit_code(self.manifest)


def build(request: BuildRequest, progress: Progress) -> BuildReport:
    """Build a curriculum.

    Args:
        request: What to build.
        progress: Told how far it is.

    Raises:
        MisuseError: The request cannot be meant; nothing was changed.
        BusyError: Another build uses the folder.
        NothingReadableError: No input held a readable record.
        CleanfeedError: The build could not go on; the same call goes on where it stopped.
    """
    started = time.monotonic()
    prepared = prepare(request)
    try:
        manifest, already_done = _found_or_built(prepared, progress)
    except disk_errors() as error:
        raise CleanfeedError(_stopped(prepared.context.out, error, begun=False)) from error
    return BuildReport(manifest, time.monotonic() - started, already_done)


def _found_or_built(prepared: Prepared, progress: Progress) -> tuple[dict[str, Any], bool]:
    """Return the manifest of the build that is asked for, and whether it was there already."""
    work = prepared.context.work
    if (done := _already_done(prepared)) and not work.exists():
        return done, True
    with copies_dropped(work), only_build(work) as still_ours:
        # What was seen before the lock was taken may have changed since.
        if done := _already_done(prepared):
            remove_work(prepared.context.out)
            return done, True
        with _opened(prepared, progress, still_ours) as journal:
            return _built(prepared, journal, progress, still_ours), False


def _already_done(prepared: Prepared) -> dict[str, Any] | None:
    """Return the manifest of the very build that is asked for, where there is one and it is to be kept."""
    if prepared.request.overwrite:
        return None
    finished = finished_build(prepared.context.out, overwrite=False)
    return finished if finished is not None and finished["request"] == prepared.digest else None


def _opened(prepared: Prepared, progress: Progress, still_ours: Callable[[], None]) -> Journal:
    """Open the journal, in a folder that is free for this build or was given up for it.

    Raises:
        MisuseError: It is not; what is in it stays as it is.
    """
    out, work, overwrite = prepared.context.out, prepared.context.work, prepared.request.overwrite
    try:
        if overwrite:
            drop_unfinished(out, prepared.journal_key)
        take_up_removal(out)
        if not overwrite:
            refuse_occupied(out, finished_build(out, overwrite=False))
        elif others := strangers(out) if request_of(work) is None else []:
            progress.note(f"left in {out}, not ours: {_some(others)}")
        journal = Journal(work, prepared.journal_key, still_ours)
    except CleanfeedError:
        if request_of(work) is None:
            forget(out)
        raise
    if prepared.plan.ignored:
        progress.note(f"passed over: {_some(prepared.plan.ignored)}")
    return journal


def _built(
    prepared: Prepared, journal: Journal, progress: Progress, still_ours: Callable[[], None]
) -> dict[str, Any]:
    """Do the build and return its manifest."""
    out = prepared.context.out
    try:
        with _Run(prepared, journal, progress).started() as run:
            manifest = run.manifest()
        still_ours()
        write_manifest(out, manifest)
        remove_work(out)
    except disk_errors() as error:
        raise CleanfeedError(_stopped(out, error, begun=True)) from error
    except (MisuseError, NothingReadableError):
        # Both come before anything but the work folder is written: leave no trace of an unfinished build.
        forget(out)
        raise
    return manifest


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _stopped(out: AnyPath, error: Exception, *, begun: bool) -> str:
    """Say what the disk, the memory or the rights on it have stopped, in a line."""
    cause, where = str(error).splitlines()[0], str(out)
    if isinstance(error, OSError):
        cause, where = error.strerror or cause, str(error.filename or where)
    what = "cannot go on writing" if begun else "cannot begin to write"
    then = ": it goes on where it stopped." if begun else "."
    return one_line(what, where, cause, todo=f"When that is mended, run the same command again{then}")


class _Run:
    """One build in progress."""

    def __init__(self, prepared: Prepared, journal: Journal, progress: Progress) -> None:
        self.prepared, self.journal, self.progress = prepared, journal, progress
        self.context = for_workers(prepared)
        size = task_bytes(tokenizer=self.context.tokenizer is not None) * self.context.task_scale
        self.tasks: list[Task] = list(tasks_of(prepared.plan.pieces, size))
        request = prepared.request
        self.engine = engine_for(prepared)
        self.attempts = Attempts(self.engine, journal, progress.advance)
        self.findings = Findings(journal, request.pipeline.budget)
        self.duplicates: DuplicateCounts | None = None

    @contextmanager
    def started(self) -> Iterator[_Run]:
        """Have the kernels compiled and give the run; end its workers afterwards, at once if something went wrong."""
        drop_asides(self.context.out)
        pipeline = self.prepared.request.pipeline
        wanted = {
            "tokens": self.context.tokenizer is not None,
            "near": pipeline.duplicates.method == "near",
            "reference": pipeline.quality.reference is not None,
            "blocks": any(
                file.kind == "jsonl" and file.size >= KERNEL_BYTES for file in self.prepared.plan.files
            ),
        }
        if not kernels_ready(**wanted):
            self.progress.compiling()
            if isinstance(self.engine, LocalEngine) and not self.engine.here:
                compile_kernels(self.prepared.request.workers, **wanted)
            else:
                load_kernels(**wanted)
        try:
            yield self
        except BaseException:
            self.engine.close(at_once=True)
            raise
        self.engine.close()

    def manifest(self) -> dict[str, Any]:
        """Do all that is not done yet and return the manifest."""
        measured = self._measured()
        if not any(one.documents for one in measured):
            raise NothingReadableError(self._nothing(measured))
        self._say_what_is_missing(measured)
        self._remove_old()
        settled = self._settled(measured)
        tiers = Tiers(self.prepared.request.pipeline.curriculum, _histogram(settled))
        totals, files = self._placed(tiers, _segments(self.tasks, measured))
        for one in settled:
            files.update(one.files)
        encoder = self.context.encoder()
        if encoder is not None:
            if self.journal.done(TOKENIZER_BEGUN, 0, bool) is None:
                self.journal.enter(TOKENIZER_BEGUN, 0, True)
            write_bytes(self.context.out / TOKENIZER_NAME, encoder.raw)
            files[TOKENIZER_NAME] = (0, encoder.digest)
        return make_manifest(
            self.prepared, measured, settled, totals, files, self._duplicate_ids(files), self.duplicates
        )

    def _remove_old(self) -> None:
        """Remove what this build replaces, once: a manifest that is there afterwards is its own."""
        if self.journal.done("removed", 0, bool) is None:
            remove_old(self.context.out)
            self.journal.enter("removed", 0, True)

    def _measured(self) -> list[Measured]:
        self.progress.phase("measure", sum(task.bytes for task in self.tasks), "bytes")
        limit = self.prepared.request.limit
        if limit is None:
            return self._measured_tasks(self.tasks, None)
        found: list[Measured] = []
        # A limit counts records from the front: how many the next task may read is known after those before.
        for task in self.tasks:
            found += self._measured_tasks([task], limit)
            limit -= sum(result.records for result in found[-1].pieces)
        return found

    def _measured_tasks(self, tasks: Sequence[Task], limit: int | None) -> list[Measured]:
        calls: list[Call] = [(task.index, (self.context, task, limit)) for task in tasks]
        sizes = {task.index: task.bytes for task in tasks}
        return self.attempts.each(
            "measure", measure, calls, Measured, sizes, self._files_of_task, self.findings
        )

    def _say_what_is_missing(self, measured: Sequence[Measured]) -> None:
        """Refuse a quality column no document has; say aloud what else no document, or not every one, has."""
        documents = sum(one.documents for one in measured)
        settings, quality = self.prepared.request.pipeline.documents, self.prepared.request.pipeline.quality

        def present(column: str) -> int:
            return sum(one.present.get(column, 0) for one in measured)

        if quality.column is not None:
            rated = present("quality_column")
            if not rated:
                raise MisuseError(
                    one_line(
                        "no document has a number in the quality column",
                        quality.column,
                        expected="a numeric field of the input",
                        todo="Check quality.column.",
                    )
                )
            if rated < documents:
                self.progress.note(
                    f"{documents - rated:,} documents have no {quality.column}: they are in the last tier"
                )
        for name in settings.keep_fields:
            if not present(name):
                self.progress.note(
                    f"no document has the field {name} that is to be kept: its column is empty"
                )
        if not present("doc_id") and settings.id_field != DocumentSettings().id_field:
            self.progress.note(f"no document has the id field {settings.id_field}: ids are <source>:<row>")

    def _files_of_task(self, task: int, found: Measured) -> list[AnyPath]:
        return measured_files(self.context, task, found)

    def _settled(self, measured: Sequence[Measured]) -> list[Settled]:
        segments = _segments(self.tasks, measured)
        bases = _bases(self.tasks, measured)
        corpus = Corpus(
            counts=self._corpus_counts(),
            excluded=self._excluded(),
            documents=sum(one.token_documents for one in measured),
            bases=(),
        )
        corpora = {segment.index: replace(corpus, bases=bases[segment.task.index]) for segment in segments}
        if self.prepared.request.pipeline.duplicates.method != "off":
            path = self._duplicates(segments, corpora)
            corpora = {index: replace(known, duplicates=path) for index, known in corpora.items()}
        calls = self._calls(segments, corpora)
        self.progress.phase("settle", len(calls), "segments")
        return self.attempts.each("settle", settle, calls, Settled, _ones(calls), self._files_of_segment)

    def _calls(self, segments: Sequence[Segment], corpora: Mapping[int, Corpus]) -> list[Call]:
        return [(segment.index, (self.context, segment, corpora[segment.index])) for segment in segments]

    def _duplicates(self, segments: Sequence[Segment], corpora: Mapping[int, Corpus]) -> AnyPath:
        """Find the documents that are not kept because another copy is, and return where they are listed."""
        calls = self._calls(segments, corpora)
        self.progress.phase("compare", len(calls), "segments")
        self.attempts.each(
            "candidates",
            candidates,
            calls,
            int,
            _ones(calls),
            lambda number, _: [candidates_path(self.context, number)],
        )
        path = self.context.work / "duplicates-named.parquet"
        self.duplicates = self.journal.done("group", 0, DuplicateCounts)
        if self.duplicates is None:
            self.duplicates = group(self.context, segments, path)
            self.journal.enter("group", 0, self.duplicates, [path])
        return path

    def _files_of_segment(self, segment: int, found: Settled) -> list[AnyPath]:
        return settled_files(self.context, segment, found)

    def _corpus_counts(self) -> AnyPath | None:
        """Add up what the tasks counted; a file, since every worker needs it."""
        total = read_corpus_counts(corpus_path(self.context, task.index) for task in self.tasks)
        named = {
            "token_documents": total.token_documents,
            "features": total.features,
            "reference": self.prepared.reference,
        }
        arrays: dict[str, Any] = {name: values for name, values in named.items() if values is not None}
        path = self.context.work / "corpus.npz"
        with written_aside(path) as aside, aside.open("wb") as handle:
            np.savez(handle, **arrays)
        return path if arrays else None

    def _excluded(self) -> AnyPath | None:
        """Write the hashes to leave out where every worker finds them."""
        if not len(self.prepared.excluded):
            return None
        path = self.context.work / "excluded.npy"
        with written_aside(path) as aside, aside.open("wb") as handle:
            np.save(handle, self.prepared.excluded.halves)
        return path

    def _placed(
        self, tiers: Tiers, segments: Sequence[Segment]
    ) -> tuple[list[StageTotals], dict[str, tuple[int, str]]]:
        settings, tokens = self.prepared.request.pipeline.curriculum, self.context.tokenizer is not None
        indexes = (read_index(samples_path(self.context, segment.index)) for segment in segments)
        totals = add_up(settings, tiers, indexes, tokens=tokens)
        specs: list[FileSpec] = [
            spec for total in totals for spec in files_of(settings, total, tokens=tokens)
        ]
        calls: list[Call] = [
            (number, (self.context, spec, tiers, segments)) for number, spec in enumerate(specs)
        ]
        # The largest first: what is begun last decides how long the others wait.
        calls.sort(key=lambda call: -specs[call[0]].rows / specs[call[0]].row_group_rows)
        self.progress.phase("write", len(calls), "files")
        placed = self.attempts.each(
            "place",
            place,
            calls,
            tuple[int, str],
            _ones(calls),
            lambda number, _: [self.context.out / specs[number].name],
        )
        return totals, {spec.name: result for spec, result in zip(specs, placed, strict=True)}

    def _duplicate_ids(self, files: Mapping[str, tuple[int, str]]) -> int:
        """Return how many documents have an id that an earlier one has too."""
        parts = [name for name in sorted(files) if name.startswith("signals/")]
        documents = sum(files[name][0] for name in parts)
        return repeated_ids(self.context.out, parts, documents, self.context.scratch / "duckdb")

    def _nothing(self, measured: Sequence[Measured]) -> str:
        """Say what kept every record from being read."""
        damage = first_damage(self.prepared, measured)
        why = [
            f"{self.prepared.plan.files[index].source} is damaged: {found.detail or found.reason}"
            for index, found in damage.items()
        ]
        reasons: Counter[str] = Counter()
        for task in self.tasks:
            for batch in Spool.open(unreadable_path(self.context, task.index)).batches:
                reasons.update(batch.column("reason").to_pylist())
        why += [f"{number} records: {reason}" for reason, number in sorted(reasons.items())]
        names = ", ".join(self.prepared.request.inputs)
        return one_line(
            "nothing could be read", names, "; ".join(why[:3]) or "no records", "at least one document"
        )


def _ones(calls: Sequence[Call]) -> dict[int, int]:
    """Return sizes of calls that are one unit of their phase each."""
    return dict.fromkeys((number for number, _ in calls), 1)


def _segments(tasks: Sequence[Task], measured: Sequence[Measured]) -> list[Segment]:
    """Return the segments of all tasks, in the order of the inputs."""
    places = [
        (task, number) for task, one in zip(tasks, measured, strict=True) for number in range(one.segments)
    ]
    return [Segment(index, task, number) for index, (task, number) in enumerate(places)]


def _bases(tasks: Sequence[Task], measured: Sequence[Measured]) -> list[tuple[int, ...]]:
    """Return for each task, for each of its pieces, how many rows of its file come before it."""
    before: dict[int, int] = {}
    found: list[tuple[int, ...]] = []
    for task, one in zip(tasks, measured, strict=True):
        bases = []
        for piece, result in zip(task.pieces, one.pieces, strict=True):
            bases.append(before.get(piece.file.index, 0))
            before[piece.file.index] = bases[-1] + result.rows
        found.append(tuple(bases))
    return found


def _histogram(settled: Sequence[Settled]) -> dict[int, int]:
    total: dict[int, int] = {}
    for one in settled:
        for place_, number in one.quality.items():
            total[place_] = total.get(place_, 0) + number
    return total
