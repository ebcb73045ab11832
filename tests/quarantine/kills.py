"""Kill a process between any two effects of recording an incident, again and again; say what was left each time.

Run as a script with a folder; one JSON object a line comes out. Everything is imported once and each attempt is a
fork, so that a kill costs milliseconds. This process itself never opens a store.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from cleanfeed.quarantine.store import Quarantine
from cleanfeed.runs.incident_files import read_incidents, write_incident
from cleanfeed.runs.layout import RunDir
from tests.quarantine.incidents import A, B, C, incident, sample

EFFECTS = {
    "execute",
    "fsync",
    "rename",
    "replace",
    "write",
    "mkdir",
    "flock",
    "connect",
    "close",
    "unlink",
    "rmdir",
}


def forked(action: Callable[[], Any], folder: Path) -> Any:
    """Run an action in a child and return what it returned, or the number of the signal that ended it."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        answer.write_text(json.dumps(action()))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else json.loads(answer.read_text())


def killed_at(effect: int, action: Callable[[], Any]) -> None:
    """Run an action and end this process, with no chance to clean up, before its n-th effect."""
    left = effect

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event == "c_call" and argument.__name__ in EFFECTS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    action()
    sys.setprofile(None)


def prepare(root: Path) -> None:
    """Leave a run with an incident, recorded, and a decision by hand."""
    write_incident(RunDir(root), incident(1, [sample(A)]))
    store = Quarantine(root, patience=0.0)
    store.record(incident(1))
    store.release([A], "fine")


SCENES: dict[str, Callable[[Path], Any]] = {}


def scene(action: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Note something that is interrupted."""
    SCENES[action.__name__] = action
    return action


@scene
def first_incident(root: Path) -> Any:
    """Write an incident of a run that has no store yet, and record it."""
    write_incident(RunDir(root), incident(1, [sample(B)]))
    Quarantine(root, patience=0.0).record(incident(1))


@scene
def next_incident(root: Path) -> Any:
    """Write a second incident and record it."""
    write_incident(RunDir(root), incident(2, [sample(B), sample(C)]))
    Quarantine(root, patience=0.0).record(incident(2))


@scene
def changed_incident(root: Path) -> Any:
    """Judge the incident anew and record it."""
    write_incident(RunDir(root), incident(1, [sample(A, "released", 200.0)], outcome="did_not_help"))
    Quarantine(root, patience=0.0).record(incident(1))


@scene
def by_hand(root: Path) -> Any:
    """Add a sample."""
    Quarantine(root, patience=0.0).add([B], "bad")


@scene
def rebuilding(root: Path) -> Any:
    """Make the store anew."""
    Quarantine(root, patience=0.0).rebuild()


def look(store: Quarantine) -> tuple[list[int], dict[str, str]]:
    """Return the incidents a reader sees, and the state of each sample."""
    with store.reading() as connection:
        incidents = connection.execute("SELECT incident_id FROM incidents ORDER BY 1").fetchall()
        samples = connection.execute("SELECT sample_hash, state FROM samples ORDER BY 1").fetchall()
    return [number for (number,) in incidents], dict(samples)


def what_is_left(root: Path) -> dict[str, Any]:
    """Return what is on file, what a reader sees, and what it sees after the next write."""
    notes: list[str] = []
    store = Quarantine(root, patience=0.0, on_note=notes.append)
    files = read_incidents(RunDir(root))
    left: dict[str, Any] = {"files": [one.incident_id for one in files], "seen": [], "samples": {}}
    if store.exists():
        left["seen"], left["samples"] = look(store)
    if files:
        store.record(files[-1])
        left["seen_then"], left["samples_then"] = look(store)
    left["unfinished"] = sorted(path.name for path in root.iterdir() if "unfinished" in path.name)
    return {**left, "notes": notes}


def main(stride: int) -> None:
    """Interrupt every scene before every ``stride``-th effect until it comes through."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared, root = folder / "prepared", folder / "run"
        forked(lambda: prepare(prepared), folder)
        for scene_name, action in SCENES.items():
            effect = 1
            while True:
                shutil.rmtree(root, ignore_errors=True)
                root.mkdir() if scene_name == "first_incident" else shutil.copytree(prepared, root)
                died = forked(partial(killed_at, effect, partial(action, root)), folder)
                left = forked(partial(what_is_left, root), folder)
                print(json.dumps({"scene": scene_name, "effect": effect, "died": died, **left}), flush=True)
                if died is None:
                    break
                effect += stride


if __name__ == "__main__":
    main(int(sys.argv[1]))
