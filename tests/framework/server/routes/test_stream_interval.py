"""Deltas are joined by choice; the first and the last are sent at once, and nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidRequestError
from quire.outputs import Delta, Logprob
from quire.server.routes.stream_interval import StreamInterval
from quire.server.wire.protocol import SamplingBody


def delta(number, num_tokens=1, **fields):
    token_ids = [number] * num_tokens
    rows = [{number: Logprob(-1.0)}] * num_tokens
    return Delta(index=0, text=f"{number} ", token_ids=token_ids, logprobs=rows, **fields)


def concatenated(deltas, name):
    return [value for each in deltas for value in getattr(each, name) or ()]


@pytest.mark.parametrize(
    ("fields", "is_used"),
    [({}, False), ({"stream_interval": 1}, False), ({"stream_interval": 2}, True)],
)
def test_only_streams_with_more_than_one_token_an_event_have_one(fields, is_used):
    assert (StreamInterval.of(SamplingBody(stream=True, **fields)) is not None) is is_used
    assert StreamInterval.of(SamplingBody(**fields)) is None


@pytest.mark.parametrize("wrong", [0, -3])
def test_an_event_has_at_least_one_token(wrong):
    with pytest.raises(InvalidRequestError, match="at least 1 token") as caught:
        StreamInterval.of(SamplingBody(stream_interval=wrong))
    assert caught.value.param == "stream_interval"


def test_the_first_and_the_last_are_not_held_back():
    interval = StreamInterval(3)
    ends = [None] * 6 + ["stop"]
    sent = [interval.joined(0, delta(i, finish_reason=end)) for i, end in enumerate(ends)]
    assert [None if each is None else each.text for each in sent] == [
        "0 ", None, None, "1 2 3 ", None, None, "4 5 6 ",
    ]  # fmt: skip
    assert sent[-1].finish_reason == "stop"


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(1, 6),
)
def test_nothing_is_lost_and_choices_are_not_mixed(steps, num_tokens):
    interval = StreamInterval(num_tokens)
    given_deltas = {0: [], 1: [], 2: []}
    sent = {0: [], 1: [], 2: []}
    last = {choice: i for i, (choice, _) in enumerate(steps)}
    for i, (choice, count) in enumerate(steps):
        end = "length" if last[choice] == i else None
        each = delta(i, count, finish_reason=end, prompt_logprobs=[None] if count == 0 else None)
        given_deltas[choice].append(each)
        if (found := interval.joined(choice, each)) is not None:
            sent[choice].append(found)
    for choice, deltas in given_deltas.items():
        assert "".join(each.text for each in sent[choice]) == "".join(d.text for d in deltas)
        for name in ("token_ids", "logprobs", "prompt_logprobs"):
            assert concatenated(sent[choice], name) == concatenated(deltas, name)
        assert all(len(each.token_ids) >= num_tokens for each in sent[choice][1:-1])
