"""Rules or quality terms and the registry of signals go in, the first thing that cannot work comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from cleanfeed.errors import one_line
from cleanfeed.rules.names import did_you_mean
from cleanfeed.settings import Bound, QualitySettings, RuleSettings
from cleanfeed.signals.signal import Signal


class Problem(Struct, frozen=True):
    """A setting that has the right type and still cannot be meant."""

    path: tuple[str | int, ...]
    """Where it stands in the pipeline."""
    what: str
    got: str
    expected: str
    todo: str = ""

    def line(self, place: str) -> str:
        """Return the message of the error, with the place as the reader knows it."""
        return one_line(self.what, place, self.got, self.expected, self.todo)


def check_rules(rules: Sequence[RuleSettings], signals: Mapping[str, Signal]) -> Problem | None:
    """Return the first rule that names an unknown signal or has a limit its signal can never pass."""
    return next(_rule_problems(rules, signals), None)


def check_quality(quality: QualitySettings, signals: Mapping[str, Signal]) -> Problem | None:
    """Return the first term of the score that cannot work."""
    for index, ramp in enumerate(quality.score):
        path: tuple[str | int, ...] = ("quality", "score", index)
        if ramp.signal not in signals:
            return _unknown((*path, "signal"), ramp.signal, signals)
        if ramp.bad == ramp.good:
            return Problem(
                path, "a ramp without a slope", f"bad = good = {ramp.bad:g}", "two different values"
            )
        for side in ("bad", "good"):
            problem = _limit((*path, side), getattr(ramp, side), signals[ramp.signal])
            if problem is not None:
                return problem
    return None


def _rule_problems(rules: Sequence[RuleSettings], signals: Mapping[str, Signal]) -> Iterator[Problem]:
    for index, rule in enumerate(rules):
        path: tuple[str | int, ...] = ("rules", index)
        yield from _bound_problems(path, rule, signals)
        yield from _extreme_problems(path, rule, signals)
        for part in ("where", "evidence"):
            for number, bound in enumerate(getattr(rule, part)):
                yield from _bound_problems((*path, part, number), bound, signals)


def _bound_problems(
    path: tuple[str | int, ...], bound: Bound | RuleSettings, signals: Mapping[str, Signal]
) -> Iterator[Problem]:
    if bound.signal not in signals:
        yield _unknown((*path, "signal"), bound.signal, signals)
        return
    for side in ("above", "below"):
        limit = getattr(bound, side)
        if limit is not None:
            problem = _crossable((*path, side), side, limit, signals[bound.signal])
            if problem is not None:
                yield problem


def _extreme_problems(
    path: tuple[str | int, ...], rule: RuleSettings, signals: Mapping[str, Signal]
) -> Iterator[Problem]:
    if rule.action == "flag" and (rule.evidence or rule.extreme is not None):
        key = "evidence" if rule.evidence else "extreme"
        todo = f"Remove '{key}', or make the action reject."
        yield Problem((*path, key), "a rule that only flags needs no proof", f"'{key}'", "none", todo)
    if rule.extreme is None:
        return
    side, limit = ("above", rule.above) if rule.above is not None else ("below", rule.below)
    problem = _crossable((*path, "extreme"), side, rule.extreme, signals[rule.signal])
    if problem is not None:
        yield problem
    assert limit is not None  # the settings refuse a rule without a side
    if (rule.extreme <= limit) if side == "above" else (rule.extreme >= limit):
        expected = f"{'more' if side == 'above' else 'less'} than '{side}', which is {limit:g}"
        yield Problem((*path, "extreme"), "the extreme lies on the wrong side", f"{rule.extreme:g}", expected)


def _unknown(path: tuple[str | int, ...], name: str, signals: Mapping[str, Signal]) -> Problem:
    hint = did_you_mean(name, signals) or "The signals are listed in docs/signals.md."
    return Problem(path, "unknown signal", f"'{name}'", "the name of a signal", hint)


def _limit(path: tuple[str | int, ...], limit: float, signal: Signal) -> Problem | None:
    if signal.low <= limit <= signal.high:
        return None
    expected = f"{signal.low:g} to {signal.high:g}, the range of '{signal.name}'"
    return Problem(path, "a limit outside the signal's range", f"{limit:g}", expected)


def _crossable(path: tuple[str | int, ...], side: str, limit: float, signal: Signal) -> Problem | None:
    """Refuse a limit that no value of the signal can lie beyond: outside its range, or at its far end."""
    if side == "above" and limit == signal.high:
        expected = f"less than {signal.high:g}, the largest value of '{signal.name}'"
    elif side == "below" and limit == signal.low:
        expected = f"more than {signal.low:g}, the smallest value of '{signal.name}'"
    else:
        return _limit(path, limit, signal)
    todo = "To switch the rule off, remove it." if len(path) == 3 and path[-1] == side else ""
    return Problem(path, "a limit that its signal can never pass", f"{limit:g}", expected, todo)
