"""The samples of a batch go in; the tensors a model takes come out, padded to a rectangle or laid end to end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from cleanfeed.arguments import check_list, check_whole, wrong
from cleanfeed.errors import MisuseError, one_line
from cleanfeed.feed.buffers import Blocks
from cleanfeed.feed.fills import fill_flat, fill_padded
from cleanfeed.feed.rows import Rows
from cleanfeed.feed.samples import NO_SAMPLE, Samples

if TYPE_CHECKING:
    from cleanfeed.curriculum.tokenizer import TextEncoder

COUNTED_WORKERS = 256
"""Workers of a loader whose cut samples are counted apart; further ones share a place."""

Int64 = npt.NDArray[np.int64]
Batch: TypeAlias = dict[str, Any]
Tokenizer: TypeAlias = "str | Callable[[list[str]], Any] | Any"


class Tokenizing:
    """Turns the texts of a batch into ids, with whatever kind of tokenizer was given.

    Args:
        tokenizer: The path of a ``tokenizer.json`` (ids as in a build with it: special tokens written in a text stay
            ordinary characters, none are added), a ``tokenizers.Tokenizer``, or a callable that takes a list of texts
            and returns lists of ids or a mapping with ``input_ids``, as a Hugging Face tokenizer does. The latter two
            are used as they are set up, special tokens included.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        if isinstance(tokenizer, str):
            _ = self._encoder  # a wrong file is refused here and not in a worker

    @cached_property
    def _encoder(self) -> TextEncoder:
        # Imported where it is used: only text curricula with a tokenizer file need it.
        from cleanfeed.curriculum.tokenizer import TextEncoder

        return TextEncoder(str(self.tokenizer))

    def __getstate__(self) -> dict[str, Any]:
        # A path is a few bytes; the tokenizer made from it is megabytes, and each process can make its own.
        return {"tokenizer": self.tokenizer}

    def __call__(self, samples: Samples) -> Samples:
        """Return the samples with ids."""
        texts = samples.texts or []
        if isinstance(self.tokenizer, str):
            flat, offsets = self._encoder.encode(texts)
            return samples.with_tokens(np.split(flat, offsets[1:-1]) if texts else [])
        if hasattr(self.tokenizer, "encode_batch"):
            found = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        else:
            given = self.tokenizer(texts)
            found = given["input_ids"] if isinstance(given, Mapping) or hasattr(given, "keys") else given
        return samples.with_tokens(np.asarray(ids, dtype=np.int32) for ids in found)


class Cuts:
    """Counts what ``max_length`` cut off, also in the workers of a loader: each process counts in its own place."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None

    @property
    def counts(self) -> torch.Tensor:
        """Samples cut and tokens lost, by process: int64, shape [processes, 2], in memory all processes share."""
        if self._counts is None:
            counts = torch.zeros(COUNTED_WORKERS + 1, 2, dtype=torch.int64)
            self._counts = counts.share_memory_()  # type: ignore[no-untyped-call]
        return self._counts

    def add(self, samples: int, tokens: int) -> None:
        """Count some more."""
        worker = get_worker_info()
        place = 0 if worker is None else 1 + worker.id % COUNTED_WORKERS
        self.counts[place] += torch.tensor([samples, tokens])


class Collator:
    """What both collators share: texts become ids, and samples are cut to ``max_length``.

    Args:
        pad_id: Id that stands in padding and in pad rows.
        tokenizer: Encodes the samples of a curriculum that was built without a tokenizer; see :class:`Tokenizing`.
        max_length: Longest row in tokens; what lies beyond is cut off, the end-of-text token too, and counted. By
            default nothing is cut.
    """

    def __init__(
        self, pad_id: int, tokenizer: Tokenizer | None = None, max_length: int | None = None
    ) -> None:
        call = type(self).__name__
        check_whole(call, "pad_id", pad_id)
        if max_length is not None:
            check_whole(call, "max_length", max_length, 1)
        tokenizer = os.fspath(tokenizer) if isinstance(tokenizer, os.PathLike) else tokenizer
        if not (
            tokenizer is None
            or isinstance(tokenizer, str)
            or callable(tokenizer)
            or hasattr(tokenizer, "encode_batch")
        ):
            raise wrong(call, "tokenizer", tokenizer, "a path, a tokenizer, or a function of a list of texts")
        self.pad_id = pad_id
        self.max_length = max_length
        self._tokenize = None if tokenizer is None else Tokenizing(tokenizer)
        self._cuts = Cuts()
        self._blocks = Blocks()
        if max_length is not None:
            _ = self._cuts.counts  # made before workers start, so that they share it

    @property
    def truncated(self) -> int:
        """Samples cut so far, in this process and in the workers of its loaders."""
        return int(self._cuts.counts[:, 0].sum())

    @property
    def truncated_tokens(self) -> int:
        """Tokens cut off so far."""
        return int(self._cuts.counts[:, 1].sum())

    def _rows(self, batch: Any) -> Samples:
        if not isinstance(batch, Samples):
            check_list("collator", "batch", batch, "samples")
            for item in batch:
                if not isinstance(item, Mapping):
                    todo = "Give it what Curriculum holds: DataLoader(curriculum, collate_fn=…)."
                    raise wrong("collator", "batch", item, "samples with input_ids or text", todo)
        samples = Samples.gathered(batch)
        if samples.tokens is None and self._tokenize is not None:
            samples = self._tokenize(samples)
        return samples

    def _cut(self, tokens: Rows, samples: Samples) -> tuple[Rows, Int64]:
        """Return ids and lengths of the rows after cutting."""
        lengths, limit = samples.lengths, self.max_length
        if limit is None or int(lengths.max(initial=0)) <= limit:
            return tokens, lengths
        real = samples.sample_ids != NO_SAMPLE
        over = np.where(real, lengths - limit, 0).clip(min=0)
        self._cuts.add(int((over > 0).sum()), int(over.sum()))
        return tokens.clipped(limit), lengths.clip(max=limit)


class PadCollator(Collator):
    """Lays samples out as the rows of a rectangle, padded on the right.

    A batch has, each of shape [rows, T] and int64: ``input_ids``; ``labels``, the same ids, not shifted, with -100 at
    padding and in pad rows; ``attention_mask``, 1 at tokens and 0 at padding; and ``sample_ids`` of shape [rows],
    int64: row numbers in the curriculum, -1 for a pad row. In a pad row (a quarantined sample, or a filler in the last
    batch) all ids are ``pad_id``, all labels -100, and the mask is 1 at the first position only, since a row that is
    masked everywhere makes a softmax NaN; the same holds for the mask of a sample without tokens.

    A curriculum without a tokenizer gives ``text`` (list of str) and ``sample_ids``, unless ``tokenizer`` is given.

    Args:
        pad_id: Id that stands in padding and in pad rows.
        tokenizer: Encodes the texts of a curriculum built without a tokenizer: the path of a ``tokenizer.json``, a
            ``tokenizers.Tokenizer``, or a callable such as a Hugging Face tokenizer.
        max_length: Longest row in tokens; what lies beyond is cut off, the end-of-text token too, and counted in
            ``truncated`` and ``truncated_tokens``. By default nothing is cut.
        to_multiple_of: T is rounded up to a multiple of this, for tensor cores.
        pad_to: What T is: ``longest`` row of the batch; ``stage``, the longest a sample of its stage can be, so that
            shapes change only with the stage; or ``max_length``, the same T always.

    Raises:
        MisuseError: The arguments contradict each other, or a tokenizer file cannot be read.
    """

    def __init__(
        self,
        pad_id: int,
        tokenizer: Tokenizer | None = None,
        max_length: int | None = None,
        to_multiple_of: int | None = None,
        *,
        pad_to: Literal["longest", "stage", "max_length"] = "longest",
    ) -> None:
        super().__init__(pad_id, tokenizer, max_length)
        if to_multiple_of is not None:
            check_whole("PadCollator", "to_multiple_of", to_multiple_of, 1)
        if pad_to not in ("longest", "stage", "max_length"):
            raise MisuseError(
                one_line("unknown pad_to", "PadCollator", repr(pad_to), "longest, stage or max_length")
            )
        if pad_to == "max_length" and max_length is None:
            raise MisuseError(
                one_line("no length to pad to", "PadCollator", "pad_to max_length", "max_length as well")
            )
        self.to_multiple_of = to_multiple_of
        self.pad_to = pad_to

    def __call__(self, batch: Sequence[Mapping[str, Any]]) -> Batch:
        """Return the tensors of a batch: the rows of :meth:`Curriculum.__getitems__`, or a list of its items."""
        samples = self._rows(batch)
        sample_ids = torch.from_numpy(samples.sample_ids)
        if samples.tokens is None:
            texts = samples.texts or []
            shown = [
                "" if n == NO_SAMPLE else text for n, text in zip(samples.sample_ids, texts, strict=True)
            ]
            return {"text": shown, "sample_ids": sample_ids}
        tokens, lengths = self._cut(samples.tokens, samples)
        block, tensor = self._blocks.block(3, len(tokens), self._width(samples, lengths))
        fill_padded(block, tokens.spans, self.pad_id)
        input_ids, labels, mask = tensor.unbind()
        return {
            "input_ids": input_ids,
            "labels": labels,
            "attention_mask": mask,
            "sample_ids": sample_ids,
        }

    def _width(self, samples: Samples, lengths: Int64) -> int:
        # Of so few numbers Python finds the largest faster than numpy.
        width: int = max([1, *lengths.tolist()])
        if self.pad_to == "stage":
            width = max(width, int(samples.limits.max(initial=1)))
        if self.max_length is not None:
            width = self.max_length if self.pad_to == "max_length" else min(width, self.max_length)
        multiple = self.to_multiple_of or 1
        return -(-width // multiple) * multiple


class FlattenCollator(Collator):
    """Lays samples end to end without padding, for attention kernels that are told where each sample starts.

    A batch has ``input_ids`` and ``labels`` of shape [1, total], int64; the label of each sample's first token is -100,
    since the token before it belongs to another sample, and so are all labels of pad rows; ``position_ids`` [1, total],
    int64, counting from 0 in each sample; ``sample_ids`` [rows], int64; ``cu_seqlens`` [rows + 1], int32, where each
    sample starts and the last one ends, and ``max_seqlen`` (int), as FlashAttention's ``flash_attn_varlen_func`` takes
    them; and the same under the names under which models of Hugging Face take them from its
    ``DataCollatorWithFlattening``: ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q``, ``max_length_k``. There is
    no ``attention_mask``: the boundaries say all, and models of Hugging Face use them only without one.

    A pad row keeps the length of the sample whose place it takes, filled with ``pad_id``; a row without tokens becomes
    one pad token, so that there are as many boundaries as rows.

    Args:
        pad_id: Id that stands in pad rows.
        tokenizer: As for :class:`PadCollator`; needed for a curriculum built without a tokenizer.
        max_length: Longest sample in tokens; what lies beyond is cut off and counted. By default nothing is cut.
    """

    def __init__(
        self, pad_id: int = 0, tokenizer: Tokenizer | None = None, max_length: int | None = None
    ) -> None:
        super().__init__(pad_id, tokenizer, max_length)

    def __call__(self, batch: Sequence[Mapping[str, Any]]) -> Batch:
        """Return the tensors of a batch: the rows of :meth:`Curriculum.__getitems__`, or a list of its items."""
        samples = self._rows(batch)
        if samples.tokens is None:
            raise MisuseError(
                one_line(
                    "no token ids to lay end to end",
                    "FlattenCollator",
                    "a curriculum without a tokenizer",
                    todo="Give the collator a tokenizer, or build with --tokenizer.",
                )
            )
        tokens, lengths = self._cut(samples.tokens, samples)
        bounds = np.zeros(len(samples) + 1, dtype=np.int64)
        np.cumsum(lengths.clip(min=1), out=bounds[1:])
        block, tensor = self._blocks.block(3, int(bounds[-1]))
        fill_flat(block, bounds, tokens.spans, self.pad_id)
        input_ids, labels, positions = tensor.unsqueeze(1).unbind()
        starts = torch.from_numpy(bounds.astype(np.int32))
        longest = int(np.diff(bounds).max(initial=0))
        return {
            "input_ids": input_ids,
            "labels": labels,
            "position_ids": positions,
            "sample_ids": torch.from_numpy(samples.sample_ids),
            "cu_seqlens": starts,
            "max_seqlen": longest,
            "cu_seq_lens_q": starts,
            "cu_seq_lens_k": starts,
            "max_length_q": longest,
            "max_length_k": longest,
        }
