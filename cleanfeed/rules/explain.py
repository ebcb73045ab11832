"""The signals of one document and the rules go in; what each rule said about it and why comes out as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cleanfeed.settings import Bound, RuleSettings
from cleanfeed.signals.registry import by_name
from cleanfeed.signals.signal import Signal

Outcome = Literal["passes", "flags", "rejects", "silent"]
Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class BoundReading:
    """A bound beside the value it was held against; ``value`` is None where the signal is null."""

    signal: str
    value: float | None
    side: Literal["above", "below"]
    limit: float
    crossed: bool

    @property
    def wanted(self) -> str:
        """Return the bound in words, as in ``blob_share above 0.3``."""
        return f"{self.signal} {self.side} {number(self.limit)}"

    @property
    def found(self) -> str:
        """Return the value in words, as in ``blob_share is 0.97``."""
        return f"{self.signal} is {'null' if self.value is None else number(self.value)}"


@dataclass(frozen=True, slots=True)
class RuleReading:
    """What one rule said about one document."""

    rule: str
    action: Literal["reject", "flag"]
    limit: BoundReading
    extreme: BoundReading | None
    where: tuple[BoundReading, ...]
    evidence: tuple[BoundReading, ...]
    outcome: Outcome
    """``silent`` where the rule does not speak: its signal is null, or ``where`` does not hold."""
    words: str
    """The outcome and its reason in a sentence."""
    because: str
    source: str

    def plain(self) -> dict[str, Any]:
        """Return the reading as data for JSON."""
        return asdict(self)


def explain_rules(
    rules: Sequence[RuleSettings], values: Values, signals: Mapping[str, Signal] | None = None
) -> list[RuleReading]:
    """Hold one document against each rule.

    Args:
        rules: The rules of the pipeline, in order.
        values: The document's signals; one that is null or was not measured is None or missing.
        signals: The declared signals; by default all of cleanfeed's.
    """
    declared = by_name() if signals is None else signals
    return [_explain(rule, values, declared) for rule in rules]


def number(value: float) -> str:
    """Return a number as people read it: whole numbers in full, shares to three digits."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _explain(rule: RuleSettings, values: Values, signals: Mapping[str, Signal]) -> RuleReading:
    limit = _read(rule, values)
    where = tuple(_read(bound, values) for bound in rule.where)
    evidence = tuple(_read(bound, values) for bound in rule.evidence)
    extreme = None
    if rule.extreme is not None:
        extreme = _read(Bound(signal=rule.signal, **{limit.side: rule.extreme}), values)
    outcome, words = _outcome(rule, limit, extreme, where, evidence, signals)
    return RuleReading(
        rule.name, rule.action, limit, extreme, where, evidence, outcome, words, rule.because, rule.source
    )


def _read(bound: Bound | RuleSettings, values: Values) -> BoundReading:
    value = values.get(bound.signal)
    value = None if value is None or value != value else float(value)
    if bound.above is not None:
        return BoundReading(
            bound.signal, value, "above", bound.above, value is not None and value > bound.above
        )
    assert bound.below is not None  # the settings refuse a bound without a side
    return BoundReading(bound.signal, value, "below", bound.below, value is not None and value < bound.below)


def _outcome(
    rule: RuleSettings,
    limit: BoundReading,
    extreme: BoundReading | None,
    where: tuple[BoundReading, ...],
    evidence: tuple[BoundReading, ...],
    signals: Mapping[str, Signal],
) -> tuple[Outcome, str]:
    if limit.value is None:
        signal = signals[limit.signal]
        why = "there is no tokenizer" if signal.needs_tokenizer and not signal.null_when else signal.null_when
        return "silent", f"does not speak: {limit.found}" + (f" ({why.rstrip('.')})" if why else "")
    if not limit.crossed:
        return "passes", f"passes: {limit.found}, not {limit.side} {number(limit.limit)}"
    unmet = next((bound for bound in where if not bound.crossed), None)
    if unmet is not None:
        return "silent", f"does not speak: {unmet.found}, and the rule is for {unmet.wanted}"
    beyond = f"{limit.found}, {limit.side} {number(limit.limit)}"
    if rule.action == "flag":
        return "flags", f"flags: {beyond}"
    proofs = [bound for bound in (extreme, *evidence) if bound is not None]
    if not proofs:
        return "rejects", f"rejects: {beyond}"
    if extreme is not None and extreme.crossed:
        return "rejects", f"rejects: {extreme.found}, beyond the extreme of {number(extreme.limit)}"
    crossed = [f"{bound.found}, {bound.side} {number(bound.limit)}" for bound in proofs if bound.crossed]
    if crossed:
        return "rejects", f"rejects: {beyond}; and {'; and '.join(crossed)}"
    lacking = " or ".join(
        f"{bound.wanted} ({'null' if bound.value is None else number(bound.value)})" for bound in proofs
    )
    return "flags", f"flags: {beyond}; to reject it would also need {lacking}"
