"""Loading a pipeline: what is refused says file, key, what was found and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cleanfeed.errors import MisuseError
from cleanfeed.rules.pipeline import from_resolved, load_pipeline, preset_names, resolved
from cleanfeed.rules.yaml_source import parse_file

ROOT = Path(__file__).parents[2]
PRESETS = ("c4", "code", "fineweb", "gopher", "multilingual", "olmo_repetition", "web_text")

SMALL = """\
name: small
rules:
  - name: too_long
    signal: chars
    above: 1000
    evidence:
      - {signal: blob_share, above: 0.5}
quality:
  score: [{signal: letter_share, bad: 0, good: 1}]
curriculum:
  bands: [{name: short, max_tokens: 10, max_chars: 40}, {name: long, max_tokens: 100, max_chars: 400}]
  tiers: [{name: good, min_quality: 0.5}, {name: rest}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    return tmp_path


def refusal(name: str, *overrides: str) -> str:
    with pytest.raises(MisuseError) as error:
        load_pipeline(name, overrides)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_the_presets_are_listed_by_name():
    assert preset_names() == PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_loads_under_its_own_name_and_comes_back_from_the_manifest(name: str):
    pipeline = load_pipeline(name)
    assert pipeline.name == name
    stored = json.loads(json.dumps(resolved(pipeline)))
    assert stored == resolved(pipeline)
    assert from_resolved(stored, "manifest.json") == pipeline


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_read_as_a_file_of_the_same_text_would_be(name: str):
    text = (ROOT / f"pipelines/{name}.yaml").read_text("utf-8")
    assert parse_file(text, name, ours=True) == parse_file(text, name)


def test_a_file_is_read_and_named_after_itself_where_it_has_no_name(folder: Path):
    Path("mine.yaml").write_text(SMALL.replace("name: small\n", ""))
    assert load_pipeline("small.yaml").name == "small"
    assert load_pipeline(str(folder / "mine.yaml")).name == "mine"


def test_an_unknown_preset_lists_the_presets():
    assert refusal("web_txt") == (
        "no such pipeline: --pipeline: got 'web_txt', expected one of c4, code, fineweb, gopher, "
        "multilingual, "
        "olmo_repetition, web_text, or a file. Did you mean 'web_text'?"
    )


def test_a_file_that_is_missing_or_not_text_is_named(folder: Path):
    assert refusal("no/such.yaml") == (
        "cannot read the pipeline file: no/such.yaml: got no such file or directory, expected a YAML file."
    )
    Path("bytes.yaml").write_bytes(b"\xff\xfe")
    assert (
        refusal("bytes.yaml") == "cannot read the pipeline file: bytes.yaml: got bytes, expected UTF-8 text."
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "above: 1000",
            'above: "262,144"',
            "wrong type: small.yaml:5: rules.too_long.above: got the text '262,144', expected a number. "
            "Write 262144, without quotes, commas or spaces.",
        ),
        (
            "above: 1000",
            "abve: 1000",
            "unknown key: small.yaml:5: rules.too_long.abve: got 'abve', expected one of name, signal, "
            "above, below, "
            "action, extreme, evidence, where, because, source. Did you mean 'above'?",
        ),
        (
            "signal: chars",
            "signal: charss",
            "unknown signal: small.yaml:4: rules.too_long.signal: got 'charss', expected the name of a "
            "signal. "
            "Did you mean",
        ),
        (
            "blob_share, above: 0.5",
            "blob_share, above: 50",
            "a limit outside the signal's range: small.yaml:7: rules.too_long.evidence.0.above: got 50, "
            "expected 0 "
            "to 1, the range of 'blob_share'.",
        ),
        (
            "blob_share, above: 0.5",
            "blob_share",
            "settings do not fit together (give exactly one of 'above' and 'below'): small.yaml:7: "
            "rules.too_long.evidence.0.",
        ),
        (
            "good: 1}",
            "good: 0}",
            "a ramp without a slope: small.yaml:9: quality.score.0: got bad = good = 0, expected two "
            "different values.",
        ),
        (
            "blob_share, above: 0.5",
            "blob_share, above: 1",
            "a limit that its signal can never pass: small.yaml:7: rules.too_long.evidence.0.above: got 1, "
            "expected less than 1, the largest value of 'blob_share'.",
        ),
        (
            "above: 1000",
            "below: 0",
            "a limit that its signal can never pass: small.yaml:5: rules.too_long.below: got 0, expected more "
            "than 0, the smallest value of 'chars'. To switch the rule off, remove it.",
        ),
        (
            "signal: chars\n    above: 1000",
            "signal: dup_line_chars\n    above: 0.5\n    extreme: 1",
            "a limit that its signal can never pass: small.yaml:6: rules.too_long.extreme: got 1, expected less "
            "than 1, the largest value of 'dup_line_chars'.",
        ),
        (
            "max_chars: 400",
            "max_chars: 2147483648",
            "value out of range: small.yaml:11: curriculum.bands.long.max_chars: got 2147483648, expected at most "
            "2147483647.",
        ),
        (
            "name: small",
            "name: &a [*a]",
            "not valid YAML (an anchor that holds itself): small.yaml:1. Correct the line.",
        ),
        (
            "name: small",
            "name: &a {<<: *a}",
            "not valid YAML (an anchor that holds itself): small.yaml:1. Correct the line.",
        ),
        (
            "above: 1000",
            "above: 2024-13-45",
            "not valid YAML (month must be in 1..12): small.yaml.",
        ),
        (
            "name: small",
            "name: small\nname: other",
            "not valid YAML (key 'name' twice): small.yaml:2. Correct the line.",
        ),
        (
            "above: 1000",
            "above: .inf",
            "wrong value: small.yaml:5: rules.too_long.above: got inf, expected a finite number. To "
            "switch a rule "
            "off, remove it.",
        ),
        (
            "above: 1000",
            "above: 2024-01-01",
            "wrong value: small.yaml:5: rules.too_long.above: got a date (2024-01-01), expected text, a "
            "number, true "
            "or false, a list or a block. Put text in quotes.",
        ),
        (
            "above: 1000",
            "1: 1000",
            "wrong key: small.yaml:3: rules.too_long: got 1, expected text. Put the key in quotes.",
        ),
        (
            "signal: letter_share, bad: 0, good: 1",
            "signal: letter_share, bad: 0, good: 1, weight: 0",
            "value out of range: small.yaml:9: quality.score.0.weight: got 0, expected more than 0.",
        ),
        (
            "max_tokens: 10,",
            "max_tokens: 1000,",
            "settings do not fit together (bands must have rising max_tokens, got [1000, 100]): "
            "small.yaml:10: "
            "curriculum.",
        ),
        (
            "above: 1000",
            "above: [",
            "not valid YAML (expected the node content, but found '-'): small.yaml:7. Correct",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_its_place(folder: Path, old: str, new: str, message: str):
    Path("small.yaml").write_text(SMALL.replace(old, new, 1))
    assert refusal("small.yaml").startswith(message)


@pytest.mark.parametrize(
    ("text", "got"), [("", "nothing"), ("- a\n", "a list of 1"), ("web_text", "the text 'web_text'")]
)
def test_a_file_that_is_no_block_of_keys_is_refused(folder: Path, text: str, got: str):
    Path("odd.yaml").write_text(text)
    assert refusal("odd.yaml") == (
        f"not a pipeline file: odd.yaml: got {got}, expected a block of keys, 'rules' among them."
    )


def test_all_missing_keys_are_named(folder: Path):
    Path("odd.yaml").write_text("rules: []\n")
    assert refusal("odd.yaml") == (
        "keys missing: odd.yaml: got nothing, expected values for 'quality', 'curriculum'. Add them."
    )


def test_two_rules_of_one_name_are_refused(folder: Path):
    Path("twice.yaml").write_text(
        SMALL.replace("rules:\n", "rules:\n  - {name: too_long, signal: words, above: 9}\n")
    )
    assert refusal("twice.yaml") == (
        "settings do not fit together (rules must have different names, got twice: too_long): twice.yaml."
    )


def test_numbers_with_an_exponent_are_numbers(folder: Path):
    Path("small.yaml").write_text(SMALL.replace("above: 1000", "above: 1e6").replace("0.5", "5e-1"))
    pipeline = load_pipeline("small.yaml")
    assert pipeline.rules[0].above == 1_000_000
    assert pipeline.rules[0].evidence[0].above == 0.5


def test_off_and_no_are_text(folder: Path):
    Path("small.yaml").write_text(
        f"{SMALL}duplicates: {{method: off}}\ndocuments: {{keep_fields: [no, y]}}\n"
    )
    for pipeline in (
        load_pipeline("small.yaml"),
        load_pipeline("small.yaml", ["duplicates.method=off", "documents.keep_fields=[no, y]"]),
    ):
        assert pipeline.duplicates.method == "off"
        assert pipeline.documents.keep_fields == ("no", "y")


def test_options_change_values_by_name_or_position(folder: Path):
    pipeline = load_pipeline(
        "small.yaml",
        [
            "rules.too_long.above=5000",
            "rules.0.evidence.blob_share.above=0.25",
            "quality.score.letter_share.good=0.9",
            "curriculum.bands.short.max_tokens=20",
            "curriculum.seed=7",
            "documents.text_field=123",
            "documents.keep_fields=[url, date]",
        ],
    )
    assert pipeline.rules[0].above == 5000
    assert pipeline.rules[0].evidence[0].above == 0.25
    assert pipeline.quality.score[0].good == 0.9
    assert pipeline.curriculum.bands[0].max_tokens == 20
    assert pipeline.curriculum.seed == 7
    assert pipeline.documents.text_field == "123"
    assert pipeline.documents.keep_fields == ("url", "date")


def test_an_option_may_replace_a_block_or_remove_an_item(folder: Path):
    pipeline = load_pipeline("small.yaml", ["quality={column: score}", "rules.too_long=null"])
    assert pipeline.quality.column == "score"
    assert pipeline.rules == ()


def test_what_stands_behind_a_removed_item_keeps_its_line_and_its_option(folder: Path):
    rules = "".join(f"  - {{name: r{n}, signal: chars, above: {n}, actoin: flag}}\n" for n in range(3))
    Path("three.yaml").write_text(
        f"name: three\nrules:\n{rules}"
        + SMALL.partition("evidence:")[2].partition("\n")[2].partition("\n")[2]
    )
    assert "three.yaml:3: rules.r0.actoin" in refusal("three.yaml")
    assert "three.yaml:4: rules.r1.actoin" in refusal("three.yaml", "rules.r0=null")
    assert "three.yaml:5: rules.r2.actoin" in refusal("three.yaml", "rules.r0=null", "rules.r1=null")
    assert "--set rules.r1.actoin" in refusal("three.yaml", "rules.r1.actoin=reject", "rules.r0=null")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "rules.too_lng.above=1",
            "no such setting: --set rules.too_lng.above: got 'too_lng', expected an item of 'rules': "
            "too_long. "
            "Did you mean 'too_long'?",
        ),
        (
            "curriculum.sed=1",
            "no such setting: --set curriculum.sed: got 'sed', expected a key of 'curriculum': bands, tiers, "
            "end_of_text, seed, row_group_tokens, row_group_chars, file_row_groups. Did you mean 'seed'?",
        ),
        (
            "name.x=1",
            "no such setting: --set name.x: got 'x', expected nothing below 'name'.",
        ),
        (
            "rules.too_long.above=262,144",
            "wrong type: --set rules.too_long.above: got the text '262,144', expected a number. Write "
            "262144, "
            "without quotes, commas or spaces.",
        ),
        (
            "rules.too_long.signal=char",
            "unknown signal: --set rules.too_long.signal: got 'char', expected the name of a signal. Did "
            "you mean ",
        ),
        (
            "rules.too_long.action=drop",
            "wrong value: --set rules.too_long.action: got the text 'drop', expected 'reject', 'flag'.",
        ),
        (
            "quality.column=score",
            "settings do not fit together (give exactly one of 'score', 'column' and 'reference'): --set "
            "quality.column. To change the way, give the whole block, as in --set quality='{column: score}'.",
        ),
        (
            "rules",
            "wrong option: --set: got 'rules', expected a.b=value. For example --set "
            "rules.too_long.above=50000.",
        ),
        (
            "=1",
            "wrong option: --set: got '=1', expected a.b=value. For example --set "
            "rules.too_long.above=50000.",
        ),
        (
            "rules.too_long.above={",
            "cannot read the value: --set rules.too_long.above: got '{', expected a value in YAML.",
        ),
        (
            "rules.too_long.above=nan",
            "wrong type: --set rules.too_long.above: got the text 'nan', expected a number. Not-a-number is no "
            "limit; to switch a rule off, remove it.",
        ),
        (
            "rules.too_long.above=-inf",
            "wrong type: --set rules.too_long.above: got the text '-inf', expected a number. Infinity is no "
            "limit; to switch a rule off, remove it.",
        ),
        (
            "rules.too_long.above=true",
            "wrong type: --set rules.too_long.above: got true, expected a number.",
        ),
        (
            f"rules.too_long.above=1{'0' * 400}",
            f"wrong value: --set rules.too_long.above: got 1{'0' * 56}..., expected a number of at most 64 bits.",
        ),
        (
            "budget.seconds=null",
            "wrong type: --set budget.seconds: got nothing, expected a number.",
        ),
        (
            "curriculum.seed=1.0",
            "wrong type: --set curriculum.seed: got 1.0, expected a whole number.",
        ),
        (
            "curriculum.bands=[]",
            "too few items: --set curriculum.bands: got a list of 0, expected at least 1.",
        ),
        (
            "curriculum.bands={}",
            "wrong type: --set curriculum.bands: got a block of 0 keys, expected a list.",
        ),
        (
            "budget=3",
            "wrong type: --set budget: got 3, expected a block of keys.",
        ),
        (
            "curriculum.tiers.good.share=1",
            "value out of range: --set curriculum.tiers.good.share: got 1, expected less than 1.",
        ),
        (
            "curriculum.tiers.good.name=Good",
            "wrong name: --set curriculum.tiers.good.name: got the text 'Good', expected small letters, digits and "
            "'_'.",
        ),
        (
            'name="small\\n"',
            "wrong name: --set name: got the text 'small ', expected letters, digits, '_', '.' and '-'.",
        ),
        (
            "duplicates.method=none",
            "wrong value: --set duplicates.method: got the text 'none', expected 'off', 'exact', 'near'.",
        ),
        (
            "rules.too_long=&a [*a]",
            "cannot read the value: --set rules.too_long: got '&a [*a]', expected a value in YAML.",
        ),
        (
            f"rules={'[' * 5000}",
            f"cannot read the value: --set rules: got '{'[' * 57}...', expected a value in YAML.",
        ),
        *(
            (
                f"curriculum.{key}={limit + 1}",
                f"value out of range: --set curriculum.{key}: got {limit + 1}, ",
            )
            for key, limit in (
                ("row_group_tokens", 2**28),
                ("row_group_chars", 2**30),
                ("file_row_groups", 2**15 - 1),
            )
        ),
        (
            "rules.too_long.above=.nan",
            "wrong value: --set rules.too_long.above: got nan, expected a finite number.",
        ),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(folder: Path, option: str, message: str):
    assert refusal("small.yaml", option).startswith(message)


def test_aliases_that_stand_for_more_than_memory_holds_are_refused(folder: Path):
    levels = [
        f"&{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    Path("bomb.yaml").write_text("name: [&a [x], " + ", ".join(levels) + "]\n")
    assert refusal("bomb.yaml") == (
        "not valid YAML (more than 100,000 values): bomb.yaml:1. Correct the line."
    )


def test_an_alias_may_be_used_more_than_once(folder: Path):
    text = SMALL.replace("{signal: blob_share, above: 0.5}", "&b {signal: blob_share, above: 0.5}")
    Path("twice.yaml").write_text(text.replace("\nquality:", "\n    where: [*b, *b]\nquality:"))
    (rule,) = load_pipeline("twice.yaml").rules
    assert rule.where == rule.evidence * 2


def test_a_limit_may_lie_at_the_near_end_of_a_range(folder: Path):
    pipeline = load_pipeline("small.yaml", ["rules.too_long.evidence.blob_share.above=0"])
    assert pipeline.rules[0].evidence[0].above == 0


def test_the_longest_band_may_be_as_long_as_a_list_of_ids_can_be(folder: Path):
    pipeline = load_pipeline("small.yaml", [f"curriculum.bands.long.max_tokens={2**31 - 1}"])
    assert pipeline.curriculum.bands[-1].max_tokens == 2**31 - 1
