"""Queries are distributed to the batches, and outputs are returned in the order of the step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.torch.query_order import QueryOrder
from quire_attention_backends.torch.spans import batches, cut

CPU = torch.device("cpu")


def grouped(query_lens, computed, call_cost=1, max_tokens=10**6):
    seq_lens = [new + before for new, before in zip(query_lens, computed, strict=True)]
    return batches(cut(query_lens, seq_lens, AttentionBounds()), call_cost, max_tokens)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 900)), min_size=1, max_size=12),
    st.integers(0, 3),
    st.sampled_from([1, 10**6]),
)
def test_splitting_and_joining_restores_the_step(requests, num_padding, call_cost):
    query_lens, computed = zip(*requests, strict=True)
    num_real = sum(query_lens)
    found = grouped(query_lens, computed, call_cost, 2000)
    order = QueryOrder.of(found, num_real + num_padding, CPU)
    q = 1.0 + torch.arange(num_real + num_padding).unsqueeze(1)
    parts = order.split_queries(q)
    assert [len(part) for part in parts] == [len(each) * each.num_queries for each in found]
    if not parts:
        return
    back = order.join_outputs(parts)
    assert back.shape == q.shape
    assert torch.equal(back[:num_real], q[:num_real])


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 900)), min_size=1, max_size=12))
def test_each_span_has_its_own_queries_and_then_repeats_the_last(requests):
    query_lens, computed = zip(*requests, strict=True)
    found = grouped(query_lens, computed)
    parts = QueryOrder.of(found, sum(query_lens), CPU).split_queries(torch.arange(sum(query_lens)))
    for spans, part in zip(found, parts, strict=True):
        rows = part.view(len(spans), spans.num_queries).tolist()
        for first, size, row in zip(spans.first_tokens, spans.sizes, rows, strict=True):
            last = first + size - 1
            assert row == [*range(first, last), *[last] * (spans.num_queries - size + 1)]


@pytest.mark.parametrize("max_tokens", [10**6, 200])  # one batch, and pieces of it
def test_a_step_in_its_own_order_is_not_gathered(max_tokens):
    found = grouped([1] * 6, [99] * 6, max_tokens=max_tokens)
    order = QueryOrder.of(found, 6, CPU)
    assert (order.query_index, order.output_index) == (None, None)
    q = torch.rand(6, 4)
    assert torch.equal(order.join_outputs(order.split_queries(q)), q)
