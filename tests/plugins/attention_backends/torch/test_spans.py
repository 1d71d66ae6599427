"""Spans cover a step exactly once, and are batched where that is cheaper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.torch.spans import MAX_QUERIES, batches, cut

REQUESTS = st.lists(
    st.tuples(st.integers(0, 3 * MAX_QUERIES), st.integers(0, 5000)), min_size=1, max_size=20
)
BOUNDS = st.sampled_from(
    [
        AttentionBounds(),
        AttentionBounds(window=50),
        AttentionBounds(chunk=64),
        AttentionBounds(window=1),
    ]
)


def spans_of(requests, bounds=AttentionBounds(), tile=1):  # noqa: B008 (frozen)
    query_lens = [num_new for num_new, _ in requests]
    seq_lens = [num_new + computed for num_new, computed in requests]
    return cut(query_lens, seq_lens, bounds, tile)


def batches_of(requests, call_cost=500, max_tokens=20_000):
    return batches(spans_of(requests), call_cost, max_tokens)


def by_hand(requests):
    """Return the spans of a step, computed per request: request, first token, size, end."""
    found, token = [], 0
    for request, (num_new, computed) in enumerate(requests):
        for start in range(0, num_new, MAX_QUERIES):
            size = min(MAX_QUERIES, num_new - start)
            found.append((request, token + start, size, computed + start + size))
        token += num_new
    return found


def listed(spans):
    arrays = (spans.requests, spans.first_tokens, spans.sizes, spans.ends)
    return list(zip(*(array.tolist() for array in arrays), strict=True))


@given(REQUESTS)
def test_a_step_is_cut_as_it_would_be_request_by_request(requests):
    assert listed(spans_of(requests)) == by_hand(requests)


@given(REQUESTS, BOUNDS, st.sampled_from([1, 128]))
def test_a_span_reads_from_the_first_key_that_a_query_sees(requests, bounds, tile):
    spans = spans_of(requests, bounds, tile)
    for index, (_, _, size, end) in enumerate(listed(spans)):
        first_seen = int(bounds.first_key(np.array(end - size)))
        start = first_seen // tile * tile
        assert (spans.first_seen[index], spans.starts[index]) == (first_seen, start)
        num_keys = int(spans.num_keys[index])
        assert num_keys % tile == 0
        assert end <= start + num_keys < end + tile


@given(REQUESTS, st.integers(1, 5000), st.integers(1, 20_000))
def test_every_span_is_in_exactly_one_batch(requests, call_cost, max_tokens):
    found = [
        span for batch in batches_of(requests, call_cost, max_tokens) for span in listed(batch)
    ]
    assert sorted(found) == by_hand(requests)


@given(REQUESTS, st.integers(1, 5000), st.integers(1, 20_000))
def test_a_batch_is_of_similar_sizes_and_within_the_limit(requests, call_cost, max_tokens):
    for batch in batches_of(requests, call_cost, max_tokens):
        assert batch.num_queries < 2 * batch.sizes.min()
        assert len(batch) == 1 or len(batch) * batch.num_keys.max() <= max_tokens


@pytest.mark.parametrize("num_requests", [30, 300, 3000])
def test_the_batches_grow_with_the_root_of_the_requests(num_requests):
    lengths = np.random.default_rng(0).integers(16, 2000, num_requests)
    found = batches_of([(1, length) for length in lengths], 1000, 10**9)
    padding = sum((len(batch) * batch.num_keys.max() - batch.num_keys.sum()) for batch in found)
    at_best = np.sqrt(num_requests * 2000 / 2 / 1000)  # buckets, by the formula of the module
    assert len(found) <= 1.1 * at_best + 1
    assert padding + 1000 * len(found) <= 2.2 * 1000 * at_best + 2000


def test_even_decode_rows_are_one_batch_in_their_order():
    (batch,) = batches_of([(1, 99), (1, 101), (1, 97)])
    assert listed(batch) == [(0, 0, 1, 100), (1, 1, 1, 102), (2, 2, 1, 98)]


def test_one_long_context_does_not_pad_many_short_ones():
    requests = [(1, 100)] * 8 + [(1, 4000)] + [(1, 110)] * 8
    long, short = batches_of(requests)
    assert long.requests.tolist() == [8]
    assert len(short) == 16


def test_padding_is_cheaper_than_a_call_for_little_differences():
    assert len(batches_of([(1, 10 * row) for row in range(8)], call_cost=600)) == 1


def test_padding_of_prompts_counts_for_each_of_their_queries():
    assert len(batches_of([(1, 163), (1, 463)])) == 1
    assert len(batches_of([(64, 100), (64, 400)])) == 2


def test_a_context_above_the_limit_is_a_batch_of_its_own():
    assert [len(batch) for batch in batches_of([(1, 99)] * 3, max_tokens=50)] == [1, 1, 1]


def test_a_window_makes_long_and_short_contexts_alike():
    spans = spans_of([(1, 100), (1, 4000), (1, 300)], AttentionBounds(window=64))
    assert len(batches(spans, 500, 20_000)) == 1


def test_a_long_prompt_is_cut():
    assert listed(spans_of([(300, 50)])) == [
        (0, 0, 128, 178),
        (0, 128, 128, 306),
        (0, 256, 44, 350),
    ]


def test_equal_prompts_share_a_batch():
    assert [len(batch) for batch in batches_of([(128, 0)] * 16)] == [16]


def test_pieces_of_what_is_too_much_are_of_one_length():
    assert [len(batch) for batch in batches_of([(1, 99)] * 10, max_tokens=800)] == [5, 5]


def test_a_step_without_queries_has_no_batches():
    assert batches_of([(0, 5)]) == []
    assert batches_of([]) == []
