"""The pages say what the program does: generated ones are up to date, written ones leave nothing out."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import yaml

from cleanfeed import settings
from cleanfeed.cli.main import main
from cleanfeed.cli.options import PRESETS
from cleanfeed.rules.pipeline import load_pipeline, preset_names
from cleanfeed.rules.shape import keys_of
from cleanfeed.signals.registry import SIGNALS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def read(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date(generator: ModuleType) -> None:
    assert generator.stale() == [], "run 'make docs'"


def test_every_command_and_option_is_documented(generator: ModuleType) -> None:
    page = read("cli.md")
    for path, command in generator.commands():
        part = page.split(f"## {path}\n", 1)[1].split("\n## ", 1)[0]
        options = {option for parameter in command.params for option in parameter.opts if option[:1] == "-"}
        assert {option for option in options if option not in part} == set()


def test_every_signal_is_documented_once() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", read("signals.md"), re.MULTILINE)
    assert sorted(rows) == sorted(signal.name for signal in SIGNALS)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_rule_of_a_preset_is_documented_with_limit_and_reason(preset: str) -> None:
    part = read("rules.md").split(f"## Preset `{preset}`\n", 1)[1].split("\n## ", 1)[0]
    for rule in load_pipeline(preset).rules:
        text = part.split(f"### {rule.name}\n", 1)[1].split("\n### ", 1)[0]
        assert f"`{rule.signal}`" in text
        assert rule.because or rule.source, f"{preset}: {rule.name} gives neither reason nor source"


def test_help_and_pages_name_exactly_the_presets_that_exist() -> None:
    assert sorted(PRESETS) == sorted(preset_names())
    assert {name for name in PRESETS if f"`{name}`" not in read("pipelines.md")} == set()


def test_every_key_of_a_pipeline_file_is_documented() -> None:
    page = read("pipelines.md")
    models = [
        model
        for model in vars(settings).values()
        if isinstance(model, type) and issubclass(model, settings.Frozen)
    ]
    keys = {key for model in models for key in keys_of(model)}
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_the_rule_on_the_pipelines_page_is_a_valid_rule() -> None:
    block = re.findall(r"```yaml\n(.*?)```", read("pipelines.md"), re.DOTALL)[0]
    signals = {signal.name for signal in SIGNALS}
    for rule in yaml.safe_load(block)["rules"]:
        checked = msgspec.convert(rule, settings.RuleSettings)
        named = {checked.signal, *(bound.signal for bound in (*checked.evidence, *checked.where))}
        assert named <= signals


def test_the_pipelines_on_the_pipelines_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good_pages.jsonl").touch()
    _, block = re.findall(r"```yaml\n(.*?)```", read("pipelines.md"), re.DOTALL)
    Path("mine.yaml").write_text(block, "utf-8")
    quoted = re.findall(r"^ +--set (\S+)='(.*?)'(?: \\)?$", read("pipelines.md"), re.MULTILINE)
    changed = load_pipeline("web_text", [f"{key}={value}" for key, value in quoted])
    for pipeline in (load_pipeline("mine.yaml"), changed):
        assert pipeline.quality.reference == "good_pages.jsonl"
        assert [tier.share for tier in pipeline.curriculum.tiers] == [0.3, 0.4, None]


@pytest.mark.parametrize("option", re.findall(r"^--set (\S+=\S+)$", read("pipelines.md"), re.MULTILINE))
def test_every_set_option_on_the_pipelines_page_works_on_the_default_preset(option: str) -> None:
    assert load_pipeline("web_text", [option]) != load_pipeline("web_text")


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(ROOT).as_posix() for path in [*DOCS.glob("*.md"), *ROOT.glob("*.md")])
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    prose = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", prose)
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_every_make_target_named_in_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    pages = [*DOCS.glob("*.md"), *ROOT.glob("*.md")]
    named = {name for path in pages for name in re.findall(r"`make ([a-z]+)", path.read_text("utf-8"))}
    assert named <= targets


def lines_of(text: str) -> list[str]:
    """Return the lines without what no two runs share: time and rate, and the blanks that fill a table."""
    timed = re.compile(r"^\S+ \w+ for (.* of input), \S+ \w+/s$")
    return [timed.sub(r"for \1", line.rstrip()) for line in text.splitlines()]


def test_the_readme_shows_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data_samples").symlink_to(ROOT / "data_samples")
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text("utf-8")
    block = readme.split("```\n$ ", 1)[1].split("\n```\n", 1)[0]
    for part in block.split("\n$ "):
        command, shown = part.split("\n", 1)
        program, *arguments = shlex.split(command)
        assert program == "cleanfeed"
        assert main(arguments) == 0
        rest = "\n".join(["", *lines_of(capsys.readouterr().out), ""])
        # Lines may be left out where … stands, and nowhere else.
        for run in "\n".join(lines_of(shown)).strip("\n").split("…\n"):
            told = "\n" + run.removesuffix("\n…").strip("\n") + "\n"
            assert told in rest, command
            rest = "\n" + rest.split(told, 1)[1]
