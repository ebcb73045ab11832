"""Small builds that run in this process."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cleanfeed.build.runner import BuildReport, BuildRequest, build
from cleanfeed.rules.pipeline import load_pipeline

TOKENIZER = str(Path(__file__).parents[2] / "data_samples" / "tokenizer.json")

WORDS = (
    "the a this that every one my her their our old small quiet cold early last open grey narrow patient "
    "ferry harbour kitchen garden letter river winter morning neighbour lamp road market window teacher boat "
    "orchard station bread ladder meadow clock valley singer engine village "
    "left found carried remembered opened followed watched repaired waited for and but because while under "
    "over near behind with without before after until again slowly never often almost together to of in on "
    "was had is were be have could would"
).split()


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


def prose(number: int, sentences: int = 5) -> str:
    """Return text that reads like text to every signal, different for each number."""
    dice = random.Random(number)
    found = []
    for _ in range(sentences):
        words = dice.choices(WORDS, k=dice.randint(8, 16))
        found.append(" ".join(words).capitalize() + ".")
    return " ".join(found)


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

    def go(
        *inputs: Path | str,
        out: Path | None = None,
        pipeline: str = "web_text",
        sets: Sequence[str] = (),
        **fields: Any,
    ):
        progress = fields.pop("progress", Silent())
        request = BuildRequest(
            inputs=tuple(map(str, inputs)),
            out=str(out or tmp_path / "out"),
            pipeline=load_pipeline(pipeline, sets),
            **fields,
        )
        return build(request, progress)

    return go


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder by its relative name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
