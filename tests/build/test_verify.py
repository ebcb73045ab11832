"""``verify`` finds what was altered and names it."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanfeed.build.finished import curriculum_digest
from cleanfeed.build.manifest import write_manifest
from cleanfeed.build.verify import verify
from cleanfeed.curriculum.durable import file_digest
from cleanfeed.errors import CleanfeedError, MisuseError, VerifyError

from .conftest import TOKENIZER, Build, prose, write_jsonl


@pytest.fixture
def built(tmp_path: Path, run: Build) -> Path:
    records = [{"id": f"p{n}", "text": prose(n)} for n in range(30)]
    run(write_jsonl(tmp_path / "a.jsonl", [*records, {"id": "blob", "text": "g4ODg4OD" * 2000}, b"{broken"]))
    return tmp_path / "out"


def curriculum_file(out: Path) -> Path:
    return max(out.glob("curriculum/*/part-*.parquet"), key=lambda path: pq.read_metadata(path).num_rows)


def flipped(path: Path, places: int) -> Iterator[int]:
    """Yield places from the first byte to the last; while each is held, one bit of the file there is another."""
    whole = path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, places).astype(int).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        yield place
    path.write_bytes(whole)


def rewrite(out: Path, path: Path, table: pa.Table) -> None:
    """Replace a file and make the manifest's sums agree with it, so that only its content is wrong."""
    manifest = json.loads((out / "manifest.json").read_text())
    name = path.relative_to(out).as_posix()
    rows = [stage["row_group_samples"] for stage in manifest["stages"] if name in stage["files"]]
    pq.write_table(table, path, row_group_size=rows[0] if rows else None)
    for entry in manifest["files"]:
        if entry["path"] == name:
            entry.update(rows=table.num_rows, bytes=path.stat().st_size, digest=file_digest(path))
    manifest["digest"] = curriculum_digest(manifest["stages"], manifest["files"])
    write_manifest(out, manifest)


def test_an_untouched_build_is_proven(built: Path):
    report = verify(str(built))
    assert (report.counts["read"], report.samples, report.stages) == (32, 30, 9)
    assert report.files == len(list(built.rglob("*.*")))


@pytest.mark.parametrize("kind", ["curriculum", "rejected", "unreadable", "signals"])
def test_every_flipped_byte_is_found(built: Path, kind: str):
    path = curriculum_file(built) if kind == "curriculum" else built / kind / "part-00000.parquet"
    found = rf"^{path.relative_to(built)}: got digest \w+, expected"
    for _ in flipped(path, 5):
        with pytest.raises(VerifyError, match=found):
            verify(str(built))


def test_every_flipped_byte_of_the_tokenizer_is_found(tmp_path: Path, run: Build):
    run(write_jsonl(tmp_path / "a.jsonl", [{"text": prose(1)}]), tokenizer=TOKENIZER)
    for _ in flipped(tmp_path / "out" / "tokenizer.json", 5):
        with pytest.raises(VerifyError, match=r"^tokenizer\.json: got digest \w+, expected"):
            verify(str(tmp_path / "out"))


def test_every_flipped_byte_of_the_manifest_is_found(built: Path):
    # One that takes a key away among them: nothing is asked of a manifest before it is known to be whole.
    for _ in flipped(built / "manifest.json", 300):
        with pytest.raises(
            CleanfeedError, match=r"altered since it was written|not a manifest|of another format"
        ):
            verify(str(built))


def test_a_missing_and_a_foreign_file_are_named(built: Path):
    path = curriculum_file(built)
    path.rename(path.with_name("part-99999.parquet"))
    with pytest.raises(
        VerifyError, match=r"part-00000\.parquet: missing; .*part-99999\.parquet: not in the manifest"
    ):
        verify(str(built))


def test_two_files_that_were_swapped_are_found(built: Path):
    one, two = built / "signals" / "part-00000.parquet", built / "rejected" / "part-00000.parquet"
    one.rename(built / "held")
    two.rename(one)
    (built / "held").rename(two)
    with pytest.raises(VerifyError, match="signals/part-00000"):
        verify(str(built))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("curriculum", "29 documents, the manifest says 30 were kept"),
        ("signals", "a.jsonl: the files hold 31 read, the manifest says 32; a.jsonl: the files hold 29 kept"),
        ("rejected", "rejected/: 0 rows, the manifest says 1"),
        ("unreadable", "a.jsonl: the files hold 31 read, the manifest says 32; .* 0 unreadable"),
    ],
)
def test_a_dropped_row_is_found_even_where_the_sums_agree(built: Path, kind: str, said: str):
    path = curriculum_file(built) if kind == "curriculum" else built / kind / "part-00000.parquet"
    rewrite(built, path, pq.read_table(path).slice(1))
    with pytest.raises(VerifyError, match=said):
        verify(str(built))


def test_a_row_twice_in_place_of_another_is_found_even_where_the_sums_agree(built: Path):
    path = curriculum_file(built)
    table = pq.read_table(path)
    rewrite(built, path, pa.concat_tables([table.slice(0, 1), table.slice(0, 1), table.slice(2)]))
    with pytest.raises(VerifyError):
        verify(str(built))


def test_a_sample_in_the_wrong_stage_is_found(built: Path):
    path = curriculum_file(built)
    table = pq.read_table(path)
    place = table.schema.get_field_index("stage")
    field = table.schema.field("stage")
    rewrite(built, path, table.set_column(place, field, pa.array([7] * table.num_rows, pa.int16())))
    with pytest.raises(VerifyError, match="30 samples say they belong to another stage"):
        verify(str(built))


def column(table: pa.Table, name: str, values: object) -> pa.Table:
    """Return a table in which all rows have the same value in a column."""
    place, field = table.schema.get_field_index(name), table.schema.field(name)
    return table.set_column(place, field, pa.array([values] * table.num_rows, field.type))


SHARES = ["curriculum.tiers=[{name: good, share: 0.5}, {name: rest}]"]
SAMPLES = ["curriculum.row_group_tokens=300", "curriculum.row_group_chars=1500"]


@pytest.mark.parametrize("sets", [[], SHARES], ids=["limits", "shares"])
@pytest.mark.parametrize("fields", [{}, {"tokenizer": TOKENIZER, "keep_text": True}], ids=["text", "both"])
def test_samples_that_are_not_what_or_where_they_were_are_found_even_where_the_sums_agree(
    tmp_path: Path, run: Build, sets: list[str], fields: dict[str, object]
):
    records = [{"id": f"p{n}", "text": prose(n, 2 + n % 9)} for n in range(40)]
    out, source = tmp_path / "out", write_jsonl(tmp_path / "a.jsonl", records)
    long = {"max_tokens": 40, "max_chars": 300}, {"max_tokens": 80, "max_chars": 600}
    bands = ", ".join(
        "{" + f"name: b{n}, " + ", ".join(f"{key}: {value}" for key, value in band.items()) + "}"
        for n, band in enumerate(long)
    )
    run(source, sets=[f"curriculum.bands=[{bands}]", *SAMPLES, *sets], **fields)
    path = curriculum_file(out)
    table, manifest = pq.read_table(path), (out / "manifest.json").read_bytes()
    assert pq.read_metadata(path).num_row_groups > 1
    verify(str(out))
    swapped = list(range(table.num_rows))
    swapped[2], swapped[3] = 3, 2
    changes = {
        "lie before one they belong behind": table.take(swapped[::-1]),
        "1 samples lie before one": table.take(swapped),
        "have the hash of other content": column(table, "sample_hash", bytes(16)),
        "are of another mean quality": column(table, "quality", 0.0),
        "have other lengths": column(table, "text", "gone"),
    }
    for said, changed in changes.items():
        (out / "manifest.json").write_bytes(manifest)
        rewrite(out, path, changed)
        with pytest.raises(VerifyError, match=said):
            verify(str(out))
    rewrite(out, path, table)
    verify(str(out))
    settings = json.loads((out / "manifest.json").read_text())
    settings["pipeline"]["curriculum"]["bands"][0].update(max_tokens=60, max_chars=450)
    write_manifest(out, settings)
    with pytest.raises(VerifyError, match="are of another length than their band"):
        verify(str(out))


def test_a_manifest_whose_digest_was_edited_is_found(built: Path):
    manifest = json.loads((built / "manifest.json").read_text())
    manifest["stages"][0]["samples"] += 1
    write_manifest(built, manifest)
    with pytest.raises(VerifyError, match=r"manifest\.json: digest"):
        verify(str(built))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("counts", "duplicate_ids"), 77),
        (("stages", 0, "tokens"), 5),
        (("inputs", 0, "damage"), {"reason": "truncated"}),
        (("pipeline", "curriculum", "seed"), 9),
        (("rejected_by_rule", "blob", "documents"), 3),
    ],
)
def test_any_edit_of_the_manifest_is_found(built: Path, place: tuple[str | int, ...], value: object):
    manifest = json.loads((built / "manifest.json").read_text())
    part = manifest
    for key in place[:-1]:
        part = part[key]
    assert part[place[-1]] != value
    part[place[-1]] = value
    (built / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        VerifyError, match=r"^the manifest was altered since it was written: .*manifest\.json\. "
    ):
        verify(str(built))


def test_counts_of_an_input_that_were_moved_to_another_are_found(tmp_path: Path, run: Build):
    for name in "ab":
        write_jsonl(
            tmp_path / "in" / f"{name}.jsonl", [{"id": n, "text": prose(n + ord(name))} for n in range(4)]
        )
    run(tmp_path / "in")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    for entry, change in zip(manifest["inputs"], (1, -1), strict=True):
        entry["counts"]["read"] += change
        entry["counts"]["kept"] += change
    write_manifest(tmp_path / "out", manifest)
    with pytest.raises(
        VerifyError, match=r"a\.jsonl: the files hold 4 read, the manifest says 5; a\.jsonl: .* kept"
    ):
        verify(str(tmp_path / "out"))


def test_a_foreign_file_alone_is_to_be_removed(built: Path):
    (built / "signals" / "part-00099.parquet").write_bytes(b"mine")
    with pytest.raises(VerifyError, match=r"signals/part-00099\.parquet: not in the manifest\. Remove it"):
        verify(str(built))


def test_a_folder_without_a_build_is_misuse(tmp_path: Path):
    with pytest.raises(MisuseError, match="no such folder"):
        verify(str(tmp_path / "nowhere"))
    with pytest.raises(MisuseError, match="holds no finished build"):
        verify(str(tmp_path))
