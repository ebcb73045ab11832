"""A process that will not need pandas goes in; one that does not load it comes out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def hide_pandas() -> None:
    """Let this process find no pandas.

    pyarrow imports it, where it is installed, at its first conversion: 0.3 s for what neither a worker nor the command
    uses. Not for a process that is someone else's: there pyarrow would go without pandas for good.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _WithoutPandas())
