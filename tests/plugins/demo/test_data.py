"""The training data is a function of its seed, and has no held-out data of the evaluation."""

from __future__ import annotations

import json
import re
from itertools import islice
from random import Random

import pytest

from recipe.adapters import STYLES, styled
from recipe.batches import IGNORED, load_encoder
from recipe.data import lessons
from recipe.draw import Draw, is_held_out_name, is_held_out_wording
from recipe.extraction import DOMAINS, FRESH_DOMAINS, _clauses
from recipe.known import known_tools
from recipe.patterns import expanded
from recipe.patterns import wording as pattern_wording
from recipe.questions import SECTIONS, section
from recipe.small import is_held_out_sum, small_sum
from recipe.template import RawText
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


def _kept(listed):
    return {w for i, w in enumerate(listed) if is_held_out_wording(i)}


def _slots(text):
    return set(re.findall(r"{(\w+)}", text))


@pytest.mark.parametrize("domain", [*DOMAINS, *FRESH_DOMAINS], ids=lambda d: "-".join(d["fields"]))
def test_a_pattern_of_a_text_has_fields_of_its_domain_only(domain):
    names = {keys.split("|")[0] for keys in domain["fields"]}
    draw = Draw(Random(8))
    for pattern in domain["patterns"]:
        for _ in range(30):
            text = expanded(draw, pattern)
            assert not set(text) & set("[]|")
            assert _slots(text)
            assert _slots(text) <= names


def test_a_pattern_of_an_instruction_has_the_fields_and_the_text():
    draw = Draw(Random(8))
    for pattern in tables("texts")["instruction_patterns"]:
        for _ in range(100):
            found = expanded(draw, pattern)
            assert not set(found) & set("[]|")
            assert _slots(found) == {"fields", "text"}


def test_a_pattern_gives_no_kept_wording_not_even_with_other_small_words():
    draw = Draw(Random(9))
    listed = ["x"] * 5 + ["The {item} is red."]
    patterns = ["[the |our ]{item} is red[|!]", "{item} is [red|blue]"]
    assert {pattern_wording(draw, patterns, listed).lower() for _ in range(50)} == {
        "{item} is blue"
    }


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda d: "-".join(d["fields"]))
def test_clauses_and_patterns_give_no_kept_text(domain):
    draw = Draw(Random(10))
    listed = [*domain["texts"], *domain["more_texts"]]
    drawn = {_clauses(draw, domain) or "" for _ in range(3000)}
    drawn |= {pattern_wording(draw, domain["patterns"], listed) for _ in range(1000)}
    assert len(drawn) > 500
    assert not {w.lower() for w in drawn} & {w.lower() for w in _kept(listed)}


def test_a_chained_call_takes_what_the_call_before_it_returned():
    for conversation in section("chained_calls", 60, 3):
        *_, result, call = [
            m for m in conversation.messages if m["role"] == "tool" or "tool_calls" in m
        ]
        returned = json.loads(result["content"]).values()
        arguments = call["tool_calls"][0]["function"]["arguments"].values()
        assert set(returned) & set(arguments)


def test_raw_texts_have_no_marks_of_the_template():
    raw = [lesson for lesson in islice(lessons(11), 1500) if isinstance(lesson, RawText)]
    assert len(raw) > 100
    for lesson in raw:
        assert "<|" not in lesson.text()
        assert lesson.prompt().strip()
        if lesson.answer():  # else the prompt says all there is
            assert lesson.prompt()[-1].isspace() != lesson.answer()[0].isspace()


def test_of_a_raw_text_the_continuation_and_the_end_are_learned():
    encoder = load_encoder()
    ids, labels = encoder.encode(RawText("What is quire?", " quire is an engine."))
    learned = [label for label in labels if label != IGNORED]
    assert ids[-1] == learned[-1] == 0  # <|endoftext|>
    assert labels[: -len(learned)] == [IGNORED] * (len(ids) - len(learned))
    assert ids[-len(learned) :] == learned


def test_the_stages_before_the_last_have_no_raw_texts_and_fewer_wordings():
    for stage in (1, 2):
        assert not any(isinstance(lesson, RawText) for lesson in islice(lessons(1, stage), 500))
