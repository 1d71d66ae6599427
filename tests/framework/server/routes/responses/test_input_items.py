"""Messages of input items: what belongs to one turn of the assistant, and what is refused."""

import pytest

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.responses.input_items import items_of, messages_of

STRICT = UnknownFields()
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
    "encrypted_content": None,
    "status": "completed",
}
ANSWER = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}],
}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def read(*items, instructions=None, num_before=0):
    return messages_of(items, instructions, STRICT, num_before)


def test_a_text_is_the_message_of_a_user():
    assert read(*items_of("Hi")) == [USER]
    assert items_of([USER]) == [USER]


def test_consecutive_items_of_the_assistant_are_one_message():
    assert read(USER, THOUGHT, ANSWER, CALL, OUTPUT) == [
        USER,
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "yes",
            "tool_calls": [TOOL_CALL],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]


def test_text_after_a_call_belongs_to_the_same_message():
    after = ANSWER | {"content": " and more"}
    assert read(USER, ANSWER, CALL, after, CALL, OUTPUT)[1] == {
        "role": "assistant", "content": "yes and more", "tool_calls": [TOOL_CALL, TOOL_CALL],
    }  # fmt: skip


def test_a_message_after_a_message_and_reasoning_after_either_begin_the_next_message():
    messages = read(USER, CALL, THOUGHT, THOUGHT, ANSWER, ANSWER, THOUGHT)
    assert messages[1:] == [
        {"role": "assistant", "tool_calls": [TOOL_CALL]},
        {"role": "assistant", "reasoning_content": "hmhm", "content": "yes"},
        {"role": "assistant", "content": "yes"},
        {"role": "assistant", "reasoning_content": "hm"},
    ]


def test_an_item_without_a_type_is_a_message_as_is_one_whose_type_is_null():
    assert read(USER | {"type": None}) == [USER]


def test_a_call_that_broke_off_is_left_out():
    assert read(USER, CALL | {"status": "incomplete"}, ANSWER) == [
        USER, {"role": "assistant", "content": "yes"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"summary": [{"type": "summary_text", "text": "short"}]}, "short"),
        ({"summary": [], "content": None}, None),
        ({}, None),
    ],
)
def test_reasoning_without_a_text_is_its_summary_or_nothing(given, texts):
    messages = read(USER, {"type": "reasoning"} | given)
    assert [m["reasoning_content"] for m in messages[1:]] == ([texts] if texts else [])


def test_instructions_stand_in_front_and_join_the_first_system_message():
    assert read(USER, instructions="Be brief.")[0] == {"role": "system", "content": "Be brief."}
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "In English."}]}
    assert read(developer, USER, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief.\n\nIn English."}, USER,
    ]  # fmt: skip


def test_parts_are_joined_and_a_refusal_is_text():
    content = [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}]
    assert read({"role": "assistant", "content": content})[0]["content"] == "a\nno"


@pytest.mark.parametrize(
    ("item", "param", "words"),
    [
        ({}, "input[0].type", "message, function_call"),
        ({"type": "web_search_call"}, "input[0].type", "not supported"),
        ({"type": ["message"]}, "input[0].type", "not supported"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].type", "previous_response_id"),
        ({"role": "tool", "content": "x"}, "input[0].role", "user, assistant"),
        ({"role": ["user"], "content": "x"}, "input[0].role", "user, assistant"),
        ({"role": "user"}, "input[0].content", "list of parts"),
        ({"role": "user", "content": [3]}, "input[0].content[0].type", "input_text"),
        (
            {"role": "user", "content": [{"type": "input_file", "file_id": "x"}]},
            "input[0].content[0].type",
            "text only",
        ),
        (
            {"role": "user", "content": [{"type": "input_text", "text": 3}]},
            "input[0].content[0].text",
            "string",
        ),
        (CALL | {"arguments": {}}, "input[0].arguments", "string"),
        (CALL | {"name": None}, "input[0].name", "string"),
        (CALL | {"name": ""}, "input[0].name", "empty"),
        (USER | {"type": 3}, "input[0].type", "not supported"),
        (USER | {"id": 5}, "input[0].id", "string"),
        (USER | {"phase": []}, "input[0].phase", "string"),
        (USER | {"status": 7}, "input[0].status", "in_progress"),
        (USER | {"status": "ready"}, "input[0].status", "in_progress"),
        (THOUGHT | {"encrypted_content": 1}, "input[0].encrypted_content", "string"),
        (OUTPUT, "input[0].call_id", "no call before it"),
    ],
)
def test_a_wrong_item_is_named(item, param, words):
    with pytest.raises(InvalidRequestError, match=words) as failed:
        read(item)
    assert failed.value.param == param


def test_a_place_counts_from_the_requests_own_items():
    with pytest.raises(InvalidRequestError) as failed:
        read(USER, ANSWER, {"role": "user"}, num_before=2)
    assert failed.value.param == "input[0].content"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (USER | {"contnet": "x"}, "input[0].contnet"),
        (CALL | {"argument": "x"}, "input[0].argument"),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "x", "txt": "y"}]},
            "input[0].content[0].txt",
        ),
    ],
)
def test_a_field_that_does_not_exist_is_named_unless_it_is_null(item, param):
    with pytest.raises(UnknownFieldError) as failed:
        read(item)
    assert failed.value.param == param
    assert read(USER | {"anything": None}) == [USER]
