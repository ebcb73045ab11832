"""The name of a dataset on the Hugging Face Hub goes in; the Arrow files its splits are cached in come out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cleanfeed.errors import CleanfeedError, MisuseError, one_line

SCHEME = "hf://"

_NAME = re.compile(r"(?:hf://)?[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@[\w.-]+)?")
"""``owner/name``, with ``@configuration`` where a dataset has several."""


def is_hub_name(given: str) -> bool:
    """Whether an input that is no path here names a dataset: ``hf://owner/name`` or ``owner/name``.

    A path below a folder that exists is a mistyped path, and other ``hf://`` addresses are files.
    """
    if not _NAME.fullmatch(given) or given.startswith("hf://datasets/"):
        return False
    return given.startswith(SCHEME) or not (Path(given.split("/")[0]).exists() or Path(given).suffix)


def hub_files(given: str) -> list[tuple[str, str]]:
    """Return (path, split) of the cached Arrow files of a dataset, downloading it where needed.

    Raises:
        MisuseError: The ``hub`` extra is not installed.
        CleanfeedError: The dataset cannot be had.
    """
    try:
        import datasets
    except ImportError as error:
        raise MisuseError(
            one_line(
                "a dataset from the Hub needs the 'datasets' library",
                given,
                todo="Install it with: pip install 'cleanfeed[hub]'. Or give a path that exists.",
            )
        ) from error
    name, _, configuration = given.removeprefix(SCHEME).partition("@")
    try:
        loaded: Any = datasets.load_dataset(name, configuration or None)
    except Exception as error:
        raise CleanfeedError(
            one_line(
                "a dataset cannot be loaded from the Hub",
                given,
                got=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}",
                todo="Check the name and the network, or give a path that exists.",
            )
        ) from error
    splits = loaded if isinstance(loaded, dict) else {"data": loaded}
    return [(file["filename"], str(split)) for split, data in splits.items() for file in data.cache_files]
