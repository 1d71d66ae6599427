"""Spans cover a step once, and share batches where that pays."""

from hypothesis import given
from hypothesis import strategies as st

from quire_attention_backends.spans import MAX_QUERIES, Span, batches

HUGE = 10**9
REQUESTS = st.lists(
    st.tuples(st.integers(0, 3 * MAX_QUERIES), st.integers(0, 5000)), min_size=1, max_size=20
)


def cut(requests, call_cost=500, max_tokens=20_000):
    query_lens = [num_new for num_new, _ in requests]
    seq_lens = [num_new + computed for num_new, computed in requests]
    return batches(query_lens, seq_lens, call_cost, max_tokens)


@given(REQUESTS)
def test_every_query_is_in_exactly_one_span(requests):
    spans = [span for batch in cut(requests) for span in batch]
    tokens = [t for s in spans for t in range(s.first_token, s.first_token + s.num_queries)]
    assert sorted(tokens) == list(range(sum(num_new for num_new, _ in requests)))


@given(REQUESTS)
def test_a_span_sees_up_to_its_own_last_query(requests):
    starts = [sum(n for n, _ in requests[:index]) for index in range(len(requests))]
    for span in (span for batch in cut(requests) for span in batch):
        _, computed = requests[span.request]
        behind = span.first_token + span.num_queries - starts[span.request]
        assert span.context_len == computed + behind


@given(REQUESTS, st.integers(0, 5000), st.integers(1, 20_000))
def test_a_batch_is_of_one_size_and_within_the_limit(requests, call_cost, max_tokens):
    for batch in cut(requests, call_cost, max_tokens):
        assert len({span.num_queries for span in batch}) == 1
        longest = max(span.context_len for span in batch)
        assert len(batch) == 1 or longest * len(batch) <= max_tokens


def test_even_decode_rows_are_one_batch_in_their_order():
    assert cut([(1, 99), (1, 101), (1, 97)]) == [
        [Span(0, 0, 1, 100), Span(1, 1, 1, 102), Span(2, 2, 1, 98)]
    ]


def test_one_long_context_does_not_pad_many_short_ones():
    requests = [(1, 100)] * 8 + [(1, 4000)] + [(1, 110)] * 8
    long, short = cut(requests)
    assert [span.request for span in long] == [8]
    assert len(short) == 16


def test_padding_is_cheaper_than_a_call_for_little_differences():
    assert len(cut([(1, 10 * row) for row in range(8)], call_cost=600)) == 1


def test_a_long_prompt_is_cut():
    spans = [span for batch in cut([(300, 50)]) for span in batch]
    assert sorted((s.first_token, s.num_queries, s.context_len) for s in spans) == [
        (0, 128, 178),
        (128, 128, 306),
        (256, 44, 350),
    ]


def test_equal_prompts_share_a_batch():
    assert [len(batch) for batch in cut([(128, 0)] * 16)] == [16]


def test_a_step_without_queries_has_no_batches():
    assert cut([(0, 5)]) == []
