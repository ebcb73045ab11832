"""Columns of signals go in, a verdict and every reason for each document come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from cleanfeed.errors import MisuseError
from cleanfeed.rules.check import Problem, check_rules
from cleanfeed.settings import Bound, RuleSettings
from cleanfeed.signals.registry import by_name
from cleanfeed.signals.signal import Signal

KEEP, FLAG, REJECT = 0, 1, 2
VERDICTS = ("keep", "flag", "reject")
"""The word for each verdict number."""
COUNTS = ("read", "kept", "flagged", "rejected", "duplicate", "excluded", "unreadable")
"""What is counted of each input; ``flagged`` is a part of ``kept``."""

REASON_TYPE = pa.struct(
    [
        pa.field("rule", pa.string(), nullable=False),
        pa.field("signal", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("limit", pa.float64(), nullable=False),
    ]
)
"""One reason: the rule, the signal it looked at, the value found and the limit it lies beyond."""

Columns = Mapping[str, NDArray[np.float64]]
Mask = NDArray[np.bool_]


class Verdicts(Struct, frozen=True):
    """What the rules say about some documents."""

    verdict: NDArray[np.uint8]
    """``KEEP``, ``FLAG`` or ``REJECT`` for each document."""
    reasons: pa.ListArray
    """All reasons of each document, rejecting ones first, then in the order of the rules."""
    flags: pa.ListArray
    """Names of the rules that flagged each document, in the order of the rules."""
    fired: dict[str, Mask]
    """Which documents each rule rejects; rules that reject none are left out."""
    flagged: dict[str, Mask]
    """Which documents each rule flags; rules that flag none are left out."""


class _Limit(Struct, frozen=True):
    """A bound in the form it is evaluated: one comparison and the names for the reason."""

    signal: str
    limit: float
    above: bool

    @classmethod
    def of(cls, bound: Bound | RuleSettings) -> _Limit:
        above = bound.above is not None
        limit = bound.above if bound.above is not None else bound.below
        assert limit is not None  # the settings refuse a bound without a side
        return cls(bound.signal, limit, above)

    def crossed(self, columns: Columns) -> Mask:
        # A comparison with NaN, the null of a column, is false: null never speaks.
        values = columns[self.signal]
        return values > self.limit if self.above else values < self.limit


class _Rule(Struct, frozen=True):
    name: str
    limit: _Limit
    extreme: _Limit | None
    evidence: tuple[_Limit, ...]
    where: tuple[_Limit, ...]
    rejects: bool
    needs_proof: bool

    @classmethod
    def of(cls, rule: RuleSettings, usable: Mapping[str, Signal]) -> _Rule:
        limit = _Limit.of(rule)
        return cls(
            name=rule.name,
            limit=limit,
            extreme=None if rule.extreme is None else _Limit(rule.signal, rule.extreme, limit.above),
            evidence=tuple(_Limit.of(bound) for bound in rule.evidence if bound.signal in usable),
            where=tuple(_Limit.of(bound) for bound in rule.where),
            rejects=rule.action == "reject",
            needs_proof=bool(rule.evidence) or rule.extreme is not None,
        )


class _Reasons:
    """Collects reasons column-wise, one array for each rule that fired."""

    def __init__(self, rules: Sequence[str], signals: Sequence[str]) -> None:
        self._rule_code = {name: code for code, name in enumerate(rules)}
        self._signal_code = {name: code for code, name in enumerate(signals)}
        self._parts: list[tuple[NDArray[np.int64], int, int, NDArray[np.float64], float, bool]] = []

    def add(self, rule: str, limit: _Limit, hit: Mask, columns: Columns, rejecting: bool) -> None:
        docs = np.flatnonzero(hit)
        if docs.size:
            values = columns[limit.signal][docs]
            codes = self._rule_code[rule], self._signal_code[limit.signal]
            self._parts.append((docs, *codes, values, limit.limit, rejecting))

    def lists(self, n: int) -> tuple[pa.ListArray, pa.ListArray]:
        """Return the reasons and the flags of ``n`` documents."""
        sizes = [part[0].size for part in self._parts]
        docs = np.concatenate([part[0] for part in self._parts] or [np.zeros(0, np.int64)])
        values = np.concatenate([part[3] for part in self._parts] or [np.zeros(0)])
        rules, signals, limits, rejecting = (
            np.repeat(np.array([part[column] for part in self._parts], dtype), sizes)
            for column, dtype in ((1, np.int32), (2, np.int32), (4, np.float64), (5, np.bool_))
        )
        order = np.lexsort((~rejecting, docs))
        items = pa.StructArray.from_arrays(
            [
                _words(self._rule_code, rules[order]),
                _words(self._signal_code, signals[order]),
                pa.array(values[order]),
                pa.array(limits[order]),
            ],
            fields=list(REASON_TYPE),
        )
        # A flag has one reason only, so its reasons name each flagging rule once.
        flagging = np.flatnonzero(~rejecting[order])
        flags = _words(self._rule_code, rules[order][flagging])
        return (
            pa.ListArray.from_arrays(_offsets(docs, n), items),
            pa.ListArray.from_arrays(_offsets(docs[order][flagging], n), flags),
        )


class RuleSet:
    """Rules made ready to judge many documents at once."""

    def __init__(
        self,
        rules: Iterable[RuleSettings],
        *,
        tokenizer: bool = False,
        signals: Mapping[str, Signal] | None = None,
        where: str = "pipeline",
    ) -> None:
        """Check and compile rules.

        Args:
            rules: The rules of a pipeline.
            tokenizer: Whether the signals that need a tokenizer are measured. Where they are not, rules on
                them do not speak.
            signals: The declared signals; by default all of cleanfeed's.
            where: What to call the pipeline in an error.

        Raises:
            MisuseError: A rule names an unknown signal or has a limit that cannot be meant, or every rule
                needs a tokenizer and there is none.
        """
        self._settings = tuple(rules)
        self._signals = by_name() if signals is None else signals
        self._where = where
        problem = check_rules(self._settings, self._signals)
        if problem is not None:
            raise MisuseError(problem.line(self._place(problem)))
        usable = {
            name: signal for name, signal in self._signals.items() if tokenizer or not signal.needs_tokenizer
        }
        speaking = [rule for rule in self._settings if _first_missing(rule, usable) is None]
        if self._settings and not speaking:
            first = self._settings[0]
            missing = _first_missing(first, usable)
            expected = f"a tokenizer to measure '{missing}' with"
            todo = "Give one with --tokenizer, or take another pipeline."
            problem = Problem(("rules", 0), "every rule needs a tokenizer", "none", expected, todo)
            raise MisuseError(problem.line(self._place(problem)))
        self._rules = tuple(_Rule.of(rule, usable) for rule in speaking)

    @property
    def signals(self) -> tuple[str, ...]:
        """Names of the signals the rules look at, each once, in order of use."""
        limits = (limit.signal for rule in self._rules for limit in (rule.limit, *rule.evidence, *rule.where))
        return tuple(dict.fromkeys(limits))

    def without_tokens(self) -> RuleSet:
        """Return the rules that can be judged on the text alone, before it is tokenised.

        What they reject the full set rejects as well. Empty where every rule needs tokens.
        """
        usable = {name: signal for name, signal in self._signals.items() if not signal.needs_tokenizer}
        rules = [rule for rule in self._settings if _first_missing(rule, usable) is None]
        return RuleSet(rules, tokenizer=False, signals=self._signals, where=self._where)

    def evaluate(self, columns: Columns) -> Verdicts:
        """Judge documents by their signals.

        Args:
            columns: One array for each of :attr:`signals` (others are passed over), all of one length; NaN
                where a signal is null.

        Raises:
            KeyError: A signal was not measured. Rules never pass silently over a missing column.
        """
        n = len(next(iter(columns.values()))) if columns else 0
        verdict = np.zeros(n, np.uint8)
        reasons = _Reasons([rule.name for rule in self._rules], self.signals)
        fired: dict[str, Mask] = {}
        flagged: dict[str, Mask] = {}
        for rule in self._rules:
            hit = rule.limit.crossed(columns)
            for bound in rule.where:
                hit = hit & bound.crossed(columns)
            if not hit.any():
                continue
            rejecting = _judge(rule, hit, columns, reasons)
            verdict[hit] = np.maximum(verdict[hit], FLAG)
            verdict[rejecting] = REJECT
            flagging = hit & ~rejecting
            if rejecting.any():
                fired[rule.name] = rejecting
            if flagging.any():
                flagged[rule.name] = flagging
        listed, flags = reasons.lists(n)
        return Verdicts(verdict, listed, flags, fired, flagged)

    def _place(self, problem: Problem) -> str:
        index = problem.path[1]
        name = self._settings[index].name if isinstance(index, int) else str(index)
        return ".".join([self._where + ": rules", name, *map(str, problem.path[2:])])


def _judge(rule: _Rule, hit: Mask, columns: Columns, reasons: _Reasons) -> Mask:
    """Write the reasons of one rule for the documents beyond its limit; return which of them it rejects."""
    if not rule.rejects:
        reasons.add(rule.name, rule.limit, hit, columns, rejecting=False)
        return np.zeros_like(hit)
    if not rule.needs_proof:
        reasons.add(rule.name, rule.limit, hit, columns, rejecting=True)
        return hit
    nothing = np.zeros_like(hit)
    extreme = nothing if rule.extreme is None else hit & rule.extreme.crossed(columns)
    proofs = [(bound, hit & bound.crossed(columns)) for bound in rule.evidence]
    proven: Mask = np.logical_or.reduce([extreme, *(mask for _, mask in proofs)])
    # The limit recorded is the one that decided: the extreme where the value lies beyond it.
    if rule.extreme is not None:
        reasons.add(rule.name, rule.extreme, extreme, columns, rejecting=True)
    reasons.add(rule.name, rule.limit, proven & ~extreme, columns, rejecting=True)
    for bound, mask in proofs:
        reasons.add(rule.name, bound, mask, columns, rejecting=True)
    reasons.add(rule.name, rule.limit, hit & ~proven, columns, rejecting=False)
    return proven


def _first_missing(rule: RuleSettings, usable: Mapping[str, Signal]) -> str | None:
    """Return the first signal a rule cannot do without and that is not measured."""
    needed = (rule.signal, *(bound.signal for bound in rule.where))
    return next((name for name in needed if name not in usable), None)


def _words(codes: Mapping[str, int], taken: NDArray[np.int32]) -> pa.StringArray:
    return pa.array(list(codes), pa.string()).take(pa.array(taken))


def _offsets(docs: NDArray[np.int64], n: int) -> pa.Int32Array:
    return pa.array(np.concatenate([[0], np.cumsum(np.bincount(docs, minlength=n))]).astype(np.int32))
