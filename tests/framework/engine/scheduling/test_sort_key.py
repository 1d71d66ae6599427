"""Any two accepted keys have an order, whatever a policy makes them of."""

import random
from enum import IntEnum
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.engine.scheduling.sort_key import MAX_DEPTH, sort_key

NUMBERS = st.integers() | st.floats(allow_nan=False) | st.booleans()
PLAIN = st.none() | NUMBERS | st.text(max_size=3) | st.binary(max_size=3)
KEYS = st.recursive(PLAIN, lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=6)


class Level(IntEnum):
    HIGH = 0
    LOW = 5


class Backwards(int):
    def __lt__(self, other):
        raise ValueError("not today")


@settings(max_examples=40)  # of up to eight keys each
@given(st.lists(KEYS, max_size=8))
def test_keys_of_all_kinds_can_be_sorted(keys):
    placed = sorted(sort_key(key) for key in keys)
    for one, other in pairwise(placed):
        assert one <= other
        assert not other < one


@given(NUMBERS, NUMBERS)
def test_numbers_keep_their_order(one, other):
    assert (sort_key(one) < sort_key(other)) == (one < other)


@given(st.tuples(st.integers(), st.text()), st.tuples(st.integers(), st.text()))
def test_tuples_of_one_shape_keep_their_order(one, other):
    assert (sort_key(one) < sort_key(other)) == (one < other)


def test_nothing_goes_before_numbers_and_those_before_text():
    keys = [None, -1.5, 2, float("inf"), "", "a", b"", (), (None,), (1, None), (1, 2), (1, "a")]
    shuffled = random.Random(1).sample(keys, len(keys))
    assert sorted(shuffled, key=sort_key) == keys


def test_what_is_a_number_in_other_clothes_compares_as_the_number():
    assert sort_key(Level.HIGH) < sort_key(1) < sort_key(Level.LOW)
    assert sort_key(Backwards(1)) < sort_key(Backwards(2))
    assert sort_key([1, 2]) == sort_key((1, 2))


@pytest.mark.parametrize("key", [object(), {1}, (1, ("a", object())), 1j, range(3)])
def test_what_is_no_plain_data_is_refused(key):
    with pytest.raises(TypeError, match=r"a key is None, a number, text, bytes, or a tuple"):
        sort_key(key)


@pytest.mark.parametrize("key", [float("nan"), (1, float("nan"))])
def test_what_is_no_number_is_refused(key):
    with pytest.raises(ValueError, match="NaN"):
        sort_key(key)


def test_tuples_in_tuples_have_an_end():
    key = 1
    for _ in range(MAX_DEPTH):
        key = (key,)
    assert sort_key(key)
    with pytest.raises(ValueError, match="at most 8 levels"):
        sort_key((key,))
