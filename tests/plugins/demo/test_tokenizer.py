"""Every text survives the tokenizer, and a word has the same tokens at every position."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from recipe.questions import section
from recipe.template import CHECKPOINT
from recipe.tokenizer import train

TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def _ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


@given(st.text())
def test_any_text_comes_back(text):
    assert TOKENIZER.decode(_ids(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["你好世界", "a 🙂 b\n\n\tc", "naïve  café", '{"a": [1, 2.5]}'])
def test_these_texts_come_back(text):
    assert TOKENIZER.decode(_ids(text), skip_special_tokens=False) == text


def test_call_marks_are_one_token_and_survive_where_special_tokens_do_not():
    text = '<tool_call>\n{"name": "f"}\n</tool_call>'
    assert TOKENIZER.decode(_ids(text + "<|im_end|>"), skip_special_tokens=True) == text
    for mark in ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_start|>"):
        assert len(_ids(mark)) == 1


def test_a_name_has_the_same_tokens_after_a_blank_and_in_quotes():
    name = _ids("Taruno")
    assert _ids("in Taruno?")[-len(name) - 1 : -1] == name
    assert _ids('"Taruno"}')[1:-1] == name


def test_a_prompt_is_a_prefix_of_its_conversation_in_tokens():
    for conversation in section("tool_calls_new_names", 20, 1):
        prompt = _ids(conversation.prompt())
        assert _ids(conversation.text())[: len(prompt)] == prompt


def test_the_recipe_makes_this_tokenizer_again():
    assert json.loads(train(seed=1).to_str()) == json.loads(TOKENIZER.to_str())
