"""A process at its start goes in; one that loads only what it needs, and does so without delay, comes out."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType


class _Hidden(MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name in self.names:
            raise ModuleNotFoundError(name)


def hide_unused() -> None:
    """Let this process find neither pandas nor cffi.

    pyarrow imports the one, where it is installed, at its first conversion, and numba the other with its first kernel:
    0.3 s and 0.05 s for what neither a worker nor the command uses. Not for a process that is someone else's: there
    they would go without for good.
    """
    names = [name for name in ("pandas", "cffi") if name not in sys.modules]
    sys.meta_path.insert(0, _Hidden(names))


@contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage while the block imports what the process needs, and never again among what it made.

    Modules stay. Looking through their hundred thousand objects time and again takes a fifth of the time of importing
    them, and once more as much when the process ends. Not for a process that is someone else's, either.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
