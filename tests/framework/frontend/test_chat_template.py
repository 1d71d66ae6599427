"""Templates render what OpenAI's messages say, in a sandbox and within bounds."""

import json

import pytest

from quire.errors import (
    ChatTemplateError,
    CheckpointCorruptError,
    InvalidRequestError,
    SettingsError,
)
from quire.frontend.chat_template import ChatTemplate

CHATML = """{% for message in messages %}
<|{{ message.role }}|>{{ message.content }}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
USER = [{"role": "user", "content": "Hi"}]


def test_a_conversation_is_rendered():
    messages = [{"role": "system", "content": "Be kind."}, *USER]
    assert ChatTemplate(CHATML).render(messages) == "<|system|>Be kind.\n<|user|>Hi\n<|assistant|>"
    assert ChatTemplate(CHATML).render(USER, add_generation_prompt=False) == "<|user|>Hi\n"


def test_developers_are_the_system_and_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    rendered = ChatTemplate(CHATML).render([{"role": "developer", "content": parts}])
    assert rendered.startswith("<|system|>a\nb\n")


def test_json_is_not_escaped_for_html():
    template = ChatTemplate("{{ tools | tojson }}")
    tool = {"type": "function", "function": {"name": "f", "description": "a<b> & 'é'"}}
    assert template.render(USER, [tool]) == json.dumps([tool], ensure_ascii=False)


def test_arguments_reach_the_template_as_objects():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    template = ChatTemplate(
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }}:"
        "{{ c.function.arguments.a[0] }}{% endfor %}{{ m.tool_call_id }}[{{ m.content }}]"
        "{% endfor %}"
    )
    assert template.render(messages) == "[Hi]c1:1[]c1[42]"


def test_the_thinking_of_earlier_turns_is_offered():
    template = ChatTemplate("{{ messages[0].reasoning_content }}")
    message = {"role": "assistant", "content": "x", "reasoning": "hm"}
    assert template.render([message]) == "hm"


@pytest.mark.parametrize(
    ("messages", "param", "said"),
    [
        ([], "messages", "at least one"),
        ("Hi", "messages", "list"),
        ([7], "messages[0]", "object"),
        ([{"role": "robot", "content": "x"}], "messages[0].role", "robot"),
        ([{"role": "user"}], "messages[0].content", "None"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]",
         "image_url"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]", "text"),
        ([{"role": "user", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls", "user"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]", "function"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
         "messages[0].tool_calls[0].function.arguments", "not JSON"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}],
         "messages[0].tool_calls[0].function.arguments", "object"),
    ],
)  # fmt: skip
def test_a_wrong_message_is_refused_by_its_place(messages, param, said):
    with pytest.raises(InvalidRequestError, match=said) as caught:
        ChatTemplate(CHATML).render(messages)
    assert caught.value.param == param


@pytest.mark.parametrize("tool", [{}, {"type": "web"}, {"type": "function", "function": {}}, 3])
def test_a_wrong_tool_is_refused_by_its_place(tool):
    with pytest.raises(InvalidRequestError, match=r"tools\[0\]"):
        ChatTemplate(CHATML).render(USER, [tool])


@pytest.mark.parametrize(
    "name",
    [
        "add_generation_prompt", "documents", "messages", "tools", "raise_exception",
        "strftime_now", "bos_token", "_x",
    ],
)  # fmt: skip
def test_further_names_shadow_nothing(name):
    template = ChatTemplate("{{ bos_token }}", {"bos_token": "<s>"})
    with pytest.raises(InvalidRequestError, match=name):
        template.render(USER, None, {name: False})


def test_further_names_reach_the_template():
    assert ChatTemplate("{{ enable_thinking }}").render(USER, None, {"enable_thinking": 0}) == "0"


def test_special_tokens_reach_the_template():
    assert ChatTemplate("{{ bos_token }}", {"bos_token": "<s>"}).render(USER) == "<s>"


def test_what_a_template_refuses_is_said():
    template = ChatTemplate("{{ raise_exception('no system here') }}")
    with pytest.raises(ChatTemplateError, match="no system here"):
        template.render(USER)


@pytest.mark.parametrize(
    "escape",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set _ = messages.append(1) %}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ ''.__class__.mro()[1].__subclasses__() }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
    ],
)
def test_the_sandbox_holds(escape):
    with pytest.raises(ChatTemplateError):
        ChatTemplate(escape).render(USER)


@pytest.mark.parametrize("escape", ["{{ '{0.__class__}'.format(messages) }}", "{{ 1.__class__ }}"])
def test_what_the_sandbox_hides_is_nothing(escape):
    assert ChatTemplate(escape).render(USER) == ""


def test_output_is_bounded():
    endless = "{% for i in range(90000) %}{% for j in range(90000) %}xxxx{% endfor %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match="more than 1000"):
        ChatTemplate(endless, max_characters=1000).render(USER)


def test_loop_controls_and_generation_blocks_are_known():
    text = "{% for m in messages %}{% generation %}a{% endgeneration %}{% break %}{% endfor %}"
    assert ChatTemplate(text).render(USER * 2) == "a"


def test_the_date_is_known():
    assert len(ChatTemplate("{{ strftime_now('%Y') }}").render(USER)) == 4


def test_a_missing_template_says_how_to_pass_one(tmp_path):
    template = ChatTemplate.load(tmp_path)
    assert not template.exists
    with pytest.raises(ChatTemplateError, match="--chat-template FILE"):
        template.render(USER)


def test_the_file_beside_the_checkpoint_comes_first(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert ChatTemplate.load(tmp_path).render(USER) == "config"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert ChatTemplate.load(tmp_path).render(USER) == "file"
    (tmp_path / "mine.jinja").write_text("mine")
    assert ChatTemplate.load(tmp_path, tmp_path / "mine.jinja").render(USER) == "mine"


def test_of_several_templates_tools_choose_theirs(tmp_path):
    listed = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    template = ChatTemplate.load(tmp_path)
    tool = {"type": "function", "function": {"name": "f"}}
    assert (template.render(USER), template.render(USER, [tool])) == ("d", "t")
    assert template.source == "d\nt"


def test_a_template_that_is_no_jinja_is_named(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(CheckpointCorruptError, match="line 1"):
        ChatTemplate.load(tmp_path)
    with pytest.raises(SettingsError, match="chat_template"):
        ChatTemplate.load(tmp_path, tmp_path / "chat_template.jinja")
    with pytest.raises(SettingsError, match="nowhere"):
        ChatTemplate.load(tmp_path, tmp_path / "nowhere.jinja")
