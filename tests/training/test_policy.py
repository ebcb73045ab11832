"""A policy refuses what it cannot mean, in one line, and comes back from JSON and YAML as it was."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cleanfeed.errors import MisuseError
from cleanfeed.training.options import OPTIONS, Ratio, Sustained, ValVariance
from cleanfeed.training.policy import LADDER, Policy
from cleanfeed.training.policy_file import load_policy


def test_it_has_the_fields_that_were_promised() -> None:
    names = {field.name for field in dataclasses.fields(Policy)}
    promised = "grace window z_observe z_act recover_within margin pre max_rollbacks max_excluded"
    assert set(promised.split()) <= names


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().grace = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(
            ratio=Ratio(3.0, 10), sustained=None, actions=("skip_step",), rollback="exit", layer_ratio=None
        ),
        Policy(val_variance=ValVariance(7, 2.0), lr_factors=(0.9,), grace=0),
    ],
)
def test_it_goes_through_json(policy: Policy) -> None:
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"grace": -1}, "grace: got -1, expected a whole number of at least 0"),
        ({"window": 1.5}, "window: got 1.5, expected a whole number of at least 8"),
        ({"pre": True}, "pre: got True, expected a whole number of at least 0"),
        ({"z_act": float("nan")}, "z_act: got nan, expected a number of at least 1"),
        ({"z_act": 5.0}, "z_act: got 5.0, expected at least z_observe = 6"),
        ({"max_excluded": 2}, "max_excluded: got 2, expected a number from 0 to 1"),
        ({"layer_ratio": "x"}, "layer_ratio: got 'x', expected a number of at least 1"),
        ({"sustained": 3}, "sustained: got 3, expected Sustained(…) or None"),
        ({"sustained": {"steps": 0}}, "sustained.steps: got 0, expected a whole number of at least 1"),
        ({"sustained": {"x": 0}}, "sustained.x: got 0, expected one of the keys factor, steps"),
        ({"actions": ["run"]}, "actions: got ('run',), expected a tuple of record, skip_step"),
        ({"rollback": "maybe"}, "rollback: got 'maybe', expected in_process or exit"),
        ({"lr_factors": [2.0]}, "lr_factors: got (2.0,), expected a tuple of numbers above 0 and up to 1"),
        ({"z": 1}, "z: got 1, expected one of the keys grace, window"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line_that_names_it(values: dict[str, Any], message: str) -> None:
    with pytest.raises(MisuseError) as caught:
        Policy.from_dict(values)
    assert str(caught.value).startswith(f"wrong value in the policy: {message}")
    assert "\n" not in str(caught.value)


def test_at_least_four_global_batches_may_be_excluded() -> None:
    assert Policy().excludable(1_000_000, 64) == 1000
    assert Policy().excludable(1000, 64) == 256


def test_an_incident_is_always_recorded_and_the_rest_is_a_choice() -> None:
    assert [action for action in LADDER if Policy(actions=("halt",)).allows(action)] == ["record", "halt"]


def test_a_file_and_options_make_a_policy(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("grace: 100\nsustained:\n  steps: 7\n")
    policy = load_policy(str(file), ["sustained.factor=20", "ratio=true", "stall=null", "repeat.times=4"])
    assert (policy.grace, policy.sustained, policy.ratio, policy.stall) == (
        100,
        Sustained(20, 7),
        Ratio(),
        None,
    )
    assert policy.repeat is not None
    assert policy.repeat.times == 4


def test_the_policy_of_an_incident_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "incident.json"
    file.write_text(json.dumps({"incident_id": 3, "policy": Policy(grace=7).to_dict()}))
    assert load_policy(str(file)) == Policy(grace=7)


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("absent.yaml", [], "cannot read the policy: absent.yaml: got no such file or directory"),
        (None, ["grace"], "not an option: --set: got 'grace', expected KEY=VALUE."),
        (None, ["a.b=1"], "wrong value in the policy: a.b: got 1"),
    ],
)
def test_what_cannot_be_read_is_one_line(file: str | None, options: list[str], message: str) -> None:
    with pytest.raises(MisuseError) as caught:
        load_policy(file, options)
    assert str(caught.value).startswith(message)


def test_every_key_and_option_is_documented_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "detectors.md").read_text("utf-8")
    part = page.split("## The policy\n", 1)[1]
    for field in dataclasses.fields(Policy):
        assert f"`{field.name}`" in part, field.name
    for name, kind in OPTIONS.items():
        row = next(line for line in part.splitlines() if line.startswith(f"| `{name}` |"))
        for option in dataclasses.fields(kind):
            assert f"`{option.name}` {option.default:g}" in row
