"""What a template writes behind the conversation is found, whatever the conversation has."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import ChatTemplateError
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.chat.templates.opening import MAX_KNOWN, KnownOpenings, opening_of

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content|trim }}<|end|>\n{% endfor %}"
OPENS = "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
SWITCH = (
    "{% if add_generation_prompt %}<|assistant|>{% if quick %}<think></think>{% endif %}{% endif %}"
)


def opening(template, *texts, role="user", **given):
    messages = [{"role": "user", "content": text} for text in texts]
    messages[-1]["role"] = role
    return ChatTemplate(template).render(messages, finds_opening=True, **given).opening


texts = st.text(st.sampled_from("ab <think>/\n|assistant"), max_size=30)


@given(st.lists(texts, min_size=1, max_size=3))
def test_a_conversation_is_no_part_of_the_opening(messages):
    assert opening(TURNS + OPENS, *messages) == "<|assistant|><think>\n"
    assert opening(TURNS + SWITCH, *messages) == "<|assistant|>"


@pytest.mark.parametrize("text", ["think", "<think>", "<|assistant|><think>", "", "</think>", "x "])
def test_a_template_that_always_writes_it_is_read_behind_the_last_text(text):
    always = TURNS + "<|assistant|><think>"
    assert opening(always, text) == "<|end|>\n<|assistant|><think>"
    assert opening(TURNS, text) == "<|end|>\n"


def test_a_variable_of_the_template_decides():
    assert opening(TURNS + SWITCH, "<think>", template_kwargs={"quick": True}).endswith("</think>")


def test_without_a_start_of_the_turn_only_the_end_of_the_last_one_is_left():
    assert opening(TURNS + OPENS, "<think>", add_generation_prompt=False) == "<|end|>\n"


def test_nothing_is_looked_for_unless_a_parser_needs_it():
    prompt = ChatTemplate(TURNS + OPENS).render([{"role": "user", "content": "hi"}])
    assert prompt.opening is None
    assert "opening" not in prompt.as_prompt()


@pytest.mark.parametrize("text", ["<think>partial", "<think>x</think>y", "y"])
def test_a_message_that_is_continued_is_the_opening_from_its_text_on(text):
    found = opening(TURNS, "<think>", text, role="assistant", continue_final_message=True)
    assert found == text


def test_a_template_that_writes_no_text_has_no_opening():
    refuses = "{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}hi <think>"
    assert opening(refuses, "x") == ""


def test_a_template_whose_start_changes_what_is_before_it_is_compared():
    differs = "a<|end|>" * 50

    def refused():
        raise ChatTemplateError("no")

    prompt = f"{differs}b<|start|>assistant"
    assert opening_of(prompt, lambda: f"{differs}c", refused) == "b<|start|>assistant"
    assert opening_of(prompt, refused, lambda: "another") == ""


class CountedTemplate(ChatTemplate):
    """A template that counts its renderings."""

    num_rendered = 0

    def _render(self, *arguments):
        self.num_rendered += 1
        return super()._render(*arguments)


def test_an_opening_is_looked_for_once():
    template = CountedTemplate(TURNS + SWITCH)
    for text in ("a", "b", "<|assistant|>"):
        prompt = template.render([{"role": "user", "content": text}], finds_opening=True)
        assert prompt.opening == "<|assistant|>"
    assert template.num_rendered == 4
    quick = template.render(
        [{"role": "user", "content": "a"}], None, {"quick": True}, finds_opening=True
    )
    assert quick.opening == "<|assistant|><think></think>"


def test_a_template_whose_opening_depends_on_the_conversation_is_asked_again():
    depends = (
        TURNS + "{% if add_generation_prompt %}<|assistant|>"
        "{% if 'x' in messages[-1].content %}<think>{% endif %}{% endif %}"
    )
    template = CountedTemplate(depends)
    for text in ("a", "x", "a", "x"):
        prompt = template.render([{"role": "user", "content": text}], finds_opening=True)
        assert prompt.opening == "<|assistant|>" + ("<think>" if text == "x" else "")


def test_few_openings_are_remembered():
    known = KnownOpenings()
    known.add(0, "<|assistant|>")
    for number in range(1, MAX_KNOWN):
        known.add(number, "<|assistant|>")
    known.add(0, "<|assistant|>")
    known.add("new", "<|assistant|>")
    assert known.find(1, "<|assistant|>") is None  # the oldest one
    assert known.find(0, "<|assistant|>") == known.find("new", "a<|assistant|>") == "<|assistant|>"
    known.add(1, "")
    assert known.find(1, "a") is None


def test_what_a_client_sends_is_not_kept():
    ending = "{% if add_generation_prompt %}{{ long }}{{ unseen[:0] }}{% endif %}"
    template = ChatTemplate(TURNS + ending)
    messages = [{"role": "user", "content": "a"}]

    def render(number):
        variables = {"long": "x" * 100_000, "unseen": f"{number}" + "y" * 100_000}
        return template.render(messages, None, variables, finds_opening=True)

    assert render(0).opening == "x" * 100_000
    tracemalloc.start()
    for number in range(1, 9):
        render(number)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000
