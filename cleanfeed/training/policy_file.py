"""A policy file and ``--set`` options go in, a checked `Policy` comes out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cleanfeed.errors import MisuseError, one_line
from cleanfeed.rules.yaml_source import parse_file, parse_value
from cleanfeed.training.options import OPTIONS
from cleanfeed.training.policy import Policy


def load_policy(file: str | None = None, overrides: Sequence[str] = ()) -> Policy:
    """Return a policy from a YAML or JSON file, changed by options.

    Args:
        file: Keys of a `Policy`, those left out take their defaults; an ``incident.json`` counts as its ``policy``.
            None: the defaults.
        overrides: ``key=value`` or ``detector.key=value``; the value is YAML. ``detector=null`` turns a detector off
            and ``detector=true`` on, with its defaults.

    Raises:
        MisuseError: The file cannot be read, or a key or value is wrong.
    """
    values = _read(file) if file is not None else {}
    for option in overrides:
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise MisuseError(one_line("not an option", "--set", f"'{option}'", "KEY=VALUE"))
        _put(values, key.strip().split("."), parse_value(text, option))
    for name in OPTIONS:
        if values.get(name) is True:
            values[name] = {}
        elif values.get(name) is False:
            values[name] = None
    return Policy.from_dict(values)


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    if len(path) == 2 and path[0] in OPTIONS:
        inner = values.get(path[0])
        values[path[0]] = {**(inner if isinstance(inner, dict) else {}), path[1]: value}
    else:
        values[".".join(path)] = value


def _read(file: str) -> dict[str, Any]:
    try:
        text = Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "no UTF-8 text").lower()
        raise MisuseError(one_line("cannot read the policy", file, reason, "a YAML file")) from error
    values = parse_file(text, file).data
    inner = values.get("policy")
    return dict(inner) if isinstance(inner, dict) else values
