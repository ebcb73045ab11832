"""What all phases of a build found goes in; ``manifest.json``, the record everything else relies on, comes out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from cleanfeed import __version__
from cleanfeed.build.finished import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    curriculum_digest,
    manifest_digest,
    parse_manifest,
)
from cleanfeed.build.layout import StageTotals, row_group_rows
from cleanfeed.build.measure import Measured
from cleanfeed.build.request import Prepared, describe
from cleanfeed.build.settle import Settled
from cleanfeed.curriculum.duplicates import DuplicateCounts
from cleanfeed.curriculum.durable import write_bytes
from cleanfeed.curriculum.paths import AnyPath, sizes_of
from cleanfeed.documents.record import Damage
from cleanfeed.errors import VerifyError, one_line
from cleanfeed.rules.pipeline import resolved
from cleanfeed.rules.ruleset import COUNTS

DAMAGED_EXIT = 3

Files = Mapping[str, tuple[int, str]]


def read_manifest(out: AnyPath) -> dict[str, Any] | None:
    """Return the manifest of a finished build, or None where there is none.

    Raises:
        CleanfeedError: The file is no manifest or belongs to another format version.
        VerifyError: It was altered since it was written, so that nothing in it can be relied on.
    """
    path = out / MANIFEST_NAME
    if not path.exists():
        return None
    manifest = parse_manifest(path.read_bytes(), str(path))
    if manifest_digest(manifest) != manifest["manifest_digest"]:
        todo = "Restore the file, or build anew with --overwrite."
        raise VerifyError(one_line("the manifest was altered since it was written", str(path), todo=todo))
    return manifest


def write_manifest(out: AnyPath, manifest: dict[str, Any]) -> None:
    """Write the manifest with its own digest; from here on the build is finished."""
    manifest["manifest_digest"] = manifest_digest(manifest)
    write_bytes(
        out / MANIFEST_NAME,
        (json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode(),
    )


def exit_code(manifest: Mapping[str, Any]) -> int:
    """Return 3 where an input file was damaged, else 0."""
    return DAMAGED_EXIT if any(entry["damage"] for entry in manifest["inputs"]) else 0


def make_manifest(
    prepared: Prepared,
    measured: Iterable[Measured],
    settled: Iterable[Settled],
    totals: Iterable[StageTotals],
    files: Files,
    duplicate_ids: int,
    duplicates: DuplicateCounts | None,
) -> dict[str, Any]:
    """Return the manifest of a build; it holds nothing that depends on when, where or by how many it was done."""
    settled = list(settled)
    encoder = prepared.context.encoder()
    inputs = _inputs(prepared, measured, settled)
    stages = [_stage(prepared, total, files) for total in totals]
    sizes = sizes_of(prepared.context.out, files)
    listed = [
        {"path": name, "rows": rows, "bytes": sizes[name], "digest": digest}
        for name, (rows, digest) in sorted(files.items())
    ]
    counts = {name: sum(entry["counts"][name] for entry in inputs) for name in COUNTS}
    return {
        "format_version": FORMAT_VERSION,
        "cleanfeed_version": __version__,
        "digest": curriculum_digest(stages, listed),
        "request": prepared.digest,
        "pipeline": resolved(prepared.request.pipeline),
        "tokenizer": encoder
        and {
            "digest": encoder.digest,
            "vocab_size": encoder.vocab_size,
            "end_of_text": encoder.end_of_text,
            "end_of_text_id": encoder.end_of_text_id,
        },
        "limit": prepared.request.limit,
        "counts": {**counts, "duplicate_ids": duplicate_ids},
        "rejected_by_rule": _by_rule([one.rejected_by_rule for one in settled]),
        "flagged_by_rule": _by_rule([one.flagged_by_rule for one in settled]),
        "duplicates": duplicates and asdict(duplicates),
        "unreadable_by_reason": _added(one.unreadable_by_reason for one in settled),
        "inputs": inputs,
        "ignored": list(prepared.plan.ignored),
        "stages": stages,
        "files": listed,
    }


def _inputs(prepared: Prepared, measured: Iterable[Measured], settled: list[Settled]) -> list[dict[str, Any]]:
    damage = first_damage(prepared, measured)
    entries = []
    for file in prepared.plan.files:
        found = _added(one.counts.get(file.index, {}) for one in settled)
        entries.append(
            {
                **describe(file, prepared.fingerprints),
                "counts": {name: found.get(name, 0) for name in COUNTS},
                "damage": _damage(damage.get(file.index)),
            }
        )
    return entries


def first_damage(prepared: Prepared, measured: Iterable[Measured]) -> dict[int, Damage]:
    """Return the damage of each damaged file, by file index."""
    results = [result for one in measured for result in one.pieces]
    found: dict[int, Damage] = {}
    for piece, result in zip(prepared.plan.pieces, results, strict=True):
        if result.damage is not None:
            found.setdefault(piece.file.index, result.damage)
    return found


def _damage(damage: Damage | None) -> dict[str, Any] | None:
    if damage is None:
        return None
    return {"reason": damage.reason, "byte_offset": damage.byte_offset, "detail": damage.detail}


def _stage(prepared: Prepared, total: StageTotals, files: Files) -> dict[str, Any]:
    settings = prepared.request.pipeline.curriculum
    tokens = prepared.context.tokenizer is not None
    folder = f"curriculum/{total.stage.index:02d}-{total.stage.name}/"
    return {
        "index": total.stage.index,
        "name": total.stage.name,
        "band": settings.bands[total.stage.band].name,
        "tier": settings.tiers[total.stage.tier].name,
        "samples": total.samples,
        "tokens": total.units if tokens else None,
        "chars": total.chars,
        "mean_quality": round(total.quality_sum / total.rated, 6) if total.rated else None,
        "row_group_samples": row_group_rows(settings, total, tokens=tokens),
        "files": sorted(name for name in files if name.startswith(folder)),
    }


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return dict(sorted(total.items()))


def _by_rule(parts: Iterable[Mapping[str, list[int]]]) -> dict[str, dict[str, int | None]]:
    total: dict[str, list[int]] = {}
    for part in parts:
        for rule, row in part.items():
            total[rule] = [a + b for a, b in zip(total.get(rule, [0] * 4), row, strict=True)]
    return {
        rule: {"documents": row[0], "tokens": row[1] if row[3] else None, "chars": row[2]}
        for rule, row in sorted(total.items())
    }
