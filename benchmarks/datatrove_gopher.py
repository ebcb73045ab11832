"""Times datatrove's Gopher filters: a JSONL file goes in, bytes, seconds and kept documents come out as JSON.

Run with a Python in which datatrove is installed: ``python datatrove_gopher.py SAMPLE.jsonl``. ``seconds``
counts as a datatrove pipeline does, where the quality filter sees only what the repetition filter let
through; ``seconds_on_all`` counts both filters on every document. Imports and the first use of the word
tokenizer are not counted.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter


def passes(answer: object) -> bool:
    return answer[0] if isinstance(answer, tuple) else bool(answer)


def main() -> None:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_bytes().splitlines()]
    documents = [Document(text=row["text"], id=row["id"]) for row in rows]
    repetition, quality = GopherRepetitionFilter(), GopherQualityFilter()
    warm = Document(text="One line of plain words, so that the tokenizer is loaded. " * 20, id="warm")
    repetition.filter(warm)
    quality.filter(warm)
    on_all, as_pipeline, kept = 0.0, 0.0, 0
    for document in documents:
        start = time.perf_counter()
        repeats_little = passes(repetition.filter(document))
        middle = time.perf_counter()
        reads_well = passes(quality.filter(document))
        end = time.perf_counter()
        on_all += end - start
        as_pipeline += (end if repeats_little else middle) - start
        kept += repeats_little and reads_well
    found = {
        "bytes": sum(len(document.text.encode()) for document in documents),
        "seconds": as_pipeline,
        "seconds_on_all": on_all,
        "kept": kept,
        "read": len(documents),
        "version": importlib.metadata.version("datatrove"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
