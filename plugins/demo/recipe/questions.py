"""An evaluation question is drawn like a training question, from the other side of the split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from random import Random

from recipe.data import call_turn, called_turns, parallel_turn, question_and_answer, system, toolbox
from recipe.draw import Draw
from recipe.extraction import extract, extract_blind
from recipe.facts import fact
from recipe.loops import chained_turn
from recipe.raw import raw_question
from recipe.small import small_sum
from recipe.template import Conversation, Lesson

Maker = Callable[[Draw], Lesson]
_STAGE = 2  # the questions are those of before the third stage, so that figures can be compared


def tool_call(draw: Draw) -> Conversation:
    """A question for one of one to five tools."""
    tools = toolbox(draw)
    messages = system(draw) + call_turn(draw, tools)
    return Conversation(messages, [tool.schema() for tool in tools])


def parallel_calls(draw: Draw) -> Conversation:
    """A question for two or three calls."""
    tools = toolbox(draw)
    messages = system(draw) + parallel_turn(draw, tools)
    return Conversation(messages, [tool.schema() for tool in tools])


def second_turn(draw: Draw) -> Conversation:
    """A tool has answered; the model says what it said."""
    tools = toolbox(draw)
    messages = system(draw) + call_turn(draw, tools, with_results=True)
    return Conversation(messages, [tool.schema() for tool in tools])


def later_request(draw: Draw) -> Conversation:
    """The third, fourth or fifth request of a conversation in which each one was a call."""
    tools = toolbox(draw)
    messages = system(draw) + called_turns(draw, tools, draw.integer(2, 4))
    return Conversation(messages + call_turn(draw, tools), [tool.schema() for tool in tools])


def chained_call(draw: Draw) -> Conversation:
    """A call has returned a value, and the next one needs it."""
    while True:
        tools = toolbox(draw)
        if turn := chained_turn(draw, tools):
            last_call = max(i for i, message in enumerate(turn) if "tool_calls" in message)
            messages = system(draw) + turn[: last_call + 1]
            return Conversation(messages, [tool.schema() for tool in tools])


def extraction(draw: Draw) -> Conversation:
    """A text and the fields to find in it."""
    return Conversation(system(draw) + question_and_answer(draw, *extract(draw)))


def extraction_known_text(draw: Draw) -> Conversation:
    """A new instruction for a text of a known wording."""
    question, answer = extract(draw, replace(draw, held_out_wordings=False))
    return Conversation(system(draw) + question_and_answer(draw, question, answer))


def extraction_known_instruction(draw: Draw) -> Conversation:
    """A known instruction for a text of a new wording."""
    question, answer = extract(replace(draw, held_out_wordings=False), draw)
    return Conversation(system(draw) + question_and_answer(draw, question, answer))


def blind_extraction(draw: Draw) -> Conversation:
    """An instruction and a text that were written blind."""
    return Conversation(system(draw) + question_and_answer(draw, *extract_blind(draw)))


def about_quire(draw: Draw) -> Conversation:
    """A question about quire, or small talk."""
    return Conversation(system(draw) + question_and_answer(draw, *fact(draw)))


def a_sum(draw: Draw) -> Conversation:
    """A small sum of a pair of numbers that training never adds or subtracts."""
    return Conversation(system(draw) + question_and_answer(draw, *small_sum(draw)))


def questions(draw: Draw, make: Maker, with_new_name: bool) -> Iterator[Lesson]:
    """Questions without end; with a name in the answer that training never uses, where asked."""
    while True:
        draw.kept_words.clear()
        question = make(draw)
        answer = question.answer().lower()
        if not with_new_name or any(word in answer for word in draw.kept_words):
            yield question


# Each section: its title, its maker, whether each answer must hold a new name, and whether the
# wordings are those that were kept back.
SECTIONS: dict[str, tuple[str, Maker, bool, bool]] = {
    "tool_calls_new_names": ("Tool calls, new names", tool_call, True, False),
    "extractions_new_names": ("Extractions, new names", extraction, True, False),
    "tool_calls_new_wordings": ("Tool calls, new names and new wordings", tool_call, True, True),
    "extractions_new_instructions": (
        "Extractions, new names and new instructions",
        extraction_known_text,
        True,
        True,
    ),
    "extractions_new_texts": (
        "Extractions, new names and new texts",
        extraction_known_instruction,
        True,
        True,
    ),
    "extractions_new_wordings": (
        "Extractions, new names, new instructions and new texts",
        extraction,
        True,
        True,
    ),
    "extractions_blind": (
        "Extractions, new names, wordings written blind",
        blind_extraction,
        True,
        True,
    ),
    "parallel_calls": ("Parallel calls, new names", parallel_calls, True, False),
    "second_turns": ("Second turns with a tool's result", second_turn, False, False),
    "later_requests": ("Third to fifth requests, new names", later_request, True, False),
    "chained_calls": (
        "Calls that need the result of the call before, new names",
        chained_call,
        True,
        False,
    ),
    "sums": ("Small sums, new pairs of numbers", a_sum, False, False),
    "facts": ("Facts and small talk", about_quire, False, False),
    "facts_new_wordings": ("Facts and small talk, new wordings", about_quire, False, True),
    "raw_questions": ("Facts and small talk as raw prompts", raw_question, False, False),
}


def section(name: str, count: int, seed: int) -> list[Lesson]:
    """The questions of one section."""
    _, make, with_new_name, held_out_wordings = SECTIONS[name]
    draw = Draw(Random(f"{seed} {name}"), True, held_out_wordings, stage=_STAGE)
    return list(islice(questions(draw, make, with_new_name), count))
