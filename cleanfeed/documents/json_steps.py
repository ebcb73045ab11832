"""Nothing goes in; the table comes out by which compiled code walks through the JSON of a record, byte by byte.

For each state and byte it holds the next state. States below :data:`WALKED` are not walked on from: something is to be
done there. Strings are not in the table, nor what is open around a value, which decides how to go on after it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

REFUSED, ENDED, CLOSED, KEY, STRING, SCALAR, OPENED_LIST, OPENED_OBJECT = range(8)
"""No JSON, or some that is not believed; the byte before was the last of a scalar; the byte was the last of a list or
an object; it is the first of a key, of a string, of a number or another word, of a list, or of an object."""

WALKED = 8

AFTER_KEY, VALUE, FIRST_ITEM, FIRST_KEY, AFTER_ITEM, AFTER_MEMBER, NEXT_KEY, START = range(WALKED, WALKED + 8)
"""Where a colon is next, a value, an item of a list or its end, a key of an object or its end, a comma or the end of a
list, a comma or the end of an object, a key, and the first byte of a scalar."""

_BLANKS, _DIGITS = b" \t\r", b"0123456789"


def make_steps() -> npt.NDArray[np.uint8]:
    """Return the next state for each state, times 256, and byte."""
    steps: list[dict[int, int]] = [{} for _ in range(START + 1)]
    for here in range(WALKED, START):
        steps[here] = dict.fromkeys(_BLANKS, here)
    steps[AFTER_KEY][ord(":")] = VALUE
    for here in (VALUE, FIRST_ITEM):
        steps[here] |= dict.fromkeys(b"-0123456789tfn", SCALAR)
        steps[here] |= {ord('"'): STRING, ord("["): OPENED_LIST, ord("{"): OPENED_OBJECT}
    steps[FIRST_ITEM][ord("]")] = steps[AFTER_ITEM][ord("]")] = CLOSED
    steps[FIRST_KEY][ord("}")] = steps[AFTER_MEMBER][ord("}")] = CLOSED
    steps[FIRST_KEY][ord('"')] = steps[NEXT_KEY][ord('"')] = KEY
    steps[AFTER_ITEM][ord(",")] = VALUE
    steps[AFTER_MEMBER][ord(",")] = NEXT_KEY
    for word in (b"true", b"false", b"null"):
        here = START
        for place, letter in enumerate(word):
            steps[here][letter] = _new(steps, last=place == len(word) - 1)
            here = steps[here][letter]
    _add_numbers(steps)
    return np.array([[found.get(byte, REFUSED) for byte in range(256)] for found in steps], np.uint8).ravel()


def _new(steps: list[dict[int, int]], *, last: bool) -> int:
    """Add a state inside a scalar, one that may be its last or not, and return it."""
    steps.append(dict.fromkeys(_BLANKS + b",]}", ENDED) if last else {})
    return len(steps) - 1


def _add_numbers(steps: list[dict[int, int]]) -> None:
    """Add the numbers whose exponent has at most two digits."""
    minus, point, power, sign = (_new(steps, last=False) for _ in range(4))
    zero, whole, broken, one, two = (_new(steps, last=True) for _ in range(5))
    for here in (START, minus):
        steps[here] |= dict.fromkeys(_DIGITS[1:], whole) | {ord("0"): zero}
    after = {whole: whole, point: broken, broken: broken, power: one, sign: one, one: two}
    for here, digits in after.items():
        steps[here] |= dict.fromkeys(_DIGITS, digits)
    for here in (zero, whole, broken):
        steps[here] |= dict.fromkeys(b"eE", power)
    steps[zero][ord(".")] = steps[whole][ord(".")] = point
    steps[START][ord("-")] = minus
    steps[power] |= dict.fromkeys(b"+-", sign)
