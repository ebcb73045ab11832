"""What ``measure_texts`` promises of any array of texts, and of how it is compiled."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from cleanfeed import kernel_cache as cache
from cleanfeed.signals import measure, view, words
from cleanfeed.signals.measure import measure_texts
from cleanfeed.signals.registry import SIGNALS, TEXT_SIGNALS, by_name


def array(*texts: str) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def row(columns: dict[str, np.ndarray], k: int) -> dict[str, float | None]:
    return {name: None if math.isnan(column[k]) else float(column[k]) for name, column in columns.items()}


def test_no_text_gives_empty_columns() -> None:
    columns = measure_texts(array())
    assert list(columns) == [signal.name for signal in TEXT_SIGNALS]
    assert {len(column) for column in columns.values()} == {0}


def test_the_empty_text_has_the_declared_values() -> None:
    found = row(measure_texts(array("")), 0)
    assert found == {signal.name: signal.empty for signal in TEXT_SIGNALS}


@pytest.mark.parametrize("text", [" ", "\n", "x", "\u200d", "天", "\r\n\r\n"])
def test_a_text_of_next_to_nothing_has_only_numbers_and_nulls(text: str) -> None:
    for name, value in row(measure_texts(array(text)), 0).items():
        signal = by_name()[name]
        assert value is None or signal.low <= value <= signal.high, name


def test_a_slice_and_a_text_among_others_give_what_the_text_alone_gives() -> None:
    texts = ["one two three", "", "天地玄黄", "one two three", "ends\nhere.\n", ""]
    whole = measure_texts(array(*texts))
    sliced = measure_texts(array("before", *texts, "after").slice(1, len(texts)))
    for k, text in enumerate(texts):
        alone = row(measure_texts(array(text)), 0)
        assert row(whole, k) == alone
        assert row(sliced, k) == alone


def test_an_array_of_empty_strings_is_measured() -> None:
    assert measure_texts(array("", ""))["chars"].tolist() == [0, 0]
    assert measure_texts(array("abc", "", "").slice(1))["chars"].tolist() == [0, 0]


def test_nulls_are_refused() -> None:
    with pytest.raises(ValueError, match="nulls"):
        measure_texts(pa.array(["a", None], pa.large_string()))


def test_a_long_text_of_one_word_is_measured() -> None:
    columns = measure_texts(array("x" * 20_000_000))
    assert [columns[name][0] for name in ("chars", "words", "longest_word", "longest_char_run", "char_run_share")] == [
        20_000_000, 1, 20_000_000, 20_000_000, 1.0,
    ]  # fmt: skip


def test_words_and_lines_past_the_most_that_are_kept_are_still_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (view, words):
        monkeypatch.setattr(module, "MAX_WORDS", 64)
    monkeypatch.setattr(measure, "_kept", [])
    text = "a b c d e f g h. i\n" * 50 + "one\n" * 100
    columns = measure_texts(array(text))
    assert [columns[name][0] for name in ("words", "lines", "longest_word", "mean_word_chars")] == [
        550, 150, 3, (50 * 10 + 300) / 550,
    ]  # fmt: skip
    assert columns["distinct_word_ratio"][0] == 9 / 64
    assert columns["dup_line_share"][0] == (49 + 13) / 64


def test_every_signal_is_declared_once_and_in_full() -> None:
    names = [signal.name for signal in SIGNALS]
    assert len(set(names)) == len(names)
    for signal in SIGNALS:
        assert signal.low < signal.high
        assert signal.meaning.endswith(".")
        assert signal.source
        assert signal.empty is not None or signal.null_when, signal.name
        assert signal.empty is None or signal.low <= signal.empty <= signal.high


def test_the_registry_loads_neither_numba_nor_numpy() -> None:
    code = (
        "import sys, cleanfeed.signals.registry; print([m for m in ('numba', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_is_compiled_is_remembered_beside_the_cache() -> None:
    measure.mark_compiled("text")
    assert measure.compiled()
    marker = measure._marker("text")
    marker.unlink()
    assert not measure.compiled()
    measure.mark_compiled("text")
    assert measure.compiled()


def test_a_cache_folder_is_named_only_where_numba_would_find_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setattr(cache, "_writable", lambda folder: folder.name == "__pycache__")
    assert cache.ensure_cache(tmp_path) is None
    monkeypatch.setattr(cache, "_writable", lambda folder: folder.name == "numba")
    assert cache.ensure_cache(tmp_path) is None
    assert cache.VARIABLE not in os.environ


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation and a home that cannot be written, and an empty temporary folder."""
    monkeypatch.setattr(cache, "_writable", lambda folder: False)
    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(config=SimpleNamespace()))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(cache.VARIABLE, "")
    return tmp_path


def test_with_nothing_writable_a_private_folder_under_the_temporary_one_is_named(nowhere: Path) -> None:
    named = cache.ensure_cache()
    assert named == str(nowhere / f"cleanfeed-kernels-{os.getuid()}")
    assert os.environ[cache.VARIABLE] == named
    assert named == sys.modules["numba"].config.CACHE_DIR
    assert Path(named).stat().st_mode & 0o777 == 0o700


def test_a_folder_others_may_write_is_not_used(nowhere: Path) -> None:
    open_to_all = nowhere / f"cleanfeed-kernels-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    named = cache.ensure_cache()
    assert named is not None
    assert Path(named) != open_to_all
    assert Path(named).stat().st_mode & 0o777 == 0o700


def test_a_cache_folder_that_was_chosen_stays(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, "chosen")
    assert cache.ensure_cache() is None
    assert os.environ[cache.VARIABLE] == "chosen"


def test_what_was_measured_before_never_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["one two one two\n" * 40, "", "\u4e00\u4e8c" * 500, "x" * 100_000, "a b. " * 30_000]
    monkeypatch.setattr(measure, "_kept", [])
    apart = []
    for text in texts:
        measure._kept.clear()
        apart.append({name: values.tolist() for name, values in measure_texts(array(text)).items()})
    for text, expected in [*zip(texts, apart, strict=True)] * 2:
        found = {name: values.tolist() for name, values in measure_texts(array(text)).items()}
        assert repr(found) == repr(expected)
    assert len(measure._kept) == 1
