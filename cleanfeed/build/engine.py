"""A function and its calls go in; results come out as they are ready, from this process or a pool of others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from cleanfeed.build.budget import Lost, OverrunError, Reporter
from cleanfeed.build.pool import OVERRUN, Pool, serve
from cleanfeed.documents.allocator import POOL, is_glibc
from cleanfeed.errors import CleanfeedError, one_line

Result = TypeVar("Result")
Report = Callable[[int], None]
Call = tuple[int, tuple[Any, ...]]

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Each worker is one thread of work: more workers, not more threads, use more cores. A tokenizer's one thread is apart
from that which waits for it: so its many small pieces of memory do not lie among the columns, which takes a twentieth
off the time of a build."""

ONE_ALLOCATOR = {POOL: "system"}
"""Arrow's own allocator gives back to the system what it frees and has it cleared again, for each batch anew: a
twentieth of the time of a build. Ours keeps it (:mod:`cleanfeed.documents.allocator`)."""

SMALL_PAGES = {"NUMPY_MADVISE_HUGEPAGE": "0"}
"""Of scratch for the longest document most documents use a few bytes, and a huge page is cleared whole for them."""

SAFE_PATH = "PYTHONSAFEPATH"
"""Keeps Python from looking for modules in the current folder."""

STARTS, PAUSE = 20, 0.1
"""Times to try to start a worker, and seconds between two."""

Started = tuple[BaseProcess, Connection]
"""A worker and this end of its pipe."""


class Engine(Protocol):
    """Where calls are made."""

    def run(
        self, function: Callable[..., Result], calls: Sequence[Call], report: Report, *, alone: bool = False
    ) -> Iterator[tuple[int, Result | Lost]]:
        """Yield (number, result) of every call as it is ready, or (number, :class:`Lost`) where there is none.

        A call is lost when its process dies, or when documents overrun their budget of time. It is not made again
        here: whoever asked for it knows what to change.

        Args:
            function: A module-level function; it gets the call's arguments and, last, a
                :class:`~cleanfeed.build.budget.Reporter`.
            calls: Number and arguments of each call, all picklable.
            report: Called in this process with the amounts the function reports.
            alone: Make one call at a time, so that each has the whole machine.
        """

    def close(self, *, at_once: bool = False) -> None:
        """End what was started; ``at_once`` without waiting for the calls that are being made."""


def set_up_libraries() -> None:
    """Let libraries that are loaded from now on, here and in processes started from here, use one thread each.

    NumPy then takes small pages of memory, and where the allocator of C is known to keep what is freed, Arrow takes
    its memory there too.
    """
    wanted = ONE_THREAD | SMALL_PAGES | (ONE_ALLOCATOR if is_glibc() else {})
    os.environ.update({name: value for name, value in wanted.items() if name not in os.environ})


def start_server() -> None:
    """Begin to load what workers need, in a process of its own, while this one does something else.

    Calling it again does nothing. It imports little, so that a command can call it before anything else.
    """
    set_up_libraries()
    multiprocessing.set_forkserver_preload(["cleanfeed.build.preload"])
    with _imports_as_here(), children_deaf_to_ctrl_c():
        forkserver.ensure_running()


@contextmanager
def _imports_as_here() -> Iterator[None]:
    """Start processes that look for modules in the current folder only if this one does.

    Python looks there first in what it starts itself, and a ``yaml.py`` that happens to lie there would be loaded.
    Before Python 3.11 that cannot be kept from it.
    """
    if {"", str(Path.cwd())}.intersection(sys.path) or SAFE_PATH in os.environ:
        yield
        return
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]


@contextmanager
def children_deaf_to_ctrl_c() -> Iterator[None]:
    """Start processes in which Ctrl-C does nothing from their first instruction on; here it is put off until the end.

    A terminal sends Ctrl-C to all processes of a command. Only the first one is to act on it and to speak of it.
    """
    # Started before the mask is set: starting it would clear the mask.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class LocalEngine:
    """Runs calls on this machine, in processes forked from a server that was started clean.

    They share nothing with this one, so a result cannot depend on where it was made, and what kills one of them does
    not kill the build.

    Args:
        workers: Processes to use.
        here: Make the calls in this process instead, one after the other. There a budget of time can only be seen to
            be overrun, not enforced, and what kills the process kills the build.
    """

    def __init__(self, workers: int, *, here: bool = False) -> None:
        self.workers, self.here = workers, here
        self._pool: Pool | None = None

    def run(
        self, function: Callable[..., Result], calls: Sequence[Call], report: Report, *, alone: bool = False
    ) -> Iterator[tuple[int, Result | Lost]]:
        """Make the calls as :meth:`Engine.run` says."""
        if self.here:
            yield from _run_here(function, calls, report)
            return
        if self._pool is None:
            self._pool = Pool(_start_worker)
        yield from self._pool.run(function, calls, report, 1 if alone else self.workers)

    def close(self, *, at_once: bool = False) -> None:
        """End the workers; ``at_once`` without waiting for the calls they are in."""
        if self._pool is not None:
            self._pool.close(at_once=at_once)
            self._pool = None


def _start_worker() -> Started:
    start_server()
    ours, its = multiprocessing.Pipe()
    for _ in range(STARTS):
        process = multiprocessing.get_context("forkserver").Process(target=serve, args=(its,), daemon=True)
        # Should the server have died, this starts another one; should it be dying right now, it fails.
        with children_deaf_to_ctrl_c(), _without_main(), suppress(OSError, EOFError):
            process.start()
            its.close()
            return process, ours
        time.sleep(PAUSE)
    raise CleanfeedError(
        one_line("cannot start a worker process", "local engine", "no answer from its server")
    )


@contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not import the program they were started by.

    They need nothing of it, and a script that calls a build at its top level would call it again in each of them.
    """
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


def _run_here(
    function: Callable[..., Result], calls: Sequence[Call], report: Report
) -> Iterator[tuple[int, Result | Lost]]:
    reporter = Reporter(report)
    for number, arguments in calls:
        reporter.forget()
        try:
            found: Result | Lost = function(*arguments, reporter)
        except OverrunError as error:
            found = Lost(error.place, overrun=True, how=OVERRUN)
        except MemoryError:
            found = Lost(reporter.place, overrun=False, how="out of memory")
        yield number, found
