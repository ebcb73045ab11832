"""What is wrong with a pipeline's data goes in; place, what was found and what should stand there come out.

Also walks the shapes in :mod:`cleanfeed.settings`, so that ``--set`` knows which keys exist.
"""

from __future__ import annotations

import math
import operator
import re
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta, ValidationError
from msgspec.structs import fields

from cleanfeed.errors import MisuseError, one_line
from cleanfeed.rules.names import did_you_mean
from cleanfeed.rules.yaml_source import KeyPath, Source, describe
from cleanfeed.settings import Frozen, Pipeline

_NUMBER = "a number"
_WHOLE = "a whole number"
_KINDS: dict[Any, tuple[type | tuple[type, ...], str]] = {
    float: ((int, float), _NUMBER),
    int: (int, _WHOLE),
    str: (str, "text"),
    tuple: (list, "a list"),
    Frozen: (dict, "a block of keys"),
}
"""For each declared type, what stands for it in data and how it is called."""

_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "gt": (operator.gt, "more than"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "less than"),
    "le": (operator.le, "at most"),
}
_PLACE = re.compile(r"(?s)(.*?)(?: - at `\$([^`]*)`)?")
_STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]")


def _bare(annotation: Any) -> Any:
    """Return what stands behind ``Annotated[X, ...]`` and ``X | None``: ``X``; other types as they are."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [part for part in get_args(annotation) if part is not type(None)]
        return _bare(inner[0]) if len(inner) == 1 else annotation
    return annotation


def _limits(annotation: Any) -> Meta:
    """Return the limits of a declared type."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next((_limits(part) for part in get_args(annotation) if part is not type(None)), Meta())
    return next((part for part in get_args(annotation) if isinstance(part, Meta)), Meta())


def keys_of(model: type[Frozen]) -> dict[str, Any]:
    """Return the keys of a block of settings and their declared types."""
    return {field.name: field.type for field in fields(model)}


def annotation_at(path: Sequence[str | int]) -> Any:
    """Return the declared type of the setting a path ends at, None where it ends elsewhere."""
    here: Any = Pipeline
    for key in path:
        bare = _bare(here)
        if isinstance(key, int):
            here = get_args(bare)[0] if get_origin(bare) is tuple else None
        else:
            here = keys_of(bare).get(key) if _is_block(bare) else None
    return here


def model_at(path: Sequence[str | int]) -> type[Frozen] | None:
    """Return the shape of the block at a path of the pipeline, None where there is no block of settings."""
    bare = _bare(annotation_at(path))
    return bare if _is_block(bare) else None


def is_list(path: Sequence[str | int]) -> bool:
    """Return whether the setting at a path is a list."""
    return get_origin(_bare(annotation_at(path))) is tuple


def is_text(path: Sequence[str | int]) -> bool:
    """Return whether the setting at a path is one piece of text."""
    return _bare(annotation_at(path)) is str


def _is_block(bare: Any) -> bool:
    return isinstance(bare, type) and issubclass(bare, Frozen)


def explain_error(error: ValidationError, source: Source) -> MisuseError:
    """Turn what is wrong first into one line."""
    match = _PLACE.fullmatch(str(error))
    assert match is not None
    message, place = match.group(1), match.group(2) or ""
    path: KeyPath = tuple(int(number) if number else key for key, number in _STEP.findall(place))
    if isinstance(error.__cause__, ValueError):
        what, got, expected, todo = _not_together(message, path)
    elif (unknown := _between(message, "Object contains unknown field `", "`")) is not None:
        path = (*path, unknown)
        what, got, expected, todo = _unknown(path)
    elif message.startswith("Object missing required field"):
        missing = _missing(path, source)
        path = (*path, *missing) if len(missing) == 1 else path
        what, got, expected, todo = _absent(missing)
    else:
        what, got, expected, todo = _wrong(annotation_at(path), source.at(path), message)
    return MisuseError(one_line(what, source.place(path), got, expected, todo))


def _between(text: str, before: str, behind: str) -> str | None:
    if text.startswith(before) and text.endswith(behind):
        return text[len(before) : -len(behind)]
    return None


def _unknown(path: KeyPath) -> tuple[str, str, str, str]:
    model = model_at(path[:-1])
    keys = list(keys_of(model)) if model is not None else []
    hint = did_you_mean(str(path[-1]), keys) or "Remove it or correct its name."
    return "unknown key", f"'{path[-1]}'", f"one of {', '.join(keys)}", hint


def _missing(path: KeyPath, source: Source) -> list[str]:
    """Return the keys a block must have and has not."""
    model, there = model_at(path), source.at(path)
    assert model is not None
    needed = [field.name for field in fields(model) if field.default is NODEFAULT]
    return [name for name in needed if name not in there]


def _absent(missing: Sequence[str]) -> tuple[str, str, str, str]:
    names = ", ".join(f"'{name}'" for name in missing)
    if len(missing) == 1:
        return "key missing", "nothing", f"a value for {names}", "Add it."
    return "keys missing", "nothing", f"values for {names}", "Add them."


def _not_together(message: str, path: KeyPath) -> tuple[str, str, str, str]:
    todo = ""
    if path[:1] == ("quality",):
        todo = "To change the way, give the whole block, as in --set quality='{column: score}'."
    return f"settings do not fit together ({message})", "", "", todo


def _wrong(annotation: Any, value: Any, message: str) -> tuple[str, str, str, str]:
    """Return what is wrong with a value that is not of its declared type, or beyond its limits."""
    bare, got = _bare(annotation), describe(value)
    if get_origin(bare) is Literal:
        return "wrong value", got, ", ".join(map(repr, get_args(bare))), ""
    kinds, expected = _KINDS[Frozen if _is_block(bare) else get_origin(bare) or bare]
    if not isinstance(value, kinds) or isinstance(value, bool):
        return "wrong type", got, expected, _number_hint(value, expected)
    limits = _limits(annotation)
    if limits.pattern is not None:
        return "wrong name", got, str(limits.description), ""
    if limits.min_length is not None:
        return "too few items", got, f"at least {limits.min_length}", ""
    for name, (holds, words) in _BOUNDS.items():
        limit = getattr(limits, name)
        if limit is not None and not holds(value, limit):
            return "value out of range", got, f"{words} {limit}", ""
    return "wrong value", got, f"{expected} ({message[:1].lower()}{message[1:]})", ""


def _number_hint(value: object, expected: str) -> str:
    if expected not in (_NUMBER, _WHOLE) or not isinstance(value, str):
        return ""
    plain = value.strip().replace(",", "").replace("_", "").replace(" ", "")
    try:
        number = float(plain)
    except ValueError:
        return ""
    if not math.isfinite(number):
        what = "Not-a-number" if math.isnan(number) else "Infinity"
        return f"{what} is no limit; to switch a rule off, remove it."
    return f"Write {plain}, without quotes, commas or spaces."
