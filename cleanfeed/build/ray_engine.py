"""A function and its calls go in; results come out as they are ready, from the machines of a Ray cluster.

A task of Ray is one call, made by a :class:`~cleanfeed.build.engine.LocalEngine` of one worker on whatever machine
Ray chooses: what ends a process there is told as on one machine. Ray itself makes a task again that was lost with its
machine. Files lie in OUT, which every machine must reach.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from cleanfeed import __version__
from cleanfeed.build.budget import Lost
from cleanfeed.build.engine import Call, LocalEngine, Report
from cleanfeed.curriculum.durable import among_others
from cleanfeed.errors import CleanfeedError, MisuseError, one_line

Result = TypeVar("Result")

RETRIES = 8
"""Times Ray makes a call again whose machine or worker it lost."""

OBJECT_STORE_BYTES = 128 * 2**20
"""Of a cluster that is started here: results are small, and all else lies in files."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Ray tells nobody of its use, and leaves alone what accelerators a process sees."""

ANSWER_SECONDS = 20.0
"""How long to wait for a cluster to answer; Ray itself would ask for a quarter of an hour."""

_node_engine: LocalEngine | None = None


class RayEngine:
    """Makes calls on the cluster that ``RAY_ADDRESS`` names, or on one started on this machine for this build.

    Args:
        workers: Calls at a time; 0 for as many as there are CPUs.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._ray: Any = None
        self._task: Any = None
        self._ours = False

    def run(
        self, function: Callable[..., Result], calls: Sequence[Call], report: Report, *, alone: bool = False
    ) -> Iterator[tuple[int, Result | Lost]]:
        """Make the calls as :meth:`Engine.run <cleanfeed.build.engine.Engine.run>` says.

        Progress is reported call by call.
        """
        ray = self._connected()
        left, running = iter(calls), dict[Any, int]()
        try:
            while True:
                most = 1 if alone else self._most()
                while len(running) < most and (call := next(left, None)) is not None:
                    running[self._task.remote(pickle.dumps((function, call[1], _version())))] = call[0]
                if not running:
                    return
                ready, _ = ray.wait(list(running))
                for task in ready:
                    yield running.pop(task), self._result(task, report)
        finally:
            # Those of a connection of our own end with it; Ray 2.60 may crash when it is told to end them by force.
            for task in running if not self._ours else ():
                ray.cancel(task)

    def _most(self) -> int:
        """Return how many calls to have under way: twice the CPUs, so that none waits and a cluster may grow."""
        return self.workers or 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _result(self, task: Any, report: Report) -> Any:
        errors = self._ray.exceptions
        try:
            amount, found = self._ray.get(task)
        except (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
            errors.LocalRayletDiedError,
        ) as error:
            return Lost(None, overrun=False, how=f"lost with its machine ({type(error).__name__})")
        except errors.RayError as error:
            cause = str(error).strip().splitlines()[-1]
            todo = (
                f"Every machine needs cleanfeed {__version__} and the files of the inputs at the same paths."
            )
            raise CleanfeedError(
                one_line("a worker of the cluster cannot work", _where(), cause, todo=todo)
            ) from error
        report(amount)
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, Lost) else pickle.loads(found)

    def _connected(self) -> Any:
        if self._ray is None:
            self._ray = _imported()
            if not self._ray.is_initialized():
                self._ours = True
                self._connect()
            self._task = self._ray.remote(num_cpus=1, max_retries=RETRIES)(_made)
        return self._ray

    def _connect(self) -> None:
        address = os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"address": address}
        if address == "local":
            # Nobody but this machine can speak to it, and only with the token that Ray keeps for this user.
            options |= {
                "num_cpus": self.workers or os.cpu_count(),
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_node_ip_address": "127.0.0.1",
            }
        quiet = {"configure_logging": False, "logging_level": logging.ERROR, "log_to_driver": False}
        try:
            _answered(address)
            self._ray.init(**options, **quiet)
        except Exception as error:  # of Ray, gRPC or the operating system
            cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            todo = "Check RAY_ADDRESS." if address != "local" else "See the logs below /tmp/ray."
            raise CleanfeedError(
                one_line("cannot reach the Ray cluster", _where(), cause, todo=todo)
            ) from error

    def close(self, *, at_once: bool = False) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self._ray is not None and self._ours:
            self._ray.shutdown()
        self._ray = self._task = None
        self._ours = False


def check_ray() -> None:
    """Refuse to go on where Ray is not installed.

    Raises:
        MisuseError: It is not.
    """
    _imported()


def _imported() -> Any:
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    if not os.environ.get("RAY_ADDRESS"):
        # Read once, when Ray is imported: without it 127.0.0.1 becomes an address that others can reach.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise MisuseError(
            one_line("Ray is not installed", "--engine ray", todo="Run pip install 'cleanfeed[ray]'.")
        ) from error
    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray


def _answered(address: str) -> None:
    """Raise where nothing answers at an address of the form HOST:PORT."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()


def _where() -> str:
    address = os.environ.get("RAY_ADDRESS")
    return f"RAY_ADDRESS {address}" if address else "--engine ray"


@lru_cache(maxsize=1)
def _version() -> tuple[str, int]:
    """Return what must be the same on all machines for the result to be the same."""
    from cleanfeed.kernel_code import fingerprint

    return __version__, fingerprint("signals")


def _made(call: bytes) -> tuple[int, Any]:
    """Make one call, in a process beside this worker of the cluster; return the work done, and what came of it.

    Neither call nor result is looked into here, so that this process loads nothing that they are made of.
    """
    global _node_engine  # a worker of the cluster keeps its process from call to call
    if _node_engine is None:
        # A process that is started from here would first load what this one was started with: Ray.
        vars(sys.modules["__main__"]).pop("__file__", None)
        _node_engine = LocalEngine(1)
    amounts: list[int] = []
    try:
        ((_, found),) = _node_engine.run(_call, [(0, (call,))], amounts.append)
    except Exception as error:  # noqa: BLE001 - whatever it is, the process that asked for it must know
        return sum(amounts), error
    return sum(amounts), found


def _call(call: bytes, report: Report) -> bytes:
    among_others()
    function, arguments, version = pickle.loads(call)
    if version != _version():
        got, expected = (f"cleanfeed {one} ({signals})" for one, signals in (_version(), version))
        todo = "Install the same version on every machine."
        where = platform.node()
        raise CleanfeedError(one_line("a machine runs another cleanfeed", where, got, expected, todo))
    return pickle.dumps(function(*arguments, report))
