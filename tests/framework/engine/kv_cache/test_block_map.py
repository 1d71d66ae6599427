"""The map of the KV blocks is cheap for the engine; `engine_invariants` checks what it shows."""

from engine_parts import make_message

from quire.engine.kv_cache.block_map import BlockMapReader, block_map
from quire.engine.kv_cache.block_pool import BlockPool
from quire.engine.request import Request
from quire.messages import FIRST_OWNER, BlockState

NULL, FREE, HELD = 2 * BlockState.NULL, 2 * BlockState.FREE, 2 * BlockState.HELD


def codes_of(found):
    return list(memoryview(found.codes).cast("H"))


def running(slot, *tables):
    request = Request(make_message(str(slot)), len(tables))
    request.slot, request.block_ids = slot, [list(table) for table in tables]
    return request


def test_each_block_has_its_holder_and_whether_it_is_cached():
    pool = BlockPool(8)
    mine, shared, held = pool.allocate(3)
    pool.add_references([shared])
    pool.add_to_cache(shared, 0, b"s")
    pool.add_to_cache(held, 0, b"h")
    (cached,) = pool.allocate(1)
    pool.add_to_cache(cached, 0, b"c")
    pool.free([cached])
    found = block_map(pool, [running(0, [mine, shared]), running(5, [0, shared])], 8)
    expected = [NULL, *[FREE] * 7]
    expected[mine] = 2 * FIRST_OWNER
    expected[shared] = 2 * BlockState.SHARED + 1
    expected[held] = HELD + 1
    expected[cached] = FREE + 1
    assert codes_of(found) == expected
    assert (found.num_blocks, found.blocks_per_cell) == (8, 1)


def test_a_block_of_three_requests_is_shared():
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    requests = [running(slot, [block]) for slot in range(3)]
    assert codes_of(block_map(pool, requests, 3))[block] == 2 * BlockState.SHARED


def test_groups_of_one_request_share_nothing():
    pool = BlockPool(3)
    one, other = pool.allocate(2)
    found = block_map(pool, [running(1, [one], [other])], 3)
    assert codes_of(found)[1:] == [2 * (FIRST_OWNER + 1)] * 2


def test_a_large_pool_has_a_cell_for_several_blocks():
    pool = BlockPool(100_001)
    block_ids = pool.allocate(100_000)
    found = block_map(pool, [running(2, block_ids)], 1000)
    assert found.blocks_per_cell == 101
    assert codes_of(found) == [NULL, *[2 * (FIRST_OWNER + 2)] * 990]


def test_a_map_that_was_just_made_is_returned_again():
    now_s, pool = [0.0], BlockPool(4)
    reader = BlockMapReader(pool, list, lambda: now_s[0])
    first = reader.read(4)
    pool.allocate(1)
    now_s[0] = 0.1
    assert reader.read(4) is first
    assert reader.read(2) is not first
    now_s[0] = 0.4
    assert codes_of(reader.read(4)) == [NULL, HELD, FREE, FREE]


def test_a_map_that_was_costly_is_kept_for_a_hundred_times_as_long():
    now_s, pool = [0.0], BlockPool(4)

    def slow():
        now_s[0] += 0.5
        return []

    reader = BlockMapReader(pool, slow, lambda: now_s[0])
    first = reader.read(4)
    now_s[0] = 50.4
    assert reader.read(4) is first
    now_s[0] = 50.6
    assert reader.read(4) is not first
