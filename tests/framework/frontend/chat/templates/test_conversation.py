"""Messages are converted for templates, and unsupported fields are refused."""

import pytest

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.chat.templates.conversation import normalize_messages, normalize_tools
from quire.frontend.unknown_fields import UnknownFields

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


@pytest.mark.parametrize(
    ("messages", "param", "meant"),
    [
        (assistant(reasonings="x"), "messages[0].reasonings", "reasoning"),
        ([{"role": "user", "contents": "y", "content": "x"}], "messages[0].contents", "content"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x", "texts": 1}]}],
            "messages[0].content[0].texts",
            "text",
        ),
        (
            assistant(tool_calls=[{"function": {"name": "f", "argument": "{}"}}]),
            "messages[0].tool_calls[0].function.argument",
            "arguments",
        ),
        (
            assistant(tool_calls=[CALL | {"functions": 7}]),
            "messages[0].tool_calls[0].functions",
            "function",
        ),
    ],
)
def test_a_field_that_does_not_exist_is_refused_with_the_one_that_is_meant(messages, param, meant):
    with pytest.raises(UnknownFieldError, match=f"did you mean '{meant}'") as caught:
        normalize_messages(messages)
    assert caught.value.param == param
    lenient = UnknownFields(is_lenient=True)
    without = [
        {k: v for k, v in m.items() if k not in ("reasonings", "contents")} for m in messages
    ]
    assert normalize_messages(messages, lenient) == normalize_messages(without, lenient)


def test_leniency_drops_nothing_that_is_known():
    with pytest.raises(InvalidRequestError, match="refusal is not supported"):
        normalize_messages(assistant(refusal="I will not"), UnknownFields(is_lenient=True))


def test_a_completion_can_be_sent_back_as_it_was():
    completion = {
        "role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None,
        "function_call": None, "tool_calls": [CALL | {"index": 0}], "reasoning": "hm",
        "reasoning_content": "hm",
    }  # fmt: skip
    (normal,) = normalize_messages([completion])
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


def normal(**message):
    (found,) = normalize_messages([{"role": "assistant", "content": "x"} | message])
    return found


@pytest.mark.parametrize(
    ("role", "shown"),
    [("developer", "system"), ("system", "system"), ("user", "user"), ("tool", "tool")],
)
def test_templates_know_four_roles(role, shown):
    assert normal(role=role)["role"] == shown


@pytest.mark.parametrize(
    ("fields", "thought"),
    [
        ({}, None),
        ({"reasoning": "a"}, "a"),
        ({"reasoning_content": "b"}, "b"),
        ({"reasoning": "a", "reasoning_content": "b"}, "b"),
        ({"reasoning": None, "reasoning_content": None}, None),
        ({"role": "user", "reasoning": "a"}, None),
    ],
)
def test_the_reasoning_of_a_message_has_one_name(fields, thought):
    assert normal(**fields).get("reasoning_content") == thought
    assert "reasoning" not in normal(**fields)


@pytest.mark.parametrize(
    ("message", "is_taken"),
    [
        ({"role": "assistant", "tool_calls": [CALL]}, True),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, True),
        ({"role": "assistant", "reasoning_content": "hm"}, True),
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": None, "tool_calls": []}, False),
        ({"role": "user", "reasoning_content": "hm"}, False),
        ({"role": "assistant", "content": ""}, True),
    ],
)
def test_only_calls_and_thinking_stand_for_content(message, is_taken):
    if is_taken:
        assert normalize_messages([message])[0]["content"] == ""
        return
    with pytest.raises(InvalidRequestError) as caught:
        normalize_messages([message])
    assert caught.value.param == "messages[0].content"


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ("{}", {}),
        ("", {}),
        (" \n", {}),
        (None, {}),
        ('{"a": [1]}', {"a": [1]}),
        ({"a": 1}, {"a": 1}),
        (r'{"a": "\ud800"}', {"a": "\ufffd"}),
        ("[]", "[]"),
        ("3", "3"),
        ("{", "{"),
        (' {"city": ', ' {"city": '),
        ('{"a":' + "[" * 100_000, '{"a":' + "[" * 100_000),
        (3, None),
        ([], None),
    ],
)
def test_arguments_become_an_object_or_stay_a_text(given, arguments):
    call = {"function": {"name": "f", "arguments": given}}
    if arguments is not None:
        (found,) = normal(tool_calls=[call])["tool_calls"]
        assert found == {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return
    with pytest.raises(InvalidRequestError) as caught:
        normal(tool_calls=[call])
    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"


@pytest.mark.parametrize("calls", [{"id": 1}, "x", [3], [{}], [{"function": {"name": ""}}]])
def test_calls_are_a_list_of_functions_with_names(calls):
    with pytest.raises(InvalidRequestError, match="tool_calls"):
        normal(tool_calls=calls)


@pytest.mark.parametrize("role", ["user", "tool", "system", "developer"])
def test_only_assistants_call(role):
    with pytest.raises(InvalidRequestError, match="cannot have tool calls") as caught:
        normal(role=role, tool_calls=[CALL])
    assert caught.value.param == "messages[0].tool_calls"


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_what_says_nothing_may_be_there(value):
    assert normal(mood=value) == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("value", [True, 0.5, "x", [0], {"a": None}])
def test_what_says_something_may_not(value):
    with pytest.raises(InvalidRequestError) as caught:
        normal(mood=value)
    assert caught.value.param == "messages[0].mood"


def test_parts_are_lines_of_one_text():
    parts = [{"type": "text", "text": text} for text in ("a", "", "b")]
    assert normal(content=parts)["content"] == "a\n\nb"
    assert normal(content=[{"type": "text", "text": "a", "cache_control": {}}])["content"] == "a"
    assert normal(content=[])["content"] == ""


@pytest.mark.parametrize(
    "part", ["a", 3, {}, {"text": "a"}, {"type": "image_url"}, {"type": "text"}]
)
def test_a_part_is_text(part):
    with pytest.raises(InvalidRequestError) as caught:
        normal(content=[{"type": "text", "text": "a"}, part])
    assert caught.value.param == "messages[0].content[1]"


def test_a_place_is_the_messages_own():
    with pytest.raises(InvalidRequestError) as caught:
        normalize_messages([{"role": "user", "content": "x"}, {"role": "user", "content": 5}])
    assert caught.value.param == "messages[1].content"


def test_a_template_sees_the_type_and_the_function_of_a_tool():
    function = {"name": "f", "parameters": {}}
    shown = [{"type": "function", "function": function}]
    assert normalize_tools([{"type": "function", "function": function, "more": 1}]) == shown
    assert normalize_tools([]) is normalize_tools(None) is None


def test_the_call_of_a_custom_tool_is_that_of_a_function_with_its_text():
    call = {"id": "c", "type": "custom", "custom": {"name": "run", "input": "{not json"}}
    (message,) = normalize_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])
    function = {"name": "run", "arguments": {"input": "{not json"}}
    assert message["tool_calls"] == [{"type": "function", "function": function, "id": "c"}]


@pytest.mark.parametrize(
    ("call", "param"),
    [
        ({"type": "custom"}, ""),
        ({"type": "custom", "custom": {"input": "a"}}, ""),
        ({"type": "custom", "custom": {"name": "run"}}, ".custom.input"),
        ({"type": "custom", "custom": {"name": "run", "input": 5}}, ".custom.input"),
        ({"type": "custom", "custom": {"name": "run", "input": "", "odd": 1}}, ".custom.odd"),
        ({"type": "custom", "odd": 1, "custom": {"name": "run", "input": ""}}, ".odd"),
    ],
)
def test_the_call_of_a_custom_tool_has_a_name_and_a_text(call, param):
    with pytest.raises(InvalidRequestError) as caught:
        normalize_messages([{"role": "assistant", "tool_calls": [call]}])
    assert caught.value.param == f"messages[0].tool_calls[0]{param}"
