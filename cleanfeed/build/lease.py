"""A prefix in a store goes in; the right to be the only build below it, while this process shows life, comes out.

A store has no lock that ends with a process. Whoever builds holds the object with the highest number below the prefix:
it is created only if it does not exist, names its owner, and is written again every :data:`BEAT` seconds. A holder is
taken to be dead when it was a process of this very machine that is gone, or when its object is older, by the clock of
the store, than :data:`DEAD_AFTER` seconds. Then the next number is free.

What that is worth: two builds that run at the same time are noticed, and the one that has lost its place writes no
further entry of the journal, nor a manifest. A holder that was cut off or stopped for longer than :data:`DEAD_AFTER`,
and one that met a store which cannot create on condition, finds out at its next beat, up to :data:`BEAT` seconds late.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from cleanfeed.curriculum.paths import ObjectPath
from cleanfeed.errors import BusyError, one_line

BEAT = 15.0
"""Seconds between two signs of life."""

DEAD_AFTER = 90.0
"""Seconds without a sign of life after which a holder is taken to be dead."""


def owner() -> dict[str, Any]:
    """Return who this process is, for those it keeps waiting."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(timezone.utc).isoformat()}


@contextmanager
def leased(folder: ObjectPath) -> Iterator[Callable[[], None]]:
    """Hold a prefix against other builds.

    Yields:
        A function that raises BusyError where the prefix was lost.

    Raises:
        BusyError: Another process holds it.
    """
    lease = _Lease(folder)
    lease.take()
    beating = threading.Thread(target=lease.beat, daemon=True)
    beating.start()
    try:
        yield lease.still_ours
    finally:
        lease.ended.set()
        beating.join()
        lease.give_back()


class _Lease:
    def __init__(self, folder: ObjectPath) -> None:
        self.folder = folder
        self.who = {**owner(), "machine": _machine(), "started": _started(os.getpid()), "token": uuid4().hex}
        self.number = 0
        self.ended = threading.Event()
        self._lost = ""

    @property
    def own(self) -> ObjectPath:
        return self.folder / f"{self.number:06d}.json"

    def take(self) -> None:
        """Create the object with the next number, once every one before it belongs to the dead."""
        while True:
            before = self._numbers()
            self._refuse_living(before)
            self.number = max(before, default=0) + 1
            if not self.own.create(self._content()):
                continue
            # Another may have come and gone since we looked, and a third have begun anew from the first number.
            others = [number for number in self._numbers() if number != self.number]
            try:
                self._refuse_living(set(others) - before)
            except BusyError:
                self.give_back()
                raise
            if self._is_own():
                self.folder.remove_below(_name(number) for number in before)
                return

    def beat(self) -> None:
        """Show life until the end; note when the place was lost."""
        while not self.ended.wait(BEAT):
            # A store that does not answer for a while is no reason to end: the next beat will tell.
            with suppress(OSError):
                if not self._is_own() or max(self._numbers(), default=0) > self.number:
                    self._lost = _described(self._read(max(self._numbers(), default=0)))
                    return
                self.own.put(self._content())

    def still_ours(self) -> None:
        """Raise where another build has taken the place."""
        if self._lost:
            raise _busy(self.folder, "another build has taken over", self._lost)

    def give_back(self) -> None:
        """Remove the object, unless it is another's by now."""
        with suppress(OSError):
            if self._is_own():
                self.own.unlink(missing_ok=True)

    def _content(self) -> bytes:
        return json.dumps(self.who).encode()

    def _is_own(self) -> bool:
        return bool(self._read(self.number).get("token") == self.who["token"])

    def _numbers(self) -> set[int]:
        return {int(name[:6]) for name in self.folder.sizes() if name[:6].isdigit()}

    def _read(self, number: int) -> dict[str, Any]:
        try:
            found = json.loads((self.folder / _name(number)).read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _refuse_living(self, numbers: set[int]) -> None:
        for number in sorted(numbers):
            who = self._read(number)
            if who and not _gone(who) and (age := self._age(number)) is not None and age <= DEAD_AFTER:
                what = f"{_described(who)}, last sign of life {age:.0f} s ago"
                raise _busy(self.folder, "another build is running", what)

    def _age(self, number: int) -> float | None:
        """Return how long ago, by the clock of the store, a holder showed life; None if it just went."""
        now = self.folder / f"clock-{self.who['token']}"
        try:
            now.put(b"")
            return (now.modified() - (self.folder / _name(number)).modified()).total_seconds()
        except FileNotFoundError:
            return None
        finally:
            now.unlink(missing_ok=True)


def _name(number: int) -> str:
    return f"{number:06d}.json"


def _described(who: dict[str, Any]) -> str:
    if not who:
        return "a process that is gone again"
    return f"process {who.get('pid')} on {who.get('host')} since {who.get('since')}"


def _busy(folder: ObjectPath, what: str, got: str) -> BusyError:
    todo = f"Wait for it; one that died elsewhere is passed over after {DEAD_AFTER:.0f} s."
    return BusyError(one_line(what, str(folder.parent.parent), got, "a folder no build is using", todo))


def _machine() -> str:
    """Return what names this boot of this machine, and among its containers this one; empty where nothing does."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started, in the kernel's ticks, which tells it from a later one of its number."""
    try:
        # The name of the program, in brackets, may hold anything; what follows it are numbers.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _gone(who: dict[str, Any]) -> bool:
    """Return whether an owner is a process of this machine that has ended."""
    here = _machine()
    return (
        bool(here) and who.get("machine") == here and _started(int(who.get("pid", 0))) != who.get("started")
    )
