"""Views of decoded columns go in; the samples of one batch come out, a sequence that collators read without a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from cleanfeed.errors import MisuseError, one_line
from cleanfeed.feed.rows import NO_TOKENS, Rows

FILLER = -(1 << 62)
"""Index of a pad row that stands for no sample: it fills the last batch of a run."""
NO_SAMPLE = -1
"""``sample_ids`` of every pad row: it is no sample."""

Int64 = npt.NDArray[np.int64]
Item = dict[str, Any]


@dataclass(slots=True)
class Samples(Sequence[Item]):
    """The rows of one batch, in the order they were asked for.

    It is a sequence of dicts for every collator, and for ours a few arrays and the places where ids lie in memory, so
    that no token is copied twice.
    A row is a sample or a pad row; a pad row has a length but nothing to learn from.

    A dict has ``sample_id`` (int, -1 for a pad row), ``length`` (int, tokens the row occupies; of a pad row those of
    the sample whose place it takes, 0 without one), ``pad`` (bool), ``limit`` (int, the longest a sample of its stage
    can be), and ``input_ids`` (an int32 array of its own, empty for a pad row) or ``text`` (str, empty for a pad row).
    """

    sample_ids: Int64
    """Row numbers in the curriculum, shape [rows]; -1 for a pad row."""
    lengths: Int64
    """Tokens each row occupies, shape [rows]; all 0 where there is no tokenizer, since nobody has counted them."""
    limits: Int64
    """The longest sample of each row's stage, shape [rows]."""
    tokens: Rows | None
    """Ids of each row, none for a pad row; None where there is no tokenizer."""
    texts: list[str] | None = None
    """Text of each row, of a pad row that of the sample whose place it takes; None with a tokenizer."""

    @classmethod
    def gathered(cls, batch: Sequence[Mapping[str, Any]]) -> Samples:
        """Return a batch as it is, or put together from dicts such as those of ``Curriculum[i]``.

        Raises:
            MisuseError: A row has more ids than its ``length`` says.
        """
        if isinstance(batch, Samples):
            return batch
        has_tokens = all("input_ids" in item for item in batch)
        tokens = (
            Rows.of(np.asarray(item["input_ids"], dtype=np.int32) for item in batch) if has_tokens else None
        )
        lengths = _integers(
            item["length"] if "length" in item else len(item.get("input_ids", ())) for item in batch
        )
        if tokens is not None and (over := np.flatnonzero(tokens.spans[1] > lengths)).size:
            row = int(over[0])
            raise MisuseError(
                one_line(
                    "a row has more ids than its length says",
                    f"sample {batch[row].get('sample_id', NO_SAMPLE)}",
                    f"{tokens.spans[1, row]} ids",
                    f"at most {lengths[row]}",
                    "Change length together with input_ids, or leave it out.",
                )
            )
        return cls(
            _integers(item.get("sample_id", NO_SAMPLE) for item in batch),
            lengths,
            _integers(item.get("limit", 0) for item in batch),
            tokens,
            None if has_tokens else [str(item.get("taken_from", item["text"])) for item in batch],
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.sample_ids)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        """Return one row as a dict; its arrays belong to the caller."""
        if isinstance(index, slice):
            return [self._item(number) for number in range(*index.indices(len(self)))]
        return self._item(index)

    def __iter__(self) -> Iterator[Item]:
        """Yield the rows as dicts."""
        return (self._item(number) for number in range(len(self)))

    def _item(self, number: int) -> Item:
        sample_id = int(self.sample_ids[number])
        pad = sample_id == NO_SAMPLE
        item: Item = {
            "sample_id": sample_id,
            "length": int(self.lengths[number]),
            "pad": pad,
            "limit": int(self.limits[number]),
        }
        if self.tokens is not None:
            # A view would keep a whole row group in memory for as long as the caller keeps the item.
            item["input_ids"] = self.tokens.copy(number)
        if self.texts is not None:
            item["text"] = "" if pad else self.texts[number]
            if pad:
                item["taken_from"] = self.texts[number]
        return item

    def blank(self, pads: list[int], fillers: list[int]) -> None:
        """Make pad rows of some rows; those of them that are fillers have no length."""
        self.sample_ids[pads] = NO_SAMPLE
        self.lengths = self.lengths.copy()
        self.lengths[fillers] = 0
        if self.tokens is not None:
            self.tokens.spans[1, pads] = 0
        if self.texts is not None:
            for number in fillers:
                self.texts[number] = ""

    def with_tokens(self, tokens: Iterable[npt.NDArray[np.int32]]) -> Samples:
        """Return the same rows with the ids of their texts; a pad row keeps only how many there were."""
        ids = list(tokens)
        pad = (self.sample_ids == NO_SAMPLE).tolist()
        return Samples(
            self.sample_ids,
            _integers(map(len, ids)),
            np.zeros(len(ids), dtype=np.int64),
            Rows.of(NO_TOKENS if blank else row for blank, row in zip(pad, ids, strict=True)),
        )


def _integers(values: Iterable[int]) -> Int64:
    return np.fromiter(values, dtype=np.int64)
