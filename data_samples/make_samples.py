"""Writes the samples: texts in written/ and pathologies.py go in, a file of each input kind and expected.json come out.

Run it from anywhere: ``python data_samples/make_samples.py [FOLDER]``. The same versions of the libraries give the
same bytes.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pathologies
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
import zstandard
from pathologies import Labelled

HERE = Path(__file__).resolve().parent
FIRST_FORMS = 17
"""So many of the forms go into gzip, the rest into Parquet."""

TEXT_FILES = {
    "notes.txt": Labelled(
        "notes.txt:0",
        "Notes on the well behind the school\n\nThe well was dug by hand in the year of the long drought and "
        "is lined with river stones. Its water stands four metres below the ground in spring and nearly seven "
        "in autumn. In the war it was covered with a door and forgotten; children found it again when a goat "
        "went missing and was heard to complain from under the brambles.\n\nIt is cleaned every second year. "
        "Two people go down, one at a time, with a rope round the waist and a lamp in the bucket, and the "
        "rest of the village stands about and gives advice. What has come up so far: eleven pails, a church "
        "key, the head of a doll, and a bottle with a letter in it that the damp had made white again.\n",
        "keep",
    ),
    "counter.txt": Labelled(
        "counter.txt:0", "You are visitor number one. " * 90, "reject", ("repeated_ngrams",)
    ),
}

UNREADABLE_LINES: tuple[tuple[bytes, str], ...] = (
    (b'{"id": "bad-utf8", "text": "the middle of this line \xff\xfe is not text"}', "bad_utf8"),
    (b'{"id": "null-text", "text": null}', "text_null"),
    (b'{"id": "number-text", "text": 12}', "text_not_string"),
    (b'{"id": "list-text", "text": ["a", "b"]}', "text_not_string"),
    (
        b'{"id": "one", "text": "the last of its file"}{"id": "two", "text": "the first"}',
        "two_objects_on_one_line",
    ),
    (b'{"id": "cut-off", "text": "the record ends in the midd', "bad_json"),
    (b'{"id": "elsewhere", "body": "the text has another name here"}', "no_text_field"),
    (b'["an", "array", "instead", "of", "a", "record"]', "not_an_object"),
)

BETWEEN = (
    "This record stands between two that cannot be read. It must arrive whole, with the number of its own "
    "line, whatever has become of its neighbours. A reader that gives up at the first bad byte would lose it, "
    "and nobody would know that it had ever been there, since a file that ends early looks just like a file "
    "that was short. So the reader takes each line for itself, notes what it could not understand, and goes "
    "on to the next."
)


def written(name: str) -> list[Labelled]:
    """Return the healthy texts of a file in ``written/``."""
    entries = yaml.safe_load((HERE / "written" / f"{name}.yaml").read_text(encoding="utf-8"))
    return [
        Labelled(
            entry["id"],
            entry["text"].rstrip("\n"),
            entry.get("verdict", "keep"),
            tuple(entry.get("rules", ())),
        )
        for entry in entries
    ]


def lines(records: Iterable[Labelled]) -> bytes:
    """Return the records as JSON Lines."""
    return b"".join(
        json.dumps({"id": record.id, "text": record.text}, ensure_ascii=False).encode() + b"\n"
        for record in records
    )


def halves(records: Sequence[Labelled]) -> tuple[bytes, bytes]:
    """Return the records as two blocks of JSON Lines, for formats that can be joined end to end."""
    middle = len(records) // 2
    return lines(records[:middle]), lines(records[middle:])


def table(records: Sequence[Labelled]) -> pa.Table:
    """Return the records as an Arrow table with columns ``id`` and ``text``."""
    return pa.table({"id": [r.id for r in records], "text": pa.array([r.text for r in records], pa.string())})


def write_gzip(path: Path, records: Sequence[Labelled]) -> None:
    """Write two gzip members."""
    path.write_bytes(b"".join(gzip.compress(half, mtime=0) for half in halves(records)))


def write_zstd(path: Path, records: Sequence[Labelled]) -> None:
    """Write two zstd frames."""
    path.write_bytes(b"".join(zstandard.ZstdCompressor(level=9).compress(half) for half in halves(records)))


def write_dictionary(path: Path, records: Sequence[Labelled]) -> None:
    """Write Parquet whose text column is dictionary encoded, with one row that has no text."""
    rows = table(records)
    text = pa.concat_arrays([rows["text"].combine_chunks(), pa.nulls(1, pa.string())]).dictionary_encode()
    ids = pa.array([*rows["id"].to_pylist(), "row-without-text"])
    pq.write_table(pa.table({"id": ids, "text": text}), path, compression="zstd", row_group_size=8)


def write_arrow(path: Path, records: Sequence[Labelled]) -> None:
    """Write an Arrow IPC file of several record batches."""
    rows = table(records)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=3)


def write_saved(path: Path, records: Sequence[Labelled]) -> None:
    """Write a folder as ``datasets.Dataset.save_to_disk`` does."""
    import datasets
    from datasets.table import InMemoryTable

    datasets.disable_progress_bars()
    rows = datasets.Dataset(InMemoryTable(table(records)), fingerprint="cleanfeed-samples")
    rows.save_to_disk(str(path))


def write_unreadable(path: Path) -> tuple[list[Labelled], list[dict[str, Any]]]:
    """Write bad lines with good ones between them; return the good records and the bad rows."""
    good = [
        Labelled(f"between-{i}", f"{BETWEEN} This is number {i}.", "keep")
        for i in range(len(UNREADABLE_LINES) + 1)
    ]
    body, bad = bytearray(lines(good[:1])), []
    for i, (line, reason) in enumerate(UNREADABLE_LINES):
        bad.append({"source": path.name, "row": 2 * i + 1, "line": 2 * i + 2, "reason": reason})
        body += line + b"\n" + lines(good[i + 1 : i + 2])
    path.write_bytes(bytes(body))
    return good, bad


def write_all(folder: Path) -> dict[str, Any]:
    """Write every sample file into the folder and return what expected.json holds."""
    folder.mkdir(parents=True, exist_ok=True)
    languages, forms = written("languages"), written("genres")
    repetition, garbage = list(pathologies.repetition()), list(pathologies.garbage())
    unicode_damage, machine = list(pathologies.unicode_damage()), list(pathologies.machine())
    empty = list(pathologies.empty())
    placed: dict[str, Sequence[Labelled]] = {}

    def place(name: str, records: Sequence[Labelled], data: bytes | None = None) -> Path:
        placed[name] = records
        if data is not None:
            (folder / name).write_bytes(data)
        return folder / name

    place("languages.jsonl", languages[:20], lines(languages[:20]))
    write_gzip(place("forms.ndjson.gz", forms[:FIRST_FORMS]), forms[:FIRST_FORMS])
    write_zstd(place("repetition.jsonl.zst", repetition), repetition)
    place("garbage.jsonl.bz2", garbage, bz2.compress(lines(garbage)))
    place("characters.jsonl.xz", unicode_damage, lzma.compress(lines(unicode_damage)))
    pq.write_table(
        table(languages[20:]), place("scripts.parquet", languages[20:]), compression="zstd", row_group_size=4
    )
    write_dictionary(place("forms_dictionary.parquet", forms[FIRST_FORMS:]), forms[FIRST_FORMS:])
    write_arrow(place("machine.arrow", machine), machine)
    place("saved/data-00000-of-00001.arrow", empty)
    shutil.rmtree(folder / "saved", ignore_errors=True)
    write_saved(folder / "saved", empty)
    for name, record in TEXT_FILES.items():
        place(name, [record], record.text.encode())
    good, bad = write_unreadable(folder / "unreadable.jsonl")
    place("unreadable.jsonl", good)
    bad.append(
        {
            "source": "forms_dictionary.parquet",
            "row": len(forms[FIRST_FORMS:]),
            "line": None,
            "reason": "text_null",
        }
    )
    documents = {
        record.id: {"file": name, "verdict": record.verdict, "reasons": list(record.rules)}
        for name, records in placed.items()
        for record in records
    }
    return {"pipeline": "web_text", "documents": documents, "unreadable": bad}


def main() -> int:
    """Write the samples into the folder named on the command line, by default beside this script."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    expected = write_all(folder)
    text = json.dumps(expected, ensure_ascii=False, indent=1)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")
    print(
        f"{len(expected['documents'])} documents and {len(expected['unreadable'])} unreadable records in {folder}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
