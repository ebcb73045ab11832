"""A build in a store is the build on a disk: the same bytes, whatever was killed on the way."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from cleanfeed.build import lease, runner, tasks
from cleanfeed.build.explain import explain_document
from cleanfeed.build.verify import verify
from cleanfeed.curriculum import copies
from cleanfeed.curriculum.paths import ObjectPath
from cleanfeed.errors import CleanfeedError, MisuseError, VerifyError
from cleanfeed.rules.pipeline import load_pipeline

from .conftest import TOKENIZER, Silent, prose, tree, write_jsonl
from .stores import SETS, TASK_BYTES, s3_server, write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module", autouse=True)
def _small_tasks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "TASK_BYTES", TASK_BYTES)
        patch.setattr(tasks, "TOKENISED_TASK_BYTES", TASK_BYTES)
        yield


@pytest.fixture
def out() -> Iterator[str]:
    yield f"memory://{uuid4().hex}/out"
    fsspec.filesystem("memory").store.clear()


def objects(out: str) -> dict[str, bytes]:
    """Return every object below an address by its relative name."""
    return ObjectPath(out, "unused").read_below()


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a build on disk is."""
    folder = tmp_path_factory.mktemp("expected")
    go(corpus, str(folder / "out"))
    return tree(folder / "out")


def go(corpus: Path | str, out: str, **fields: object) -> runner.BuildReport:
    sets = [*SETS, *fields.pop("sets", [])]
    progress = fields.pop("progress", Silent())
    fields = {"tokenizer": TOKENIZER, **fields}
    return runner.build(
        runner.BuildRequest((str(corpus),), out, load_pipeline("web_text", sets), **fields), progress
    )


def test_a_build_in_a_store_has_the_bytes_of_one_on_disk(corpus: Path, out: str, expected: dict[str, bytes]):
    report = go(corpus, out)
    assert objects(out) == expected
    assert len(expected) > 20
    assert verify(out).digest == report.manifest["digest"]
    assert explain_document(out, "0-1").text == prose(1)
    assert go(corpus, out).already_done
    assert objects(out) == expected
    root = copies._root()
    assert [path for path in root.iterdir() if path in copies._held] == []


def test_an_address_of_a_folder_is_that_folder(corpus: Path, tmp_path: Path, expected: dict[str, bytes]):
    go(corpus, f"file://{tmp_path}/out")
    assert tree(tmp_path / "out") == expected


class Killed(BaseException):
    """What a process that was killed would have done next, it does not do."""


def killed_at(effect: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no effect on a store happen from the one with this number on; return the list of those that happen."""
    done: list[str] = []

    def dying(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if len(done) + 1 == effect:
                raise Killed
            done.append(f"{name} {arguments[1]}")
            return function(*arguments, **named)

        return call

    for name in ("pipe_file", "put_file", "rm_file"):
        store = fsspec.implementations.memory.MemoryFileSystem
        monkeypatch.setattr(store, name, dying(name, getattr(store, name)))
    # To the next build this process is the dead one.
    monkeypatch.setattr(lease, "_gone", lambda who: True)
    return done


POINTS = 8


def test_a_build_killed_at_any_effect_on_a_store_ends_in_the_same_bytes(
    corpus: Path, out: str, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        counted = killed_at(0, patch)
        go(corpus, out)
    effects = len(counted)
    assert effects > 60
    finished = 0
    for number in range(POINTS):
        place = f"{out}-{number}"
        with monkeypatch.context() as patch:
            killed_at(1 + number * (effects - 1) // (POINTS - 1), patch)
            with pytest.raises(Killed):
                go(corpus, place)
        if "manifest.json" in objects(place):
            # Only the work folder was being removed.
            verify(place)
            finished += 1
        with monkeypatch.context() as patch:
            done = killed_at(0, patch)
            go(corpus, place)
        assert objects(place) == expected
        assert len(done) < effects or number == 0
    assert 0 < finished < POINTS


def test_a_killed_replacement_in_a_store_is_taken_up_again(
    corpus: Path, out: str, monkeypatch: pytest.MonkeyPatch
):
    sets = ["curriculum.seed=7"]
    go(corpus, f"{out}-expected", sets=sets)
    with monkeypatch.context() as patch:
        go(corpus, f"{out}-counted")
        counted = killed_at(0, patch)
        go(corpus, f"{out}-counted", sets=sets, overwrite=True)
    gone = [
        number
        for number, what in enumerate(counted, 1)
        if what.startswith("rm_file") and "/curriculum/" in what
    ]
    assert len(gone) > 10
    for effect in (gone[1], gone[-1]):
        go(corpus, out)
        before = objects(out)
        with monkeypatch.context() as patch:
            killed_at(effect, patch)
            with pytest.raises(Killed):
                go(corpus, out, sets=sets, overwrite=True)
        left = objects(out)
        assert left.keys() & before.keys() < before.keys()
        with pytest.raises(MisuseError, match="the folder holds no finished build"):
            verify(out)
        monkeypatch.setattr(lease, "_gone", lambda who: True)
        go(corpus, out, sets=sets, overwrite=True)
        assert objects(out) == objects(f"{out}-expected")
        ObjectPath(out, "unused").remove_below(objects(out))


def test_a_store_is_occupied_like_a_folder(corpus: Path, out: str):
    ObjectPath(f"{out}/thesis.tex", "unused").put(b"do not touch")
    with pytest.raises(MisuseError, match=r"not empty and holds no build.*thesis\.tex"):
        go(corpus, out)
    assert objects(out) == {"thesis.tex": b"do not touch"}
    progress = Silent()
    go(corpus, out, overwrite=True, progress=progress)
    assert ["thesis.tex" in note for note in progress.notes] == [True]
    with pytest.raises(MisuseError, match="finished build of other inputs or settings"):
        go(corpus, out, sets=["curriculum.seed=1"])
    verify(out)


def test_an_unfinished_build_in_a_store_is_left_alone_by_one_of_other_settings(
    corpus: Path, out: str, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(runner, "write_manifest", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            go(corpus, out, sets=["curriculum.seed=9", "curriculum.row_group_tokens=300"])
    before = objects(out)
    with pytest.raises(MisuseError, match="unfinished build of other inputs or settings"):
        go(corpus, out)
    assert objects(out) == before
    with pytest.raises(MisuseError, match=r"no finished build.*Run the same build command again"):
        verify(out)
    go(corpus, out, overwrite=True)
    assert objects(out) == expected


def test_nothing_readable_leaves_nothing_in_a_store(tmp_path: Path, out: str):
    source = write_jsonl(tmp_path / "a.jsonl", [b"{broken"])
    with pytest.raises(CleanfeedError, match="nothing could be read"):
        go(source, out)
    assert objects(out) == {}


def test_out_inside_an_input_and_an_input_inside_out_are_refused_in_a_store(corpus: Path, out: str):
    ObjectPath(f"{out}/in/a.jsonl", "unused").put((corpus / "0.jsonl").read_bytes())
    with pytest.raises(MisuseError, match="--out lies inside an input"):
        go(f"{out}/in", f"{out}/in/deeper")
    for inputs in (f"{out}/in", f"{out}/*/*.jsonl"):
        with pytest.raises(MisuseError, match="an input lies inside --out"):
            go(inputs, out)


def test_verify_finds_what_is_wrong_in_a_store(corpus: Path, out: str):
    go(corpus, out)
    name = next(name for name in objects(out) if name.startswith("curriculum/"))
    damaged = bytearray(objects(out)[name])
    damaged[len(damaged) // 2] ^= 1
    ObjectPath(f"{out}/{name}", "unused").put(bytes(damaged))
    with pytest.raises(VerifyError, match=f"{name}: got digest"):
        verify(out)
    ObjectPath(f"{out}/{name}", "unused").unlink()
    ObjectPath(f"{out}/curriculum/stray.parquet", "unused").put(b"x")
    with pytest.raises(
        VerifyError, match=rf"{name}: missing; curriculum/stray\.parquet: not in the manifest"
    ):
        verify(out)


BUILD = """
import os, signal, sys
from cleanfeed.build import tasks
from cleanfeed.build.runner import BuildRequest, build
from cleanfeed.curriculum.paths import ObjectPath
from cleanfeed.rules.pipeline import load_pipeline

inputs, out, tokenizer, workers, kill_at, *sets = sys.argv[1:]
tasks.TASK_BYTES = tasks.TOKENISED_TASK_BYTES = 4096
put, done = ObjectPath.put, []


def entered(place, data):
    put(place, data)
    done.append(place)
    if len(done) == int(kill_at):
        os.kill(os.getpid(), signal.SIGKILL)


class Silent:
    compiling = phase = advance = note = lambda self, *arguments: None


ObjectPath.put = entered
pipeline = load_pipeline("web_text", sets)
request = BuildRequest((inputs,), out, pipeline, tokenizer=tokenizer, workers=int(workers))
report = build(request, Silent())
print(len(done), report.manifest["digest"])
"""


def test_a_build_on_s3_that_was_killed_ends_in_the_bytes_of_one_on_disk(
    corpus: Path, expected: dict[str, bytes]
):
    with s3_server() as settings:
        environment = {**os.environ, **settings}
        files = fsspec.filesystem(
            "s3",
            key="test",
            secret="test",
            endpoint_url=settings["AWS_ENDPOINT_URL"],
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        files.mkdir("bucket")
        files.put(str(corpus), "bucket/in", recursive=True)

        def run(inputs: str, out: str, *, workers: int, kill_at: int = 0) -> subprocess.CompletedProcess[str]:
            words = [inputs, out, TOKENIZER, str(workers), str(kill_at), *SETS]
            command = [sys.executable, "-c", BUILD, *words]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

        digest = json.loads(expected["manifest.json"])["digest"]
        killed = run(str(corpus), "s3://bucket/out", workers=2, kill_at=9)
        assert killed.returncode == -signal.SIGKILL
        again = run(str(corpus), "s3://bucket/out", workers=1)
        assert again.returncode == 0, again.stderr
        assert again.stdout.split()[1] == digest
        found = files.cat(files.find("bucket/out"))
        assert {name.removeprefix("bucket/out/"): data for name, data in found.items()} == expected
        other = run("s3://bucket/in", "s3://bucket/other", workers=2)
        assert other.returncode == 0, other.stderr
        assert other.stdout.split()[1] == digest


def test_a_library_that_is_missing_is_one_line_that_names_the_extra(tmp_path: Path):
    write_jsonl(tmp_path / "a.jsonl", [{"id": 1, "text": prose(1)}])
    code = "import sys; sys.modules[sys.argv.pop(1)] = None\n"
    code += "from cleanfeed.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for missing, words, line in (
        (
            "s3fs",
            ["--out", "s3://bucket/out"],
            "an address cannot be read: s3://bucket/out: got no library for s3:// is installed. "
            "Run pip install 'cleanfeed[s3]'.",
        ),
        (
            "ray",
            ["--out", "out", "--engine", "ray"],
            "Ray is not installed: --engine ray. Run pip install 'cleanfeed[ray]'.",
        ),
    ):
        command = [sys.executable, "-c", code, missing, "build", "a.jsonl", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", line)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
