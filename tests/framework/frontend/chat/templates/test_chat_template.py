"""Templates render what OpenAI's messages say, in a sandbox and within bounds."""

import json

import pytest

from quire.errors import (
    ChatTemplateError,
    CheckpointCorruptError,
    InvalidRequestError,
    SettingsError,
    UnknownFieldError,
)
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.unknown_fields import UnknownFields

CHATML = """{% for message in messages %}
<|{{ message.role }}|>{{ message.content }}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
USER = [{"role": "user", "content": "Hi"}]


def test_a_conversation_is_rendered():
    messages = [{"role": "system", "content": "Be kind."}, *USER]
    assert (
        ChatTemplate(CHATML).render(messages).text
        == "<|system|>Be kind.\n<|user|>Hi\n<|assistant|>"
    )
    assert ChatTemplate(CHATML).render(USER, add_generation_prompt=False).text == "<|user|>Hi\n"


def test_developers_are_the_system_and_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    rendered = ChatTemplate(CHATML).render([{"role": "developer", "content": parts}]).text
    assert rendered.startswith("<|system|>a\nb\n")


def test_json_is_not_escaped_for_html():
    template = ChatTemplate("{{ tools | tojson }}")
    tool = {"type": "function", "function": {"name": "f", "description": "a<b> & 'é'"}}
    assert template.render(USER, [tool]).text == json.dumps([tool], ensure_ascii=False)


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
    assert template.render(messages).text == "[Hi]c1:1[]c1[42]"


@pytest.mark.parametrize("arguments", ['{"city": "Ro', "Rome", '["Rome"]', "3"])
def test_arguments_that_are_no_object_are_shown_as_the_model_wrote_them(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    template = ChatTemplate(
        "{% for c in messages[0].tool_calls %}{% if c.function.arguments is string %}"
        "{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}"
        "{% endfor %}"
    )
    assert template.render([{"role": "assistant", "tool_calls": [call]}]).text == arguments


def test_the_thinking_of_earlier_turns_is_offered():
    template = ChatTemplate("{{ messages[0].reasoning_content }}")
    message = {"role": "assistant", "content": "x", "reasoning": "hm"}
    assert template.render([message]).text == "hm"


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
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}],
         "messages[0].tool_calls[0].function.arguments", "JSON text or an object"),
    ],
)  # fmt: skip
def test_a_wrong_message_is_refused_by_its_place(messages, param, said):
    with pytest.raises(InvalidRequestError, match=said) as caught:
        ChatTemplate(CHATML).render(messages)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "name",
    [
        "add_generation_prompt", "documents", "messages", "tools", "raise_exception",
        "strftime_now", "bos_token", "_x",
    ],
)  # fmt: skip
def test_further_names_shadow_nothing(name):
    template = ChatTemplate("{{ bos_token }}", {"bos_token": "<s>"})
    for unknown in (UnknownFields(), UnknownFields(is_lenient=True)):
        with pytest.raises(InvalidRequestError, match=f"{name}.*is reserved"):
            template.render(USER, None, {name: False}, unknown=unknown)


def test_further_names_reach_the_template():
    assert (
        ChatTemplate("{{ enable_thinking }}").render(USER, None, {"enable_thinking": 0}).text == "0"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("enable_thinkin", "did you mean 'enable_thinking'?"),
        ("budgt", "did you mean 'budget'?"),
        ("loudness", "known: budget, enable_thinking, reasoning_effort, thinking"),
        ("turn", "leave it out"),
    ],
)
def test_a_name_that_the_template_does_not_read_is_refused(given, said):
    template = ChatTemplate("{% for turn in messages %}{{ turn.content }}{% endfor %}{{ budget }}")
    with pytest.raises(UnknownFieldError) as caught:
        template.render(USER, None, {given: 1})
    assert caught.value.param == f"chat_template_kwargs.{given}"
    assert said in str(caught.value)
    lenient = UnknownFields(is_lenient=True)
    assert template.render(USER, None, {given: 1}, unknown=lenient).text == "Hi"


@pytest.mark.parametrize("name", ["enable_thinking", "thinking", "reasoning_effort"])
def test_switches_of_thinking_are_taken_by_templates_without_any(name):
    assert ChatTemplate("Hi").render(USER, None, {name: False}).text == "Hi"


@pytest.mark.parametrize(
    "text",
    [
        "{% macro shown() %}{{ mood }}{% endmacro %}{{ shown() }}",
        "{% for _ in messages %}{% if mood %}{{ mood }}{% endif %}{% endfor %}",
        "{% if mood is not defined %}{% set mood = 'x' %}{% endif %}{{ mood }}",
        "{% set mood = mood | default('x') %}{{ mood }}",
        "{% generation %}{{ mood }}{% endgeneration %}",
    ],
)
def test_a_name_is_read_wherever_it_stands(text):
    assert ChatTemplate(text).render(USER, None, {"mood": "good"}).text == "good"
    several = {"default": "Hi", "tool_use": text}
    assert ChatTemplate(several).render(USER, None, {"mood": "good"}).text == "Hi"


def test_special_tokens_reach_the_template():
    assert ChatTemplate("{{ bos_token }}", {"bos_token": "<s>"}).render(USER).text == "<s>"


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
    assert ChatTemplate(escape).render(USER).text == ""


def test_output_is_bounded():
    endless = "{% for i in range(90000) %}{% for j in range(90000) %}xxxx{% endfor %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match="more than 1000"):
        ChatTemplate(endless, max_characters=1000).render(USER)


def test_loop_controls_and_generation_blocks_are_known():
    text = "{% for m in messages %}{% generation %}a{% endgeneration %}{% break %}{% endfor %}"
    assert ChatTemplate(text).render(USER * 2).text == "a"


def test_the_date_is_known():
    assert len(ChatTemplate("{{ strftime_now('%Y') }}").render(USER).text) == 4
    assert len(ChatTemplate("{{ strftime_now(format='%Y') }}").render(USER).text) == 4


def test_a_missing_template_says_how_to_pass_one(tmp_path):
    template = ChatTemplate.load(tmp_path)
    assert not template.exists
    with pytest.raises(ChatTemplateError, match="--chat-template FILE"):
        template.render(USER)


def test_the_file_beside_the_checkpoint_comes_first(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert ChatTemplate.load(tmp_path).render(USER).text == "config"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert ChatTemplate.load(tmp_path).render(USER).text == "file"
    (tmp_path / "mine.jinja").write_text("mine")
    assert ChatTemplate.load(tmp_path, tmp_path / "mine.jinja").render(USER).text == "mine"


def test_of_several_templates_tools_choose_theirs(tmp_path):
    listed = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    template = ChatTemplate.load(tmp_path)
    tool = {"type": "function", "function": {"name": "f"}}
    assert (template.render(USER).text, template.render(USER, [tool]).text) == ("d", "t")
    assert template.source == "d\nt"


def test_a_template_that_is_no_jinja_is_named(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(CheckpointCorruptError, match="line 1"):
        ChatTemplate.load(tmp_path)
    with pytest.raises(SettingsError, match="chat_template"):
        ChatTemplate.load(tmp_path, tmp_path / "chat_template.jinja")
    with pytest.raises(SettingsError, match="nowhere"):
        ChatTemplate.load(tmp_path, tmp_path / "nowhere.jinja")


def test_a_prompt_may_be_so_long_and_no_longer():
    whole = "{{ messages[0].content }}"
    in_pieces = "{% for c in messages[0].content %}{{ c }}{% endfor %}"
    for template in (whole, in_pieces):
        rendered = ChatTemplate(template, max_characters=10)
        assert rendered.render([{"role": "user", "content": "x" * 10}]).text == "x" * 10
        said = r"^the chat template wrote more than 10 characters$"
        with pytest.raises(ChatTemplateError, match=said) as caught:
            rendered.render([{"role": "user", "content": "x" * 11}])
        assert caught.value.param == "messages"


def test_blocks_leave_neither_lines_nor_blanks():
    text = "a\n  {% if true %}\nb\n  {% endif %}\nc"
    assert ChatTemplate(text).render(USER).text == "a\nb\nc"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("tojson", '{"b": "é", "a": 1}'),
        ("tojson(ensure_ascii=True)", '{"b": "\\u00e9", "a": 1}'),
        ("tojson(indent=1)", '{\n "b": "é",\n "a": 1\n}'),
        ("tojson(separators=(',', ':'))", '{"b":"é","a":1}'),
        ("tojson(sort_keys=True)", '{"a": 1, "b": "é"}'),
    ],
)
def test_json_is_written_as_the_template_asks(call, text):
    template = ChatTemplate("{{ {'b': 'é', 'a': 1} | " + call + " }}")
    assert template.render(USER).text == text


@pytest.mark.parametrize(
    "name", ["raise_exception", "strftime_now", "documents", "_x", "__class__"]
)
def test_names_of_the_template_cannot_be_set_without_special_tokens_either(name):
    with pytest.raises(InvalidRequestError, match="cannot set") as caught:
        ChatTemplate("x").render(USER, None, {name: "x"})
    assert caught.value.param == "chat_template_kwargs"


def test_a_template_sees_that_there_are_no_documents_and_no_tools():
    text = "{{ documents is none }}{{ documents is defined }}{{ tools is none }}"
    assert ChatTemplate(text).render(USER).text == "TrueTrueTrue"


def test_a_name_of_the_client_wins_over_nothing_of_ours():
    template = ChatTemplate("{{ bos_token }}{{ mood }}", {"bos_token": "<s>"})
    assert template.render(USER, None, {"mood": "x"}).text == "<s>x"


def test_of_several_templates_none_is_taken_that_was_not_asked_for():
    tool = {"type": "function", "function": {"name": "f"}}
    named = ChatTemplate({"rag": "r", "tool_use": "t"})
    assert named.render(USER, [tool]).text == "t"
    with pytest.raises(ChatTemplateError, match="rag, tool_use and none is the default"):
        named.render(USER)
    plain = ChatTemplate({"rag": "r", "default": "d"})
    assert plain.render(USER).text == plain.render(USER, [tool]).text == "d"


@pytest.mark.parametrize("entry", [{"name": "a"}, {"template": "a"}, "a", None])
def test_a_listed_template_without_a_name_or_a_text_is_named(tmp_path, entry):
    config = {"chat_template": [entry]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointCorruptError, match=r"tokenizer_config\.json.*`name`"):
        ChatTemplate.load(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe\xfa", b"{% for %}"])
def test_a_template_of_the_caller_that_cannot_be_read_is_a_setting(tmp_path, content):
    (tmp_path / "mine.jinja").write_bytes(content)
    with pytest.raises(SettingsError, match="chat_template must be a Jinja file"):
        ChatTemplate.load(tmp_path, tmp_path / "mine.jinja")


def test_whatever_a_template_raises_blames_the_messages():
    for text in ("{{ raise_exception('no') }}", "{{ 1 / 0 }}", "{{ messages[5].x.y }}"):
        with pytest.raises(ChatTemplateError, match="cannot render this conversation") as caught:
            ChatTemplate(text).render(USER)
        assert caught.value.param == "messages"
        assert caught.value.__cause__ is not None


def test_a_template_of_the_users_gets_the_special_tokens(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    template = ChatTemplate.load(tmp_path, tmp_path / "own.jinja", {"bos_token": "<s>"})
    assert template.render(USER).text == "<s>Hi"
