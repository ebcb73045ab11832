"""The typed form of a pipeline file: YAML goes in, frozen and checked settings come out.

A pipeline says everything that decides the result of a build. It is stored, resolved, in the manifest.
Reading files, presets and ``--set`` is in :mod:`cleanfeed.rules.pipeline`; this module only holds the shapes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MOST_IN_A_FILE = 2**28
"""Tokens or code points in one file of the curriculum."""


Name = Annotated[str, Meta(pattern=r"\A[a-z0-9_]+\Z", description="small letters, digits and '_'")]
Share = Annotated[float, Meta(gt=0, lt=1)]
Length = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all settings: values cannot change; what is read is refused where a key or a type is wrong."""


class DocumentSettings(Frozen, frozen=True):
    """How a record becomes a document."""

    text_field: str = "text"
    """Field with the text; dots reach into nested records (``meta.text``)."""
    id_field: str = "id"
    """Field with the user's id; a missing id becomes ``<source>:<source_row>``."""
    keep_fields: tuple[str, ...] = ()
    """Other fields that travel to the curriculum as columns."""
    max_record_bytes: Annotated[int, Meta(ge=1024, le=2**30)] = 256 * 2**20
    """A record larger than this (bytes, decompressed) is unreadable: ``record_too_large``."""


class BudgetSettings(Frozen, frozen=True):
    """What one document may take; one that takes more is rejected with the reason ``too_costly``."""

    seconds: Annotated[float, Meta(gt=0)] = 10.0
    """CPU time to measure and tokenise it."""
    memory: Annotated[int, Meta(ge=2**20)] = 2**30
    """Memory (bytes), estimated from the bytes of its text."""


class Bound(Frozen, frozen=True):
    """A condition on one signal: true when the value lies beyond ``above`` or ``below``. Null is never beyond."""

    signal: str
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        if (self.above is None) == (self.below is None):
            raise ValueError("give exactly one of 'above' and 'below'")


class RuleSettings(Frozen, frozen=True):
    """One rule: a bound on a signal and what follows when a document lies beyond it.

    A rejecting rule that names ``evidence`` or ``extreme`` rejects only if one of these bounds is crossed as well or
    the value is beyond the extreme; otherwise the document is flagged.
    """

    name: str
    signal: str
    above: float | None = None
    below: float | None = None
    action: Literal["reject", "flag"] = "reject"
    extreme: float | None = None
    """Beyond this the rule rejects without further evidence; lies on the same side as the limit."""
    evidence: tuple[Bound, ...] = ()
    """Second kinds of evidence; one is enough."""
    where: tuple[Bound, ...] = ()
    """The rule speaks only for documents that meet all of these (length, script, ...)."""
    because: str = ""
    """Why this harms training, in a sentence; shown by ``explain`` and in the docs."""
    source: str = ""
    """Paper or code the limit is taken from."""

    def __post_init__(self) -> None:
        if (self.above is None) == (self.below is None):
            raise ValueError("give exactly one of 'above' and 'below'")


class DuplicateSettings(Frozen, frozen=True):
    """Which documents count as copies of another, of which only the best is kept."""

    method: Literal["off", "exact", "near"] = "exact"
    """``exact``: of the same text. ``near``: also of nearly the same n-grams of words. ``off``: all are kept."""
    ngram: Annotated[int, Meta(ge=1, le=64)] = 5
    """Words in an n-gram; characters in scripts without spaces between words."""
    bands: Annotated[int, Meta(ge=1, le=256)] = 32
    """Documents are compared when all rows of one of their bands are equal; more bands find more."""
    rows: Annotated[int, Meta(ge=1, le=64)] = 4
    """Places of a signature in a band; more rows compare fewer documents that are unlike."""
    min_similarity: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Estimated share of common n-grams (Jaccard) from which on compared documents are near-duplicates."""

    def __post_init__(self) -> None:
        if self.bands * self.rows > 4096:
            raise ValueError(f"bands * rows must be at most 4096, got {self.bands * self.rows}")
        if self.compared(self.min_similarity) < 0.5:
            percent = 100 * self.compared(self.min_similarity)
            raise ValueError(
                f"{self.bands} bands of {self.rows} rows compare only {percent:.2g} % of the documents as similar as "
                f"min_similarity {self.min_similarity}: more bands, fewer rows or a higher min_similarity are needed"
            )

    def compared(self, similarity: float) -> float:
        """Return the chance that two documents of this similarity are compared at all."""
        return float(1.0 - (1.0 - similarity**self.rows) ** self.bands)


class Ramp(Frozen, frozen=True):
    """One term of the quality score: 0 at ``bad``, 1 at ``good``, straight in between and clipped outside."""

    signal: str
    bad: float
    good: float
    weight: Annotated[float, Meta(gt=0)] = 1.0


class QualitySettings(Frozen, frozen=True):
    """Where the quality of a document comes from: exactly one of the three, in [0, 1] except for ``column``."""

    score: tuple[Ramp, ...] = ()
    """Weighted mean of ramps over signals; terms whose signal is null are left out of the mean."""
    column: str | None = None
    """A numeric field of the input, used as it is."""
    reference: str | None = None
    """A file of sample text the corpus is compared with: hashed n-gram log-likelihood ratio, as in DSIR."""
    reference_buckets: Annotated[int, Meta(ge=16, le=2**20)] = 10_000

    def __post_init__(self) -> None:
        if sum((bool(self.score), self.column is not None, self.reference is not None)) != 1:
            raise ValueError("give exactly one of 'score', 'column' and 'reference'")


class Band(Frozen, frozen=True):
    """A range of sample lengths, up to and including ``max_tokens`` (``max_chars`` where there is no tokenizer)."""

    name: Name
    max_tokens: Length
    max_chars: Length


class Tier(Frozen, frozen=True):
    """A range of quality, best first.

    Either ``min_quality`` (an absolute score) or ``share`` (this part of the samples whose quality is known,
    by the corpus' own histogram; the others are in the last tier); the last tier takes the rest and has neither.
    """

    name: Name
    min_quality: float | None = None
    share: Share | None = None


class CurriculumSettings(Frozen, frozen=True):
    """How kept documents become an ordered set of samples."""

    bands: Annotated[tuple[Band, ...], Meta(min_length=1)]
    """Shortest first. The last band's limit is the longest sample: longer documents are split into parts."""
    tiers: Annotated[tuple[Tier, ...], Meta(min_length=1)]
    """Best first."""
    end_of_text: str | None = None
    """Token that closes a document; by default the tokenizer's own."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Seed of the shuffle inside a stage."""
    row_group_tokens: Annotated[int, Meta(ge=1, le=2**28)] = 262_144
    """Tokens in a full row group, at a stage's mean length: 2**18 int32 ids are 1 MiB."""
    row_group_chars: Annotated[int, Meta(ge=1, le=2**30)] = 1_048_576
    """The same where there is no tokenizer, in characters."""
    file_row_groups: Annotated[int, Meta(ge=1, le=2**15 - 1)] = 64
    """Row groups in one file; Parquet numbers them in 16 bits. Fewer where they hold more than 262,144 samples."""

    def __post_init__(self) -> None:
        for unit in ("max_tokens", "max_chars"):
            limits = [getattr(band, unit) for band in self.bands]
            if limits != sorted(set(limits)):
                raise ValueError(f"bands must have rising {unit}, got {limits}")
        for unit, size in (("tokens", self.row_group_tokens), ("chars", self.row_group_chars)):
            if size * self.file_row_groups > MOST_IN_A_FILE:
                raise ValueError(
                    f"row_group_{unit} * file_row_groups must be at most {MOST_IN_A_FILE}, "
                    f"got {size * self.file_row_groups}: a file is put together in memory"
                )
        *above, last = self.tiers
        if last.min_quality is not None or last.share is not None:
            raise ValueError("the last tier takes the rest: it has neither 'min_quality' nor 'share'")
        if any((tier.min_quality is None) == (tier.share is None) for tier in above):
            raise ValueError("each tier but the last has exactly one of 'min_quality' and 'share'")
        cuts = [tier.min_quality for tier in above if tier.min_quality is not None]
        if cuts and len(cuts) != len(above):
            raise ValueError("tiers use 'min_quality' or 'share', not both")
        if cuts != sorted(set(cuts), reverse=True):
            raise ValueError(f"tiers must have falling min_quality, got {cuts}")
        if sum(tier.share or 0.0 for tier in above) >= 1.0:
            raise ValueError("the shares of all tiers but the last must add up to less than 1")
        for part in ("bands", "tiers"):
            names = [item.name for item in getattr(self, part)]
            if len(set(names)) != len(names):
                raise ValueError(f"{part} must have different names, got {names}")


class Pipeline(Frozen, frozen=True, kw_only=True):
    """A whole pipeline file."""

    name: Annotated[
        str, Meta(pattern=r"\A[A-Za-z0-9_.-]+\Z", description="letters, digits, '_', '.' and '-'")
    ]
    description: str = ""
    documents: DocumentSettings = DocumentSettings()
    budget: BudgetSettings = BudgetSettings()
    rules: tuple[RuleSettings, ...]
    duplicates: DuplicateSettings = DuplicateSettings()
    quality: QualitySettings
    curriculum: CurriculumSettings

    def __post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"rules must have different names, got twice: {', '.join(twice)}")
