"""Building of chat choices: calls that are kept when others break off, text and finish reasons."""

import re

import pytest
from msgspec import UNSET

from quire.errors import RequestFailedError
from quire.frontend.chat.completion_parser import CompletionParser
from quire.interfaces.reasoning import ContentDelta, ReasoningDelta, ReasoningParser
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolParser,
)
from quire.outputs import Delta
from quire.server.routes.chat_choice import ChatChoiceBuilder
from quire.server.wire.protocol import ChatDelta, ChatLogprobs, TokenLogprob
from quire_tool_parsers.hermes import HermesToolParser

BROKEN = '<tool_call>\n{"name": "a", "arguments": {"x": nonsense}}\n</tool_call>\n'
GOOD = '<tool_call>\n{"name": "b", "arguments": {"x": 1}}\n</tool_call>\n'
LATER = '<tool_call>\n{"name": "c", "arguments": {"x": 2}}\n</tool_call>\n'


def read(text, size, allows_parallel):
    """Return the calls of the full choice, those that its stream began, and the finish reason."""
    builder = ChatChoiceBuilder(0, CompletionParser(None, HermesToolParser()), allows_parallel)
    begun = []
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    for i, piece in enumerate(pieces, 1):
        end = "stop" if i == len(pieces) else None
        delta = Delta(index=0, text=piece, token_ids=[], finish_reason=end)
        begun += [c.function.name for c in builder.read(delta, None).tool_calls or () if c.id]
    message = builder.choice().message
    calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    return calls, begun, builder.finish_reason


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


def test_a_completion_whose_only_call_breaks_has_none():
    calls, _, finish_reason = read(BROKEN, 3, allows_parallel=False)
    assert (calls, finish_reason) == ([], "stop")


class Words(ReasoningParser):
    """Words that begin by a hash are thoughts; the last word is held back."""

    def __init__(self):
        super().__init__("")
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
    """A capital begins a call, small letters are its arguments, a dot ends it; the rest is text."""

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


def take(builder, text, end=None, stop=None, logprobs=None):
    delta = Delta(index=0, text=text, token_ids=[], finish_reason=end, stop_reason=stop)
    return builder.read(delta, logprobs)


def make_builder(allows_parallel=True):
    return ChatChoiceBuilder(3, CompletionParser(None, Letters()), allows_parallel)


def test_all_events_of_one_delta_are_one_piece():
    builder = ChatChoiceBuilder(0, CompletionParser(Words()), True)
    piece = take(builder, "#a #b c d e")
    assert (piece.reasoning, piece.reasoning_content, piece.content) == ("ab", "ab", "cd")
    last = take(builder, "", "length")  # what was held back comes with any end
    assert last == ChatDelta(content="e")
    message = builder.choice().message
    assert (message.content, message.reasoning, message.reasoning_content) == ("cde", "ab", "ab")


def test_pieces_of_a_call_have_its_index_and_its_head_comes_once():
    builder = make_builder()
    first = take(builder, "xAbc").tool_calls[0]
    assert (first.index, first.type, first.function.name) == (0, "function", "A")
    assert first.function.arguments == "bc"
    more = take(builder, "de.Bf")
    assert [(c.index, c.function.arguments) for c in more.tool_calls] == [(0, "de"), (1, "f")]
    assert (more.tool_calls[0].id, more.tool_calls[0].function.name) == (UNSET, UNSET)
    take(builder, ".", "stop")
    choice = builder.choice()
    assert (choice.index, choice.finish_reason, choice.message.content) == (3, "tool_calls", "x")
    calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls]
    assert calls == [("A", "bcde"), ("B", "f")]
    assert len({c.id for c in choice.message.tool_calls}) == 2
    assert choice.message.tool_calls[0].id == first.id


@pytest.mark.parametrize(
    ("text", "end", "finish_reason", "content"),
    [
        ("A.", "stop", "tool_calls", None),
        ("A.", "length", "length", None),
        ("A", "stop", "stop", ""),
        ("xA", "length", "length", "x"),
        ("x", "stop", "stop", "x"),
        ("", "stop", "stop", ""),
        ("xA.", "stop", "tool_calls", "x"),
    ],
)
def test_a_completion_ends_by_its_calls_only_if_one_of_them_ended(
    text, end, finish_reason, content
):
    builder = make_builder()
    take(builder, text)
    assert builder.finish_reason is None
    take(builder, "", end)
    choice = builder.choice()
    assert (builder.finish_reason, choice.finish_reason) == (finish_reason, finish_reason)
    assert choice.message.content == content


def test_behind_the_first_call_that_ends_no_other_is_kept():
    builder = make_builder(allows_parallel=False)
    assert take(builder, "Ab.").tool_calls[0].function.arguments == "b"
    assert take(builder, "Cd.x") == ChatDelta(content="x")
    take(builder, "", "stop")
    (call,) = builder.choice().message.tool_calls
    assert (call.function.name, call.function.arguments) == ("A", "b")


@pytest.mark.parametrize("end", [None, "abort", "error"])
def test_a_choice_without_an_end_is_an_error(end):
    builder = make_builder()
    take(builder, "half", end)
    with pytest.raises(RequestFailedError, match="without a finish reason"):
        builder.choice()


def test_log_probabilities_are_kept_in_order_and_the_stop_string_with_the_end():
    builder = make_builder()
    tokens = [TokenLogprob(name, -1.0, [], []) for name in "abc"]
    take(builder, "a", logprobs=ChatLogprobs(tokens[:1]))
    take(builder, "b", logprobs=ChatLogprobs([]))
    take(builder, "c", "stop", "!", ChatLogprobs(tokens[1:]))
    choice = builder.choice()
    assert choice.logprobs.content == tokens
    assert choice.stop_reason == "!"
    plain = make_builder()
    take(plain, "a", "stop")
    assert (plain.choice().logprobs, plain.choice().stop_reason) == (None, None)


def test_no_two_calls_of_any_completions_have_one_id():
    ids = []
    for _ in range(2):
        builder = ChatChoiceBuilder(0, CompletionParser(None, HermesToolParser()), True)
        builder.read(Delta(index=0, text=GOOD + LATER, token_ids=[], finish_reason="stop"), None)
        ids += [call.id for call in builder.choice().message.tool_calls]
    assert len(set(ids)) == 4
    assert all(re.fullmatch("call_[0-9a-f]{24}", each) for each in ids)
