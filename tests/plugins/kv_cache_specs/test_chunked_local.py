"""Chunked local attention frees blocks at the end of a chunk, and not earlier."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_readers import chunk_reader, longest_hit, most_held, unread_blocks

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVLayer
from quire.testing.kv_cache import KVCacheSpecContract
from quire_kv_cache_specs.chunked_local import ChunkedLocalAttentionSpec

CHUNKS = st.integers(1, 40)
BLOCK_SIZES = st.sampled_from([1, 2, 4, 8, 16])


def layer(chunk):
    return KVLayer("layers.0.attn", "chunked_local_attention", 4, 32, (("chunk", chunk),))


def spec(chunk, block_size=4):
    return ChunkedLocalAttentionSpec(layer(chunk), block_size, "float32")


class TestAlignedChunk(KVCacheSpecContract):
    spec_class = ChunkedLocalAttentionSpec
    other_layers = (layer(7),)
    layer = layer(32)


class TestOddChunk(KVCacheSpecContract):
    spec_class = ChunkedLocalAttentionSpec
    layer = layer(7)


@given(CHUNKS, BLOCK_SIZES, st.integers(0, 120))
def test_what_is_freeable_is_what_no_later_query_sees(chunk, block_size, computed):
    unread = unread_blocks(chunk_reader(chunk), computed, block_size, horizon=2 * chunk)
    assert set(spec(chunk, block_size).freeable_blocks(computed)) == unread


@given(CHUNKS, BLOCK_SIZES, st.lists(st.booleans(), max_size=12))
def test_a_hit_is_as_long_as_the_next_query_finds_its_chunk(chunk, block_size, is_cached):
    expected = longest_hit(chunk_reader(chunk), is_cached, block_size, horizon=2 * chunk)
    assert spec(chunk, block_size).cached_prefix(is_cached) == expected


@given(CHUNKS, BLOCK_SIZES, st.integers(1, 30), st.data())
def test_a_request_never_holds_more_than_planned_however_its_steps_fall(
    chunk, block_size, max_step, data
):
    steps = data.draw(st.lists(st.integers(1, max_step), min_size=1, max_size=30))
    tokens, its = sum(steps), spec(chunk, block_size)
    assert most_held(its, tokens, steps) <= its.max_blocks_held(tokens, max_step)


def test_by_hand():
    # chunk 8, blocks of 4: the query at 7 is in the first chunk and sees all of it.
    assert spec(8).freeable_blocks(7) == range(0)
    # The query at 8 begins the second chunk and sees only itself: blocks 0 and 1 are unread.
    assert spec(8).freeable_blocks(8) == range(2)
    # Chunk 6 ends within block 1, whose second half belongs to the next chunk.
    assert spec(6).freeable_blocks(7) == range(1)


def test_a_hit_needs_the_chunk_of_the_next_token_only():
    # chunk 8, blocks of 4: after 3 blocks the next token, 12, sees block 2.
    assert spec(8).cached_prefix([False, False, True]) == 3
    # After 2 blocks it begins a chunk, and nothing needs to be there.
    assert spec(8).cached_prefix([False, False, False]) == 2


def test_a_layer_without_a_chunk_is_refused():
    wrong = KVLayer("layers.3.attn", "chunked_local_attention", 4, 32)
    with pytest.raises(SettingsError, match=r"of layers\.3\.attn needs the parameter 'chunk'"):
        ChunkedLocalAttentionSpec(wrong, 16, "float32")
