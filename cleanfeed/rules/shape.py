"""A Pydantic complaint about a pipeline goes in; place, what was found and what should stand there come out.

Also walks the shapes in :mod:`cleanfeed.settings`, so that ``--set`` knows which keys exist.
"""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cleanfeed.errors import MisuseError, one_line
from cleanfeed.rules.names import did_you_mean
from cleanfeed.rules.yaml_source import Source, describe
from cleanfeed.settings import Pipeline

_NUMBER = "a number"
_WHOLE = "a whole number"
_EXPECTED = {
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "model_type": "a block of keys",
    "model_attributes_type": "a block of keys",
    "dict_type": "a block of keys",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def value_type(annotation: Any) -> Any:
    """Return what stands behind ``X | None`` and ``tuple[X, ...]``: ``X``; other types as they are."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [part for part in get_args(annotation) if part is not type(None)]
        return value_type(inner[0]) if len(inner) == 1 else annotation
    if get_origin(annotation) is tuple:
        return value_type(get_args(annotation)[0])
    return annotation


def model_at(path: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the shape of the block at a path of the pipeline, None where there is no block of settings."""
    model: type[BaseModel] = Pipeline
    for key in path:
        if isinstance(key, int):
            continue
        known = model.model_fields.get(key)
        inner = value_type(known.annotation) if known is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        model = inner
    return model


def annotation_at(path: Sequence[str | int]) -> Any:
    """Return the declared type of the field a path ends at, None where it ends elsewhere."""
    model = model_at(path[:-1]) if path else None
    known = model.model_fields.get(str(path[-1])) if model is not None and isinstance(path[-1], str) else None
    return known.annotation if known is not None else None


def is_list(path: Sequence[str | int]) -> bool:
    """Return whether the setting at a path is a list."""
    return get_origin(annotation_at(path)) is tuple


def is_text(path: Sequence[str | int]) -> bool:
    """Return whether the setting at a path is one piece of text."""
    annotation = annotation_at(path)
    return not is_list(path) and value_type(annotation) is str


def explain_error(error: ValidationError, source: Source) -> MisuseError:
    """Turn the first complaint into one line; the number of further ones is said at the end."""
    details = error.errors(include_url=False)
    # The most specific place first: a wrong key inside a block also fails checks of the block around it.
    first = max(details, key=lambda item: (item["type"] == "extra_forbidden", len(item["loc"]) > 0))
    what, got, expected, todo = _words(first, source)
    more = f"{len(details) - 1} more like this." if len(details) > 1 else ""
    place = source.place(first["loc"])
    return MisuseError(one_line(what, place, got, expected, f"{todo} {more}".strip()))


def _words(item: ErrorDetails, source: Source) -> tuple[str, str, str, str]:
    kind, loc = item["type"], item["loc"]
    if kind == "extra_forbidden":
        model = model_at(loc[:-1])
        keys = list(model.model_fields) if model is not None else []
        hint = did_you_mean(str(loc[-1]), keys) or "Remove it or correct its name."
        return "unknown key", f"'{loc[-1]}'", f"one of {', '.join(keys)}", hint
    if kind == "missing":
        return "key missing", "nothing", f"a value for '{loc[-1]}'", "Add it."
    if kind == "value_error":
        return _from_validator(item, loc)
    context = item.get("ctx", {})
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return "value out of range", describe(item["input"]), f"{words} {context[key]}", ""
    if kind == "literal_error":
        return "wrong value", describe(item["input"]), str(context["expected"]).replace(" or ", ", "), ""
    if kind == "string_pattern_mismatch":
        return "wrong name", describe(item["input"]), f"text of the form {context['pattern']}", ""
    if kind == "too_short":
        return "too few items", describe(item["input"]), f"at least {context['min_length']}", ""
    expected = _EXPECTED.get(kind, item["msg"][:1].lower() + item["msg"][1:])
    return "wrong type", describe(item["input"]), expected, _number_hint(item["input"], expected)


def _from_validator(item: ErrorDetails, loc: tuple[int | str, ...]) -> tuple[str, str, str, str]:
    message = item["msg"].removeprefix("Value error, ")
    todo = ""
    if loc[:1] == ("quality",):
        todo = "To change the way, give the whole block, as in --set quality='{column: score}'."
    return f"settings do not fit together ({message})", "", "", todo


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
