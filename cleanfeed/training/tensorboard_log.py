"""A TensorBoard event file or folder goes in; one row of scalars a step comes out. Needs the extra ``tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cleanfeed.errors import MisuseError, one_line


def read_scalars(path: str, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the scalars of all event files under a path, joined by step, in order of step.

    Steps that a restart wrote again count as TensorBoard shows them: the older are dropped.

    Args:
        path: An event file, or a folder whose event files are of one run.
        wanted: Our names → tags, where the caller chose some; ``step`` is no tag and refused.

    Raises:
        MisuseError: TensorBoard is not installed, or there is no event file.
    """
    if "step" in wanted:
        raise MisuseError(
            one_line(
                "no column of steps to choose", "--step", todo="TensorBoard keeps the step of each value."
            )
        )
    folder = Path(path)
    if folder.is_dir() and not any("tfevents" in file.name for file in folder.iterdir()):
        raise MisuseError(
            one_line(
                "no log in the folder",
                path,
                expected="a run directory or TensorBoard event files",
                todo="Name the folder the event files lie in.",
            )
        )
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise MisuseError(
            one_line(
                "TensorBoard is not installed",
                path,
                todo="Install it with: pip install 'cleanfeed[tensorboard]'.",
            )
        ) from error
    events = EventAccumulator(path, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    rows: dict[int, dict[str, Any]] = {}
    for tag in tags["scalars"]:
        for event in events.Scalars(tag):
            rows.setdefault(event.step, {"step": event.step})[tag] = event.value
    for tag in tags["tensors"]:
        for event in events.Tensors(tag):
            array = tensor_util.make_ndarray(event.tensor_proto)
            if array.size == 1 and array.dtype.kind in "fiu":
                rows.setdefault(event.step, {"step": event.step})[tag] = float(array.reshape(()))
    return [rows[step] for step in sorted(rows)]
