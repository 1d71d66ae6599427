"""A call that a limit cuts counts as far as it goes; one that the model breaks off is text."""

import pytest
from chat_parsers import parser_of
from hypothesis import given
from hypothesis import strategies as st
from letter_parsers import UpperCalls
from server_parts import BracketParser

from quire.frontend.chat.parsing.completion_parser import gather
from quire.frontend.chat.parsing.tool_stage import ToolCallCut, ToolStage
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolParser,
)


def stage_of(events, last):
    """Return a stage that has read these events, and whose parser has others to the end."""

    class Listed(ToolParser):
        def feed(self, delta):
            return events

        def close(self):
            return last

    stage = ToolStage(Listed())
    stage.feed("x")
    return stage


def start(index):
    return ToolCallStart(index, "f", f"id{index}")


PIECE, END, TEXT = ToolCallArguments(0, "{"), ToolCallEnd(0), TextDelta("text")


@pytest.mark.parametrize(
    ("events", "last", "kept"),
    [
        ([start(0)], [TEXT], [ToolCallCut(0)]),
        ([start(0), PIECE], [TEXT, TEXT], [ToolCallCut(0)]),
        ([start(0)], [], [ToolCallCut(0)]),
        ([start(0)], [PIECE, TEXT], [ToolCallCut(0)]),
        ([start(0)], [PIECE], [ToolCallCut(0)]),
        ([], [start(0), PIECE, TEXT], [start(0), ToolCallCut(0)]),
        ([TEXT], [TEXT], [TEXT]),
        ([start(0), ToolCallArguments(0, "{}"), END], [TEXT], [TEXT]),
        ([start(0)], [ToolCallArguments(0, "{}"), END, TEXT], ["whole"]),
        ([start(0), TEXT], [TEXT], [TEXT]),
        ([start(0), TEXT], [start(1), TEXT], [start(1), ToolCallCut(1)]),
        ([start(0)], [TEXT, start(1), TEXT], [TEXT, start(1), ToolCallCut(1)]),
        ([start(0), start(1)], [TEXT], [ToolCallCut(0), ToolCallCut(1)]),
    ],
)
def test_the_text_of_a_call_that_is_cut_is_no_text(events, last, kept):
    assert stage_of(events, last).close() == last
    found = stage_of(events, last).close(is_cut=True)
    assert found == (last if kept == ["whole"] else kept)


def test_without_a_parser_all_is_text_and_there_is_nothing_to_cut():
    stage = ToolStage(None)
    assert stage.feed("") == []
    assert stage.feed("a") == [TextDelta("a")]
    assert stage.close(is_cut=True) == []


@pytest.mark.parametrize("reads_calls_first", [False, True])
def test_a_call_that_is_cut_is_the_last_one_with_the_arguments_so_far(reads_calls_first):
    def whole(text, is_cut):
        parser = parser_of(None, BracketParser(), reads_calls_first=reads_calls_first)
        parsed = parser.read_whole(text, is_cut=is_cut)
        return parsed.text, [(call.name, call.arguments) for call in parsed.calls]

    text = 'a[[f {}]]b[[g {"x": 1'
    assert whole(text, is_cut=True) == ("ab", [("f", "{}"), ("g", '{"x": 1')])
    assert whole(text, is_cut=False) == ('ab[[g {"x": 1', [("f", "{}")])
    assert whole("a[[g", is_cut=True) == ("a[[g", [])
    assert whole("a[[f nope]]b", is_cut=True) == ("a[[f nope]]b", [])


@given(text=st.text("[]fg {}x1\n", max_size=40), data=st.data(), is_cut=st.booleans())
def test_any_split_of_a_completion_is_cut_alike(text, data, is_cut):
    for make in (BracketParser, UpperCalls):
        whole = parser_of(None, make()).read_whole(text.replace("x", "X"), is_cut=is_cut)
        parser, events, rest = parser_of(None, make()), [], text.replace("x", "X")
        while rest:
            size = data.draw(st.integers(1, len(rest)))
            events += parser.feed(rest[:size])
            rest = rest[size:]
        split = gather([*events, *parser.close(is_cut=is_cut)])
        assert split.text == whole.text
        assert [(c.name, c.arguments) for c in split.calls] == [
            (c.name, c.arguments) for c in whole.calls
        ]
