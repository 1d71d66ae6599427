"""Which process accepts the next connection: one that has not more than another."""

from quire.server.group.connection_counts import ConnectionCounts


def test_a_process_gives_way_to_one_with_fewer_connections():
    counts = ConnectionCounts.new(2)
    other = ConnectionCounts(counts.fd, 2)
    assert not counts.gives_way(1, 5)
    assert not other.gives_way(2, 4)
    assert counts.gives_way(1, 5)
    assert not counts.gives_way(1, 4)


def test_nobody_gives_way_to_a_process_that_is_gone():
    counts = ConnectionCounts.new(3)
    assert not counts.gives_way(1, 9)
    assert not counts.gives_way(2, 3)
    assert counts.gives_way(1, 9)
    counts.clear(2)
    assert not counts.gives_way(1, 9)
