"""The replicas' feeds are one, which says whose each batch is, and what died."""

from quire import CachedBlocks
from quire.launch.replicas.replica_kv_feed import ReplicaKVFeed
from quire.messages import BlocksStored, KVEventBatch


def stored(number, *names, incarnation="a", is_snapshot=False):
    event = BlocksStored(
        group=0, hashes=list(names), parent=b"", position=0, token_ids=[], block_size=4
    )
    return KVEventBatch(0, incarnation, number, [event], is_snapshot)


def test_batches_have_the_index_of_their_replica():
    feed = ReplicaKVFeed()
    assert not feed
    feed.take(0, [stored(1, b"x")])
    feed.take(1, [stored(1, b"y", incarnation="b")])
    assert feed
    assert [batch.replica for batch in feed.pop()] == [0, 1]
    assert not feed


def test_a_death_clears_the_cache_of_that_replica_and_of_no_other():
    feed, blocks = ReplicaKVFeed(), CachedBlocks()
    feed.take(0, [stored(1, b"x")])
    feed.take(1, [stored(1, b"y", incarnation="b")])
    feed.take_death(0)
    feed.take_death(2)  # which had nothing
    assert all(blocks.apply(batch) for batch in feed.pop())
    assert (blocks.of(0), blocks.of(1), blocks.of(2)) == (set(), {(0, b"y")}, set())
    feed.take(0, [stored(1, b"z", incarnation="c")])
    assert all(blocks.apply(batch) for batch in feed.pop())
    assert blocks.of(0) == {(0, b"z")}


def test_a_snapshot_has_all_replicas_and_none_of_what_is_down():
    feed, blocks = ReplicaKVFeed(), CachedBlocks()
    feed.take(0, [stored(1, b"x")])
    for batch in feed.pop():
        blocks.apply(batch)
    feed.take_death(0)
    feed.pop()  # lost
    snapshots = feed.join_snapshots({1: [stored(4, b"y", incarnation="b", is_snapshot=True)]})
    assert [snapshot.replica for snapshot in snapshots] == [0, 1]
    assert all(blocks.apply(snapshot) for snapshot in snapshots)
    assert (blocks.of(0), blocks.of(1)) == (set(), {(0, b"y")})


def test_a_snapshot_does_not_say_that_a_replica_that_was_not_asked_is_empty():
    """It came up while another one replied, perhaps after a death, and has reported since."""
    feed, blocks = ReplicaKVFeed(), CachedBlocks()
    feed.take(1, [stored(1, b"old")])
    feed.take_death(1)
    feed.pop()
    feed.take(1, [stored(1, b"y", incarnation="b")])
    for snapshot in feed.join_snapshots({0: [stored(3, b"x", is_snapshot=True)]}):
        blocks.apply(snapshot)
    assert all(blocks.apply(batch) for batch in feed.pop())
    assert (blocks.of(0), blocks.of(1)) == ({(0, b"x")}, {(0, b"y")})


def test_without_reports_there_is_no_snapshot():
    assert ReplicaKVFeed().join_snapshots({0: [], 1: []}) == []
