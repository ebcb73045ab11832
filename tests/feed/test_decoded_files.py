"""What is kept decoded in a folder is given out bit for bit as from Parquet, or not at all, whatever happens to it."""

import errno
import gc
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.errors import CleanfeedError, CurriculumError, MisuseError
from cleanfeed.feed import reader
from cleanfeed.feed.catalog import RowGroup
from cleanfeed.feed.dataset import Curriculum
from cleanfeed.feed.decoded_files import ABANDONED_SECONDS, DecodedFiles, decoded_bytes
from cleanfeed.feed.pages import Ragged
from cleanfeed.feed.samples import FILLER

from .builds import token_ids, write_build
from .conftest import ids_of
from .test_dataloader import loader_of, order_of, sampler_of
from .test_dataset import flip_in_page, row_groups

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def prepared(tokens_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder that holds every row group of the build with a tokenizer; not to be altered."""
    folder = tmp_path_factory.mktemp("prepared")
    Curriculum(tokens_build, decoded=folder).decode(progress=False)
    return folder


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def all_ids(curriculum: Curriculum) -> list[list[int]]:
    return [item["input_ids"].tolist() for item in curriculum.__getitems__(list(range(len(curriculum))))]


def expected_of(table: pa.Table) -> list[list[int]]:
    return [ids.tolist() for ids in ids_of(table)]


# The same, with and without.


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=40), st.data())
def test_any_batch_is_the_same_with_and_without_the_folder(
    tokens_build: Path, prepared: Path, numbers: list[int], data: st.DataObject
):
    plain, mapped = Curriculum(tokens_build), Curriculum(tokens_build, decoded=prepared)
    rows = [number % len(plain) for number in numbers]
    asked = [(row, ~row, FILLER)[data.draw(st.sampled_from((0, 0, 0, 1, 2)))] for row in rows]
    one, other = plain.__getitems__(asked), mapped.__getitems__(asked)
    for left, right in zip(one, other, strict=True):
        assert left["input_ids"].dtype == right["input_ids"].dtype == np.int32
        assert left.pop("input_ids").tolist() == right.pop("input_ids").tolist()
        assert left == right
    assert one.limits.tolist() == other.limits.tolist()


def test_a_row_group_is_written_when_it_is_first_needed_and_mapped_from_then_on(
    copied: Path, tmp_path: Path, table: pa.Table
):
    folder = tmp_path / "new" / "decoded"
    first = Curriculum(copied, decoded=folder)
    assert not folder.exists()
    first[0]
    assert len(files_in(folder)) == 1
    assert all_ids(first) == expected_of(table)
    assert len(files_in(folder)) == first.catalog.groups
    # Pages are not read any more, though files must be there, of the size the manifest says.
    for path in copied.glob("curriculum/*/*.parquet"):
        path.write_bytes(bytes(path.stat().st_size))
    assert all_ids(Curriculum(copied, decoded=folder)) == expected_of(table)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_what_is_delivered_with_the_folder_does_not_depend_on_workers(
    tokens_build: Path, prepared: Path, tmp_path: Path, table: pa.Table, workers: int, method: str | None
):
    folder = shutil.copytree(prepared, tmp_path / "decoded")
    for path in files_in(folder)[::2]:  # some row groups are there, others are decoded
        path.unlink()
    sampler = sampler_of(Curriculum(tokens_build, decoded=folder), epochs=1)
    expected = expected_of(table)
    rows: list[int] = []
    for batch in loader_of(sampler, workers, method):
        rows += batch["sample_ids"].tolist()
        for row, ids, mask in zip(
            batch["sample_ids"].tolist(), batch["input_ids"], batch["attention_mask"], strict=True
        ):
            assert ids[mask.bool()].tolist() == expected[row]
    assert rows == order_of(sampler)
    assert len(files_in(folder)) == len(files_in(prepared))


def test_ids_take_two_bytes_where_they_have_room_and_four_where_not(tmp_path: Path):
    catalog = Curriculum(write_build(tmp_path / "out", (6, 6))).catalog
    place, kept = catalog.row_group(0), DecodedFiles(str(tmp_path / "decoded"), catalog)
    bounds = memoryview(np.array([0, 1, 1, 2, 3, 3, 4], dtype=np.int32))
    for ids, width in (([0, 5, 65_535, 1], 2), ([0, 5, 65_536, 1], 4), ([0, -1, 3, 2**31 - 1], 4)):
        kept.write(place, Ragged(np.array(ids, dtype=np.int32), bounds))
        found = kept.load(place)
        assert found is not None
        assert (found.values.tolist(), found.bounds.tolist()) == (ids, bounds.tolist())
        assert Path(kept.path(place)).stat().st_size == 64 + 4 * 7 + width * 4


def test_the_bytes_it_takes_are_known_beforehand(tokens_build: Path, prepared: Path):
    curriculum = Curriculum(tokens_build, decoded=prepared)
    taken = sum(path.stat().st_size for path in files_in(prepared))
    assert curriculum.decoded_bytes == decoded_bytes(curriculum.catalog) == taken
    assert curriculum.decode(progress=False) == taken


def test_a_curriculum_with_a_folder_pickles_to_a_few_kilobytes_after_use_too(
    tokens_build: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(prepared.parent)
    curriculum = Curriculum(tokens_build, decoded=prepared.name)
    before = all_ids(curriculum)
    raw = pickle.dumps(curriculum)
    assert len(raw) < 4096
    monkeypatch.chdir("/")
    assert pickle.loads(raw).decoded == str(prepared)
    assert all_ids(pickle.loads(raw)) == before


def test_one_folder_serves_several_curricula(tokens_build: Path, tmp_path: Path, table: pa.Table):
    folder = tmp_path / "decoded"
    other = write_build(tmp_path / "out", (10, 4), (7, 3))
    curricula = [Curriculum(out, decoded=folder) for out in (tokens_build, other)]
    for curriculum in curricula:
        curriculum.decode(progress=False)
    assert sorted(path.name for path in folder.iterdir()) == sorted(one.digest for one in curricula)
    for out, expected in ((tokens_build, expected_of(table)), (other, [token_ids(row) for row in range(17)])):
        assert all_ids(Curriculum(out, decoded=folder)) == expected


# What cannot be.


def test_a_folder_that_cannot_be_one_is_refused(tokens_build: Path, tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    for wrong in (file, "s3://bucket/decoded"):
        with pytest.raises(
            MisuseError, match=r"no folder of this machine: decoded: got .*, expected a folder"
        ):
            Curriculum(tokens_build, decoded=wrong)
    with pytest.raises(MisuseError, match=r"no folder to decode into: Curriculum\.decode"):
        Curriculum(tokens_build).decode()


def test_a_curriculum_of_texts_has_nothing_to_keep(text_build: Path, tmp_path: Path):
    with pytest.raises(
        MisuseError, match=r"^no ids to keep decoded: decoded: .* without a tokenizer\. Leave"
    ):
        Curriculum(text_build, decoded=tmp_path)


# Damage.


def decoded_paths(curriculum: Curriculum) -> Iterator[tuple[RowGroup, Path]]:
    assert curriculum.decoded is not None
    kept = DecodedFiles(curriculum.decoded, curriculum.catalog)
    for number in range(curriculum.catalog.groups):
        place = curriculum.catalog.row_group(number)
        yield place, Path(kept.path(place))


def flipped(at: int):
    def change(path: Path, _: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[at] ^= 0x10
        path.write_bytes(raw)

    return change


def with_bound(at: int, bound: int):
    """Write another bound and the checksum that goes with it."""

    def change(path: Path, _: Path) -> None:
        raw = bytearray(path.read_bytes())
        struct.pack_into("=i", raw, 64 + 4 * at, bound)
        raw[:16] = xxhash.xxh3_128_digest(raw[16:])
        path.write_bytes(raw)

    return change


def forged(edit):
    """Return a change after which the checksum is right again."""

    def change(path: Path, _: Path) -> None:
        raw = edit(path.read_bytes())
        path.write_bytes(xxhash.xxh3_128_digest(raw[16:]) + raw[16:])

    return change


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (flipped(0), "a wrong checksum"),
        (flipped(20), "a wrong checksum"),
        (flipped(70), "a wrong checksum"),
        (flipped(-1), "a wrong checksum"),
        (lambda path, _: path.write_bytes(path.read_bytes()[:-2]), "a wrong checksum"),
        (lambda path, _: path.write_bytes(path.read_bytes() + b"\0"), "a wrong checksum"),
        (lambda path, _: path.write_bytes(path.read_bytes()[:40]), "40 bytes"),
        (lambda path, _: path.write_bytes(b""), ".*"),
        (lambda path, other: shutil.copy(other, path), "a row group of another place or format"),
        (forged(lambda raw: raw[:80]), "a row group without room for its rows"),
        (
            forged(lambda raw: raw[:56] + struct.pack("=q", 3) + raw[64:]),
            "a row group without room for its rows",
        ),
        (with_bound(0, -1), "rows outside of their ids"),
        (with_bound(1, 1 << 30), "rows outside of their ids"),
        (with_bound(2, 0), "rows outside of their ids"),
    ],
)
def test_a_damaged_file_is_said_decoded_anew_and_never_given_out(
    tokens_build: Path, prepared: Path, tmp_path: Path, table: pa.Table, change, got: str
):
    folder = shutil.copytree(prepared, tmp_path / "decoded")
    curriculum = Curriculum(tokens_build, decoded=folder)
    (place, path), (_, other) = list(decoded_paths(curriculum))[1:3]
    whole = path.read_bytes()
    change(path, other)
    rows = list(range(place.first_row, place.first_row + place.rows))
    with pytest.warns(
        RuntimeWarning, match=rf"a decoded row group is damaged: {path}: got {got}.* It is decoded anew"
    ):
        found = curriculum.__getitems__(rows)
    assert [item["input_ids"].tolist() for item in found] == [expected_of(table)[row] for row in rows]
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("left", "said"), [(None, 0), (100, 1)])
def test_a_file_that_goes_or_is_cut_while_it_is_mapped_is_decoded_anew(
    tokens_build: Path,
    prepared: Path,
    tmp_path: Path,
    table: pa.Table,
    monkeypatch: pytest.MonkeyPatch,
    left: int | None,
    said: int,
):
    curriculum = Curriculum(tokens_build, decoded=shutil.copytree(prepared, tmp_path / "decoded"))
    (place, path), *_ = decoded_paths(curriculum)
    whole, mapped = path.read_bytes(), torch.from_file

    def changed(name: str, **options: int) -> torch.Tensor:
        path.unlink() if left is None else os.truncate(path, left)
        return mapped(name, **options)

    monkeypatch.setattr(torch, "from_file", changed)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        rows = curriculum.__getitems__([place.first_row])
    assert rows[0]["input_ids"].tolist() == expected_of(table)[place.first_row]
    assert ["a decoded row group is damaged" in str(one.message) for one in heard] == [True] * said
    assert path.read_bytes() == whole


def test_a_flipped_byte_in_parquet_raises_where_its_row_group_is_decoded(copied: Path, tmp_path: Path):
    name, rows = flip_in_page(copied)
    curriculum = Curriculum(copied, decoded=tmp_path / "decoded")
    with pytest.raises(CurriculumError, match=rf"damaged: {name}, row group 1: got .*(CRC|checksum)"):
        curriculum.__getitems__([0, rows[0]])
    with pytest.raises(CurriculumError, match=rf"damaged: {name}, row group 1: got .*(CRC|checksum)"):
        curriculum.decode(progress=False)
    wrong = next(path for place, path in decoded_paths(curriculum) if place.first_row == rows[0])
    assert not wrong.exists()


# Writing that fails.


def test_a_write_that_is_cut_short_leaves_nothing_and_is_said_once(
    tokens_build: Path, tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
):
    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "decoded"
    curriculum = Curriculum(tokens_build, decoded=folder)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(
        RuntimeWarning, match="No space left on device. Make room, or name another folder. Training"
    ) as said:
        assert all_ids(curriculum) == expected_of(table)
    assert sum("cannot keep row groups decoded" in str(one.message) for one in said) == 1
    assert files_in(folder) == []
    with pytest.raises(
        CleanfeedError, match=r"^cannot keep row groups decoded: .*: got No space left on device\. "
    ):
        curriculum.decode(progress=False)


def in_a_child(work, *given: object) -> object:
    """Return what a call returns in a forked process."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=lambda: answers.put(work(*given)))
    child.start()
    answer = answers.get(timeout=60)
    child.join()
    return answer


def read_and_hear(out: Path, folder: Path) -> tuple[list[list[int]], list[str]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = all_ids(Curriculum(out, decoded=folder))
    return found, [str(one.message) for one in heard if issubclass(one.category, RuntimeWarning)]


def with_small_files(out: Path, folder: Path) -> tuple[list[list[int]], list[str]]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    return read_and_hear(out, folder)


def test_a_file_that_grows_too_large_is_left_out_and_training_goes_on(
    tokens_build: Path, tmp_path: Path, table: pa.Table
):
    found, heard = in_a_child(with_small_files, tokens_build, tmp_path / "decoded")  # type: ignore[misc]
    assert found == expected_of(table)
    assert [one.split(": got ")[1] for one in heard] == [
        "File too large. Make room, or name another folder. Training goes on."
    ]
    assert all(path.stat().st_size <= 1000 for path in files_in(tmp_path))
    assert not list(tmp_path.glob("decoded/*/unfinished/*"))


def as_nobody(out: Path, folder: Path) -> tuple[list[list[int]], list[str]]:
    if os.getuid() == 0:
        os.setuid(65534)
    return read_and_hear(out, folder)


def test_a_folder_that_may_only_be_read_serves_and_one_that_lacks_row_groups_is_said(
    tokens_build: Path, prepared: Path, table: pa.Table
):
    # Folders of pytest are for their owner alone; a place of its own may be read by others.
    home = Path("/dev/shm" if os.getuid() == 0 else prepared.parent) / f"cleanfeed-test-{os.getpid()}"
    try:
        folder = shutil.copytree(prepared, home / "decoded")
        out = shutil.copytree(tokens_build, home / "out")
        for path in (home, *home.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        assert in_a_child(as_nobody, out, folder) == (expected_of(table), [])
        missing = files_in(folder)[0]
        missing.parent.chmod(0o755)
        missing.unlink()
        missing.parent.chmod(0o555)
        found, heard = in_a_child(as_nobody, out, folder)  # type: ignore[misc]
        assert found == expected_of(table)
        assert [one.split(": got ")[1] for one in heard] == [
            "Permission denied. Make room, or name another folder. Training goes on."
        ]
    finally:
        for path in (home, *home.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(home)


# Processes.

DECODE = """
import sys
from cleanfeed.feed.dataset import Curriculum
sys.stdin.readline()
print(Curriculum(sys.argv[1], decoded=sys.argv[2]).decode(progress=False))
"""


def test_processes_that_prepare_at_once_write_the_same_files(
    tokens_build: Path, prepared: Path, tmp_path: Path
):
    folder = tmp_path / "decoded"
    command = [sys.executable, "-c", DECODE, str(tokens_build), str(folder)]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [child.communicate("\n", timeout=60)[0] for child in children]
    assert said == [f"{Curriculum(tokens_build).decoded_bytes}\n"] * 2
    content = {path.relative_to(folder): path.read_bytes() for path in files_in(folder)}
    assert content == {path.relative_to(prepared): path.read_bytes() for path in files_in(prepared)}


KILLED = """
import os, signal, sys
from pathlib import Path
from cleanfeed.feed.dataset import Curriculum
replace, written = Path.replace, []
def die_at_the_third(self, target):
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    written.append(target)
    return replace(self, target)
Path.replace = die_at_the_third
Curriculum(sys.argv[1], decoded=sys.argv[2]).decode(threads=1, progress=False)
"""


def test_killed_between_write_and_rename_nothing_looks_finished_and_the_rest_is_removed_later(
    tokens_build: Path, tmp_path: Path, table: pa.Table
):
    folder = tmp_path / "decoded"
    done = subprocess.run([sys.executable, "-c", KILLED, str(tokens_build), str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = folder.glob("*/unfinished/*")
    assert len(files_in(folder)) == 3
    curriculum = Curriculum(tokens_build, decoded=folder)
    assert all_ids(curriculum) == expected_of(table)
    assert left.exists()  # it may be another process's that is at work
    gone = time.time() - ABANDONED_SECONDS - 1
    os.utime(left, (gone, gone))
    files_in(folder)[0].unlink()
    assert Curriculum(tokens_build, decoded=folder).decode(progress=False) == curriculum.decoded_bytes
    assert not left.exists()


def maps_of(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(folder))


def test_mapped_files_are_bounded_and_no_descriptor_stays_open(
    tokens_build: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reader, "MOST_MAPPED", 4)
    folder = shutil.copytree(prepared, tmp_path / "decoded")
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    curriculum = Curriculum(tokens_build, decoded=folder, decode_ahead=False)
    most = 0
    for place in row_groups(tokens_build):
        curriculum[place.first_row]
        most = max(most, maps_of(folder))
    assert most == 4 < curriculum.catalog.groups
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    del curriculum
    gc.collect()
    assert maps_of(folder) == 0


def test_how_far_it_is_is_shown_with_the_bytes_it_takes(
    tokens_build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    curriculum = Curriculum(tokens_build, decoded=tmp_path / "decoded")
    curriculum.decode(threads=1)
    out, err = capsys.readouterr()
    assert out == ""
    assert f"decoding into {tmp_path / 'decoded'}: at most" in err
    assert "100%" in err


def test_row_groups_of_a_file_are_counted_as_the_files_hold_them(tokens_build: Path):
    catalog = Curriculum(tokens_build).catalog
    names = [[catalog.row_group(number).file for number in numbers] for numbers in catalog.file_groups()]
    assert [name for group in names for name in group] == [place.file for place in row_groups(tokens_build)]
    assert all(len(set(group)) == 1 for group in names)
    assert len({group[0] for group in names}) == len(names)
