"""The floor of tokenizing: texts in Parquet go in, the seconds ``encode_batch_fast`` takes come out.

``python encode_alone.py TEXTS.parquet TOKENIZER PROCESSES``. Each process encodes with one thread and
takes the next batch when it has finished one, so none waits for another; imports, reading and start-up
are not counted.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import sys
import time
from typing import Any

BATCH_CHARS = 1_000_000


def batches(texts: list[str]) -> list[list[str]]:
    made: list[list[str]] = [[]]
    size = 0
    for text in texts:
        made[-1].append(text)
        size += len(text)
        if size >= BATCH_CHARS:
            made.append([])
            size = 0
    return [batch for batch in made if batch]


def work(path: str, tokenizer_path: str, ready: Any, following: Any, results: Any) -> None:
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_path)
    todo = batches(pq.read_table(path, columns=["text"])["text"].to_pylist())
    ready.wait()
    start, before, tokens = time.perf_counter(), time.process_time(), 0
    while True:
        with following.get_lock():
            index = following.value
            following.value += 1
        if index >= len(todo):
            break
        tokens += sum(
            len(code.ids) for code in tokenizer.encode_batch_fast(todo[index], add_special_tokens=False)
        )
    results.put((start, time.perf_counter(), time.process_time() - before, tokens))


def main() -> None:
    path, tokenizer_path, processes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    context = mp.get_context("spawn")
    ready, following, results = context.Barrier(processes), context.Value("q", 0), context.Queue()
    workers = [
        context.Process(target=work, args=(path, tokenizer_path, ready, following, results))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    ends = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    seconds = max(end for _, end, _, _ in ends) - min(start for start, _, _, _ in ends)
    found = {
        "seconds": seconds,
        "processor_seconds": sum(used for _, _, used, _ in ends),
        "tokens": sum(tokens for _, _, _, tokens in ends),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
