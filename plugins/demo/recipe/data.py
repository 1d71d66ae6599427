"""A conversation is a list of turns under one list of tools; each kind of turn is one function.

Several turns share a system message, so that a batch holds more answers for its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from recipe.draw import LAST_STAGE, Draw
from recipe.extraction import extract
from recipe.facts import fact
from recipe.known import known_tools
from recipe.loops import chained_turn
from recipe.made_up import made_up_tool
from recipe.raw import raw_text
from recipe.small import compare, mood, small_sum
from recipe.template import Conversation, Lesson, Message, say
from recipe.tools import Call, Tool, ask, ends_in_free_text, respond
from recipe.words import tables, words

_SYSTEM: tuple[str, ...] = tuple(tables("chat")["system"])
_OPENERS: tuple[str, ...] = tuple(tables("chat")["openers"])  # before a request
_CALM_OPENERS: tuple[str, ...] = tuple(tables("chat")["calm_openers"])  # before a question too
_CLOSERS: tuple[str, ...] = tuple(tables("chat")["closers"])
_JOINERS: tuple[str, ...] = tuple(tables("chat")["joiners"])
_NO_TOOL: str = tables("chat")["no_tool"]


def lessons(seed: int, stage: int = LAST_STAGE) -> Iterator[Lesson]:
    """Training conversations without end, in the last stage with raw texts between them."""
    draw = Draw(Random(seed), stage=stage)
    while True:
        yield raw_text(draw) if stage >= 3 and draw.chance(0.12) else conversation(draw)


def conversation(draw: Draw) -> Conversation:
    """One to four turns, with or without tools."""
    tools = toolbox(draw) if draw.chance(0.55 if draw.stage in (1, 4) else 0.45) else []
    if tools and draw.stage >= 3 and draw.chance(0.1):
        return _loop(draw, tools)
    turns = draw.one((1, 1, 2, 3)) if tools else draw.one((1, 1, 2, 3, 4))
    messages = system(draw)
    for _ in range(turns):
        messages += turn(draw, tools)
    return Conversation(messages, [t.schema() for t in tools] or None)


def _loop(draw: Draw, tools: list[Tool]) -> Conversation:
    """Three to five requests, each with a call and what comes of it."""
    messages = system(draw) + called_turns(draw, tools, draw.integer(3, 5))
    return Conversation(messages, [t.schema() for t in tools])


def system(draw: Draw) -> list[Message]:
    """A short system message, or none."""
    return [{"role": "system", "content": draw.one(_SYSTEM)}] if draw.chance(0.25) else []


def toolbox(draw: Draw) -> list[Tool]:
    """One to five tools with different names."""
    count = draw.one((1, 1, 2, 2, 3, 3, 4, 5))
    made_up = sum(draw.chance(0.35) for _ in range(count))
    tools = [made_up_tool(draw) for _ in range(made_up)] + known_tools(draw, count - made_up)
    if draw.stage >= 3 and draw.chance(0.2):
        tools.append(made_up_tool(draw, like=draw.one(tools).name))
    distinct = {tool.name: tool for tool in tools}
    return draw.some(list(distinct.values()), len(distinct))


def turn(draw: Draw, tools: list[Tool]) -> list[Message]:
    """A question and its answer, by tool if there is one for it."""
    if not tools:
        return plain_turn(draw)
    luck = draw.rng.random()
    if luck < 0.18:
        return question_and_answer(draw, *draw.one((fact, fact, extract, extract))(draw))
    if luck < 0.36:
        return parallel_turn(draw, tools, with_results=draw.chance(0.3))
    chained = chained_turn(draw, tools) if draw.stage >= 3 and draw.chance(0.15) else None
    return chained or call_turn(draw, tools, with_results=draw.chance(0.35))


def plain_turn(draw: Draw) -> list[Message]:
    """A turn without tools."""
    luck = draw.rng.random()
    for limit, skill in _SKILLS:
        if luck < limit:
            return skill_turns(draw, skill)
    return no_tool_turn(draw)


def skill_turns(draw: Draw, skill: Callable[[Draw], tuple[str, str]]) -> list[Message]:
    """A plain turn; of sums, which are short, three."""
    turns = 3 if skill is small_sum else 1
    return [m for _ in range(turns) for m in question_and_answer(draw, *skill(draw))]


def no_tool_turn(draw: Draw) -> list[Message]:
    """A question that would need a tool, where none is given."""
    (tool,) = known_tools(draw, 1)
    while tool.name in _ANSWERED_ANYWAY or tool.wordings[0] == "what is {expression}?":
        (tool,) = known_tools(draw, 1)
    question, _ = ask(draw, tool)
    return [{"role": "user", "content": punctuate(draw, question, "")}, say(_NO_TOOL)]


def call_turn(draw: Draw, tools: list[Tool], with_results: bool = False) -> list[Message]:
    """A question for one tool and its call, and sometimes what comes of it."""
    tool = draw.one(tools)
    question, call = ask(draw, tool)
    content = _dress(draw, question, [call])
    return _called(draw, content, [call], with_results)


def called_turns(draw: Draw, tools: list[Tool], count: int) -> list[Message]:
    """Requests one after the other, each with a call and what comes of it."""
    return [m for _ in range(count) for m in call_turn(draw, tools, with_results=True)]


def parallel_turn(draw: Draw, tools: list[Tool], with_results: bool = False) -> list[Message]:
    """A question for two or three calls at once."""
    calls: list[Call] = []
    questions: list[str] = []
    for _ in range(draw.one((2, 2, 2, 3))):
        question, call = ask(draw, draw.one(tools))
        questions.append(question.rstrip("?"))
        calls.append(call)
    together = _same_place(draw, tools) if draw.chance(0.35) else None
    if together:
        content, calls = together
    else:
        content = draw.one(_JOINERS).join(questions)
    return _called(draw, _dress(draw, content, calls), calls, with_results)


def question_and_answer(draw: Draw, question: str, answer: str) -> list[Message]:
    """A plain turn."""
    if question[0].islower() and draw.chance(0.15):
        question = draw.one(_CALM_OPENERS) + question
    return [{"role": "user", "content": punctuate(draw, question, answer)}, say(answer)]


def punctuate(draw: Draw, question: str, copied: str) -> str:
    """The question as somebody types it: with or without a capital and a mark at its end.

    A first word that the answer copies keeps its case.
    """
    if question.split()[0].strip(",:") not in copied and draw.chance(0.65):
        question = question[0].upper() + question[1:]
    if question.endswith("?") and draw.chance(0.2):
        return question[:-1]
    if question[-1].isalnum() and draw.chance(0.35):
        return question + draw.one((".", ".", ".", "!", "?"))
    return question


def _called(draw: Draw, content: str, calls: list[Call], with_results: bool) -> list[Message]:
    messages: list[Message] = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": "", "tool_calls": [c.message() for c in calls]},
    ]
    if not with_results:
        return messages
    answers = []
    for call in calls:
        result, answer = respond(draw, call)
        messages.append({"role": "tool", "content": result})
        answers.append(answer)
    return [*messages, say(" ".join(answers))]


def _same_place(draw: Draw, tools: list[Tool]) -> tuple[str, list[Call]] | None:
    """One wording asked for several values at once: "the weather in A and B"."""
    single = [
        t
        for t in tools
        if len(t.arguments) == 1 and t.arguments[0].kind in ("place", "person", "name")
    ]
    if not single:
        return None
    tool = draw.one(single)
    argument = tool.arguments[0]
    values = list(dict.fromkeys(draw.place() for _ in range(draw.one((2, 2, 2, 3)))))
    *first, last = values
    joined = f"{', '.join(first)} and {last}" if first else last
    wording = draw.wording(tool.wordings).replace("{" + argument.slot + "}", "\0")
    calls = [Call(tool, {argument.slot: v}) for v in values]
    return wording.replace("\0", joined, 1).replace("\0", values[0]), calls


def _dress(draw: Draw, question: str, calls: list[Call]) -> str:
    imperative = question.split(" ", 1)[0] in words("chat", "imperatives")
    if draw.chance(0.25):
        question = draw.one(_OPENERS if imperative else _CALM_OPENERS) + question
    last = calls[-1]
    copied = " ".join(str(value) for call in calls for value in call.slots.values())
    if ends_in_free_text(last.tool, last.slots, question):
        return punctuate(draw, question, copied)
    if draw.chance(0.07):
        question = question.rstrip("?") + draw.one(_CLOSERS)
    return punctuate(draw, question, copied)


_SKILLS: tuple[tuple[float, Callable[[Draw], tuple[str, str]]], ...] = (
    (0.46, extract),
    (0.66, fact),
    (0.86, small_sum),
    (0.89, compare),
    (0.93, mood),
)
_ANSWERED_ANYWAY = frozenset({"find_user", "get_user", "lookup_user", "user_info"})
