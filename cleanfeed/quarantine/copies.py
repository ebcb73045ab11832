"""Suspects, the order of a run and how far it has come go in; which samples ahead are like them comes out, with slots.

Exact copies have the same sample hash; they are sought among all samples, and so is the suspect itself, which comes
again in later epochs. Near copies share n-grams (:mod:`cleanfeed.signals.minhash`): of words, or of tokens where the
curriculum holds tokens. Comparing costs reading, so only so many samples ahead are compared, the nearest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cleanfeed.feed.samples import FILLER
from cleanfeed.feed.schedule import NOWHERE, Schedule
from cleanfeed.quarantine.corpus import Corpus
from cleanfeed.quarantine.model import Copies, Place
from cleanfeed.signals.minhash import equal_places, signatures

Int64 = npt.NDArray[np.int64]

NGRAM = 5
PLACES = 128
"""Places of a signature: a similarity of 0.5 is estimated to within 0.09 in two cases of three."""
SIMILAR = 0.5
"""Estimated share of common n-grams from which on a sample is a near copy."""
LOOK_AHEAD_UNITS = 8_000_000
"""Tokens, or characters, after which the search ends all the same."""
BLOCK_ROWS = 4096

_DIGITS = 4
_ALPHABET = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


@dataclass(slots=True)
class Ahead:
    """What was found."""

    copies: dict[str, Copies] = field(default_factory=dict)
    """By sample hash of the suspect."""
    compared: int = 0
    """Samples ahead that were compared with the suspects."""


def copies_ahead(
    corpus: Corpus,
    schedule: Schedule,
    last_slot: int,
    suspects: Mapping[str, Sequence[int]],
    look_ahead: int,
) -> Ahead:
    """Return the samples ahead that are equal or much like some suspects.

    Args:
        corpus: The curriculum.
        schedule: The order of the run.
        last_slot: Last slot that was trained; what comes after it is ahead.
        suspects: Rows of the curriculum that have the sample hash of a suspect, by hash.
        look_ahead: Samples ahead to compare for near copies; 0 leaves that out.
    """
    known = {name: rows for name, rows in suspects.items() if rows}
    ahead = Ahead({name: Copies(exact=_places(schedule, rows, last_slot)) for name, rows in known.items()})
    if not known or look_ahead <= 0:
        return ahead
    names = list(known)
    signed = _sign_rows(corpus, [known[name][0] for name in names])
    near: dict[str, dict[int, tuple[float, str]]] = {name: {} for name in names}
    own = np.array(sorted({row for rows in known.values() for row in rows}), dtype=np.int64)
    units = 0
    for rows in _rows_ahead(schedule, last_slot + 1, look_ahead):
        fresh = rows[~np.isin(rows, own)]
        for here, table in corpus.contents(fresh):
            contents = _words(table[corpus.content_column])
            found, has = signatures(contents, ngram=NGRAM, hashes=PLACES)
            for name, (signature, signable) in zip(names, signed, strict=True):
                if signable:
                    share = equal_places(found, signature) / PLACES
                    for at in np.flatnonzero((share >= SIMILAR) & has):
                        found_hash = table["sample_hash"][int(at)].as_py().hex()
                        near[name][int(here[at])] = (float(share[at]), found_hash)
            units += contents.nbytes // (_DIGITS + 1 if corpus.tokens else 1)
            ahead.compared += len(here)
        if units >= LOOK_AHEAD_UNITS:
            break
    for name, found_rows in near.items():
        ahead.copies[name] = Copies(
            exact=ahead.copies[name].exact,
            near=_places(schedule, list(found_rows), last_slot),
            near_hashes=list(dict.fromkeys(text for _, text in found_rows.values())),
            similarity=max((share for share, _ in found_rows.values()), default=None),
        )
    return ahead


def _places(schedule: Schedule, rows: Sequence[int], last_slot: int) -> list[Place]:
    """Return where some rows are trained after a slot, the nearest first."""
    found: list[Place] = []
    array = np.array(rows, dtype=np.int64)
    for epoch in range(schedule.epochs if len(array) else 0):
        slots, _ = schedule.places(array, epoch)
        found += [
            Place(row, epoch, slot)
            for row, slot in zip(array.tolist(), slots.tolist(), strict=True)
            if slot > last_slot and slot != NOWHERE
        ]
    return sorted(found, key=lambda place: (place.slot, place.row))


def _rows_ahead(schedule: Schedule, first: int, most: int) -> list[Int64]:
    """Return up to so many different rows that are trained from a slot on, in blocks of slots."""
    blocks: list[Int64] = []
    seen = np.zeros(0, dtype=np.int64)
    while first < schedule.n_slots and len(seen) < most:
        block = schedule.block(first, BLOCK_ROWS).rows
        first += len(block)
        rows = np.unique(block[block != FILLER])
        rows = rows[~np.isin(rows, seen)][: most - len(seen)]
        seen = np.union1d(seen, rows)
        blocks.append(rows)
    return blocks


def _sign_rows(corpus: Corpus, rows: Sequence[int]) -> list[tuple[npt.NDArray[np.uint32], bool]]:
    by_row: dict[int, tuple[npt.NDArray[np.uint32], bool]] = {}
    for here, table in corpus.contents(np.array(rows, dtype=np.int64)):
        found, has = signatures(_words(table[corpus.content_column]), ngram=NGRAM, hashes=PLACES)
        by_row |= {int(row): (found[at], bool(has[at])) for at, row in enumerate(here)}
    return [by_row[row] for row in rows]


def _words(column: pa.ChunkedArray) -> pa.LargeStringArray:
    """Return texts as they are, and token ids as texts in which each token is a word."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if not pa.types.is_list(array.type):
        return array
    offsets = np.asarray(array.offsets, dtype=np.int64)
    ids = np.asarray(array.values, dtype=np.int64)[offsets[0] : offsets[-1]]
    written = np.full((len(ids), _DIGITS + 1), ord(" "), dtype=np.uint8)
    rest = ids
    for place in reversed(range(_DIGITS)):
        rest, digit = np.divmod(rest, len(_ALPHABET))
        written[:, place] = _ALPHABET[digit]
    bounds = (offsets - offsets[0]) * (_DIGITS + 1)
    return pa.LargeStringArray.from_buffers(
        len(array), pa.py_buffer(bounds.tobytes()), pa.py_buffer(written.tobytes())
    )
