"""Measures cleanfeed against its floors: real text goes in, what was to reach and what was reached come out.

``python benchmarks/bench.py [INPUT]`` where INPUT is anything ``cleanfeed build`` reads (default:
``../shared/data`` beside the repository). Every figure is measured in this run; ratios compare whole
processes that were run in turn, and the median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
from prepare import Prepared, prepare
from processes import MIB, Run, run
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
PIPELINE = "web_text"
WORKERS = 2
SIGNALS_MB = 100
DATATROVE = "CLEANFEED_DATATROVE_PYTHON"

say = Console(stderr=True)


@dataclass(frozen=True)
class Figure:
    """One line of the result."""

    name: str
    unit: str
    reached: float | None
    target: str = ""
    met: bool | None = None
    detail: str = ""


@dataclass
class Bench:
    """What all measurements share, and what they found."""

    data: Prepared
    scratch: Path
    runs: int
    load: tuple[float, float, float] = field(default_factory=os.getloadavg)
    figures: list[Figure] = field(default_factory=list)

    def add(
        self, name: str, unit: str, reached: float, at_least: float = 0, at_most: float = 0, detail: str = ""
    ) -> None:
        """Note a figure and whether it reached its target."""
        met = reached >= at_least if at_least else reached <= at_most if at_most else None
        target = f"≥ {at_least:g}" if at_least else f"≤ {at_most:g}" if at_most else ""
        self.figures.append(Figure(name, unit, round(reached, 3), target, met, detail))

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """Give an output address that does not exist yet and is gone afterwards."""
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        yield path
        shutil.rmtree(path, ignore_errors=True)

    def build(self, source: Path, *options: str, env: Mapping[str, str] | None = None) -> Run:
        """Build into a fresh folder that is thrown away."""
        with self.folder("out") as out:
            return run(_build_command(source, out, *options), env=env, cwd=REPOSITORY)


def _build_command(source: Path, out: Path, *options: str) -> list[str]:
    fixed = ["--pipeline", PIPELINE, "--workers", str(WORKERS), "--json"]
    return [sys.executable, "-m", "cleanfeed", "build", str(source), "--out", str(out), *fixed, *options]


def _texts(path: Path, limit: int) -> list[pa.LargeStringArray]:
    """Return texts of a JSONL file in memory, in batches of about 8 MB, about ``limit`` bytes in all."""
    batches, size = [], 0
    reader = pyarrow.json.open_json(path, read_options=pyarrow.json.ReadOptions(block_size=8 * MIB))
    for batch in reader:
        text = batch.column("text").cast(pa.large_string())
        batches.append(text)
        size += text.nbytes
        if size >= limit:
            break
    return batches


def _bytes(texts: list[pa.LargeStringArray]) -> int:
    return sum(pa.compute.sum(pa.compute.binary_length(text)).as_py() or 0 for text in texts)


def _seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Return what the work took by the clock and by the processor."""
    start, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - used


@contextmanager
def _one_core() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def signals(bench: Bench) -> None:
    """(a) Every signal of texts in memory, on one core."""
    from cleanfeed.signals.measure import measure_texts, warm_up

    texts = _texts(bench.data.large, SIGNALS_MB * 1_000_000)
    warm_up()
    with _one_core():
        columns = len(measure_texts(texts[0]))
        taken = [_seconds(lambda: [measure_texts(text) for text in texts]) for _ in range(bench.runs)]
    size = _bytes(texts) / 1e6
    clock, used = (statistics.median(column) for column in zip(*taken, strict=True))
    bench.add(
        "a  signals, one core",
        "MB/s",
        size / clock,
        at_least=40,
        detail=f"{columns} signals over {size:.0f} MB of text; {size / used:.1f} MB/s by processor time",
    )


def build_text(bench: Bench) -> None:
    """(b) and (d): a build without tokenizer against pyarrow alone, and its memory at two sizes of input."""
    target = bench.scratch / "floor.parquet"
    floor_command = [sys.executable, str(HERE / "floor.py"), str(bench.data.large), str(target)]
    whole, stream, builds = [], [], []
    for _ in range(bench.runs):
        whole.append(run([*floor_command, "table"]))
        stream.append(run([*floor_command, "stream"]))
        builds.append(bench.build(bench.data.large))
    target.unlink()
    floor, build = _median(whole), _median(builds)
    size = bench.data.large.stat().st_size / 1e6
    spread = ", ".join(f"{one.seconds / two.seconds:.2f}" for one, two in zip(builds, whole, strict=True))
    bench.add(
        "b  build without tokenizer / floor",
        "×",
        statistics.median(one.seconds / two.seconds for one, two in zip(builds, whole, strict=True)),
        at_most=2.0,
        detail=f"build {build:.2f} s, floor {floor:.2f} s, {size:.0f} MB; runs {spread}; "
        f"processor {_used(builds):.2f} s, floor {_used(whole):.2f} s",
    )
    bench.add(
        "   build without tokenizer / streaming floor",
        "×",
        build / _median(stream),
        detail=f"floor {_median(stream):.2f} s",
    )
    bench.add("   build without tokenizer", "MB/s", size / build, detail=f"{WORKERS} workers")
    half = bench.build(bench.data.half)
    _memory(bench, "build without tokenizer", builds, half)


def _memory(bench: Bench, what: str, builds: list[Run], half: Run) -> None:
    peak, each = max(run.peak_mib for run in builds), builds[-1].peaks
    listed = ", ".join(f"{size / MIB:.0f}" for size in each)
    bench.add(f"d  largest process, {what}", "MiB", peak, at_most=1024, detail=f"each process: {listed}")
    detail = f"{half.peak_mib:.0f} MiB with half the input"
    bench.add("   growth when the input doubles", "×", peak / half.peak_mib, at_most=1.25, detail=detail)


def _median(runs: list[Run]) -> float:
    return statistics.median(run.seconds for run in runs)


def _used(runs: list[Run]) -> float:
    return statistics.median(run.processor_seconds for run in runs)


def _kept_texts(bench: Bench) -> Path:
    """Write the whole texts that a build keeps, in the order of the input."""
    path = bench.scratch / "kept.parquet"
    with bench.folder("texts") as out:
        run(_build_command(bench.data.tokenized, out), cwd=REPOSITORY)
        signals = pq.read_table(out / "signals", columns=["source_row", "verdict"])
    verdict = dict(zip(signals["source_row"].to_pylist(), signals["verdict"].to_pylist(), strict=True))
    with bench.data.tokenized.open("rb") as lines:
        texts = [
            json.loads(line)["text"] for row, line in enumerate(lines) if verdict[row] in ("keep", "flag")
        ]
    pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), path, compression="zstd")
    return path


def build_tokens(bench: Bench) -> None:
    """(c) A build with tokenizer against encoding the kept texts and nothing else."""
    kept = _kept_texts(bench)
    encode = [
        sys.executable,
        str(HERE / "encode_alone.py"),
        str(kept),
        str(bench.data.tokenizer),
        str(WORKERS),
    ]
    alone, builds, ratios = [], [], []
    for _ in range(bench.runs):
        alone.append(json.loads(run(encode).output))
        builds.append(bench.build(bench.data.tokenized, "--tokenizer", str(bench.data.tokenizer)))
        ratios.append(builds[-1].seconds / alone[-1]["seconds"])
    kept.unlink()
    floor = statistics.median(one["seconds"] for one in alone)
    encoding = statistics.median(one["processor_seconds"] for one in alone)
    spread = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    bench.add(
        "c  build with tokenizer / encode_batch_fast",
        "×",
        statistics.median(ratios),
        at_most=1.15,
        detail=f"build {_median(builds):.2f} s, encoding {floor:.2f} s for {alone[0]['tokens']:,} tokens in "
        f"{WORKERS} processes of one thread; runs {spread}; "
        f"processor {_used(builds):.2f} s, encoding {encoding:.2f} s",
    )
    peak = max(run.peak_mib for run in builds)
    listed = ", ".join(f"{size / MIB:.0f}" for size in builds[-1].peaks)
    bench.add(
        "d  largest process, build with tokenizer",
        "MiB",
        peak,
        at_most=1024,
        detail=f"each process: {listed}",
    )


def samples(bench: Bench) -> None:
    """(f) The samples built for the first time, when kernels must be compiled, and again."""
    source, tokenizer = REPOSITORY / "data_samples", REPOSITORY / "data_samples" / "tokenizer.json"
    with bench.folder("kernels") as empty:
        env = {**os.environ, "NUMBA_CACHE_DIR": str(empty)}
        first = bench.build(source, "--tokenizer", str(tokenizer), env=env)
        later = [bench.build(source, "--tokenizer", str(tokenizer), env=env) for _ in range(bench.runs)]
    used = f"processor {first.processor_seconds:.2f} s"
    bench.add("f  first build of data_samples, compiling", "s", first.seconds, at_most=20, detail=used)
    used = f"processor {_used(later):.2f} s"
    bench.add("   later builds of data_samples", "s", _median(later), at_most=3, detail=used)


def gopher(bench: Bench) -> None:
    """(e) All our signals and the Gopher rules against datatrove's two Gopher filters, by processor time."""
    python = os.environ.get(DATATROVE)
    if not python:
        detail = f"not measured: {DATATROVE} does not name a Python with datatrove"
        bench.figures.append(
            Figure("e  speed against datatrove's Gopher filters", "×", None, "≥ 100", None, detail)
        )
        return
    from cleanfeed.rules.pipeline import load_pipeline
    from cleanfeed.rules.ruleset import RuleSet
    from cleanfeed.signals.measure import measure_texts, warm_up

    warm_up()
    rules = RuleSet(load_pipeline("gopher").rules, tokenizer=False)
    texts = _texts(bench.data.sample, 2**62)
    with _one_core():
        theirs = json.loads(run([python, str(HERE / "datatrove_gopher.py"), str(bench.data.sample)]).output)
        rules.evaluate(measure_texts(texts[0]))
        taken = [
            _seconds(lambda: [rules.evaluate(measure_texts(text)) for text in texts])
            for _ in range(max(5, bench.runs))
        ]
    ours = _bytes(texts) / statistics.median(used for _, used in taken) / 1e6
    both = theirs["bytes"] / theirs["seconds"] / 1e6
    everything = theirs["bytes"] / theirs["seconds_on_all"] / 1e6
    bench.add(
        "e  speed against datatrove's Gopher filters",
        "×",
        ours / both,
        at_least=100,
        detail=f"{ours:.1f} MB/s with every signal and the gopher rules; "
        f"datatrove {theirs['version']} {both:.2f} MB/s, "
        f"{everything:.2f} MB/s with both filters on every document; "
        f"{theirs['read']:,} documents, {_bytes(texts) / 1e6:.1f} MB",
    )


MEASUREMENTS = {"a": signals, "b": build_text, "c": build_tokens, "e": gopher, "f": samples}


def show(bench: Bench) -> None:
    """Print the table."""
    load = ", ".join(f"{value:.1f}" for value in bench.load)
    title = f"cleanfeed benchmark: {os.cpu_count()} processors, load before the start {load}"
    table = Table(title=title, title_justify="left")
    table.add_column("measured")
    table.add_column("target", justify="right")
    table.add_column("reached", justify="right")
    table.add_column("", justify="left")
    table.add_column("detail", overflow="fold")
    marks = {True: "[green]reached[/]", False: "[red]missed[/]", None: ""}
    for figure in bench.figures:
        reached = "" if figure.reached is None else f"{figure.reached:,.2f} {figure.unit}"
        target = f"{figure.target} {figure.unit}" if figure.target else ""
        table.add_row(figure.name, target, reached, marks[figure.met], figure.detail)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main() -> int:
    """Prepare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("input", nargs="?", type=Path, default=REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--megabytes", type=int, default=300, help="least size of the prepared file")
    parser.add_argument("--runs", type=int, default=3, help="runs of each whole process; the median counts")
    parser.add_argument(
        "--only", default="abcef", help="which measurements, by letter (d comes with b and c)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    if not options.input.exists():
        print(f"No such input: {options.input}. Name a file or folder with real text.", file=sys.stderr)
        return 2
    say.print(f"preparing at least {options.megabytes} MB from {options.input}")
    data = prepare(options.input, options.megabytes)
    scratch = data.large.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    bench = Bench(data, scratch, options.runs)
    warm = REPOSITORY / "data_samples" / "languages.jsonl"
    for letter, measure in MEASUREMENTS.items():
        if letter in options.only:
            say.print(f"measuring {letter}: {(measure.__doc__ or '').splitlines()[0]}")
            if letter in "bc":
                bench.build(warm)  # kernels are compiled and on disk before anything is timed
            measure(bench)
    shutil.rmtree(scratch, ignore_errors=True)
    if options.json:
        figures = [asdict(figure) for figure in bench.figures]
        found = {"processors": os.cpu_count(), "load": bench.load, "figures": figures}
        print(json.dumps(found, ensure_ascii=False, indent=1))
    else:
        show(bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
