"""Items of tools of tool servers as messages of a conversation."""

import pytest

from quire.errors import InvalidRequestError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.responses.input_items import messages_of
from quire.server.routes.responses.mcp.tool_items import result_of

CALL = {
    "type": "mcp_call", "id": "m1", "server_label": "s", "name": "f", "arguments": "{}",
    "output": "one", "status": "completed",
}  # fmt: skip
ASKED = {
    "type": "mcp_approval_request", "id": "r1", "server_label": "s", "name": "f", "arguments": "{}",
}  # fmt: skip
ANSWER = {"type": "mcp_approval_response", "approval_request_id": "r1", "approve": True}
FUNCTION = {"type": "function_call", "call_id": "c1", "name": "g", "arguments": "{}"}
SAID = {"role": "assistant", "content": "So."}


def messages(*items, **fields):
    return messages_of(items, None, UnknownFields(), **fields)


def roles(found):
    return [
        (message["role"], len(message.get("tool_calls", ())), message.get("content"))
        for message in found
    ]


def test_a_call_is_one_of_the_assistant_and_its_result_follows():
    assert roles(messages({"type": "mcp_list_tools", "server_label": "s"}, CALL, SAID)) == [
        ("assistant", 1, None), ("tool", 0, "one"), ("assistant", 0, "So."),
    ]  # fmt: skip


def test_calls_of_one_turn_come_before_their_results():
    output = {"type": "function_call_output", "call_id": "c1", "output": "two"}
    assert roles(messages(CALL, FUNCTION, CALL | {"id": "m2", "output": "three"}, output)) == [
        ("assistant", 3, None), ("tool", 0, "one"), ("tool", 0, "three"), ("tool", 0, "two"),
    ]  # fmt: skip


def test_turns_of_a_response_stay_apart():
    found = messages(turns=[[CALL], [CALL | {"id": "m2", "output": "two"}]])
    assert roles(found) == [
        ("assistant", 1, None), ("tool", 0, "one"), ("assistant", 1, None), ("tool", 0, "two"),
    ]  # fmt: skip


def test_a_call_has_the_name_that_the_model_knows():
    (call, _) = messages(CALL, functions={("s", "f"): "s_f"})
    assert call["tool_calls"][0]["function"]["name"] == "s_f"


def test_an_approved_call_has_its_result_where_it_was_asked_for():
    done = CALL | {"approval_request_id": "r1"}
    assert roles(messages(ASKED, ANSWER, done, SAID)) == [
        ("assistant", 1, None), ("tool", 0, "one"), ("assistant", 0, "So."),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([], "has not approved it"),
        ([ANSWER], "has not approved it"),
        ([ANSWER | {"approve": False}], "refused it."),
        ([ANSWER | {"approve": False, "reason": "no"}], "refused it. no"),
    ],
)
def test_a_call_that_was_not_run_has_a_result_that_says_so(answers, words):
    _, result = messages(ASKED, *answers)
    assert words in result["content"]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"output": "yes"}, "yes"),
        ({"output": "", "error": None}, ""),
        ({"error": {"message": "gone"}}, "gone"),
        ({"error": {"content": [{"type": "text", "text": "bare"}, 3]}}, "bare"),
        ({"error": "words"}, "words"),
        ({"error": {}}, "the call failed"),
        ({"error": {"content": 3}}, "the call failed"),
        ({}, "the call failed"),
    ],
)
def test_the_result_of_a_call_is_its_output_or_what_went_wrong(item, expected):
    assert result_of(item) == expected


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([CALL | {"arguments": {}}], "input[0].arguments"),
        ([CALL | {"status": "odd"}], "input[0].status"),
        ([{"type": "mcp_list_tools"}], "input[0].server_label"),
        ([ANSWER], "input[0].approval_request_id"),
        ([ASKED, ANSWER | {"approve": "yes"}], "input[1].approve"),
        ([ASKED, ANSWER | {"reason": 3}], "input[1].reason"),
        ([ASKED, ASKED, ANSWER], "input[1].id"),
        ([ASKED, ANSWER | {"approve": False}, ANSWER], "input[2].approve"),
        ([ASKED, ANSWER, ANSWER | {"approve": False}], "input[2].approve"),
        ([CALL | {"approval_request_id": ["r1"]}], "input[0].approval_request_id"),
        ([CALL | {"approval_request_id": {"r": 1}}], "input[0].approval_request_id"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(items, param):
    with pytest.raises(InvalidRequestError) as failed:
        messages(*items)
    assert failed.value.param == param


def test_a_call_without_a_result_is_left_out():
    assert messages(CALL | {"status": "incomplete", "output": None}) == []


def test_an_approved_call_that_broke_off_is_not_said_to_be_unapproved():
    broken = CALL | {"approval_request_id": "r1", "status": "incomplete", "output": None}
    _, result = messages(ASKED, ANSWER, broken)
    assert "it may have had its effect" in result["content"]


def test_an_answer_may_be_sent_once_more():
    assert len(messages(ASKED, ANSWER, ANSWER)) == 2
