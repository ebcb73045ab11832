"""YAML text goes in, plain data comes out, with the line of every key so that an error can name its place."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml
from msgspec import Struct, field

from cleanfeed.errors import MisuseError, one_line

KeyPath = tuple[str | int, ...]
"""Where a value stands: keys of blocks and positions in lists, from the top."""

REMOVED = -1
"""Position of what an option took out of a list."""

MOST_NODES = 100_000
"""Values in a document, aliases written out: a few lines of anchors can stand for more than memory holds."""


MOST_BITS = 64
"""In a whole number; no setting takes larger ones, and the largest have no float."""


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: ``1e-3`` is a number, ``off`` and ``no`` are text, no key stands twice in a block."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in forms if first in "tTfF" or tag != "tag:yaml.org,2002:bool"]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' twice", key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same in a tenth of the time; for our own files, as it trusts that no text is nested without end."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


class Source(Struct):
    """Parsed settings and where each of them was written."""

    name: str
    """The file as the user gave it, or the name of the preset."""
    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """1-based line of each key and list item."""
    overrides: dict[KeyPath, str] = field(default_factory=dict)
    """Values that came from the command line, with the option as it was given."""

    def at(self, path: KeyPath) -> Any:
        """Return the value at a path that there is."""
        here: Any = self.data
        for key in path:
            here = here[key]
        return here

    def place(self, path: KeyPath) -> str:
        """Return file, line and key (or the option) a value came from, for an error message."""
        for changed, option in self.overrides.items():
            # Above the place the option put it there; below, the option made the block around it wrong.
            if path and (changed == path[: len(changed)] or path == changed[: len(path)]):
                return f"--set {option}"
        line = next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)
        file = self.name if line is None else f"{self.name}:{line}"
        return f"{file}: {self.dotted(path)}" if path else file

    def remove(self, path: KeyPath, option: str) -> None:
        """Remove an item of a list, as an option asked for; the items behind it keep their lines and options."""
        *above, position = path
        del self.at(tuple(above))[position]
        depth = len(above)

        def moved(kept: KeyPath) -> KeyPath | None:
            at = kept[depth] if kept[:depth] == tuple(above) and len(kept) > depth else None
            if not isinstance(at, int) or not isinstance(position, int) or at < position:
                return kept
            return None if at == position else (*above, at - 1, *kept[depth + 1 :])

        self.lines = {new: line for old, line in self.lines.items() if (new := moved(old)) is not None}
        self.overrides = {
            new: name for old, name in self.overrides.items() if (new := moved(old)) is not None
        }
        # A place below the list that is no item's: the option changed the block, not the item that moved up.
        nobody: KeyPath = (*above, REMOVED)
        self.overrides[nobody] = option

    def dotted(self, path: KeyPath) -> str:
        """Return the path as ``--set`` takes it: list items by their name where they have one."""
        parts: list[str] = []
        here: Any = self.data
        for key in path:
            try:
                here = here[key]
            except (KeyError, IndexError, TypeError):
                here = None
            name = here.get("name") if isinstance(here, dict) and isinstance(key, int) else None
            parts.append(name if isinstance(name, str) else str(key))
        return ".".join(parts)


def parse_file(text: str, name: str, *, ours: bool = False) -> Source:
    """Parse the text of a pipeline file.

    Args:
        text: Of the file.
        name: As the user gave it.
        ours: Whether it comes with cleanfeed.

    Raises:
        MisuseError: It is no YAML, has a key twice, or is not a block of keys with plain values.
    """
    try:
        node, data = _load(text, _FastLoader if ours else _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"{name}:{error.problem_mark.line + 1}" if error.problem_mark else name
        problem = error.problem or error.context or "it cannot be parsed"
        raise MisuseError(one_line(f"not valid YAML ({problem})", line, todo="Correct the line.")) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise MisuseError(one_line(f"not valid YAML ({error})", name)) from error
    lines: dict[KeyPath, int] = {}
    if node is not None:
        _note_lines(node, (), lines)
    if not isinstance(data, dict):
        raise MisuseError(
            one_line("not a pipeline file", name, describe(data), "a block of keys, 'rules' among them")
        )
    source = Source(name, data, lines)
    _refuse_odd_values(source, data, ())
    return source


def parse_value(text: str, option: str) -> Any:
    """Parse the value of one ``--set``."""
    try:
        _, value = _load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        got = f"'{_cut(text)}'"
        raise MisuseError(
            one_line("cannot read the value", f"--set {option}", got, "a value in YAML")
        ) from error
    _refuse_odd_values(Source("", {}, overrides={(): option}), value, ())
    return value


def _load(text: str, kind: type[Any] = _Loader) -> tuple[yaml.Node | None, Any]:
    """Return the nodes of a document, which know their lines, and the data made of them.

    Raises:
        yaml.YAMLError: It is no YAML, or a node holds itself.
        RecursionError: It is nested too deeply.
        ValueError: A date or number is none.
    """
    loader = kind(text)
    node = loader.get_single_node()
    if node is None:
        return None, None
    _count_nodes(node, frozenset())
    return node, loader.construct_document(node)


def _count_nodes(node: yaml.Node, around: frozenset[int]) -> int:
    """Return how many nodes there are once aliases are written out; refuse what would be without end, or nearly so."""
    if id(node) in around:
        problem = "an anchor that holds itself"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    inside = around | {id(node)}
    nodes = 1
    children = node.value if isinstance(node, yaml.CollectionNode) else ()
    for child in children:
        for part in child if isinstance(child, tuple) else (child,):
            nodes += _count_nodes(part, inside)
            if nodes > MOST_NODES:
                problem = f"more than {MOST_NODES:,} values"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return nodes


def describe(value: object) -> str:
    """Return a value as an error message shows it, with its kind where the eye could mistake it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text '{_cut(value)}'"
    if isinstance(value, dict):
        return f"a block of {len(value)} keys"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int | float):
        return _cut(str(value))
    return f"a {type(value).__name__} ({value})"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _note_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below: KeyPath = (*path, key.value)
            lines[below] = key.start_mark.line + 1
            _note_lines(value, below, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            below = (*path, index)
            lines[below] = value.start_mark.line + 1
            _note_lines(value, below, lines)


def _refuse_odd_values(source: Source, value: Any, path: KeyPath) -> None:
    """Refuse what YAML knows and settings do not: dates, sets, infinities, huge numbers, keys that are not text."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                todo = "Put the key in quotes."
                raise MisuseError(one_line("wrong key", _where(source, path), describe(key), "text", todo))
            _refuse_odd_values(source, inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _refuse_odd_values(source, inner, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        todo = "To switch a rule off, remove it."
        raise MisuseError(one_line("wrong value", _where(source, path), str(value), "a finite number", todo))
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        expected = f"a number of at most {MOST_BITS} bits"
        raise MisuseError(one_line("wrong value", _where(source, path), describe(value), expected))
    elif not isinstance(value, str | int | float | bool | None):
        todo = "Put text in quotes."
        expected = "text, a number, true or false, a list or a block"
        raise MisuseError(one_line("wrong value", _where(source, path), describe(value), expected, todo))


def _where(source: Source, path: KeyPath) -> str:
    option = source.overrides.get(())
    return f"--set {option}" if option is not None else source.place(path)
