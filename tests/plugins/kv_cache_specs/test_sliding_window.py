"""A sliding window keeps the blocks that a later query sees, and no more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_readers import longest_hit, most_held, unread_blocks, window_reader

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVLayer
from quire.testing.kv_cache import KVCacheSpecContract
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec

WINDOWS = st.integers(1, 40)
BLOCK_SIZES = st.sampled_from([1, 2, 4, 8, 16])


def layer(window):
    return KVLayer("layers.0.attn", "sliding_window", 4, 32, (("window", window),))


def spec(window, block_size=4):
    return SlidingWindowSpec(layer(window), block_size, "float32")


class TestNarrow(KVCacheSpecContract):
    spec_class = SlidingWindowSpec
    other_layers = (layer(6), layer(100))
    layer = layer(5)


class TestWide(KVCacheSpecContract):
    spec_class = SlidingWindowSpec
    layer = layer(100)


class TestItselfOnly(KVCacheSpecContract):
    spec_class = SlidingWindowSpec
    layer = layer(1)


@given(WINDOWS, BLOCK_SIZES, st.integers(0, 120))
def test_what_is_freeable_is_what_no_later_query_sees(window, block_size, computed):
    unread = unread_blocks(window_reader(window), computed, block_size, horizon=1)
    assert set(spec(window, block_size).freeable_blocks(computed)) == unread


@given(WINDOWS, BLOCK_SIZES, st.lists(st.booleans(), max_size=12))
def test_a_hit_is_as_long_as_the_next_query_finds_its_window(window, block_size, is_cached):
    expected = longest_hit(window_reader(window), is_cached, block_size, horizon=1)
    assert spec(window, block_size).cached_prefix(is_cached) == expected


@given(WINDOWS, BLOCK_SIZES, st.integers(1, 30), st.data())
def test_a_request_never_holds_more_than_planned_however_its_steps_fall(
    window, block_size, max_step, data
):
    steps = data.draw(st.lists(st.integers(1, max_step), min_size=1, max_size=30))
    tokens, its = sum(steps), spec(window, block_size)
    assert most_held(its, tokens, steps) <= its.max_blocks_held(tokens, max_step)


@settings(deadline=None)  # many requests an example
@given(WINDOWS, BLOCK_SIZES, st.integers(1, 30))
def test_no_more_is_planned_than_some_request_holds(window, block_size, max_step):
    its = spec(window, block_size)
    long = 2 * window + 10 * block_size + 10 * max_step
    # A first step of each length, then full ones, brings the window to every place in a block.
    starts = ([first] + [max_step] * (long // max_step + 2) for first in range(1, max_step + 1))
    worst = max(most_held(its, long, steps) for steps in starts)
    singles = [1] * (long - max_step)
    shifted = [most_held(its, long, [*singles[:n], max_step]) for n in range(long - max_step)]
    assert max(worst, *shifted) == its.max_blocks_held(long, max_step)


def test_by_hand():
    # window 4, blocks of 2: the query at 7 sees 4, 5, 6 and 7, so blocks 0 and 1 are unread.
    assert spec(4, 2).freeable_blocks(7) == range(2)
    # The query at 6 sees 3: block 1 is still read.
    assert spec(4, 2).freeable_blocks(6) == range(1)


def test_a_hit_needs_only_the_window_before_its_end():
    # window 9, blocks of 4: the next query sees 8 tokens before it, which are 2 blocks.
    assert spec(9).cached_prefix([False, False, True, True]) == 4
    assert spec(9).cached_prefix([False, True, False, True]) == 0
    assert spec(9).cached_prefix([True, False, True, True]) == 4
    assert spec(9).cached_prefix([True, False, False, True]) == 1


def test_the_table_goes_on_growing():
    assert spec(4, 2).blocks_needed(1001) == 501
    assert spec(4, 2).blocks_needed(1001, num_lookahead_tokens=3) == 502


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ((), r"sliding_window of layers\.0\.attn needs the parameter 'window'"),
        ((("window", 0),), r"window of layers\.0\.attn must be at least 1, got 0"),
        ((("window", 1.5),), r"must be at least 1, got 1\.5"),
        ((("window", True),), "must be at least 1, got True"),
    ],
)
def test_a_window_that_is_none_is_refused(params, message):
    wrong = KVLayer("layers.0.attn", "sliding_window", 4, 32, params)
    with pytest.raises(SettingsError, match=message):
        SlidingWindowSpec(wrong, 16, "float32")
