"""However a completion is cut into pieces, its blocks are the same, and well nested."""

import json
from itertools import pairwise

import msgspec
import pytest
from chat_parsers import parser_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from server_parts import BracketParser, ThinkParser

from quire.errors import RequestFailedError
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from quire.outputs import Delta
from quire.server.routes.anthropic.content_blocks import SIGNATURE, ContentBlocks, folded
from quire.server.routes.anthropic.message import (
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    SignatureDelta,
    TextBlockDelta,
    ThinkingBlockDelta,
)
from quire.server.routes.chat.choice_events import ChoiceEvents


def events_of(*pieces, held=None, shows_thinking=True, allows_parallel=True, reason="stop"):
    choice = ChoiceEvents(parser_of(ThinkParser(), BracketParser()), allows_parallel)
    blocks = ContentBlocks(held, shows_thinking=shows_thinking)
    found = []
    for i, piece in enumerate(pieces):
        end = reason if i == len(pieces) - 1 else None
        delta = Delta(index=0, text=piece, token_ids=[], finish_reason=end)
        found += blocks.read(choice.read(delta))
    return [*found, *blocks.close()]


def blocks_of(*pieces, **options):
    plain = json.loads(msgspec.json.encode(folded(events_of(*pieces, **options))))
    for block in plain:
        assert block.pop("id", "toolu_").startswith("toolu_")
    return plain


def text(content):
    return {"type": "text", "text": content}


def thinking(content):
    return {"type": "thinking", "thinking": content, "signature": SIGNATURE}


def call(name, **arguments):
    return {"type": "tool_use", "name": name, "input": arguments}


@pytest.mark.parametrize(
    ("completion", "blocks"),
    [
        ("", []),
        ("Hi", [text("Hi")]),
        (" \n", [text(" \n")]),
        ("<t>hm</t>Hi", [thinking("hm"), text("Hi")]),
        ("<t>hm</t>\n\nHi ", [thinking("hm"), text("\n\nHi ")]),
        ("<t>\n</t>Hi", [text("Hi")]),
        ("<t>hm", [thinking("hm")]),
        ("<t>hm</t>\n", [thinking("hm")]),
        ('[[f {"a": 1}]]', [call("f", a=1)]),
        ('<t>hm</t>\n[[f {"a": 1}]]\n', [thinking("hm"), call("f", a=1)]),
        ("a[[f {}]]b[[g {}]]", [text("a"), call("f"), text("b"), call("g")]),
        ("[[f {}]]\n[[g {}]]", [call("f"), call("g")]),
        ('a [[f {"a": ', [text('a [[f {"a": ')]),
        ('[[f {"a": NaN}]]', [call("f", a=None)]),
        (r'[[f {"a": "\ud800", "b": NaN}]]', [call("f", a="\ud800", b=None)]),
        ('[[f {"a": 100000000000000000000}]]', [call("f", a=10**20)]),
    ],
)
def test_a_completion_has_these_blocks(completion, blocks):
    assert blocks_of(completion) == blocks
    assert blocks_of(*(completion or [""])) == blocks


def test_a_second_call_that_is_not_wanted_is_left_out():
    assert blocks_of("[[f {}]][[g {}]]", allows_parallel=False) == [call("f")]


def test_reasoning_that_is_not_shown_is_an_empty_block():
    assert blocks_of("<t>hm</t>Hi", shows_thinking=False) == [thinking(""), text("Hi")]


@st.composite
def cut(draw):
    parts = st.sampled_from(
        ["Hi", " ", "\n\n", '[[f {"a": [1, "]"]}]]', '[[f {"a": -Infinity}]]', "[[g {}]]", "é"]
    )
    tail = draw(st.sampled_from(["", "[", "[[f", '[[f {"a": ', "]]"]))
    head = draw(st.sampled_from(["", "<t>hm</t>", "<t> </t>", "<t>hm", "<t"]))
    completion = head + "".join(draw(st.lists(parts, max_size=8))) + tail
    places = sorted(draw(st.lists(st.integers(0, len(completion)), max_size=6)))
    ends = [*places, len(completion)]
    return [completion[a:b] for a, b in zip([0, *places], ends, strict=True)]


@settings(deadline=None)
@given(cut())
@example(["<t>", "hm</t>", "\n", '[[f {"a"', ": 1}]", "]"])
def test_the_pieces_of_a_completion_change_nothing(pieces):
    assert blocks_of(*pieces) == blocks_of("".join(pieces))


@settings(deadline=None)
@given(cut(), st.sets(st.sampled_from("fg")), st.booleans())
def test_blocks_are_numbered_and_open_one_at_a_time(pieces, held, shows_thinking):
    is_open, number = False, 0
    for event in events_of(*pieces, held=held, shows_thinking=shows_thinking):
        assert event.index == number
        match event:
            case ContentBlockStart():
                assert not is_open
                is_open = True
            case ContentBlockDelta():
                assert is_open
            case ContentBlockStop():
                assert is_open
                is_open, number = False, number + 1
    assert not is_open


def test_a_call_is_sent_as_it_comes_unless_its_tool_is_held():
    pieces = ['[[f {"a": ', '"xy', '"}]]']
    deltas = [e.delta for e in events_of(*pieces, held={"g"}) if isinstance(e, ContentBlockDelta)]
    assert [delta.partial_json for delta in deltas] == ['{"a": ', '"xy', '"}']
    late = [e.delta for e in events_of(*pieces, held={"f"}) if isinstance(e, ContentBlockDelta)]
    assert [delta.partial_json for delta in late] == ['{"a": "xy"}']


@settings(deadline=None)
@given(cut())
@example(['[[f {"a": N', "aN}", "]]"])
def test_calls_that_come_in_pieces_have_the_input_of_whole_ones(pieces):
    whole, streamed = events_of(*pieces), events_of(*pieces, held=())
    if isinstance(calls := inputs_of(streamed), list):
        assert calls == inputs_of(whole)


@settings(deadline=None)
@given(cut())
@example(["a \n", "[[f ", "{}"])
@example(["<t>hm</t> \n", "[[f ", "{}"])
def test_beside_calls_that_break_off_a_stream_has_the_content_of_a_full_response(pieces):
    streamed = gathered(json.loads(msgspec.json.encode(events_of(*pieces, held=()))))
    assert texts_joined(without_broken_calls(streamed)) == texts_joined(blocks_of(*pieces))


def gathered(events):
    """Return the blocks that a client puts together; the input of a call is text."""
    blocks = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                block = event["content_block"]
                blocks.append(block | {"input": ""} if block.pop("id", None) else block)
            case "content_block_delta":
                (name, piece) = [*event["delta"].items()][1]
                blocks[event["index"]][name.replace("partial_json", "input")] += piece
    return blocks


def without_broken_calls(blocks):
    """Return blocks without calls that broke off, whose text follows; inputs are objects."""
    for block, after in pairwise([*blocks, text("")]):
        if block["type"] != "tool_use":
            yield block
        elif not after.get("text", "").lstrip().startswith(f"[[{block['name']} "):
            yield block | {"input": json.loads(block["input"])}


def texts_joined(blocks):
    """Return blocks, of which texts in a row are one."""
    joined = []
    for block in blocks:
        if joined and joined[-1]["type"] == block["type"] == "text":
            joined[-1] = text(joined[-1]["text"] + block["text"])
        else:
            joined.append(block)
    return joined


def inputs_of(events):
    """Return the inputs of calls; None if one has broken off."""
    texts = {}
    for event in events:
        if (
            isinstance(event, ContentBlockStart)
            and event.content_block.__struct_config__.tag == "tool_use"
        ):
            texts[event.index] = ""
        elif isinstance(event, ContentBlockDelta) and event.index in texts:
            texts[event.index] += event.delta.partial_json
    try:
        return [json.loads(text, parse_constant=pytest.fail) for text in texts.values()]
    except ValueError:
        return None


def test_what_a_delta_adds_to_a_block_is_one_event():
    events = [ReasoningDelta("h"), ReasoningDelta("m"), TextDelta("a"), TextDelta("b")]
    pieces = ['{"a"', ": N", "aN", "}"]
    events += [ToolCallStart(0, "f"), *(ToolCallArguments(0, piece) for piece in pieces)]
    found = ContentBlocks().read([*events, ToolCallEnd(0), TextDelta("c"), TextDelta("d")])
    deltas = [(e.index, e.delta) for e in found if isinstance(e, ContentBlockDelta)]
    assert deltas == [
        (0, ThinkingBlockDelta("hm")), (0, SignatureDelta(SIGNATURE)), (1, TextBlockDelta("ab")),
        (2, InputJsonDelta('{"a": null}')), (3, TextBlockDelta("cd")),
    ]  # fmt: skip


def test_a_call_that_breaks_off_is_followed_by_its_text():
    kinds = [
        event.content_block.__struct_config__.tag
        for event in events_of('[[f {"a": ', held=())
        if isinstance(event, ContentBlockStart)
    ]
    assert kinds == ["tool_use", "text"]


CUT = '[[f {"a": "x", "b": [1, 2'


@pytest.mark.parametrize("held", [None, {"f"}])
def test_a_held_call_that_is_cut_has_the_members_that_are_complete(held):
    blocks = blocks_of("Hi ", CUT, held=held, reason="length")
    assert blocks == [text("Hi "), call("f", a="x", b=[1])]
    assert blocks_of("[[f ", held=held, reason="length") == [call("f")]
    assert blocks_of('[[f {"a": NaN, "b"', held=held, reason="length") == [call("f", a=None)]


def test_a_call_that_is_cut_is_sent_as_far_as_it_goes():
    events = json.loads(msgspec.json.encode(events_of("Hi ", CUT, held=(), reason="length")))
    (before, block) = gathered(events)
    assert (before, block["name"], block["input"]) == (text("Hi "), "f", '{"a": "x", "b": [1, 2')


def test_a_parser_that_breaks_its_contract_fails_the_request():
    calls = [ToolCallStart(0, "f"), ToolCallArguments(0, "{"), ToolCallEnd(0)]
    with pytest.raises(RequestFailedError, match="no JSON object"):
        ContentBlocks(None).read(calls)
