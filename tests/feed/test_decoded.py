"""Values are made once, the least recently used go first, and what is made ahead never changes what is given out."""

import threading
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.feed.decoded import Decoded, Kept


class Number(Kept):
    """A value of some bytes that knows its key."""

    def __init__(self, key: int, nbytes: int = 10) -> None:
        super().__init__(nbytes)
        self.key = key


def keys_of(found: list[Number]) -> list[int]:
    return [value.key for value in found]


def test_each_value_is_made_once_and_given_in_the_order_asked_for():
    made: list[int] = []

    def make(key: int) -> Number:
        made.append(key)
        return Number(key)

    decoded: Decoded[int, Number] = Decoded(1000, make)
    assert keys_of(decoded.get([3, 1, 3, 2])) == [3, 1, 3, 2]
    assert keys_of(decoded.get([2, 4, 1])) == [2, 4, 1]
    assert made == [3, 1, 2, 4]
    assert (decoded.made, decoded.nbytes) == (4, 40)


@given(
    st.lists(st.integers(0, 9), max_size=60),
    st.integers(1, 8),
    st.lists(st.integers(1, 3), min_size=10, max_size=10),
)
def test_the_least_recently_used_is_dropped_first(asked: list[int], room: int, sizes: list[int]):
    decoded: Decoded[int, Number] = Decoded(room, lambda key: Number(key, sizes[key]))
    model: OrderedDict[int, int] = OrderedDict()
    for key in asked:
        model[key] = model.pop(key, sizes[key])
        while sum(model.values()) > room and len(model) > 1:
            model.popitem(last=False)
        assert keys_of(decoded.get([key])) == [key]
        assert decoded._values.keys() == model.keys()
        assert decoded.nbytes == sum(model.values())


def test_an_error_is_raised_to_whoever_asks_and_the_next_try_makes_the_value_anew():
    failures = [ValueError("no")]

    def make(key: int) -> Number:
        if failures:
            raise failures.pop()
        return Number(key)

    decoded: Decoded[int, Number] = Decoded(1000, make)
    with pytest.raises(ValueError, match="no"):
        decoded.get([1])
    assert keys_of(decoded.get([1])) == [1]


def test_an_error_made_ahead_is_met_only_by_who_asks_for_that_value():
    tried = threading.Event()

    def fail(key: int) -> Number:
        tried.set()
        raise ValueError(f"{key} ahead")

    def fail_here(key: int) -> Number:
        if key == 5:
            raise ValueError("5 here")
        return Number(key)

    decoded: Decoded[int, Number] = Decoded(1000, fail_here, fail)
    decoded.expect([5])
    assert keys_of(decoded.get([1])) == [1]
    assert tried.wait(30)
    assert keys_of(decoded.get([2])) == [2]
    with pytest.raises(ValueError, match="5 here"):
        decoded.get([5])


def test_what_is_made_ahead_takes_no_more_than_half_of_the_room_until_it_is_asked_for():
    ahead: list[int] = []
    enough = threading.Semaphore(0)

    def make_ahead(key: int) -> Number:
        ahead.append(key)
        enough.release()
        return Number(key)

    decoded: Decoded[int, Number] = Decoded(80, Number, make_ahead)
    decoded.expect([1, 2, 3, 4, 5, 6, 7])
    decoded.get([0])
    for _ in range(4):
        assert enough.acquire(timeout=30)
    wait_idle(decoded)
    assert ahead == [1, 2, 3, 4]
    assert decoded._fresh_bytes == 40
    assert keys_of(decoded.get([1, 2])) == [1, 2]
    for _ in range(2):
        assert enough.acquire(timeout=30)
    wait_idle(decoded)
    assert ahead == [1, 2, 3, 4, 5, 6]
    assert decoded.made == 7


def wait_idle(decoded: Decoded[int, Number]) -> None:
    """Return when the thread has nothing more to do: it has one worker, so what is queued comes after it."""
    assert decoded._thread is not None
    decoded._thread.submit(lambda: None).result(timeout=30)


def test_who_asks_for_what_is_being_made_waits_for_it():
    begun, go_on = threading.Event(), threading.Event()

    def make_ahead(key: int) -> Number:
        begun.set()
        assert go_on.wait(30)
        return Number(key)

    decoded: Decoded[int, Number] = Decoded(1000, Number, make_ahead)
    decoded.expect([7])
    decoded.get([0])
    assert begun.wait(30)
    found: list[Number] = []
    asker = threading.Thread(target=lambda: found.extend(decoded.get([7])))
    asker.start()
    go_on.set()
    asker.join(30)
    assert keys_of(found) == [7]
    assert decoded.made == 2
    assert decoded._fresh_bytes == 0


def test_nothing_is_made_ahead_where_values_are_made_quickly():
    decoded: Decoded[int, Number] = Decoded(1000, Number, Number, quick=3600.0)
    decoded.expect([1, 2])
    decoded.get([0])
    assert (decoded.made, decoded._thread) == (1, None)
    assert keys_of(decoded.get([1, 2])) == [1, 2]


def test_nothing_is_made_ahead_where_that_is_turned_off():
    decoded: Decoded[int, Number] = Decoded(1000, Number)
    decoded.expect([1, 2])
    decoded.get([0])
    assert (decoded.made, decoded._thread) == (1, None)
