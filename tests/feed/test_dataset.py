"""``Curriculum`` gives out exactly what was built, whatever is asked for, by whom, and in which process."""

import json
import multiprocessing
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset

from cleanfeed.errors import CurriculumError
from cleanfeed.feed import reader
from cleanfeed.feed.catalog import RowGroup, read_catalog
from cleanfeed.feed.dataset import Curriculum
from cleanfeed.feed.samples import FILLER, Samples

from .conftest import ids_of, read_all

SAMPLES = 300
INPUT_IDS = 10
"""Parquet column of the ids in a build with a tokenizer."""


def rows_of(samples: Samples) -> list[list[int]]:
    return [item["input_ids"].tolist() for item in samples]


def test_every_sample_is_given_out_as_it_was_built(curriculum: Curriculum, table: pa.Table):
    assert len(curriculum) == table.num_rows >= SAMPLES
    samples = curriculum.__getitems__(list(range(len(curriculum))))
    assert rows_of(samples) == [ids.tolist() for ids in ids_of(table)]
    assert samples.sample_ids.tolist() == list(range(len(curriculum)))
    assert samples.lengths.tolist() == table.column("n_tokens").to_pylist()


def test_one_sample_is_a_dict(curriculum: Curriculum, table: pa.Table):
    item = curriculum[7]
    assert item.pop("input_ids").tolist() == ids_of(table)[7].tolist()
    assert item == {
        "sample_id": 7,
        "length": table.column("n_tokens")[7].as_py(),
        "pad": False,
        "limit": curriculum.catalog.stages[0].max_length,
    }


def test_the_build_is_described(curriculum: Curriculum, tokens_build: Path):
    manifest = json.loads((tokens_build / "manifest.json").read_text())
    assert curriculum.digest == manifest["digest"]
    assert curriculum.tokenizer_digest == manifest["tokenizer"]["digest"]
    assert curriculum.end_of_text_id == manifest["tokenizer"]["end_of_text_id"]


def test_without_a_tokenizer_samples_are_texts(text_build: Path):
    curriculum = Curriculum(text_build)
    texts = read_all(text_build).column("text").to_pylist()
    samples = curriculum.__getitems__([5, 0, len(texts) - 1])
    assert [item["text"] for item in samples] == [texts[5], texts[0], texts[-1]]
    assert (curriculum.tokenizer_digest, curriculum.end_of_text_id) == (None, None)
    blank = curriculum[~5]
    assert (blank["text"], blank["sample_id"], blank["pad"]) == ("", -1, True)
    assert curriculum[FILLER]["text"] == ""


@pytest.mark.filterwarnings("ignore:the row groups of one batch do not fit the cache:RuntimeWarning")
@given(st.lists(st.integers(min_value=-(2**31), max_value=2**31), min_size=1, max_size=40), st.data())
def test_any_rows_in_any_order_repeated_or_blanked(
    tokens_build: Path, numbers: list[int], data: st.DataObject
):
    curriculum = shared(tokens_build)
    expected = expected_ids(tokens_build)
    rows = [number % len(expected) for number in numbers]
    blanked = [data.draw(st.sampled_from((0, 0, 0, 1, 2))) for _ in rows]
    asked = [(row, ~row, FILLER)[kind] for row, kind in zip(rows, blanked, strict=True)]
    samples = curriculum.__getitems__(asked)
    for item, row, kind in zip(samples, rows, blanked, strict=True):
        assert item["pad"] == bool(kind)
        assert item["sample_id"] == (-1 if kind else row)
        assert item["length"] == (0 if kind == 2 else len(expected[row]))
        assert item["input_ids"].tolist() == ([] if kind else expected[row].tolist())


_shared: dict[Path, tuple[Curriculum, list[np.ndarray]]] = {}


def shared(out: Path) -> Curriculum:
    if out not in _shared:
        _shared[out] = (Curriculum(out, cache_bytes=60_000), ids_of(read_all(out)))
    return _shared[out][0]


def expected_ids(out: Path) -> list[np.ndarray]:
    return _shared[out][1]


def test_a_pad_row_has_the_longest_length_of_its_own_or_its_neighbours_stage(curriculum: Curriculum):
    first, last = curriculum.catalog.stages[0], [s for s in curriculum.catalog.stages if s.samples][-1]
    assert first.max_length != last.max_length
    assert curriculum.__getitems__([~0, FILLER]).limits.tolist() == [first.max_length] * 2
    assert curriculum.__getitems__([FILLER, FILLER]).limits.tolist() == [last.max_length] * 2


@pytest.mark.parametrize("index", [300_000, -300_001, ~(1 << 61)])
def test_a_row_that_does_not_exist_is_refused(curriculum: Curriculum, index: int):
    with pytest.raises(IndexError, match=r"no such sample: .*: got row \d+, expected 0 to \d+"):
        curriculum[index]


def test_iterating_ends_after_the_last_sample(curriculum: Curriculum):
    assert sum(1 for _ in curriculum) == len(curriculum)  # type: ignore[misc]


def test_items_belong_to_whoever_asked(curriculum: Curriculum):
    first = curriculum[3]["input_ids"]
    first[:] = -1
    assert (curriculum[3]["input_ids"] >= 0).all()


def test_a_subset_asks_for_batches_too(curriculum: Curriculum, table: pa.Table):
    samples = Subset(curriculum, [9, 4, 2]).__getitems__([2, 0])
    assert isinstance(samples, Samples)
    assert rows_of(samples) == [ids_of(table)[row].tolist() for row in (2, 9)]


def test_columns_are_given_in_the_order_asked_for(curriculum: Curriculum, table: pa.Table):
    rows = [250, 3, 3, ~17, 0, 299]
    names = ["sample_hash", "doc_id", "n_tokens"]
    found = curriculum.columns(rows, names)
    assert found.column_names == names
    assert found.to_pylist() == table.take([250, 3, 3, 17, 0, 299]).select(names).to_pylist()
    assert curriculum.columns([], names).num_rows == 0


def test_an_unknown_column_is_named(curriculum: Curriculum):
    with pytest.raises(CurriculumError, match=r"no such column: .*: got colour, expected .*sample_hash"):
        curriculum.columns([0], ["colour"])


# Each row group once, within a bound of memory.


def test_each_row_group_of_a_batch_is_decoded_once(curriculum: Curriculum):
    stage = max(curriculum.catalog.stages, key=lambda stage: stage.groups)
    rows = [stage.first_row + n for n in range(stage.samples)]
    curriculum.__getitems__(rows[::2] + rows[1::2])
    assert decoded(curriculum).made == stage.groups >= 4


def test_what_is_kept_stays_within_the_bound(tokens_build: Path):
    curriculum = Curriculum(tokens_build, cache_bytes=30_000)
    sizes = []
    for row in range(len(curriculum)):
        curriculum[row]
        sizes.append(decoded(curriculum).nbytes)
    assert max(sizes) <= 30_000
    assert decoded(curriculum).made == curriculum.catalog.groups


def test_a_cache_smaller_than_a_batch_is_said_once(tokens_build: Path):
    curriculum = Curriculum(tokens_build, cache_bytes=1000)
    batch = [0, len(curriculum) - 1]
    with pytest.warns(RuntimeWarning, match="do not fit the cache.* got 1000, expected"):
        curriculum.__getitems__(batch)
    curriculum.__getitems__(batch)


def decoded(curriculum: Curriculum):
    return curriculum._own().decoded


def test_what_follows_is_decoded_ahead_and_never_changes_what_is_given_out(
    tokens_build: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reader, "QUICK", 0.0)  # row groups of 2,000 tokens are decoded in no time
    expected = [ids.tolist() for ids in ids_of(table)]
    curriculum = Curriculum(tokens_build)
    order = np.random.default_rng(3).permutation(len(expected))
    for start in range(0, len(order), 20):
        curriculum.expect(np.concatenate([order[start:], [FILLER, ~5]]))
        batch = order[start : start + 20].tolist()
        assert rows_of(curriculum.__getitems__(batch)) == [expected[row] for row in batch]
    # A hint that comes true in another order, or not at all, only costs time.
    curriculum.expect(order[::-1])
    assert rows_of(curriculum.__getitems__([1])) == [expected[1]]
    assert decoded(curriculum).made == curriculum.catalog.groups


def test_threads_may_share_a_curriculum(tokens_build: Path, table: pa.Table):
    expected = [ids.tolist() for ids in ids_of(table)]
    curriculum = Curriculum(tokens_build, cache_bytes=40_000)
    wrong: list[int] = []

    def read(seed: int) -> None:
        rows = np.random.default_rng(seed).permutation(len(expected)).tolist()
        wrong.extend(row for row in rows if curriculum[row]["input_ids"].tolist() != expected[row])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Processes.


def test_a_curriculum_pickles_to_a_few_kilobytes_after_use_too(curriculum: Curriculum):
    before = curriculum[0]["input_ids"]
    raw = pickle.dumps(curriculum)
    assert len(raw) < 4096
    assert (pickle.loads(raw)[0]["input_ids"] == before).all()


def read_in_child(curriculum: Curriculum, row: int, answers) -> None:
    before = curriculum._reader
    answers.put((curriculum[row]["input_ids"].tolist(), curriculum._own() is before))


def test_a_forked_child_opens_its_own_files_and_leaves_the_parents_alone(
    curriculum: Curriculum, table: pa.Table
):
    curriculum[0]
    opened = curriculum._own()
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=read_in_child, args=(curriculum, 11, answers))
    child.start()
    assert answers.get(timeout=60) == (ids_of(table)[11].tolist(), False)
    child.join()
    assert child.exitcode == 0
    assert curriculum._own() is opened
    assert curriculum[12]["input_ids"].tolist() == ids_of(table)[12].tolist()


def test_neither_duckdb_nor_ray_is_imported_to_read(tokens_build: Path):
    code = (
        "import sys; from cleanfeed.feed.dataset import Curriculum; from cleanfeed.feed.collators import PadCollator;"
        f"PadCollator(0)(Curriculum({str(tokens_build)!r}).__getitems__([0, 1]));"
        "print([name for name in ('duckdb', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Addresses.


def test_a_build_in_a_store_is_read_like_a_local_one(tokens_build: Path, table: pa.Table):
    memory = fsspec.filesystem("memory")
    memory.put(str(tokens_build), "/feed-test", recursive=True)
    try:
        curriculum = Curriculum("memory://feed-test")
        assert curriculum[20]["input_ids"].tolist() == ids_of(table)[20].tolist()
        assert (
            curriculum.columns([20], ["doc_id"]).to_pylist()
            == table.slice(20, 1).select(["doc_id"]).to_pylist()
        )
    finally:
        memory.rm("/feed-test", recursive=True)


# Builds that are not what the manifest says.


def test_a_folder_without_a_finished_build_is_refused(tmp_path: Path):
    with pytest.raises(CurriculumError, match="holds no finished build"):
        Curriculum(tmp_path)


def test_an_altered_manifest_is_refused(copied: Path):
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["stages"][0]["samples"] -= 1
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CurriculumError, match="manifest was altered"):
        Curriculum(copied)


def a_file(out: Path) -> Path:
    return max(out.glob("curriculum/*/part-00000.parquet"), key=lambda path: pq.read_metadata(path).num_rows)


def row_groups(out: Path) -> list[RowGroup]:
    catalog = read_catalog(str(out))
    return [catalog.row_group(number) for number in range(catalog.groups)]


def read_or_error(curriculum: Curriculum, rows: list[int]) -> tuple[list[list[int]] | None, str]:
    try:
        return rows_of(curriculum.__getitems__(rows)), ""
    except CurriculumError as error:
        return None, str(error)


def read_every_row(curriculum: Curriculum) -> list[list[int]]:
    return rows_of(curriculum.__getitems__(list(range(len(curriculum)))))


def test_a_missing_or_longer_file_is_refused_at_once(copied: Path):
    path = a_file(copied)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CurriculumError, match=rf"altered: .*{path.name}: got \d+ bytes, expected \d+ bytes"):
        Curriculum(copied)
    path.unlink()
    with pytest.raises(CurriculumError, match=rf"missing: .*{path.name}"):
        Curriculum(copied)


def test_a_file_that_goes_away_later_is_named(copied: Path):
    curriculum = Curriculum(copied)
    path = a_file(copied)
    path.unlink()
    with pytest.raises(CurriculumError, match=rf"missing: .*{path.name}, row group 0"):
        read_every_row(curriculum)


def test_a_file_of_another_build_is_refused(copied: Path):
    curriculum = Curriculum(copied)
    path = a_file(copied)
    table = pq.read_table(path)
    pq.write_table(table, path)
    with pytest.raises(
        CurriculumError, match=rf"{path.name}, row group 0: got \d+ rows in the footer, expected"
    ):
        read_every_row(curriculum)
    pq.write_table(table.drop_columns(["input_ids"]), path)
    with pytest.raises(CurriculumError, match="got column input_ids of type none in the footer"):
        read_every_row(pickle.loads(pickle.dumps(curriculum)))


def flip_in_page(out: Path) -> tuple[str, list[int]]:
    """Flip a byte in a page of token ids; return the file and the rows that cannot be read any more."""
    path = a_file(out)
    chunk = pq.read_metadata(path).row_group(1).column(INPUT_IDS)
    assert chunk.path_in_schema == "input_ids.list.element"
    raw = bytearray(path.read_bytes())
    raw[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    path.write_bytes(raw)
    name = path.relative_to(out).as_posix()
    place = next(place for place in row_groups(out) if (place.file, place.index) == (name, 1))
    return name, list(range(place.first_row, place.first_row + place.rows))


def test_a_flipped_byte_in_a_page_names_file_and_row_group_and_nothing_is_given_out(copied: Path):
    name, rows = flip_in_page(copied)
    curriculum = Curriculum(copied)
    for _ in range(2):  # it stays wrong, and is read anew each time
        with pytest.raises(CurriculumError, match=rf"damaged: {name}, row group 1: got .*(CRC|checksum)"):
            curriculum.__getitems__([0, rows[-1]])
    assert len(rows_of(curriculum.__getitems__([rows[0] - 1, rows[-1] + 1]))) == 2


def test_no_wrong_byte_anywhere_changes_what_is_given_out(copied: Path):
    path = a_file(copied)
    whole = path.read_bytes()
    raw = pickle.dumps(Curriculum(copied))
    place = next(place for place in row_groups(copied) if place.file == path.relative_to(copied).as_posix())
    rows = list(range(place.first_row, place.first_row + place.rows))
    right = rows_of(pickle.loads(raw).__getitems__(rows))
    # The header of the page is where checksums do not reach; one of its bytes says how the values are encoded.
    chunk = pq.read_metadata(path).row_group(place.index).column(INPUT_IDS)
    header = range(chunk.data_page_offset, chunk.data_page_offset + 40)
    elsewhere = np.random.default_rng(5).choice(len(whole), 60, replace=False).tolist()
    caught = 0
    for at, mask in [*((at, mask) for at in header for mask in (1, 0x12)), *((at, 0x40) for at in elsewhere)]:
        damaged = bytearray(whole)
        damaged[at] ^= mask
        path.write_bytes(damaged)
        got, named = read_or_error(pickle.loads(raw), rows)
        assert got == right or path.name in named
        caught += got is None
    assert caught > 60


def test_another_sample_of_the_same_size_is_noticed(copied: Path):
    curriculum = Curriculum(copied)
    place = row_groups(copied)[0]
    path = copied / place.file
    table = pq.read_table(path)
    ids = table.column("input_ids").to_pylist()
    ids[0][0] += 1
    field = table.schema.field("input_ids")
    other = table.set_column(table.column_names.index("input_ids"), field, pa.array(ids, type=field.type))
    pq.write_table(other, path, row_group_size=place.rows)
    with pytest.raises(CurriculumError, match=rf"{path.name}, row group 0: got a sample with another hash"):
        curriculum[place.first_row]
