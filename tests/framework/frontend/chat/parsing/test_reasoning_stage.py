"""What is behind a call in the reasoning is reasoning if a marker ends it, and else content."""

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from letter_parsers import DashThinking, HoldingThoughts, UpperCalls

from quire.errors import RequestFailedError
from quire.frontend.chat.parsing.completion_parser import CompletionParser, gather
from quire.frontend.chat.parsing.parser_guard import ParserOrigin
from quire.frontend.chat.parsing.reasoning_stage import ReasoningStage
from quire.frontend.chat.parsing.tool_stage import ToolStage
from quire.interfaces.markers import Markers
from quire.interfaces.reasoning import ContentDelta, ReasoningDelta, ReasoningParser
from quire.interfaces.tool_parsing import TextDelta
from quire.plugins.registry import Source
from quire.testing.parsing.parser_work import is_linear, work_of

ENDS = Markers(("(", ")", "-"))


class CallsInText(UpperCalls):
    """Gives the text between two calls in one event."""

    def feed(self, delta):
        events = []
        for kind, run in groupby(super().feed(delta), type):
            group = [*run]
            events += [TextDelta("".join(e.text for e in group))] if kind is TextDelta else group
        return events


class InContent(DashThinking):
    """Leaves the reasoning in the content, and writes what the prompt has opened it with."""

    def feed(self, delta):
        before, self.prompt_text = self.prompt_text, ""
        events = super().feed(delta)
        return [ContentDelta(before + "".join(event.text for event in events))]


class Reopening(ReasoningParser):
    """Thinks between `(` and `)`, and begins to think as the text before says."""

    def __init__(self, prompt_text=""):
        super().__init__(prompt_text)
        self._is_thinking = prompt_text.rfind("(") > prompt_text.rfind(")")

    @property
    def is_thinking(self):
        return self._is_thinking

    def feed(self, delta):
        return [event for character in delta for event in self._read(character)]

    def close(self):
        return []

    def _read(self, character):
        if character in "()":
            self._is_thinking = character == "("
            return []
        return [(ReasoningDelta if self._is_thinking else ContentDelta)(character)]


def parser_with(reasoning, prompt, ends=None):
    stage = ReasoningStage(reasoning, prompt, ends=ends, is_content=reasoning is InContent)
    return CompletionParser(stage, ToolStage(CallsInText()), reads_calls_first=True)


def read(text, reasoning=Reopening, prompt="(", ends=None):
    """Return the reasoning, the content and the names of the calls."""
    parser = parser_with(reasoning, prompt, ends)
    whole = parser.read_whole(text)
    return whole.reasoning, whole.text, "".join(call.name for call in whole.calls)


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        ("aBc)d", "ac", "d", "B"),
        ("aB)d", "a", "d", "B"),
        ("aBc", "a", "c", "B"),
        ("aBcDe)f", "ace", "f", "BD"),
        ("aBcDe", "a", "ce", "BD"),
        ("aBcXd)e", "acd", "e", "B"),
        ("aBc(d", "a", "c(d", "B"),
        ("a)bCd)(e", "a", "bd)(e", "C"),
        ("aBc)d(eFg)h", "aceg", "dh", "BF"),
        ("aBc)(eFg)(h", "acegh", "", "BF"),
    ],
)
def test_a_marker_behind_a_call_ends_the_reasoning(text, reasoning, content, calls):
    for ends in (None, ENDS):
        assert read(text, ends=ends) == (reasoning, content, calls)


def test_a_completion_that_opens_its_reasoning_ends_it_behind_a_call_as_well():
    assert read("(aBc)d", prompt="") == ("ac", "d", "B")
    assert read("aBc)d", prompt="") == (None, "ac)d", "B")


def test_a_parser_that_leaves_the_reasoning_in_the_content_writes_its_opening_once():
    assert read("aBc-d", InContent, "<") == (None, "<ac-d", "B")
    assert read("aB-d", InContent, "<") == (None, "<a-d", "B")


def test_a_parser_that_does_not_think_behind_the_call_reads_no_more():
    class Once(DashThinking):
        def __init__(self, prompt_text=""):
            super().__init__(prompt_text)
            self._is_thinking = not prompt_text

    assert read("aBc-d", Once, "") == ("a", "c-d", "B")


def test_the_work_on_reasoning_with_many_calls_is_linear():
    def feed(num):
        stage = ReasoningStage(Reopening, ends=ENDS)
        for _ in range(num):
            stage.feed("(hm hm hm hm")
            stage.end_call()
            stage.feed(")x")

    small, large = (work_of(lambda num=num: feed(num)) for num in (250, 1000))
    assert is_linear(small, large, 1000 * len("(hm hm hm hm)x"))


def test_what_is_held_back_at_a_call_comes_with_it():
    stage = ReasoningStage(HoldingThoughts)
    assert stage.feed("ab") == [ReasoningDelta("a")]
    assert stage.end_call() == [ReasoningDelta("b")]
    assert (stage.feed("cd"), stage.is_thinking) == ([], False)
    assert stage.feed("-") == []
    assert stage.feed("e") == [ReasoningDelta("cd")]
    assert stage.feed("f") == [TextDelta("e")]
    assert stage.close() == [TextDelta("f")]
    assert stage.feed("g") == [TextDelta("g")]


def test_a_parser_that_cannot_be_built_again_is_named():
    class Picky(DashThinking):
        def __init__(self, prompt_text=""):
            super().__init__(prompt_text)
            if prompt_text:
                raise ValueError("a bug")

    stage = ReasoningStage(Picky, "", ParserOrigin(Source("acme", "acme-quire", "1.0")))
    stage.feed("a")
    with pytest.raises(RequestFailedError, match=r"acme \(acme-quire 1.0\)"):
        stage.end_call()


@pytest.mark.parametrize("ends", [None, ENDS])
@pytest.mark.parametrize("reasoning", [Reopening, DashThinking, HoldingThoughts, InContent])
@given(text=st.text("ab()-?BX", max_size=30), data=st.data())
@settings(deadline=None)
def test_any_split_gives_the_same_and_loses_no_letter(reasoning, ends, text, data):
    whole = parser_with(reasoning, "(").read_whole(text)
    streamed, events, rest = parser_with(reasoning, "(", ends), [], text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        events += streamed.feed(rest[:size])
        rest = rest[size:]
    split = gather([*events, *streamed.close()])
    assert (split.text, split.reasoning) == (whole.text, whole.reasoning)
    assert [call.name for call in split.calls] == [call.name for call in whole.calls]
    letters = sorted(each for each in text if each in "ab")
    assert sorted(each for each in (whole.reasoning or "") + whole.text if each in "ab") == letters
