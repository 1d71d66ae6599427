"""Events of a stream become times and tokens, however the bytes are cut."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import event

from quire.cli.bench.serving.outcome import Outcome
from quire.cli.bench.serving.sse_reader import SSEReader


def chat(**delta):
    return {"choices": [{"index": 0, "delta": delta}]}


def text(part, reason=None):
    return {"choices": [{"index": 0, "text": part, "finish_reason": reason}]}


def read(*timeline):
    """Feed (time, event) pairs; return the outcome."""
    outcome = Outcome()
    reader = SSEReader(outcome)
    for now_s, data in timeline:
        reader.feed(event(data), now_s)
    assert reader.is_done is (timeline[-1][1] == b"[DONE]")
    return outcome


def test_text_counts_and_the_role_and_the_end_of_a_stream_do_not():
    outcome = read(
        (1.0, chat(role="assistant", content="")),
        (1.5, chat(content="a")),
        (1.7, chat(content="b")),
        (1.9, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        (2.5, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}),
        (2.6, b"[DONE]"),
    )
    assert outcome.chunks_s == [1.5, 1.7]
    assert outcome.end_s == 1.9
    assert (outcome.num_prompt_tokens, outcome.num_output_tokens) == (7, 3)
    assert outcome.is_counted


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"reasoning_content": "a"},
        {"reasoning": "a"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_reasoning_and_tool_calls_are_generated_as_well(delta):
    assert read((1.0, chat(**delta))).chunks_s == [1.0]


def test_an_error_in_the_stream_is_an_error():
    outcome = read((1.0, text("a")), (2.0, {"error": {"message": "the engine died"}}))
    assert outcome.error == "error in the stream"
    assert "the engine died" in outcome.detail


def test_comments_and_other_fields_are_passed_over():
    outcome = Outcome()
    data = b": ping\r\nevent: x\r\ndata:" + json.dumps(text("a")).encode() + b"\r\n\r\n"
    SSEReader(outcome).feed(data, 1.0)
    assert outcome.chunks_s == [1.0]


def test_an_event_that_is_not_json_is_refused():
    with pytest.raises(msgspec.DecodeError):
        SSEReader(Outcome()).feed(b"data: nonsense\n\n", 1.0)


EVENTS = [text("a"), text("é\n"), text("", "length"), {"choices": [], "usage": {}}, b"[DONE]"]
STREAM = b"".join(map(event, EVENTS))


@given(st.lists(st.integers(0, len(STREAM)), max_size=8).map(sorted))
def test_any_split_of_the_bytes_gives_the_same(cuts):
    outcome = Outcome()
    reader = SSEReader(outcome)
    for start, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True):
        reader.feed(STREAM[start:end], 1.0)
    assert (len(outcome.chunks_s), outcome.is_counted, reader.is_done) == (2, True, True)
