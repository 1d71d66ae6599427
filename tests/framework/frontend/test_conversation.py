"""Nothing of a message is lost without a word."""

import pytest

from quire.errors import InvalidRequestError
from quire.frontend.conversation import normalize_messages

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def assistant(**fields):
    return [{"role": "assistant", "content": "x"} | fields]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (assistant(function_call={"name": "f", "arguments": "{}"}), "messages[0].function_call"),
        (assistant(refusal="I will not"), "messages[0].refusal"),
        (assistant(audio={"id": "a"}), "messages[0].audio"),
        (assistant(mood="gloomy"), "messages[0].mood"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x", "lang": "fr"}]}],
            "messages[0].content[0].lang",
        ),
        (assistant(tool_calls=[CALL | {"result": 7}]), "messages[0].tool_calls[0].result"),
        (
            assistant(tool_calls=[{"function": {"name": "f", "result": 7}}]),
            "messages[0].tool_calls[0].function.result",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_by_its_place(message, param):
    with pytest.raises(InvalidRequestError) as caught:
        normalize_messages(message)
    assert caught.value.param == param
    assert param in str(caught.value)


def test_an_answer_of_ours_can_be_sent_back_as_it_was():
    answer = {
        "role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None,
        "function_call": None, "tool_calls": [CALL | {"index": 0}], "reasoning": "hm",
        "reasoning_content": "hm",
    }  # fmt: skip
    (normal,) = normalize_messages([answer])
    assert normal == {
        "role": "assistant", "content": "", "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}}
        ],
    }  # fmt: skip


def test_what_is_known_is_kept():
    messages = [
        {"role": "user", "name": "Ada", "content": [{"type": "text", "text": "x"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    assert normalize_messages(messages) == [
        {"role": "user", "name": "Ada", "content": "x"},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
