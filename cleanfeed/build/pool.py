"""Calls go in; what comes of each, a result or the death of its worker, comes out of a pool of processes.

Each worker has a pipe of its own and shares nothing with the others: no lock or queue that a killed one could take
with it. A worker that dies costs the call it was in, and is replaced.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from typing import Any

from msgspec import Struct

from cleanfeed.build.budget import Lost, OverrunError, Place, Reporter, Watch

Calls = Sequence[tuple[int, tuple[Any, ...]]]

REPORT, PLACE, RESULT, FAILED, LOST = range(5)
"""What a worker sends: one of these, the ticket of the call it is about, and what belongs to it."""

OVERRUN = "took more than its budget of time"


class _PipeReporter(Reporter):
    """Tells through a pipe; what is in it can still be read when the worker is dead."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(lambda amount: self.send(REPORT, amount), time.process_time)
        self._pipe = pipe
        self._lock = threading.Lock()
        self.ticket = 0
        """The call that is being done: no two calls of a pool have the same."""

    def send(self, kind: int, value: Any) -> None:
        with self._lock:
            self._pipe.send((kind, self.ticket, value))

    def _begun(self, place: Place) -> None:
        self.send(PLACE, place)

    def stop(self, place: Place) -> None:
        """Say that documents took too long, and end the process they are in."""
        self.send(LOST, Lost(place, overrun=True, how=OVERRUN))
        os._exit(1)


def serve(pipe: Connection) -> None:
    """Be a worker: one thread of work, gone when its parent is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    import pyarrow as pa

    from cleanfeed.documents.allocator import keep_freed_memory

    pa.set_cpu_count(1)
    keep_freed_memory()
    reporter = _PipeReporter(pipe)
    Watch(reporter, reporter.stop)
    while True:
        try:
            reporter.ticket, function, arguments = pipe.recv()
        except EOFError:
            return
        reporter.send(*_outcome(function, arguments, reporter))
        reporter.forget()


def _end_with(sentinel: int) -> None:
    wait_for([sentinel])
    os._exit(1)


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...], reporter: Reporter) -> tuple[int, Any]:
    try:
        return RESULT, function(*arguments, reporter)
    except OverrunError as error:
        return LOST, Lost(error.place, overrun=True, how=OVERRUN)
    except MemoryError:
        return LOST, Lost(reporter.place, overrun=False, how="out of memory")
    except Exception as error:  # noqa: BLE001 - whatever it is, the process that asked for it must know
        return FAILED, error


class _Worker(Struct):
    process: BaseProcess
    pipe: Connection
    call: tuple[int, tuple[Any, ...]] | None = None
    """The call it is in: number and arguments."""
    ticket: int = 0
    """What it was given last."""
    place: Place | None = None
    """What it said last to be at work."""
    reported: int = 0
    """What it has reported of its call."""

    def end(self, *, at_once: bool) -> None:
        """End the process: an idle one by itself, at once by force."""
        if at_once:
            self.process.kill()
        self.pipe.close()
        self.process.join()


class Pool:
    """Some worker processes, started when there is something to do.

    Args:
        start: Gives a process that runs :func:`serve`, and this end of its pipe.
    """

    def __init__(self, start: Callable[[], tuple[BaseProcess, Connection]]) -> None:
        self._start = start
        self._workers: list[_Worker] = []
        self._tickets = itertools.count(1)
        self._wake: Connection | None = None
        self._thread: threading.Thread | None = None

    def run(
        self, function: Callable[..., Any], calls: Calls, report: Callable[[int], None], most: int
    ) -> Iterator[tuple[int, Any]]:
        """Yield (number, result or :class:`Lost`) of every call as it is ready, on ``most`` workers at a time.

        Calls are handed on by a thread, so that workers go on while the caller is busy with a result.
        """
        for worker in [worker for worker in self._workers if worker.call is not None]:
            # Still at a call of a run that was given up.
            self._bury(worker)
        found: queue.SimpleQueue[tuple[int, int, Any]] = queue.SimpleQueue()
        woken, self._wake = multiprocessing.Pipe(duplex=False)
        work = _Work(function, deque(calls), report, found.put, most)
        self._thread = threading.Thread(target=self._hand_on, args=(work, woken), daemon=True)
        self._thread.start()
        try:
            for _ in calls:
                kind, number, value = found.get()
                if kind == FAILED:
                    raise value
                yield number, value
        finally:
            self._stop()

    def _stop(self) -> None:
        if self._thread is not None and self._wake is not None:
            self._wake.close()
            self._thread.join()
            self._thread = self._wake = None

    def _hand_on(self, work: _Work, woken: Connection) -> None:
        """Give calls to idle workers and take what they send, until all is done or the caller goes away."""
        try:
            while True:
                self._assign(work)
                pipes = {worker.pipe: worker for worker in self._workers}
                ready = wait_for([*pipes, woken])
                if woken in ready:
                    return
                for pipe in ready:
                    assert isinstance(pipe, Connection)
                    self._take(pipes[pipe], work)
        except Exception as error:  # noqa: BLE001 - a thread has no caller to raise to
            work.found((FAILED, -1, error))
        finally:
            woken.close()

    def _assign(self, work: _Work) -> None:
        busy = sum(worker.call is not None for worker in self._workers)
        while work.left and busy < work.most:
            worker = next((worker for worker in self._workers if worker.call is None), None)
            worker = worker or self._started()
            ticket = next(self._tickets)
            try:
                worker.pipe.send((ticket, work.function, work.left[0][1]))
            except OSError:
                # It died idle: that is no call's fault.
                self._bury(worker)
                continue
            worker.call, worker.ticket = work.left.popleft(), ticket
            worker.place, worker.reported = None, 0
            busy += 1

    def _started(self) -> _Worker:
        worker = _Worker(*self._start())
        self._workers.append(worker)
        return worker

    def _take(self, worker: _Worker, work: _Work) -> None:
        """Take one message of a worker, or its end."""
        try:
            kind, ticket, value = worker.pipe.recv()
        except (EOFError, OSError):
            kind, ticket = LOST, worker.ticket
            value = Lost(worker.place, overrun=False, how=self._bury(worker))
        if kind == REPORT:
            worker.reported += value
            work.report(value)
        elif kind == PLACE:
            worker.place = value
        elif kind == LOST:
            self._lost(worker, ticket, value, work)
        elif worker.call is not None:
            number, worker.call = worker.call[0], None
            work.found((kind, number, value))

    def _lost(self, worker: _Worker, ticket: int, lost: Lost, work: _Work) -> None:
        """Take the loss of a call, and never give its worker another: it may be ending."""
        if worker in self._workers:
            self._bury(worker)
        if worker.call is None:
            return
        # It will be done, and reported, again.
        work.report(-worker.reported)
        if ticket == worker.ticket:
            work.found((LOST, worker.call[0], lost))
        else:
            # The result was sent just before its time was seen to be over: this call only came after it.
            work.left.appendleft(worker.call)

    def _bury(self, worker: _Worker) -> str:
        """Forget a dead worker and return how it died."""
        self._workers.remove(worker)
        worker.end(at_once=True)
        code = worker.process.exitcode
        return "it ended" if code is None or code >= 0 else f"killed by signal {-code}"

    def close(self, *, at_once: bool) -> None:
        """End the workers; ``at_once`` without waiting for the calls they are in."""
        self._stop()
        workers, self._workers = self._workers, []
        for worker in workers:
            if at_once:
                # Killed before anything is taken from them: one that is starting says nothing then.
                worker.process.kill()
            else:
                worker.pipe.close()
        for worker in workers:
            worker.end(at_once=at_once)


class _Work(Struct):
    function: Callable[..., Any]
    left: deque[tuple[int, tuple[Any, ...]]]
    report: Callable[[int], None]
    found: Callable[[tuple[int, int, Any]], None]
    most: int
