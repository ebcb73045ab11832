"""A build on a Ray cluster is the build on one machine: the same bytes, whichever nodes die on the way."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from cleanfeed.build import tasks
from cleanfeed.build.runner import BuildRequest, build
from cleanfeed.rules.pipeline import load_pipeline

from .conftest import TOKENIZER, Silent, tree
from .stores import SETS, TASK_BYTES, s3_server, write_corpus

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), files=8)


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What 1, 2 and 4 workers make of the corpus on this machine."""
    trees = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "TASK_BYTES", TASK_BYTES)
        patch.setattr(tasks, "TOKENISED_TASK_BYTES", TASK_BYTES)
        for workers in (1, 2, 4):
            out = tmp_path_factory.mktemp("expected") / "out"
            pipeline = load_pipeline("web_text", SETS)
            build(BuildRequest((str(corpus),), str(out), pipeline, TOKENIZER, workers=workers), Silent())
            trees.append(tree(out))
    assert trees[0] == trees[1] == trees[2]
    return trees[0]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """What keeps a cluster on this machine, and what it writes in a folder that is removed."""
    # Not pytest's own folder: the names of sockets must be short.
    folder = tempfile.mkdtemp(prefix="ray")
    yield {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "RAY_TMPDIR": folder,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    shutil.rmtree(folder, ignore_errors=True)


LOCAL = """
import sys
from cleanfeed.build import ray_engine, tasks
from cleanfeed.cli.main import main

tasks.TASK_BYTES = tasks.TOKENISED_TASK_BYTES = 4096
close = ray_engine.RayEngine.close


def told(engine, **how):
    print("at", *(node["NodeManagerAddress"] for node in engine._ray.nodes()), file=sys.stderr)
    close(engine, **how)


ray_engine.RayEngine.close = told
sys.exit(main(sys.argv[1:]))
"""


def test_ray_on_this_machine_gives_the_same_bytes_and_keeps_to_itself(
    corpus: Path, tmp_path: Path, expected: dict[str, bytes], environment: dict[str, str]
):
    shutil.copytree(corpus, tmp_path / "in")
    words = ["build", "in", "--out", "out", "--engine", "ray", "--workers", "2", "--tokenizer", TOKENIZER]
    words += ["--json", *(word for value in SETS for word in ("--set", value))]
    done = subprocess.run(
        [sys.executable, "-c", LOCAL, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = tree(tmp_path / "out")
    # Inputs are named as they were given.
    own, other = json.loads(found.pop("manifest.json")), json.loads(expected["manifest.json"])
    assert own["digest"] == other["digest"]
    assert json.loads(done.stdout)["digest"] == own["digest"]
    assert found == {name: data for name, data in expected.items() if name != "manifest.json"}
    # Nothing but what cleanfeed itself says.
    lines = done.stderr.splitlines()
    assert {line.split()[0] for line in lines} <= {
        "compiling",
        "measure:",
        "compare:",
        "settle:",
        "write:",
        "at",
    }
    assert lines[-1] == "at 127.0.0.1" or "at 127.0.0.1" in lines


CALLS = """
import os, signal


def double(number, report):
    report(number)
    return 2 * number


def die(report):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(report):
    raise OSError(28, "No space left on device", "/there")
"""

CLUSTER = """
import json, os, sys
from ray.cluster_utils import Cluster
from cleanfeed.build import tasks
from cleanfeed.build.ray_engine import RayEngine
from cleanfeed.build.runner import BuildRequest, build
from cleanfeed.rules.pipeline import load_pipeline
import calls

corpus, tokenizer, outs, sets = json.loads(sys.argv[1])
tasks.TASK_BYTES = tasks.TOKENISED_TASK_BYTES = 4096
node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}
node |= {"include_log_monitor": False, "no_monitor": True}
cluster = Cluster(initialize_head=True, connect=False, head_node_args={**node, "include_dashboard": False})
cluster.add_node(**node)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address


class Killer:
    compiling = note = lambda self, *arguments: None

    def phase(self, name, total, unit):
        self.name = name

    def advance(self, amount):
        # The first task is done: the others are under way on both nodes.
        if amount and self.name == "measure" and len(cluster.worker_nodes) == 1 and not killed:
            (lost,) = cluster.worker_nodes
            cluster.remove_node(lost, allow_graceful=False)
            killed.append(lost)


killed, digests = [], []
for out in outs:
    request = BuildRequest((corpus,), out, load_pipeline("web_text", sets), tokenizer, workers=0, engine="ray")
    digests.append(build(request, Killer()).manifest["digest"])
    if len(cluster.worker_nodes) == 0:
        cluster.add_node(**node)
        cluster.wait_for_nodes()

engine, reports = RayEngine(0), []
doubled = dict(engine.run(calls.double, [(number, (number,)) for number in range(9)], reports.append))
((_, lost),) = engine.run(calls.die, [(0, ())], reports.append)
try:
    list(engine.run(calls.fail, [(0, ())], reports.append))
except OSError as error:
    failure = [error.strerror, error.filename]
half = engine.run(calls.double, [(number, (number,)) for number in range(9)], lambda amount: None)
next(half)
half.close()
engine.close(at_once=True)
cluster.shutdown()
found = {"killed": len(killed), "digests": digests, "doubled": list(doubled.items()), "reports": sum(reports)}
print(json.dumps({**found, "lost": lost.how, "failure": failure}))
"""


def test_a_cluster_that_loses_a_node_gives_the_same_bytes_on_disk_and_in_a_store(
    corpus: Path, tmp_path: Path, expected: dict[str, bytes], environment: dict[str, str]
):
    (tmp_path / "calls.py").write_text(CALLS)
    with s3_server() as settings:
        files = fsspec.filesystem(
            "s3",
            key="test",
            secret="test",
            endpoint_url=settings["AWS_ENDPOINT_URL"],
            skip_instance_cache=True,
        )
        files.mkdir("bucket")
        outs = [str(tmp_path / "out"), "s3://bucket/out"]
        words = json.dumps([str(corpus), TOKENIZER, outs, SETS])
        done = subprocess.run(
            [sys.executable, "-c", CLUSTER, words],
            env={**environment, **settings, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        stored = {name.removeprefix("bucket/out/"): files.cat_file(name) for name in files.find("bucket/out")}
    found = json.loads(done.stdout.splitlines()[-1])
    digest = json.loads(expected["manifest.json"])["digest"]
    assert (found["killed"], found["digests"]) == (1, [digest, digest])
    assert tree(tmp_path / "out") == expected
    assert stored == expected
    assert sorted(found["doubled"]) == [[number, 2 * number] for number in range(9)]
    assert found["reports"] == sum(range(9))
    assert "SIGKILL" in found["lost"] or "killed" in found["lost"]
    assert found["failure"] == ["No space left on device", "/there"]


def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path, corpus: Path, environment: dict[str, str]):
    command = [sys.executable, "-m", "cleanfeed", "build", str(corpus), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--engine", "ray"],
        env={**environment, "RAY_ADDRESS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1, done.stderr
    assert last.startswith("cannot reach the Ray cluster: RAY_ADDRESS 127.0.0.1:1: got ")
    assert last.endswith("Check RAY_ADDRESS.")
