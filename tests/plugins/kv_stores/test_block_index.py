"""Block index: bounded, LRU eviction, and no eviction of blocks in transfers."""

from quire_kv_stores.block_index import BlockIndex


def stored(index, *names):
    """Write blocks to an index, one at a time."""
    cross_blocks = []
    for name in names:
        cross_blocks.append(index.claim(name))
        index.end_writing(cross_blocks[-1:])
    return cross_blocks


def count(index):
    return index.num_free, len(index._idle), index.num_moving


def test_a_block_is_found_when_it_is_written():
    index = BlockIndex(2)
    stored_block = index.claim(b"a")
    assert index.find(b"a") is None
    assert b"a" in index
    index.end_writing([stored_block])
    assert index.find(b"a") is stored_block
    assert count(index) == (1, 1, 0)


def test_slots_are_given_out_once():
    index = BlockIndex(3)
    assert sorted(stored_block.slot for stored_block in stored(index, b"a", b"b", b"c")) == [
        0,
        1,
        2,
    ]


def test_the_least_recently_used_block_is_evicted():
    index = BlockIndex(3)
    stored(index, b"a", b"b", b"c")
    index.touch([b"a"])
    stored(index, b"d")
    assert [name in index for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert index.num_evicted == 1


def test_the_end_of_a_prompt_goes_before_its_beginning():
    index = BlockIndex(3)
    index.end_writing([index.claim(name) for name in (b"1", b"2", b"3")])
    stored(index, b"x")
    assert [name in index for name in (b"1", b"2", b"3")] == [True, True, False]
    index.touch([b"1", b"2"])
    stored(index, b"y", b"z")
    assert [name in index for name in (b"1", b"2")] == [True, False]


def test_what_is_read_from_is_not_evicted():
    index = BlockIndex(2)
    a, _ = stored(index, b"a", b"b")
    index.begin_reading([a])
    index.begin_reading([a])
    stored(index, b"c")
    index.end_reading([a])
    assert index.claim(b"d") is not None
    assert index.claim(b"e") is None, "one is read and one is written"
    assert index.find(b"a") is a
    index.end_reading([a])
    assert index.claim(b"e") is not None


def test_a_slot_is_free_when_the_last_reader_of_a_forgotten_block_is_gone():
    index = BlockIndex(1)
    (a,) = stored(index, b"a")
    index.begin_reading([a])
    index.begin_reading([a])
    index.forget([a])
    assert index.find(b"a") is None
    index.end_reading([a])
    assert index.claim(b"b") is None
    index.end_reading([a])
    assert count(index) == (1, 0, 0)


def test_a_block_may_be_written_again_while_a_forgotten_one_is_in_a_transfer():
    index = BlockIndex(2)
    old = index.claim(b"a")
    index.forget_all()
    new = index.claim(b"a")
    assert new.slot != old.slot
    index.end_writing([old])
    assert index.find(b"a") is None
    index.end_writing([new])
    assert index.find(b"a") is new
    assert count(index) == (1, 1, 0)


def test_a_slot_that_could_not_be_written_is_never_used_again():
    index = BlockIndex(2)
    index.retire([index.claim(b"a")])
    assert index.num_slots == 1
    stored(index, b"b", b"c")
    assert index.find(b"c").slot == 1
    assert b"b" not in index
    forgotten = index.claim(b"d")
    index.forget_all()
    index.retire([forgotten])
    assert index.num_slots == 0
    assert count(index) == (0, 0, 0)
    assert index.claim(b"e") is None


def test_memory_that_was_used_is_used_again_before_more_is_taken():
    index = BlockIndex(100)
    (a,) = stored(index, b"a")
    index.forget([a])
    assert index.claim(b"b").slot == a.slot


def test_the_end_of_a_prompt_that_was_loaded_goes_before_its_beginning():
    index = BlockIndex(3)
    cross_blocks = stored(index, b"1", b"2", b"3")
    index.begin_reading(cross_blocks)
    index.end_reading(cross_blocks)
    stored(index, b"x", b"y")
    assert [name in index for name in (b"1", b"2", b"3")] == [True, False, False]


def test_what_is_forgotten_twice_is_forgotten_once():
    index = BlockIndex(2)
    (old,) = stored(index, b"a")
    index.forget([old])
    (new,) = stored(index, b"a")
    index.forget([old])
    assert index.find(b"a") is new
    assert count(index) == (1, 1, 0)


def test_what_is_not_stored_any_more_cannot_be_touched():
    index = BlockIndex(1)
    stored(index, b"a", b"b")
    index.touch([b"a", b"b", b"c"])
    assert count(index) == (0, 1, 0)
    assert index.num_evicted == 1
