"""Nothing goes in; a process that has imported and loaded all a worker needs, ready to be forked, comes out.

Imported once by the fork server: its copies, the workers, start in milliseconds. The server itself has one thread and
has read no file, so forking it is safe where forking the caller would not be.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _WithoutPandas(MetaPathFinder):
    """Hides pandas, which pyarrow would import at its first conversion: 0.3 s for what no worker uses."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, _WithoutPandas())

from cleanfeed.build import measure, place, settle  # noqa: E402
from cleanfeed.build.kernels import kernels_ready, load_kernels  # noqa: E402

__all__ = ["measure", "place", "settle"]

# What is not compiled yet is compiled by the process that started this one; workers then load it when they need it.
if kernels_ready(tokens=False, near=False):
    load_kernels(tokens=False)
