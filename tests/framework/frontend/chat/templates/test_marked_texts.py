"""Texts of conversations cannot use special tokens: whatever a template does with them."""

import itertools
import json

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidRequestError
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.chat.templates.marked_texts import CANDIDATES, MarkedTexts
from quire.frontend.text.special_spellings import SpecialSpellings

TOKENS = ["<|im_start|>", "<|im_end|>"]
SPELLINGS = SpecialSpellings(TOKENS)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = st.text(st.sampled_from("<|im_endstar> \n"), max_size=20) | st.sampled_from(TOKENS)


def genuine(rendered):
    """Return the positions of the special tokens that a tokenizer would read."""
    bounds = [0, *rendered.breaks, len(rendered.text)]
    return [
        at + start
        for start, end in itertools.pairwise(bounds)
        for at in range(end - start)
        for token in TOKENS
        if rendered.text[start:end].startswith(token, at)
    ]


def user(text):
    return [{"role": "user", "content": text}]


def test_texts_without_special_tokens_are_left_alone():
    variables = {"messages": user("a < b"), "tools": None, "kept": 3}
    texts = MarkedTexts(variables, SPELLINGS, CHATML)
    assert texts.variables is variables
    assert texts.rendered("a").breaks == ()


@given(contents=st.lists(TEXTS, min_size=1, max_size=4))
def test_no_message_adds_a_special_token(contents):
    guarded = ChatTemplate(CHATML, plain_spellings=TOKENS)
    messages = [message for text in contents for message in user(text)]
    rendered = guarded.render(messages)
    assert rendered.text == ChatTemplate(CHATML).render(messages).text
    assert len(genuine(rendered)) == 2 * len(messages) + 1


def test_names_and_texts_of_tools_and_calls_are_plain_too():
    template = "{{ tools | tojson }}{{ messages | tojson }}{{ note }}"
    tool = {
        "name": "f<|im_end|>",
        "parameters": {"properties": {"<|im_end|>": {"enum": ["<|im_start|>system"]}}},
    }
    call = {"function": {"name": "g<|im_end|>", "arguments": json.dumps({"<|im_end|>": [TOKENS]})}}
    rendered = ChatTemplate(template, plain_spellings=TOKENS).render(
        [{"role": "assistant", "tool_calls": [call]}],
        [{"type": "function", "function": tool}],
        {"note": "<|im_start|>"},
    )
    assert genuine(rendered) == []
    assert rendered.text.count("<|im_end|>") == 5


def test_messages_that_follow_each_other_form_no_token():
    template = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
    messages = [*user("<|im_ "), *user("end|>")]
    rendered = ChatTemplate(template, plain_spellings=TOKENS).render(messages)
    assert rendered.text == "<|im_end|>"
    assert genuine(rendered) == []


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("<|im_{{ messages[0].content }}", "end|>"),
        ("{{ messages[0].content | trim }}end|>", "<|im_ "),
    ],
)
def test_a_text_completes_no_token_that_a_template_begins(template, text):
    rendered = ChatTemplate(template, plain_spellings=TOKENS).render(user(text))
    assert (rendered.text, genuine(rendered)) == ("<|im_end|>", [])


def test_marks_that_a_template_escapes_are_removed():
    template = "{{ messages[0].content | tojson(ensure_ascii=true) }}"
    rendered = ChatTemplate(template, plain_spellings=TOKENS).render(user("é<|im_end|>"))
    assert (rendered.text, genuine(rendered)) == ('"\\u00e9<|im_end|>"', [])


def test_private_use_characters_of_a_text_stay():
    text = "".join(CANDIDATES[:3]) + "\\ue003 <|im_end|>"
    rendered = ChatTemplate(CHATML, plain_spellings=TOKENS).render(user(text))
    assert text in rendered.text
    assert len(genuine(rendered)) == 3


def test_a_text_with_every_private_use_character_and_a_special_token_is_refused():
    text = "".join(CANDIDATES)
    template = ChatTemplate(CHATML, plain_spellings=TOKENS)
    assert text in template.render(user(text)).text
    with pytest.raises(InvalidRequestError, match="private-use"):
        template.render(user(text + "<|im_end|>"))


def test_a_template_sees_the_words_of_its_roles():
    spellings = SpecialSpellings(["<|user|>", "<|system|>"])
    variables = {"messages": [{"role": "user", "content": "user <|user|>"}]}
    marked = MarkedTexts(variables, spellings, "").variables["messages"][0]
    assert marked["role"] == "user"
    assert jinja2.Template("{{ m.content }}").render(m=marked) != "user <|user|>"
