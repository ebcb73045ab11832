"""A process at its start goes in; one that loads only what it needs, and does so without delay, comes out."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder


class _Hidden:
    """A finder of modules; it does not inherit what it is, since importing that takes a hundredth of a second."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name in self.names:
            raise ModuleNotFoundError(name)


def hide_pandas() -> None:
    """Let this process find no pandas.

    pyarrow imports it, where it is installed, at its first conversion: 0.3 s for what neither a worker nor the command
    uses. Not for a process that is someone else's: there pyarrow would go without pandas for good.
    """
    _hide("pandas")


def _hide(*names: str) -> MetaPathFinder:
    finder = cast("MetaPathFinder", _Hidden([name for name in names if name not in sys.modules]))
    sys.meta_path.insert(0, finder)
    return finder


@contextmanager
def loading(*without: str) -> Iterator[None]:
    """Look for no garbage while the block imports what the process needs, and never again among what it made.

    Modules stay. Looking through their hundred thousand objects time and again takes a fifth of the time of importing
    them, and once more as much when the process ends. Not for a process that is someone else's, either.

    Args:
        without: Modules that are not found meanwhile, though what is imported would take them where they are.
    """
    gc.disable()
    finder = _hide(*without)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        gc.freeze()
        gc.enable()
