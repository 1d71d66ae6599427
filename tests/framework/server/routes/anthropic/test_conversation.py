"""A conversation in Anthropic's blocks is one of texts, calls and results, or names its fault."""

from itertools import pairwise

import pytest
from any_messages import any_messages, blocks
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.chat.templates.conversation import normalize_messages
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.anthropic.conversation import BILLING, chat_messages
from quire.server.routes.anthropic.sent_blocks import BLOCKS, REFUSED_BLOCKS

STRICT = UnknownFields()
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}


def text(*texts):
    return [{"type": "text", "text": each} for each in texts]


def result(**fields):
    return {"type": "tool_result", "tool_use_id": "toolu_1"} | fields


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


CALLED = assistant([CALL])


def converted(*messages, system=None, unknown=STRICT):
    return chat_messages(system, messages, unknown)


def fault_of(*messages, **fields):
    with pytest.raises(InvalidRequestError) as caught:
        converted(*messages, **fields)
    assert caught.value.param is None or caught.value.param in str(caught.value)
    return caught.value


@pytest.mark.parametrize("content", ["Hi", text("Hi")])
@pytest.mark.parametrize("system", ["Be kind.", text("Be kind.")])
def test_a_text_is_a_string_or_blocks(content, system):
    assert converted(user(content), system=system) == [
        {"role": "system", "content": "Be kind."},
        user("Hi"),
    ]


def test_texts_of_one_role_are_one_message():
    assert converted(user("a"), user(text("b", "c")), assistant("d"), assistant(text("e"))) == [
        user("a\nb\nc"),
        assistant("d\ne"),
    ]
    assert converted(user(""), user("a"), user("")) == [user("a")]


def test_system_messages_join_the_system_prompt_or_stay_where_they_are():
    inner = {"role": "system", "content": text("b")}
    assert converted(inner, user("x"), inner, system="a") == [
        {"role": "system", "content": "a\nb"},
        user("x"),
        {"role": "system", "content": "b"},
    ]


def test_a_header_for_billing_is_no_part_of_the_prompt():
    system = text(f"{BILLING}: cc_version=1; cch=abc", "Be kind.")
    assert converted(user("x"), system=system)[0]["content"] == "Be kind."
    assert converted(user("x"), system=system[:1]) == [user("x")]
    assert BILLING in converted(user(text(BILLING)))[0]["content"]


@pytest.mark.parametrize("role", ["ctx", "msg"])
def test_roles_of_a_coding_client_are_those_of_a_user(role):
    assert converted({"role": role, "content": "x"}) == [user("x")]


def test_a_call_and_its_result_are_those_of_a_chat():
    messages = [
        user("x"),
        assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}, *text("ok"), CALL]),
        user([result(content="1"), result(content=text("2", "3")), *text("go on")]),
    ]
    expected = [
        user("x"),
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "f", "arguments": {"a": 1}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "1"},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "2\n3"},
        user("go on"),
    ]
    assert converted(*messages) == expected
    assert normalize_messages(expected) == expected


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": "no", "is_error": True}, "Error: no"),
        ({"content": "yes", "is_error": False}, "yes"),
        ({"content": [{"type": "tool_reference", "tool_name": "g"}]}, "g"),
    ],
)
def test_a_result_is_a_text_that_says_whether_the_tool_failed(fields, content):
    assert converted(CALLED, user([result(**fields)]))[1]["content"] == content


def test_each_of_parallel_calls_may_have_its_result():
    calls = [CALL | {"id": f"toolu_{i}"} for i in range(3)]
    results = [result(content=str(i)) | {"tool_use_id": f"toolu_{i}"} for i in range(3)]
    found = converted(user("x"), assistant(calls), user(results[:2]), user(results[2:]))
    assert [each["tool_call_id"] for each in found[2:]] == ["toolu_0", "toolu_1", "toolu_2"]


@pytest.mark.parametrize("before", [[], [assistant("f")], [assistant([CALL | {"id": "toolu_2"}])]])
def test_a_result_of_a_call_that_there_is_not_is_refused(before):
    fault = fault_of(user("x"), *before, user([*text("y"), result(content="r")]), CALLED)
    assert fault.param == f"messages[{len(before) + 1}].content[1].tool_use_id"
    assert "'toolu_1'" in str(fault)


def test_what_only_anthropic_can_read_is_left_out():
    message = assistant([{"type": "redacted_thinking", "data": "xyz"}, *text("a")])
    assert converted(user("x"), message)[1] == assistant("a")


def test_thoughts_of_one_turn_are_joined():
    thinking = assistant([{"type": "thinking", "thinking": "a", "signature": ""}])
    more = assistant([{"type": "thinking", "thinking": "b"}, *text("c")])
    assert converted(user("x"), thinking, more)[1] == assistant("c") | {"reasoning_content": "a\nb"}


@pytest.mark.parametrize("kind", sorted(REFUSED_BLOCKS))
def test_what_the_model_cannot_read_is_refused_by_name(kind):
    fault = fault_of(user([*text("a"), {"type": kind, "source": {}}]))
    assert fault.param == "messages[0].content[1].type"
    assert kind in str(fault)
    assert REFUSED_BLOCKS[kind] in str(fault)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "system", "content": []}], "messages"),
        ([{"role": "system", "content": text(BILLING)}], "messages"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([user(5)], "messages[0].content"),
        ([user([])], "messages[0].content"),
        ([user("x"), user(["y"])], "messages[1].content[0]"),
        ([user([{"text": "y"}])], "messages[0].content[0]"),
        ([user([{"type": "text"}])], "messages[0].content[0].text"),
        ([user([{"type": "txt", "text": "y"}])], "messages[0].content[0].type"),
        ([user([CALL])], "messages[0].content[0].type"),
        ([assistant([result()])], "messages[0].content[0].type"),
        ([assistant([CALL | {"input": "{}"}])], "messages[0].content[0].input"),
        ([assistant([CALL | {"name": ""}])], "messages[0].content[0].name"),
        ([assistant([CALL | {"id": 3}])], "messages[0].content[0].id"),
        ([CALLED, user([result(content=5)])], "messages[1].content[0].content"),
        ([CALLED, user([result(is_error="no")])], "messages[1].content[0].is_error"),
        ([user([{"type": "tool_result"}])], "messages[0].content[0].tool_use_id"),
        ([CALLED, user([result(content=[CALL])])], "messages[1].content[0].content[0].type"),
        ([assistant([{"type": "thinking"}])], "messages[0].content[0].thinking"),
    ],
)
def test_a_fault_has_its_path(messages, param):
    assert fault_of(*messages).param == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (user("x") | {"contents": "y"}, "messages[1].contents"),
        (user([text("x")[0] | {"txt": "y"}]), "messages[1].content[0].txt"),
        (user([result(content=[text("x")[0] | {"y": 1}])]), "messages[1].content[0].content[0].y"),
    ],
)
def test_a_field_that_does_not_exist_is_refused_unless_it_is_null_or_this_is_lenient(
    message, param
):
    with pytest.raises(UnknownFieldError) as caught:
        converted(CALLED, message)
    assert caught.value.param == param
    assert converted(CALLED, message, unknown=UnknownFields(is_lenient=True))


def test_cache_control_may_be_anywhere():
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    marked = [
        user([text("x")[0] | mark]),
        assistant([text("y")[0] | mark, CALL | mark]),
        user([result(content=[text("z")[0] | mark]) | mark]),
    ]
    assert len(converted(*marked, system=[text("s")[0] | mark])) == 4
    assert all("cache_control" in fields for fields in BLOCKS.values())


_TEXTS = st.text(max_size=3)
_BLOCKS = st.fixed_dictionaries({"type": st.just("text"), "text": _TEXTS})
_MESSAGES = st.one_of(
    st.builds(user, _TEXTS | st.lists(_BLOCKS | st.just(result(content="r")), min_size=1)),
    st.builds(assistant, _TEXTS | st.lists(_BLOCKS | st.just(CALL))),
    st.fixed_dictionaries({"role": st.just("system"), "content": _TEXTS}),
)


@settings(deadline=None)
@given(st.lists(_MESSAGES, min_size=1, max_size=6))
def test_every_conversation_is_one_that_templates_get_and_has_all_texts(messages):
    chat = converted(CALLED, *messages)
    assert len(normalize_messages(chat)) == len(chat)
    roles = [each["role"] for each in chat]
    assert not [a for a, b in pairwise(roles) if a == b == "user"]
    joined = "".join(each["content"] for each in chat)
    for message in messages:
        content = message["content"]
        for each in text(content) if isinstance(content, str) else content:
            assert each.get("text", "") in joined


def test_texts_are_joined_once_however_many_there_are():
    """Joining them one by one copies all of them each time: minutes, for as many as a body has."""
    num = 100_000
    each = "y" * 60
    (message,) = converted(*[user(each)] * num)
    assert message["content"] == "\n".join([each] * num)
    thoughts = [assistant([{"type": "thinking", "thinking": each}])] * num
    (message,) = converted(*thoughts)
    assert message["reasoning_content"] == "\n".join([each] * num)


@settings(deadline=None, max_examples=400)
@given(any_messages(), st.none() | st.lists(blocks(), max_size=2) | st.just(""))
def test_whatever_is_sent_is_a_conversation_or_a_fault_with_a_path(messages, system):
    chat, fault = [], None
    try:
        chat = converted(*messages, system=system)
    except InvalidRequestError as error:
        fault = error
    assert bool(chat) != bool(fault)
    assert all(isinstance(each["content"], str) for each in chat)
    assert fault is None or (fault.param and fault.param in str(fault))
