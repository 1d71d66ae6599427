"""The training data is a function of its seed, and has no held-out data of the evaluation."""

from __future__ import annotations

import json
import re
from itertools import islice
from random import Random

import pytest

from recipe.adapters import STYLES, styled
from recipe.data import lessons
from recipe.draw import Draw, is_held_out_name, is_held_out_wording
from recipe.known import known_tools
from recipe.questions import SECTIONS, section
from recipe.small import is_held_out_sum, small_sum
from recipe.tools import ask
from recipe.words import tables, words


def _texts(seed, count):
    return [c.text() for c in islice(lessons(seed), count)]


def test_the_same_seed_gives_the_same_conversations():
    assert _texts(5, 50) == _texts(5, 50)
    assert _texts(5, 50) != _texts(6, 50)


def test_the_same_seed_gives_the_same_questions():
    for name in SECTIONS:
        first, second = section(name, 5, 7), section(name, 5, 7)
        assert [c.text() for c in first] == [c.text() for c in second]


def test_training_never_draws_a_held_out_word():
    draw = Draw(Random(1))
    assert not any(is_held_out_name(draw.word()) for _ in range(2000))
    assert not any(is_held_out_name(draw.name()) for _ in range(2000))


def test_evaluation_draws_held_out_words_only():
    draw = Draw(Random(1), held_out_names=True)
    assert all(is_held_out_name(draw.person()) for _ in range(500))
    assert all(is_held_out_name(draw.place()) for _ in range(500))


def test_no_evaluation_name_stands_in_training_text():
    names = set()
    draw = Draw(Random(7), held_out_names=True)
    while len(names) < 300:
        names.add(draw.person())
    seen = set(re.findall(r"[^\W\d_]+", " ".join(_texts(1, 1500))))
    real = set(words("real", "people")) | set(words("real", "places"))
    assert not (names - real) & seen


def test_every_answer_of_the_names_sections_holds_a_new_name():
    for name in ("tool_calls_new_names", "extractions_new_names"):
        for conversation in section(name, 40, 7):
            answered = re.findall(r"[a-z]+", conversation.answer().lower())
            assert any(is_held_out_name(word) for word in answered)


@pytest.mark.parametrize("table", ["tools", "texts"])
def test_the_two_sides_of_the_wordings_share_none(table):
    entries = tables("tools")["tool"] if table == "tools" else tables("texts")["domain"]
    for entry in entries:
        wordings = entry.get("wordings") or entry["texts"]
        kept = {w for i, w in enumerate(wordings) if is_held_out_wording(i)}
        used = {w for i, w in enumerate(wordings) if not is_held_out_wording(i)}
        assert kept
        assert not kept & used


def test_a_training_draw_never_takes_a_held_out_wording():
    draw = Draw(Random(2))
    options = tuple(f"wording {i}" for i in range(12))
    assert {draw.wording(options) for _ in range(300)} == set(options) - {"wording 5", "wording 11"}


def test_training_never_adds_a_held_out_pair():
    draw = Draw(Random(3))
    for _ in range(500):
        left, right = map(int, re.findall(r"\d+", small_sum(draw)[0])[:2])
        assert not is_held_out_sum(left, right)


def test_the_arguments_of_a_call_stand_in_the_question():
    draw = Draw(Random(4))
    for _ in range(500):
        (tool,) = known_tools(draw, 1)
        question, call = ask(draw, tool)
        for value in call.slots.values():
            assert str(value) in question


def test_an_extraction_is_json_as_json_dumps_writes_it():
    for conversation in section("extractions_new_names", 50, 1):
        answer = conversation.answer()
        assert json.dumps(json.loads(answer), ensure_ascii=False) == answer


def test_a_style_changes_prose_and_leaves_calls_alone():
    (fact,) = section("facts", 1, 1)
    (call,) = section("tool_calls_new_names", 1, 1)
    for name in STYLES:
        assert styled(fact, name).answer() != fact.answer()
        assert styled(call, name).text() == call.text()
