"""Calls of earlier turns have the ids that the chat template needs, and so have their results."""

from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.chat.templates.prompt_call_ids import as_sent, with_prompt_ids


def call(call_id=None, name="f"):
    given = {} if call_id is None else {"id": call_id}
    return {"type": "function", "function": {"name": name, "arguments": {}}} | given


def conversation(*ids):
    calls = {"role": "assistant", "content": "", "tool_calls": [call(each) for each in ids]}
    results = [{"role": "tool", "content": "x", "tool_call_id": each} for each in ids]
    return [{"role": "user", "content": "Hi"}, calls, *results]


def numbered(call_id, name, number):
    return f"{name}:{number}"


def ids_of(messages):
    return [
        [each.get("id") for each in message["tool_calls"]]
        if "tool_calls" in message
        else message.get("tool_call_id")
        for message in messages
    ]


def test_ids_stay_as_they_are_sent_by_default():
    messages = conversation("a", "b")
    assert with_prompt_ids(messages, as_sent) == messages
    without = [{"role": "assistant", "content": "", "tool_calls": [call()]}]
    assert with_prompt_ids(without, as_sent) == without


def test_calls_and_their_results_get_the_same_new_id():
    messages = conversation("a", "b")
    assert ids_of(with_prompt_ids(messages, numbered)) == [None, ["f:0", "f:1"], "f:0", "f:1"]
    assert ids_of(messages) == [None, ["a", "b"], "a", "b"]


def test_numbers_go_on_over_the_conversation_and_a_repeated_id_is_that_of_the_last_call():
    messages = conversation("a") + conversation("a")
    assert ids_of(with_prompt_ids(messages, numbered)) == [
        None, ["f:0"], "f:0", None, ["f:1"], "f:1",
    ]  # fmt: skip


def test_a_call_without_an_id_gets_one_and_a_result_of_no_call_keeps_its_own():
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call()]},
        {"role": "tool", "content": "x", "tool_call_id": "other"},
    ]
    assert ids_of(with_prompt_ids(messages, numbered)) == [["f:0"], "other"]


def test_the_template_sees_the_new_ids():
    template = ChatTemplate(
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }};{% endfor %}"
        "{{ m.tool_call_id }}|{% endfor %}"
    )
    messages = conversation("a")
    messages[1]["tool_calls"][0]["function"]["arguments"] = "{}"
    assert template.render(messages).text == "|a;|a|"
    assert template.with_call_ids(numbered).render(messages).text == "|f:0;|f:0|"
    assert template.render(messages).text == "|a;|a|"
