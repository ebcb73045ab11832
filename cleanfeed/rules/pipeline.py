"""The name of a preset or a YAML file and ``--set`` options go in, a checked :class:`Pipeline` comes out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from cleanfeed.errors import MisuseError, one_line
from cleanfeed.rules.check import check_quality, check_rules
from cleanfeed.rules.names import did_you_mean
from cleanfeed.rules.shape import explain_error, is_list, is_text, keys_of, model_at
from cleanfeed.rules.yaml_source import KeyPath, Source, parse_file, parse_value
from cleanfeed.settings import Pipeline
from cleanfeed.signals.registry import by_name

_ENDINGS = (".yaml", ".yml", ".json")


def preset_names() -> tuple[str, ...]:
    """Return the names of the pipelines that come with cleanfeed, sorted."""
    return tuple(sorted(item.name[:-5] for item in _preset_folder().iterdir() if item.name.endswith(".yaml")))


def load_pipeline(name_or_path: str, overrides: Sequence[str] = ()) -> Pipeline:
    """Read a preset or a pipeline file, change it by the given options and check the whole.

    Args:
        name_or_path: The name of a preset, or the path of a YAML file. A name without a slash and without
            ``.yaml``, ``.yml`` or ``.json`` at its end is a preset's.
        overrides: Options of the form ``a.b=value``. Items of a list are named by their ``name`` (a ramp by
            its signal) or their position, the value is YAML, and ``null`` removes an item of a list.

    Raises:
        MisuseError: There is no such preset or file, or a setting is unknown, of the wrong type, out of
            range, or names a signal that does not exist. The message names file, line and key.
    """
    source = _read(name_or_path)
    for option in overrides:
        _override(source, option)
    pipeline = _validate(source)
    signals = by_name()
    problem = check_rules(pipeline.rules, signals) or check_quality(pipeline.quality, signals)
    if problem is not None:
        raise MisuseError(problem.line(source.place(problem.path)))
    return pipeline


def resolved(pipeline: Pipeline) -> dict[str, Any]:
    """Return every setting of a pipeline, defaults too, as the manifest holds it."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(pipeline))
    return plain


def from_resolved(data: dict[str, Any], where: str) -> Pipeline:
    """Return the pipeline a manifest holds.

    Raises:
        MisuseError: The manifest was changed, or written by a version with other settings.
    """
    return _validate(Source(where, data))


def _validate(source: Source) -> Pipeline:
    try:
        return msgspec.convert(source.data, Pipeline)
    except msgspec.ValidationError as error:
        raise explain_error(error, source) from error


def _preset_folder() -> Path:
    """Return the folder of the presets: inside the package when installed, beside it in a checkout."""
    inside = Path(__file__).parents[1] / "pipelines"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "pipelines"


def _read(name_or_path: str) -> Source:
    is_path = "/" in name_or_path or "\\" in name_or_path or name_or_path.endswith(_ENDINGS)
    if not is_path and name_or_path not in preset_names():
        todo = did_you_mean(name_or_path, preset_names()) or "Give a file by a name that ends in .yaml."
        expected = f"one of {', '.join(preset_names())}, or a file"
        raise MisuseError(one_line("no such pipeline", "--pipeline", f"'{name_or_path}'", expected, todo))
    file = Path(name_or_path) if is_path else _preset_folder() / f"{name_or_path}.yaml"
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MisuseError(
            one_line("cannot read the pipeline file", name_or_path, "bytes", "UTF-8 text")
        ) from error
    except OSError as error:
        reason = (error.strerror or "an error").lower()
        raise MisuseError(
            one_line("cannot read the pipeline file", name_or_path, reason, "a YAML file")
        ) from error
    source = parse_file(text, name_or_path, ours=not is_path)
    source.data.setdefault("name", file.stem)
    return source


def _override(source: Source, option: str) -> None:
    """Change one setting in place."""
    key, equals, text = option.partition("=")
    key = key.strip()
    steps = key.split(".")
    if not equals or not all(steps):
        todo = "For example --set rules.too_long.above=50000."
        raise MisuseError(one_line("wrong option", "--set", f"'{option}'", "a.b=value", todo))
    here: Any = source.data
    path: KeyPath = ()
    for step in steps[:-1]:
        position = _position(here, path, step, key)
        path = (*path, position)
        here = (
            here[position]
            if isinstance(here, list)
            else here.setdefault(position, [] if is_list(path) else {})
        )
    position = _position(here, path, steps[-1], key)
    path = (*path, position)
    value = parse_value(text, key)
    if isinstance(here, list) and value is None:
        source.remove(path, key)
        return
    # A field called 7 or true is still text.
    if is_text(path) and isinstance(value, bool | int | float):
        value = text.strip()
    here[position] = value
    source.overrides[path] = key


def _position(here: Any, path: KeyPath, step: str, key: str) -> Any:
    """Return the key or list position a step of an option means, or refuse it."""
    if isinstance(here, list):
        names = [_item_name(item) for item in here]
        if step in names:
            return names.index(step)
        if step.isdigit() and int(step) < len(here):
            return int(step)
        _refuse(key, step, [name for name in names if name], f"an item of {_dots(path)}")
    model = model_at(path)
    if not isinstance(here, dict) or model is None:
        _refuse(key, step, [], f"nothing below {_dots(path)}")
    if step not in keys_of(model):
        _refuse(key, step, list(keys_of(model)), f"a key of {_dots(path)}")
    return step


def _item_name(item: Any) -> str:
    """Return what an item of a list is called: its name, a ramp's and a bound's signal."""
    name = item.get("name", item.get("signal")) if isinstance(item, dict) else None
    return name if isinstance(name, str) else ""


def _dots(path: KeyPath) -> str:
    return "'" + ".".join(map(str, path)) + "'" if path else "the pipeline"


def _refuse(key: str, step: str, known: list[str], expected: str) -> NoReturn:
    hint = did_you_mean(step, known)
    # All names where they help: a long list beside the right guess only hides it.
    listed = f"{expected}: {', '.join(known)}" if known and not (hint and len(known) > 12) else expected
    raise MisuseError(one_line("no such setting", f"--set {key}", f"'{step}'", listed, hint))
