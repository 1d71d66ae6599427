"""A recurrent layer reads its latest state; snapshots stay at block ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_readers import longest_hit, most_held, state_reader, unread_blocks

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVLayer
from quire.testing.kv_cache import KVCacheSpecContract
from quire_kv_cache_specs.recurrent_state import RecurrentStateSpec

BLOCK_SIZES = st.sampled_from([1, 2, 4, 8, 16])
SHAPES = ((16, 8, 4), (32, 3))  # 512 and 96 numbers


def layer(**params):
    pairs = tuple(({"state_shapes": SHAPES} | params).items())
    return KVLayer("layers.0.mixer", "recurrent_state", 1, 1, pairs)


def spec(block_size=4, **params):
    return RecurrentStateSpec(layer(**params), block_size, "float32")


class TestWithSnapshots(KVCacheSpecContract):
    spec_class = RecurrentStateSpec
    other_layers = (layer(snapshots=False),)
    layer = layer(state_dtype="float32")


class TestWithoutSnapshots(KVCacheSpecContract):
    spec_class = RecurrentStateSpec
    layer = layer(snapshots=False)
    has_prefix_hits = False


@given(BLOCK_SIZES, st.integers(0, 120))
def test_what_is_freeable_is_what_no_later_token_reads(block_size, computed):
    unread = unread_blocks(state_reader, computed, block_size, horizon=1)
    assert set(spec(block_size).freeable_blocks(computed)) == unread


@given(BLOCK_SIZES, st.lists(st.booleans(), max_size=12))
def test_a_hit_ends_where_there_is_a_snapshot(block_size, is_cached):
    expected = longest_hit(state_reader, is_cached, block_size, horizon=1)
    assert spec(block_size).cached_prefix(is_cached) == expected


@given(BLOCK_SIZES, st.booleans(), st.integers(1, 30), st.data())
def test_a_request_never_holds_more_than_planned_however_its_steps_fall(
    block_size, snapshots, max_step, data
):
    steps = data.draw(st.lists(st.integers(1, max_step), min_size=1, max_size=30))
    tokens, its = sum(steps), spec(block_size, snapshots=snapshots)
    assert most_held(its, tokens, steps) <= its.max_blocks_held(tokens, max_step)


@pytest.mark.parametrize("block_size", [1, 16, 1024])
def test_a_page_is_the_states_whatever_the_block(block_size):
    assert spec(block_size).page_bytes == (512 + 96) * 4
    assert spec(block_size, state_dtype="bfloat16").page_bytes == (512 + 96) * 2


def test_two_devices_have_half_of_each_state():
    assert RecurrentStateSpec(layer(), 16, "float32", 2).page_bytes == (256 + 48) * 4


def test_by_hand():
    # 9 tokens in blocks of 4: the running state is in block 2, snapshots in 0 and 1.
    assert spec().blocks_needed(9) == 3
    assert spec().cacheable_blocks(range(2), 9) == range(2)
    assert spec().freeable_blocks(9) == range(2)
    # At 8 the running state is the snapshot of block 1: the next token reads it, and writes 2.
    assert spec().freeable_blocks(8) == range(1)
    # Any snapshot will do, whatever came before it.
    assert spec().cached_prefix([False, True, False]) == 2


def test_without_prefix_hits_a_request_has_one_state():
    bare = spec().without_prefix_hits()
    assert [bare.blocks_needed(n) for n in (0, 1, 1000)] == [0, 1, 1]
    assert bare.max_blocks_held(1000, 512) == 1
    assert not bare.cacheable_blocks(range(9), 1000)
    assert bare.cached_prefix([True, True]) == 0
    assert bare.with_block_size(64).blocks_needed(1000) == 1


def test_without_prefix_hits_all_layers_are_alike_and_shared_as_before():
    shared = RecurrentStateSpec(layer(), 16, "float32", 2)
    assert shared.without_prefix_hits().page_bytes == shared.page_bytes
    said = RecurrentStateSpec(layer(snapshots=True), 16, "float32", 2)
    assert said.without_prefix_hits().key == shared.without_prefix_hits().key


def test_lookahead_has_snapshots_of_its_own():
    assert spec().blocks_needed(8, num_lookahead_tokens=1) == 3
    assert spec(snapshots=False).blocks_needed(0, num_lookahead_tokens=1) == 1


@pytest.mark.parametrize(("block_size", "tp_size"), [(0, 1), (16, 0)])
def test_sizes_that_are_none_are_refused(block_size, tp_size):
    with pytest.raises(SettingsError, match=r"of layers\.0\.mixer must be at least 1, got 0"):
        RecurrentStateSpec(layer(), block_size, "float32", tp_size)


def test_a_state_is_shared_along_its_first_dimension_or_not_at_all():
    with pytest.raises(SettingsError, match=r"\(3, 2\) of layers\.0\.mixer .* 2 devices"):
        RecurrentStateSpec(layer(state_shapes=((3, 2),)), 16, "float32", 2)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"state_shapes": ()}, "needs the parameter 'state_shapes'"),
        ({"state_shapes": ((),)}, "needs the parameter 'state_shapes'"),
        ({"state_shapes": ((4, 0),)}, r"state_shapes\[0\]\[1\] of layers\.0\.mixer must be at"),
        ({"state_dtype": "float12"}, "unknown KV dtype 'float12'"),
    ],
)
def test_states_that_are_none_are_refused(params, message):
    with pytest.raises(SettingsError, match=message):
        RecurrentStateSpec(layer(**params), 16, "float32")


def test_states_that_cannot_be_shared_evenly_are_refused():
    with pytest.raises(SettingsError, match=r"\(16, 8, 4\) of layers\.0\.mixer .* 3 devices"):
        RecurrentStateSpec(layer(), 16, "float32", 3)
