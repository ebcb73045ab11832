"""Tasks are cut by what there is to read, and add up to it."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanfeed.build import tasks
from cleanfeed.build.tasks import scales_of, tasks_of
from cleanfeed.documents.plan import plan_inputs


def write_kinds(folder: Path) -> None:
    """Write the same texts in every kind of file that is cut into pieces."""
    texts = [f"text number {n} " * 20 for n in range(200)]
    table = pa.table({"text": texts})
    pq.write_table(table, folder / "a.parquet", row_group_size=3)
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with pa.OSFile(str(folder / "c.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    with pa.OSFile(str(folder / "d.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    (folder / "e.jsonl").write_bytes(b"")
    (folder / "f.parquet").write_bytes(b"PAR1 cut off")


@pytest.mark.parametrize("piece_bytes", [500, 4000, 2**25])
def test_the_bytes_of_all_tasks_are_those_of_the_inputs(tmp_path: Path, piece_bytes: int):
    write_kinds(tmp_path)
    plan = plan_inputs([str(tmp_path)], piece_bytes=piece_bytes)
    assert (len(plan.pieces) > 6) == (piece_bytes < 2**25)
    for file in plan.files:
        shares = [piece.bytes for piece in plan.pieces if piece.file is file]
        assert sum(shares) == file.size == (tmp_path / file.source).stat().st_size
        # Parts of about equal length have about equal shares.
        assert max(shares) <= 3 * sum(shares) / len(shares)
    cut = list(tasks_of(plan.pieces, 20_000))
    assert sum(task.bytes for task in cut) == sum(file.size for file in plan.files)
    assert [piece for task in cut for piece in task.pieces] == list(plan.pieces)


def test_a_file_makes_segments_and_tasks_no_larger_for_being_cut_into_more_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_kinds(tmp_path)
    monkeypatch.setattr(tasks, "SEGMENT_BYTES", 10)
    monkeypatch.setattr(tasks, "TASK_BYTES", 10)
    whole, many = (plan_inputs([str(tmp_path)], piece_bytes=size).pieces for size in (2**25, 500))
    assert scales_of(many, tokenizer=False) == scales_of(whole, tokenizer=False)
    assert min(scales_of(whole, tokenizer=False)) > 1
