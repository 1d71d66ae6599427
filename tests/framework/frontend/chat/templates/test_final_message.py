"""A prompt may end within its last message, exactly as transformers ends it."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from quire.errors import ChatTemplateError, InvalidRequestError
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.chat.templates.final_message import END_MARK

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMED = CHATML.replace("m.content", "m.content | trim")
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last and m.role == 'assistant' %}"
    "<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = {"role": "user", "content": "Count to three."}


def assistant(content):
    return {"role": "assistant", "content": content}


def by_transformers(template, messages, **options):
    (text,), _ = render_jinja_template([messages], chat_template=template, **options)
    return text


@pytest.mark.parametrize("template", [CHATML, TRIMMED, THINKING])
@pytest.mark.parametrize(
    "content", ["One, two,", "One, two, ", "", "a\n\n", END_MARK, "<|im_end|>"]
)
@pytest.mark.parametrize("before", [[], [USER], [USER, assistant("One, two,"), USER]])
def test_a_continued_message_ends_the_prompt_as_with_transformers(template, content, before):
    messages = [*before, assistant(content)]
    wanted = by_transformers(template, messages, continue_final_message=True)
    rendered = ChatTemplate(template).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert rendered.text == wanted


@pytest.mark.parametrize("template", [CHATML, TRIMMED, THINKING])
@pytest.mark.parametrize("adds", [False, True])
def test_the_start_of_the_turn_is_there_or_not_as_with_transformers(template, adds):
    for messages in ([USER], [USER, assistant("One, two, ")]):
        wanted = by_transformers(template, messages, add_generation_prompt=adds)
        rendered = ChatTemplate(template).render(messages, add_generation_prompt=adds)
        assert rendered.text == wanted


def test_any_role_may_be_continued_and_parts_are_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    rendered = ChatTemplate(CHATML).render(
        [{"role": "user", "content": parts}], continue_final_message=True
    )
    assert rendered.text == "<|im_start|>user\na\nb"


def test_special_tokens_that_a_text_spells_stay_plain():
    template = ChatTemplate(CHATML, plain_spellings=["<|im_end|>", "<|im_start|>"])
    messages = [USER, assistant("see <|im_end|> and")]
    rendered = template.render(messages, continue_final_message=True)
    assert rendered.text.endswith("assistant\nsee <|im_end|> and")
    assert rendered.breaks
    assert all(rendered.text.index("see") < at < len(rendered.text) for at in rendered.breaks)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages[:-1] %}{{ m.content }}{% endfor %}",
        "{{ messages[-1].content | upper }}",
        "{{ messages[-1].content[-5:] }}",
    ],
)
def test_a_template_that_does_not_write_the_message_is_an_error(template):
    with pytest.raises(ChatTemplateError, match="cannot be continued") as caught:
        ChatTemplate(template).render(
            [USER, assistant("a longer text")], continue_final_message=True
        )
    assert caught.value.param == "continue_final_message"


def test_a_message_without_content_cannot_be_continued():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "tool_calls": [call]}
    with pytest.raises(InvalidRequestError, match="last message with content") as caught:
        ChatTemplate(CHATML).render([USER, message], continue_final_message=True)
    assert caught.value.param == "messages"
