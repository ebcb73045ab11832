"""A function and its calls go in; results come out as they are ready, from this process or a pool of others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any, TypeVar

from cleanfeed.errors import CleanfeedError, one_line

Result = TypeVar("Result")
Report = Callable[[int], None]

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Each worker is one thread of work: more workers, not more threads, use more cores."""

AHEAD = 2
"""Calls handed to the pool beyond one a worker, so that none waits for the next."""

_reporter: Connection | None = None


def _start_worker(reporter: Connection) -> None:
    """Prepare a worker process: one thread, gone when its parent is gone."""
    global _reporter  # a worker process has one pipe to its parent
    _reporter = reporter
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    import pyarrow as pa

    pa.set_cpu_count(1)


def _end_with(sentinel: int) -> None:
    wait_for([sentinel])
    os._exit(1)


def _report(amount: int) -> None:
    assert _reporter is not None
    # One write of 8 bytes to a pipe is atomic: no lock that a killed worker could keep.
    _reporter.send_bytes(struct.pack("<q", amount))


def _call(function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    return function(*arguments, _report)


def one_thread() -> None:
    """Let libraries that are loaded from now on, here and in processes started from here, use one thread each."""
    os.environ.update({name: value for name, value in ONE_THREAD.items() if name not in os.environ})


def start_server() -> None:
    """Begin to load what workers need, in a process of its own, while this one does something else.

    Calling it again does nothing. It imports little, so that a command can call it before anything else.
    """
    one_thread()
    multiprocessing.set_forkserver_preload(["cleanfeed.build.preload"])
    with children_deaf_to_ctrl_c():
        forkserver.ensure_running()


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
    """Runs calls on this machine.

    With one worker everything runs in this process: no start-up time. With more, in processes forked from a server
    that was started clean; they share nothing with this one, so a result cannot depend on where it was made.

    Args:
        workers: Processes to use.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._reports: Connection | None = None

    def run(
        self, function: Callable[..., Result], calls: Sequence[tuple[int, tuple[Any, ...]]], report: Report
    ) -> Iterator[tuple[int, Result]]:
        """Yield (number, result) of every call as it is ready.

        Args:
            function: A module-level function; it gets the call's arguments and, last, ``report``.
            calls: Number and arguments of each call, all picklable.
            report: Called in this process with whatever the function reports.
        """
        if self.workers == 1:
            for number, arguments in calls:
                yield number, function(*arguments, report)
            return
        with _listening(self._started()[1], report):
            yield from self._run_in_pool(function, calls)

    def _run_in_pool(
        self, function: Callable[..., Result], calls: Sequence[tuple[int, tuple[Any, ...]]]
    ) -> Iterator[tuple[int, Result]]:
        pool = self._started()[0]
        left = iter(calls)
        running: dict[Future[Result], int] = {}
        try:
            while True:
                while len(running) < self.workers + AHEAD and (call := next(left, None)) is not None:
                    running[pool.submit(_call, function, call[1])] = call[0]
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise CleanfeedError(
                one_line(
                    "a worker process was killed",
                    "local engine",
                    todo="Most often the machine ran out of memory: run the same command again with fewer --workers; "
                    "it goes on where it stopped.",
                )
            ) from error

    def _started(self) -> tuple[ProcessPoolExecutor, Connection]:
        if self._pool is None or self._reports is None:
            start_server()
            context = multiprocessing.get_context("forkserver")
            self._reports, reporter = context.Pipe(duplex=False)
            self._pool = ProcessPoolExecutor(
                self.workers, context, initializer=_start_worker, initargs=(reporter,)
            )
        return self._pool, self._reports

    def close(self, *, at_once: bool = False) -> None:
        """End the workers; ``at_once`` without waiting for the calls they are in."""
        if self._pool is None:
            return
        if at_once:
            # Killed before the pool takes from them what they need to start: one that is starting says nothing then.
            processes = list((getattr(self._pool, "_processes", None) or {}).values())
            for process in processes:
                process.kill()
            for process in processes:
                process.join()
        self._pool.shutdown(wait=not at_once, cancel_futures=True)
        self._pool = self._reports = None


@contextmanager
def _listening(reports: Connection, report: Report) -> Iterator[None]:
    """Hand on what workers report while the block runs, and what is left of it afterwards."""
    ended = threading.Event()

    def listen() -> None:
        while True:
            last = ended.is_set()
            while reports.poll(0 if last else 0.1):
                report(struct.unpack("<q", reports.recv_bytes())[0])
            if last:
                return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
