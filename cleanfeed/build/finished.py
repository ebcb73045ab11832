"""The bytes of a ``manifest.json`` go in; the manifest of a finished build, or what is wrong with it, comes out.

Light on purpose: whoever trains on a build reads its manifest without the parts that made it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import xxhash

from cleanfeed.errors import CleanfeedError, one_line

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
NEEDED = {
    "format_version",
    "request",
    "pipeline",
    "counts",
    "inputs",
    "stages",
    "files",
    "digest",
    "manifest_digest",
}
"""Keys every manifest has."""


def parse_manifest(data: bytes, where: str) -> dict[str, Any]:
    """Return a manifest from its bytes.

    Args:
        data: Content of the file.
        where: The file, for the message.

    Raises:
        CleanfeedError: The bytes are no manifest or belong to another format version.
    """
    try:
        manifest = json.loads(data)
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or not manifest.keys() >= NEEDED:
        raise CleanfeedError(
            one_line(
                "not a manifest",
                where,
                "no JSON object with " + ", ".join(sorted(NEEDED)),
                todo="Restore the file, or build anew with --overwrite.",
            )
        )
    version = manifest["format_version"]
    if version != FORMAT_VERSION:
        raise CleanfeedError(
            one_line(
                "a manifest of another format",
                where,
                f"format_version {version}",
                str(FORMAT_VERSION),
                "Use the version of cleanfeed it was written with, or build anew with --overwrite.",
            )
        )
    return manifest


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Return the xxh3-128 of all of a manifest but the digest itself, so that any change of it shows."""
    content = {name: value for name, value in manifest.items() if name != "manifest_digest"}
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def curriculum_digest(stages: Iterable[Mapping[str, Any]], files: Iterable[Mapping[str, Any]]) -> str:
    """Return the digest of a curriculum: xxh3-128 over its stages and its files' names, rows and digests."""
    order = [
        [stage["name"], stage["samples"], stage["row_group_samples"], stage["files"]] for stage in stages
    ]
    content = [
        [file["path"], file["rows"], file["digest"]]
        for file in files
        if file["path"].startswith("curriculum/")
    ]
    return xxhash.xxh3_128_hexdigest(json.dumps([FORMAT_VERSION, order, content]).encode())
