"""Connections that have had a response give way before those that have sent nothing."""

from hypothesis import given
from hypothesis import strategies as st

from quire.server.http.idle_connections import IdleConnections


def test_the_oldest_idle_one_goes_first_then_the_oldest_fresh_one():
    idle = IdleConnections()
    for name in "abc":
        idle.add_fresh(name)
    idle.discard("b")
    idle.add("b")
    idle.add("d")
    assert [idle.pop() for _ in range(5)] == ["b", "d", "a", "c", None]


@given(st.lists(st.tuples(st.sampled_from(["fresh", "rest", "busy", "pop"]), st.integers(0, 5))))
def test_the_order_is_that_of_two_queues(events):
    idle, rested, fresh = IdleConnections(), [], []
    for kind, connection in events:
        if kind == "pop":
            queue = rested or fresh
            assert idle.pop() == (queue.pop(0) if queue else None)
            continue
        idle.discard(connection)
        for queue in (rested, fresh):
            if connection in queue:
                queue.remove(connection)
        if kind == "fresh":
            idle.add_fresh(connection)
            fresh.append(connection)
        elif kind == "rest":
            idle.add(connection)
            rested.append(connection)
