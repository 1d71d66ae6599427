"""Blocks that are kept by the batches of the feed are those of the caches, or a gap is noticed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import CachedBlocks
from quire.messages import BlocksRemoved, BlocksStored, CacheCleared, KVEventBatch


def stored(*names, group=0):
    return BlocksStored(
        group=group, hashes=list(names), parent=b"", position=0, token_ids=[], block_size=4
    )


def batch(number, *events, incarnation="a", replica=0, is_snapshot=False):
    return KVEventBatch(replica, incarnation, number, list(events), is_snapshot)


def test_blocks_are_stored_removed_and_cleared_in_order():
    blocks = CachedBlocks()
    assert blocks.apply(batch(1, stored(b"x", b"y"), stored(b"x", group=1)))
    assert blocks.apply(batch(2, BlocksRemoved(0, [b"x"]), stored(b"z")))
    assert blocks.of() == {(0, b"y"), (1, b"x"), (0, b"z")}
    assert blocks.apply(batch(3, CacheCleared(), stored(b"w")))
    assert blocks.of() == {(0, b"w")}


def test_after_a_gap_nothing_is_applied_until_a_snapshot():
    blocks = CachedBlocks()
    blocks.apply(batch(1, stored(b"x")))
    assert not blocks.apply(batch(3, stored(b"z")))
    assert not blocks.apply(batch(4, CacheCleared()))
    assert blocks.of() == {(0, b"x")}
    assert blocks.apply(batch(4, stored(b"y"), is_snapshot=True))
    assert blocks.of() == {(0, b"y")}
    assert blocks.apply(batch(5, stored(b"v")))
    assert blocks.of() == {(0, b"y"), (0, b"v")}


def test_a_reader_that_comes_late_needs_a_snapshot_first():
    blocks = CachedBlocks()
    assert not blocks.apply(batch(2, stored(b"x")))
    assert blocks.apply(batch(0, is_snapshot=True, incarnation="b"))
    assert blocks.apply(batch(1, stored(b"y"), incarnation="b"))
    assert blocks.of() == {(0, b"y")}


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_what_is_known_already_changes_nothing(is_snapshot):
    blocks = CachedBlocks()
    blocks.apply(batch(1, stored(b"x")))
    blocks.apply(batch(2, BlocksRemoved(0, [b"x"])))
    assert blocks.apply(batch(1, stored(b"x"), is_snapshot=is_snapshot))
    assert blocks.of() == set()


def test_an_engine_that_starts_again_has_an_empty_cache_and_counts_anew():
    blocks = CachedBlocks()
    blocks.apply(batch(1, stored(b"x")))
    blocks.apply(batch(2, stored(b"y")))
    assert not blocks.apply(batch(3, stored(b"z"), incarnation="b"))
    assert blocks.apply(batch(1, stored(b"w"), incarnation="b"))
    assert blocks.of() == {(0, b"w")}


def test_replicas_are_kept_apart():
    blocks = CachedBlocks()
    for replica, name in ((0, b"x"), (1, b"y")):
        assert blocks.apply(batch(1, stored(name), replica=replica, incarnation=f"{replica}"))
    assert (blocks.of(0), blocks.of(1)) == ({(0, b"x")}, {(0, b"y")})


NAMES = st.sampled_from([b"a", b"b", b"c", b"d"])
CHANGES = st.lists(st.tuples(st.sampled_from(["store", "remove", "clear"]), NAMES), max_size=5)


@given(st.lists(st.tuples(CHANGES, st.booleans(), st.booleans()), max_size=20))
def test_whatever_is_lost_the_blocks_are_right_after_each_batch_that_was_taken(steps):
    truth, reader = set(), CachedBlocks()
    for number, (changes, is_lost, asks) in enumerate(steps, 1):
        events = []
        for kind, name in changes:
            if kind == "store":
                truth.add((0, name))
                events.append(stored(name))
            elif kind == "remove":
                truth.discard((0, name))
                events.append(BlocksRemoved(0, [name]))
            else:
                truth.clear()
                events.append(CacheCleared())
        sent = msgspec.msgpack.encode(batch(number, *events))
        received = msgspec.msgpack.decode(sent, type=KVEventBatch)
        is_known = not is_lost and reader.apply(received)
        if not is_known and asks:
            names = [name for _, name in truth]
            is_known = reader.apply(batch(number, stored(*names), is_snapshot=True))
            assert is_known
        if is_known:
            assert reader.of() == truth
