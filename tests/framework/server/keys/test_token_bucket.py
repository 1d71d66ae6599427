"""A bucket never gives more than it may, and a wait that it names is enough."""

from hypothesis import given
from hypothesis import strategies as st

from quire.server.keys.token_bucket import TokenBucket

PAUSES = st.floats(0, 30)
AMOUNTS = st.integers(1, 50)
CAPACITIES = st.integers(1, 100)
FILL_S = st.sampled_from([1.0, 7.0, 60.0])


@given(CAPACITIES, FILL_S, st.lists(st.tuples(PAUSES, AMOUNTS), max_size=40))
def test_no_window_gives_more_than_the_capacity_and_what_came_back(capacity, fill_s, steps):
    bucket, now_s = TokenBucket(capacity, fill_s, 0.0), 0.0
    taken = []
    for pause_s, amount in steps:
        now_s += pause_s
        amount = min(amount, capacity)
        if bucket.take(amount, now_s) == 0:
            taken.append((now_s, amount))
    for first, (start_s, _) in enumerate(taken):
        for last in range(first, len(taken)):
            window_s = taken[last][0] - start_s
            total = sum(amount for _, amount in taken[first : last + 1])
            assert total <= capacity + window_s * capacity / fill_s + 1e-6 * capacity * len(taken)


@given(CAPACITIES, FILL_S, st.lists(st.tuples(PAUSES, AMOUNTS), max_size=20), AMOUNTS)
def test_after_the_wait_that_it_names_the_units_are_there(capacity, fill_s, steps, amount):
    bucket, now_s = TokenBucket(capacity, fill_s, 0.0), 0.0
    for pause_s, charged in steps:
        now_s += pause_s
        bucket.charge(charged, now_s)
    wait_s = bucket.wait_s(amount, now_s)
    if wait_s > 1e-3:
        assert bucket.take(amount, now_s + wait_s * 0.99) > 0
    assert bucket.take(amount, now_s + wait_s) == 0


@given(CAPACITIES, st.lists(st.tuples(PAUSES, st.integers(-50, 50)), max_size=40))
def test_the_level_is_never_above_the_capacity(capacity, steps):
    bucket, now_s = TokenBucket(capacity, 60.0, 0.0), 0.0
    for pause_s, amount in steps:
        now_s += pause_s
        bucket.charge(amount, now_s)
        assert bucket.level(now_s) <= capacity


def test_a_refusal_takes_nothing():
    bucket = TokenBucket(10, 10.0, 0.0)
    assert bucket.take(8, 0.0) == 0
    assert bucket.take(5, 0.0) == 3.0
    assert bucket.level(0.0) == 2
    assert bucket.take(2, 0.0) == 0


def test_more_than_the_capacity_needs_a_full_bucket_and_leaves_a_debt():
    bucket = TokenBucket(10, 10.0, 0.0)
    assert bucket.take(1, 0.0) == 0
    assert bucket.take(25, 0.0) == 1.0
    assert bucket.take(25, 1.0) == 0
    assert bucket.level(1.0) == -15
    assert bucket.wait_s(1, 1.0) == 16.0


def test_a_clock_that_stands_still_gives_nothing_back():
    bucket = TokenBucket(1, 60.0, 5.0)
    assert bucket.take(1, 5.0) == 0
    assert bucket.take(1, 5.0) == 60.0
    assert bucket.take(1, 4.0) == 60.0
    assert bucket.take(1, 65.0) == 0
