"""What is divided by what for the signals of the bytes, and when they are null."""

from __future__ import annotations

import base64
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanfeed.signals.measure import measure_texts
from cleanfeed.signals.registry import BYTE_SIGNALS

PROSE = "The lamp had been lit before anyone came down to the kitchen, and the cat had taken the warm chair. "
CHINESE = "今天下午我们沿着河边走了很久，风有一点凉。桥上有人在卖热茶，孩子们追着一只黄色的气球跑。"


def measured(text):
    columns = measure_texts(pa.array([text], pa.large_string()))
    return {signal.name: float(columns[signal.name][0]) for signal in BYTE_SIGNALS}


def test_the_empty_text_has_what_is_declared():
    for signal in BYTE_SIGNALS:
        value = measured("")[signal.name]
        assert value == signal.empty if signal.empty is not None else np.isnan(value)


def test_shares_are_over_characters():
    blob = base64.b64encode(random.Random(5).randbytes(45)).decode()
    values = measured(f"今天今天{blob}")
    assert values["blob_share"] == values["base64_share"] == 60 / 64
    assert values["longest_blob"] == 60
    assert [values[f"{kind}_share"] for kind in ("hex", "hex_dump", "data_uri", "id")] == [0, 0, 0, 0]
    assert measured("MÃ¼ller")["mojibake_share"] == 2 / 7
    assert measured("今天天气很好。" * 9)["periodic_share"] == 1


def test_unbroken_runs_of_no_other_kind_count_as_blobs():
    text = base64.b32encode(random.Random(5).randbytes(60)).decode()
    values = measured(text)
    assert values["blob_share"] == 1
    assert sum(values[f"{kind}_share"] for kind in ("base64", "hex", "hex_dump", "data_uri", "id")) == 0


def test_a_copy_costs_four_characters_in_any_script():
    assert np.isnan(measured(PROSE)["lz_ratio"])
    assert measured(PROSE * 3)["lz_ratio"] == pytest.approx((len(PROSE) + 4) / (len(PROSE) * 3))
    assert measured(CHINESE * 6)["lz_ratio"] == pytest.approx((len(CHINESE) + 4) / (len(CHINESE) * 6))


@settings(max_examples=100)
@given(
    st.lists(st.text(max_size=30) | st.sampled_from([PROSE, CHINESE, "ha" * 30, "2f 3a " * 9]), max_size=12)
)
def test_every_value_lies_in_its_range(parts):
    text = "".join(parts).encode("utf-8", "ignore").decode()
    values = measured(text)
    for signal in BYTE_SIGNALS:
        assert np.isnan(values[signal.name]) or signal.low <= values[signal.name] <= signal.high
    kinds = ("base64", "hex", "hex_dump", "data_uri", "id")
    if text:
        assert sum(values[f"{kind}_share"] for kind in kinds) <= values["blob_share"] + 1e-12
