"""Which calls of an answer are kept, when some of them break off."""

import pytest

from quire.frontend.answer import AnswerParser
from quire.outputs import Delta
from quire.server.chat_answer import ChatAnswer
from quire_tool_parsers.hermes import HermesToolParser

BROKEN = '<tool_call>\n{"name": "a", "arguments": {"x": nonsense}}\n</tool_call>\n'
GOOD = '<tool_call>\n{"name": "b", "arguments": {"x": 1}}\n</tool_call>\n'
LATER = '<tool_call>\n{"name": "c", "arguments": {"x": 2}}\n</tool_call>\n'


def read(text, size, allows_parallel):
    """Return the whole answer, and the calls that its stream began."""
    answer = ChatAnswer(0, AnswerParser(None, HermesToolParser()), allows_parallel)
    begun = []
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    for i, piece in enumerate(pieces, 1):
        end = "stop" if i == len(pieces) else None
        delta = Delta(index=0, text=piece, token_ids=[], finish_reason=end)
        begun += [c.function.name for c in answer.read(delta, None).tool_calls or () if c.id]
    message = answer.choice().message
    calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    return calls, begun, answer.finish_reason


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (GOOD + LATER, [("b", '{"x": 1}')]),
        (BROKEN + GOOD, [("b", '{"x": 1}')]),
        (BROKEN + GOOD + LATER, [("b", '{"x": 1}')]),
        (BROKEN * 2 + GOOD + BROKEN + LATER, [("b", '{"x": 1}')]),
    ],
)
def test_without_parallel_calls_the_first_that_ends_is_kept(text, kept, size):
    calls, begun, finish_reason = read(text, size, allows_parallel=False)
    assert calls == kept
    assert "c" not in begun
    assert finish_reason == "tool_calls"


def test_with_parallel_calls_all_that_end_are_kept():
    calls, _, _ = read(GOOD + BROKEN + LATER, 3, allows_parallel=True)
    assert [name for name, _ in calls] == ["b", "c"]


def test_an_answer_whose_only_call_breaks_has_none():
    calls, _, finish_reason = read(BROKEN, 3, allows_parallel=False)
    assert (calls, finish_reason) == ([], "stop")
