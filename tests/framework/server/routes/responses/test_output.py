"""Output items: the same for every split of a completion, and what becomes of odd ones."""

from itertools import pairwise

import msgspec
import pytest
from chat_parsers import parser_of
from hypothesis import given
from hypothesis import strategies as st
from server_parts import BracketParser, ThinkParser

from quire.frontend.chat.parsing.tool_stage import ToolCallCut
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from quire.outputs import Delta
from quire.server.routes.chat.choice_events import ChoiceEvents
from quire.server.routes.responses.item_events import ItemEvents
from quire.server.routes.responses.output import Output
from quire.server.wire.protocol import TokenLogprob
from quire.server.wire.responses import (
    CustomCallItem,
    FunctionCallItem,
    OutputMessage,
    ReasoningItem,
)

PIECES = ["<t>", "</t>", "[[f ", "[[g {}", "]]", '{"a": 1}', "text", " ", "[", "ü🌧"]
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


def read(text, cuts, end="stop", allows_parallel=True):
    """Return the items and the events of a text that arrives in pieces."""
    parts = ChoiceEvents(parser_of(ThinkParser(), BracketParser()), allows_parallel)
    output, events = Output(), ItemEvents()
    seen = []
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    for i, piece in enumerate(pieces, 1):
        finish = end if i == len(pieces) else None
        delta = Delta(index=0, text=piece, token_ids=[], finish_reason=finish)
        changes = output.read((event, ()) for event in parts.read(delta))
        if finish is not None:
            changes = changes + output.end("completed" if end == "stop" else "incomplete")
        seen += [event for change in changes for event in events.of(change)]
    return output.items, msgspec.to_builtins(seen)


def without_ids(items):
    found = msgspec.to_builtins(items)
    for item in found:
        del item["id"]
        item.pop("call_id", None)
    return found


def accumulated(events):
    """Put the events of a stream together, as a client does."""
    items = {}
    for event in events:
        index = event["output_index"]
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert index == len(items)
                items[index] = event["item"]
            case "content_part.added":
                items[index]["content"].append(event["part"])
            case "output_text.delta":
                items[index]["content"][0]["text"] += event["delta"]
                items[index]["content"][0]["logprobs"] += event["logprobs"]
            case "reasoning_text.delta":
                items[index]["content"][0]["text"] += event["delta"]
            case "function_call_arguments.delta":
                items[index]["arguments"] += event["delta"]
            case "output_item.done":
                items[index]["status"] = event["item"]["status"]
                assert items[index] == event["item"]
    return list(items.values())


@given(texts, st.lists(st.integers(0, 60), max_size=6), st.sampled_from(["stop", "length"]))
def test_a_streamed_completion_has_the_items_of_a_whole_one(text, cuts, end):
    whole, _ = read(text, [], end)
    items, events = read(text, cuts, end)
    assert without_ids(items) == without_ids(whole)
    assert accumulated(events) == msgspec.to_builtins(items)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@given(texts, st.lists(st.integers(0, 60), max_size=6))
def test_the_text_of_all_messages_is_the_text_that_the_parsers_give(text, cuts):
    parsed = parser_of(ThinkParser(), BracketParser()).read_whole(text)
    items, _ = read(text, cuts, "stop")
    messages = [item for item in items if isinstance(item, OutputMessage)]
    assert "".join(item.content[0].text for item in messages) == parsed.text
    calls = [item for item in items if isinstance(item, FunctionCallItem)]
    whole = [(call.name, call.arguments) for call in calls if call.status == "completed"]
    assert whole == [(call.name, call.arguments) for call in parsed.calls]
    for call, after in zip(items, [*items[1:], None], strict=True):
        if isinstance(call, FunctionCallItem) and call.status == "incomplete":
            assert call.arguments in after.content[0].text
    thoughts = [item.content[0].text for item in items if isinstance(item, ReasoningItem)]
    assert "".join(thoughts) == (parsed.reasoning or "")


def of_type(events, kind):
    return [event for event in events if event["type"] == f"response.{kind}"]


def test_the_arguments_of_a_call_are_sent_as_they_come():
    (call,), events = read('[[f {"a": 1}]]', [5, 8, 10, 12])
    deltas = [event["delta"] for event in of_type(events, "function_call_arguments.delta")]
    assert deltas == ["{", '"a"', ": ", "1}"]
    (added,), (done,) = of_type(events, "output_item.added"), of_type(events, "output_item.done")
    assert added["item"] | {"arguments": call.arguments, "status": "completed"} == done["item"]
    assert (call.name, call.arguments, call.status) == ("f", '{"a": 1}', "completed")


def test_a_call_that_breaks_off_is_incomplete_and_its_text_follows():
    (before, call, message), events = read('Sure: [[f {"a"', [3, 9, 12])
    assert (before.content[0].text, before.status) == ("Sure: ", "completed")
    assert (call.name, call.arguments, call.status) == ("f", '{"a"', "incomplete")
    assert (message.content[0].text, message.status) == ('[[f {"a"', "completed")
    assert not of_type(events, "function_call_arguments.done")


def test_a_call_that_is_cut_is_incomplete_and_the_last_item():
    (before, call), events = read('Sure: [[f {"a"', [3, 9, 12], "length")
    assert (before.content[0].text, before.status) == ("Sure: ", "completed")
    assert (call.name, call.arguments, call.status) == ("f", '{"a"', "incomplete")
    assert not of_type(events, "function_call_arguments.done")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "ls', "ls"), ('{"input": "ls\\', "ls"), ('{"inp', ""), ('{"a": 1', '{"a": 1')],
)
def test_the_input_of_a_custom_tool_is_cut(arguments, text):
    output = Output(custom={"run"})
    output.read([(ToolCallStart(0, "run"), ()), (ToolCallArguments(0, arguments), ())])
    output.read([(ToolCallCut(0), ())])
    (item,) = output.items
    assert isinstance(item, CustomCallItem)
    assert (item.input, item.status) == (text, "incomplete")
    assert not output.awaits_client


def test_a_call_within_another_ends_it():
    output = Output()
    output.read([(ToolCallStart(0, "f"), ()), (ToolCallStart(1, "g"), ())])
    output.read([(ToolCallArguments(0, "lost"), ()), (ToolCallArguments(1, "{}"), ())])
    output.read([(ToolCallEnd(0), ()), (ToolCallEnd(1), ())])
    assert [(item.name, item.arguments, item.status) for item in output.items] == [
        ("f", "", "incomplete"), ("g", "{}", "completed"),
    ]  # fmt: skip


def test_without_parallel_calls_one_is_kept():
    items, _ = read("[[f {}]][[g {}]]", [4, 9], allows_parallel=False)
    assert [item.name for item in items] == ["f"]


def test_a_completion_of_nothing_is_an_empty_message():
    (message,), events = read("", [])
    assert (message.content[0].text, message.status) == ("", "completed")
    assert [event["type"] for event in events] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]


def test_only_the_last_item_of_a_cut_completion_is_incomplete():
    items, _ = read("<t>hm</t>a text that", [5], end="length")
    assert [item.status for item in items] == ["completed", "incomplete"]


def test_what_breaks_off_is_incomplete_and_nothing_is_added():
    output = Output()
    output.break_off()
    assert output.items == []
    output.read([(TextDelta("half"), ())])
    output.break_off()
    assert [(item.status, item.content[0].text) for item in output.items] == [
        ("incomplete", "half")
    ]
    output.read([(ToolCallStart(0, "f"), ()), (ToolCallArguments(0, "{"), ())])
    output.break_off()
    assert (output.items[-1].status, output.items[-1].arguments) == ("incomplete", "{")


def position(name):
    return TokenLogprob(name, -1.0, [*name.encode()], [])


def test_log_probabilities_come_with_the_piece_that_their_tokens_wrote():
    output, events = Output(), ItemEvents()
    steps = [
        [(ReasoningDelta("r"), ()), (TextDelta("a"), [position("a")])],
        [(TextDelta("b"), [position("b")]), (TextDelta("c"), [position("c")])],
    ]
    changes = [change for step in steps for change in output.read(step)]
    changes += output.end("completed", [position("<end>")])
    (_, message) = output.items
    assert [token.token for token in message.content[0].logprobs] == ["a", "b", "c", "<end>"]
    deltas = msgspec.to_builtins([event for change in changes for event in events.of(change)])
    pieces = [
        (event["delta"], [token["token"] for token in event["logprobs"]])
        for event in deltas
        if event["type"] == "response.output_text.delta"
    ]
    assert pieces == [("a", ["a"]), ("bc", ["b", "c"]), ("", ["<end>"])]


def test_the_end_after_a_call_belongs_to_no_message():
    output = Output()
    output.read([(ToolCallStart(0, "f"), ()), (ToolCallArguments(0, "{}"), ())])
    output.read([(ToolCallEnd(0), ())])
    assert output.end("completed", [position("<end>")]) == []
