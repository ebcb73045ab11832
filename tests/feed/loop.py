"""A training loop for one test to kill: a build, a sampler and two files go in; which rows were trained comes out.

Run as ``python loop.py BUILD LOG STATE``. After each slot its rows are appended to LOG, and STATE is replaced by the
sampler's state and the length of LOG: a checkpoint after each step. A run that finds STATE takes it up.
"""

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from cleanfeed import Curriculum, CurriculumSampler, PadCollator


def main(build: str, log: Path, state: Path) -> None:
    torch.set_num_threads(1)
    sampler = CurriculumSampler(Curriculum(build), global_batch=6, micro_batch=2, epochs=2, seed=7)
    known = json.loads(state.read_text()) if state.exists() else {"length": 0}
    if "sampler" in known:
        sampler.load_state_dict(known["sampler"])
    loader = DataLoader(
        sampler.curriculum,
        batch_sampler=sampler,
        collate_fn=PadCollator(0),
        num_workers=2,
        prefetch_factor=4,
        multiprocessing_context="fork",
    )
    with log.open("ab") as file:
        file.truncate(known["length"])  # what was trained after the checkpoint is undone with it
        rows: list[int] = []
        for batch in loader:
            rows += batch["sample_ids"].tolist()
            if len(rows) < 6:
                continue
            ahead = sampler.issued - sampler.committed
            sampler.commit()
            file.write((json.dumps(rows) + "\n").encode())
            file.flush()
            rows = []
            partial = state.with_suffix(".partial")
            partial.write_text(json.dumps({"length": file.tell(), "sampler": sampler.state_dict()}))
            partial.replace(state)
            print(ahead, flush=True)
            sys.stdin.readline()  # whoever counts the steps says when to go on; nobody does at the end of the input


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
