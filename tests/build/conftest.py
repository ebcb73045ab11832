"""Small builds that run in this process."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cleanfeed.build.runner import BuildReport, BuildRequest, build
from cleanfeed.rules.pipeline import load_pipeline

TOKENIZER = str(Path(__file__).parents[2] / "data_samples" / "tokenizer.json")

PROSE = (
    "The ferry left the harbour before dawn, and the three of us stood at the rail until the lights of the town "
    "were gone. Nobody spoke for a long while. My brother poured tea from a flask and said that the weather would "
    "hold until Thursday, which was all that we needed to know."
)


class Silent:
    """A progress nobody looks at, which remembers what it was told."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int, str]] = []
        self.notes: list[str] = []
        self.advanced = 0

    def compiling(self) -> None:
        pass

    def phase(self, name: str, total: int, unit: str) -> None:
        self.phases.append((name, total, unit))
        self.advanced = 0

    def advance(self, amount: int) -> None:
        self.advanced += amount

    def note(self, text: str) -> None:
        self.notes.append(text)


def prose(number: int) -> str:
    """Return healthy text, different for each number."""
    words = PROSE.split()
    turn = number % len(words)
    return f"Day {number}. " + " ".join(words[turn:] + words[:turn])


def write_jsonl(path: Path, records: Sequence[Mapping[str, Any] | bytes]) -> Path:
    """Write records as JSON Lines; bytes are written as they are, a line each."""
    lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


Build = Callable[..., BuildReport]


@pytest.fixture
def run(tmp_path: Path) -> Build:
    """Build into ``tmp_path/out`` with the given inputs and request fields."""

    def go(*inputs: Path | str, out: Path | None = None, pipeline: str = "web_text", sets: Sequence[str] = (), **fields: Any):
        request = BuildRequest(
            inputs=tuple(map(str, inputs)),
            out=str(out or tmp_path / "out"),
            pipeline=load_pipeline(pipeline, sets),
            **fields,
        )
        return build(request, fields.pop("progress", Silent()))

    return go


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder by its relative name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
