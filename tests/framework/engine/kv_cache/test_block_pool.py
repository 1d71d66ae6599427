import pytest

from quire.engine.kv_cache.block_pool import BlockPool


def kept_pool(num_blocks, *names):
    """A pool whose first blocks were used, cached and freed in this order."""
    pool = BlockPool(num_blocks)
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        pool.add_to_cache(block, 0, name)
    return pool, blocks


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(5)
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    assert (pool.num_usable, pool.num_free, pool.num_used) == (4, 0, 4)


def test_more_blocks_than_are_free_are_refused_and_nothing_changes():
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(IndexError, match="3 KV blocks are requested and 2 are free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_a_block_is_free_when_its_last_owner_lets_go():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.add_references(blocks)
    pool.free(blocks)
    assert pool.num_used == 2
    pool.free(blocks)
    assert (pool.num_used, pool.num_blank) == (0, 3)


def test_a_block_without_owner_cannot_be_freed():
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    pool.free([block])
    with pytest.raises(RuntimeError, match=f"KV block {block} is freed and has no owner"):
        pool.free([block])


def test_the_null_block_is_skipped_in_tables():
    pool = BlockPool(4)
    blocks = pool.allocate(1)
    pool.add_references([0, *blocks, 0])
    pool.free([0, *blocks])
    pool.free([*blocks, 0])
    assert pool.num_used == 0
    assert pool.references(0) == 0


def test_blank_blocks_go_before_cached_ones():
    pool, (kept, other) = kept_pool(4, b"a", b"b")
    pool.free([kept, other])
    assert (pool.num_blank, pool.num_cached) == (1, 2)
    assert not {kept, other} & set(pool.allocate(1))
    assert pool.num_evictions == 0


def test_the_block_that_was_used_last_long_ago_goes_first():
    pool, (a, b, c) = kept_pool(4, b"a", b"b", b"c")
    for block in (b, a, c):
        pool.free([block])
    pool.add_references([b])  # a hit: used again
    pool.free([b])
    assert list(pool._cached) == [a, c, b]
    assert pool.allocate(3) == [a, c, b]
    assert pool.num_evictions == 3


def test_of_one_table_the_end_goes_first():
    pool, table = kept_pool(4, b"a", b"b", b"c")
    pool.free(reversed(table))
    assert pool.allocate(1) == table[-1:]
    assert pool.find(0, b"a") == table[0]


def test_an_evicted_block_is_found_no_more():
    pool, (block,) = kept_pool(2, b"a")
    pool.free([block])
    assert pool.find(0, b"a") == block
    assert pool.allocate(1) == [block]
    assert pool.find(0, b"a") is None
    assert pool.content(block) is None


def test_a_used_block_is_never_evicted():
    pool, (a, b) = kept_pool(3, b"a", b"b")
    pool.free([b])
    assert pool.allocate(1) == [b]
    with pytest.raises(IndexError):
        pool.allocate(1)
    assert pool.find(0, b"a") == a


def test_the_first_block_of_a_content_is_the_one_found():
    pool, (first,) = kept_pool(4, b"a")
    (second,) = pool.allocate(1)
    pool.add_to_cache(second, 0, b"a")
    assert pool.find(0, b"a") == first
    pool.free([second])
    assert pool.num_blank == 3 - 1, "the second copy is worth nothing"


def test_each_group_has_its_own_contents():
    pool = BlockPool(4, num_groups=2)
    a, b = pool.allocate(2)
    pool.add_to_cache(a, 0, b"name")
    pool.add_to_cache(b, 1, b"name")
    assert (pool.find(0, b"name"), pool.find(1, b"name")) == (a, b)


def test_a_reset_forgets_contents_and_leaves_owners_alone():
    pool, (used, cached) = kept_pool(4, b"a", b"b")
    pool.free([cached])
    pool.clear_cache()
    assert (pool.find(0, b"a"), pool.find(0, b"b")) == (None, None)
    assert (pool.num_used, pool.num_cached, pool.num_blank) == (1, 0, 2)
    pool.free([used])
    assert pool.num_blank == 3


def test_reviving_cached_blocks_costs_free_ones():
    pool, (used, cached) = kept_pool(4, b"a", b"b")
    pool.free([cached])
    assert pool.num_unreferenced([0, used, cached]) == 1
    before = pool.num_free
    pool.add_references([used, cached])
    assert pool.num_free == before - 1


def test_a_block_has_one_content():
    pool, (block,) = kept_pool(4, b"a")
    pool.add_to_cache(block, 0, b"b")
    assert (pool.find(0, b"a"), pool.find(0, b"b")) == (block, None)
    pool.free([block])
    pool.allocate(3)
    assert pool.find(0, b"a") is None


def test_all_blocks_can_be_had_at_once():
    pool = BlockPool(4)
    assert len(pool.allocate(3)) == 3
    assert pool.allocate(0) == []


def test_a_taken_block_has_one_owner_whatever_it_was_before():
    pool, (block,) = kept_pool(2, b"a")
    pool.add_references([block])
    pool.free([block])
    pool.free([block])
    assert pool.allocate(1) == [block]
    assert pool.references(block) == 1


def test_after_a_reset_a_content_is_kept_anew():
    pool, (block,) = kept_pool(4, b"a")
    pool.clear_cache()
    assert pool.content(block) is None
    pool.add_to_cache(block, 0, b"a")
    assert pool.find(0, b"a") == block
    pool.free([block])
    assert pool.num_cached == 1
    assert sorted(pool.allocate(3)) == [1, 2, 3]


def test_after_a_reset_cached_blocks_are_blank_once():
    pool, blocks = kept_pool(4, b"a", b"b")
    pool.free(blocks)
    pool.clear_cache()
    assert (pool.num_blank, pool.num_cached, pool.num_free) == (3, 0, 3)
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    assert pool.num_evictions == 0
