"""Chat choices, streamed and whole: calls that are kept when others break off, text and ends."""

import asyncio
import json
import re

import pytest
from chat_parsers import calling, parser_of, thinking
from msgspec import UNSET
from scripted_core import ScriptedCore
from server_parts import SOURCE, Texts, make_frontend

from quire.errors import RequestFailedError
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.tools.tool_choice import ToolUse
from quire.interfaces.reasoning import ContentDelta, ReasoningDelta, ReasoningParser
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolParser,
)
from quire.outputs import CompletionOutput, Delta, Logprob
from quire.sampling_params import SamplingParams
from quire.server.http.logprob_budget import LogprobBudget
from quire.server.routes.chat.chat_turn import ChatTurn
from quire.server.routes.chat.choice_events import ChoiceEvents
from quire.server.routes.generation import Generation
from quire.server.routes.openai.chat_completions import Chat, ChatOptions
from quire.server.routes.openai.chat_pieces import ChatPieces
from quire.server.wire.protocol import ChatBody, ChatDelta
from quire.server.wire.sender import Sender
from quire_tool_parsers import families

BROKEN = '<tool_call>\n{"name": "a", "arguments": {"x": nonsense}}\n</tool_call>\n'
GOOD = '<tool_call>\n{"name": "b", "arguments": {"x": 1}}\n</tool_call>\n'
LATER = '<tool_call>\n{"name": "c", "arguments": {"x": 2}}\n</tool_call>\n'


@pytest.fixture
def whole(tokenizer):
    """Return the full choice of a completion, with parsers of the test's own."""
    frontends = []

    def read(
        text, end="stop", tools=None, reasoning=None, allows_parallel=True, is_named=False, **fields
    ):
        choices = reasoning and thinking(reasoning, SOURCE), tools and calling(tools, SOURCE)
        core = ScriptedCore(Texts(tokenizer))
        frontends.append(make_frontend(tokenizer, core, CompletionParsers(*choices)))
        generation = Generation(
            frontends[-1], LogprobBudget(), [{"prompt": "x"}], SamplingParams(), None,
            ChatBody(messages=[]), Sender(),
        )  # fmt: skip
        asyncio.run(generation.outputs())
        shown = [{"function": {"name": "a"}}] if tools else []
        use = ToolUse(shown, None, allows_parallel, is_named=is_named)
        turn = ChatTurn(generation, use, "")
        chat = Chat(generation, turn, 0, ChatOptions(), generation.envelope("chatcmpl"))
        output = CompletionOutput(index=0, text=text, token_ids=[], finish_reason=end, **fields)
        return json.loads(asyncio.run(chat.whole([output])))["choices"][0]

    yield read
    for frontend in frontends:
        asyncio.run(frontend.shutdown())


def calls_of(choice):
    calls = choice["message"].get("tool_calls", [])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def streamed(text, size, allows_parallel):
    """Return the calls that a stream begins, and its finish reason."""
    pieces = ChatPieces(ChoiceEvents(parser_of(None, families.hermes()), allows_parallel))
    begun = []
    texts = [text[i : i + size] for i in range(0, len(text), size)]
    for i, piece in enumerate(texts, 1):
        end = "stop" if i == len(texts) else None
        delta = Delta(index=0, text=piece, token_ids=[], finish_reason=end)
        begun += [c.function.name for c in pieces.read(delta).tool_calls or () if c.id]
    return begun, pieces.finish_reason


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
def test_without_parallel_calls_the_first_that_ends_is_kept(whole, text, kept, size):
    choice = whole(text, tools=families.hermes, allows_parallel=False)
    begun, finish_reason = streamed(text, size, allows_parallel=False)
    assert calls_of(choice) == kept
    assert "c" not in begun
    assert choice["finish_reason"] == finish_reason == "tool_calls"


def test_with_parallel_calls_all_that_end_are_kept(whole):
    text = GOOD + BROKEN + LATER
    assert [name for name, _ in calls_of(whole(text, tools=families.hermes))] == ["b", "c"]
    assert {"b", "c"} <= set(streamed(text, 3, allows_parallel=True)[0])


def test_a_completion_whose_only_call_breaks_has_none(whole):
    choice = whole(BROKEN, tools=families.hermes, allows_parallel=False)
    assert (calls_of(choice), choice["finish_reason"]) == ([], "stop")
    assert streamed(BROKEN, 3, allows_parallel=False)[1] == "stop"


class Words(ReasoningParser):
    """Words that begin by a hash are thoughts; the last word is held back."""

    def __init__(self, prompt_text=""):
        super().__init__(prompt_text)
        self._held = ""

    @property
    def is_thinking(self):
        return False

    def feed(self, delta):
        *words, self._held = (self._held + delta).split(" ")
        return [self._read(word) for word in words]

    def close(self):
        return [self._read(self._held)] if self._held else []

    def _read(self, word):
        return ReasoningDelta(word[1:]) if word.startswith("#") else ContentDelta(word)


class Letters(ToolParser):
    """A capital begins a call, what follows is its arguments, a dot ends it; the rest is text."""

    def __init__(self):
        self._index = -1
        self._is_open = False

    def feed(self, delta):
        return [event for letter in delta if (event := self._read(letter)) is not None]

    def close(self):
        return []

    def _read(self, letter):
        if letter.isupper():
            self._index, self._is_open = self._index + 1, True
            return ToolCallStart(self._index, letter)
        if not self._is_open:
            return TextDelta(letter)
        if letter == ".":
            self._is_open = False
            return ToolCallEnd(self._index)
        return ToolCallArguments(self._index, letter)


def take(pieces, text, end=None, stop=None):
    return pieces.read(Delta(index=0, text=text, token_ids=[], finish_reason=end, stop_reason=stop))


def make_pieces(allows_parallel=True):
    return ChatPieces(ChoiceEvents(parser_of(None, Letters()), allows_parallel))


def test_all_events_of_one_delta_are_one_piece(whole):
    pieces = ChatPieces(ChoiceEvents(parser_of(Words()), True))
    piece = take(pieces, "#a #b c d e")
    assert (piece.reasoning, piece.reasoning_content, piece.content) == ("ab", "ab", "cd")
    last = take(pieces, "", "length")  # what was held back comes with any end
    assert last == ChatDelta(content="e")
    message = whole("#a #b c d e", "length", reasoning=Words)["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == (
        "cde", "ab", "ab",
    )  # fmt: skip


def test_pieces_of_a_call_have_its_index_and_its_head_comes_once(whole):
    pieces = make_pieces()
    first = take(pieces, 'xA{"').tool_calls[0]
    assert (first.index, first.type, first.function.name) == (0, "function", "A")
    assert first.function.arguments == '{"'
    more = take(pieces, 'b":1}.B{')
    assert [(c.index, c.function.arguments) for c in more.tool_calls] == [(0, 'b":1}'), (1, "{")]
    assert (more.tool_calls[0].id, more.tool_calls[0].function.name) == (UNSET, UNSET)
    assert more.tool_calls[1].id != first.id
    take(pieces, "}.", "stop")
    choice = whole('xA{"b":1}.B{}.', tools=Letters)
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "x")
    assert calls_of(choice) == [("A", '{"b":1}'), ("B", "{}")]


def test_without_a_parser_all_is_content():
    pieces = ChatPieces(ChoiceEvents(None, True))
    assert take(pieces, "Ab.") == ChatDelta(content="Ab.")
    assert take(pieces, "") == ChatDelta()
    assert pieces.finish_reason is None
    assert take(pieces, "", "stop") == ChatDelta()
    assert pieces.finish_reason == "stop"


@pytest.mark.parametrize(
    ("text", "end", "finish_reason", "content"),
    [
        ("A{}.", "stop", "tool_calls", None),
        ("A{}.", "length", "length", None),
        ("A", "stop", "stop", ""),
        ("xA", "length", "length", "x"),
        ("x", "stop", "stop", "x"),
        ("", "stop", "stop", ""),
        ("xA{}.", "stop", "tool_calls", "x"),
    ],
)
def test_a_completion_ends_by_its_calls_only_if_one_of_them_ended(
    whole, text, end, finish_reason, content
):
    pieces = make_pieces()
    take(pieces, text)
    assert pieces.finish_reason is None
    take(pieces, "", end)
    choice = whole(text, end, tools=Letters)
    assert (pieces.finish_reason, choice["finish_reason"]) == (finish_reason, finish_reason)
    assert choice["message"]["content"] == content


def test_without_parallel_calls_nothing_is_kept_behind_the_first_that_ends(whole):
    pieces = make_pieces(allows_parallel=False)
    assert take(pieces, "xA{}.").tool_calls[0].function.arguments == "{}"
    assert take(pieces, "C{}.x") == ChatDelta()
    choice = whole("xA{}.C{}.x", tools=Letters, allows_parallel=False)
    assert (calls_of(choice), choice["message"]["content"]) == ([("A", "{}")], "x")


@pytest.mark.parametrize(("text", "end"), [("A{}.", "stop"), ("A{}.", "length"), ("A", "stop")])
def test_the_call_of_a_named_function_is_no_reason_for_an_end(whole, text, end):
    choice = whole(text, end, tools=Letters, is_named=True)
    assert choice["finish_reason"] == end


def test_a_choice_without_an_end_is_an_error(whole):
    with pytest.raises(RequestFailedError, match="without a finish reason"):
        whole("half", None)


def test_log_probabilities_are_kept_in_order_and_the_stop_string_with_the_end(whole):
    rows = [{token_id: Logprob(-float(token_id), 1)} for token_id in (300, 301, 302)]
    choice = whole("abc", stop_reason="!", logprobs=rows)
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == [-300.0, -301.0, -302.0]
    assert choice["stop_reason"] == "!"
    plain = whole("a")
    assert (plain["logprobs"], plain["stop_reason"]) == (None, None)


def test_no_two_calls_of_any_completions_have_one_id(whole):
    ids = []
    for _ in range(2):
        choice = whole(GOOD + LATER, tools=families.hermes)
        ids += [call["id"] for call in choice["message"]["tool_calls"]]
        piece = take(
            ChatPieces(ChoiceEvents(parser_of(None, families.hermes()), True)),
            GOOD,
            "stop",
        )
        ids += [call.id for call in piece.tool_calls]
    assert len(set(ids)) == 6
    assert all(re.fullmatch("call_[0-9a-f]{24}", each) for each in ids)
