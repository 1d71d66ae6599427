"""Messages to functions are calls, whatever their headers look like; all else stays as it is."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from quire.interfaces.tool_parsing import ToolCallArguments, ToolCallEnd, ToolCallStart
from quire.testing.tool_parsing import ReadCompletion, ToolParserContract, ToolSample, read_events
from quire_tool_parsers.harmony_parser import MARKERS, HarmonyParser
from quire_tool_parsers.plugin import HARMONY_CAPABILITIES

ANALYSIS = "<|channel|>analysis<|message|>Need the weather.<|end|>"
TRICKY = '{"text": "<|call|> } \\" <|start|>", "l": [1, {"a": null}]}'
# The example of a call in the harmony guide (OpenAI cookbook, "OpenAI harmony response format").
PUBLISHED = (
    "<|channel|>analysis<|message|>Need to use function get_current_weather.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_current_weather <|constrain|>json"
    '<|message|>{"location":"San Francisco"}<|call|>'
)


class TestHarmony(ToolParserContract):
    """The kit that every tool parser passes."""

    parser = HarmonyParser
    samples: ClassVar[Sequence[ToolSample]] = (
        ToolSample("Just text. 1 < 2", "Just text. 1 < 2"),
        ToolSample("", ""),
        ToolSample(
            PUBLISHED,
            "<|channel|>analysis<|message|>Need to use function get_current_weather.<|end|>",
            (("get_current_weather", '{"location":"San Francisco"}'),),
        ),
        ToolSample(
            " to=functions.f<|channel|>commentary<|message|>" + TRICKY + "<|call|>",
            "",
            (("f", TRICKY),),
        ),
        ToolSample(
            "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant"
            "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant"
            '<|channel|>commentary to=functions.g<|message|>{"a": "Bergen"}<|call|>',
            "<|channel|>commentary<|message|>I look it up.<|end|>",
            (("f", "{}"), ("g", '{"a": "Bergen"}')),
        ),
        ToolSample(
            f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>It rains.",
            f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>It rains.",
        ),
    )


def read(*pieces: str, names: Sequence[str] = ()) -> ReadCompletion:
    parser = HarmonyParser(names)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return read_events(events + parser.close())


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.find <|constrain|>json",
        "<|channel|>commentary to=functions.find",
        "<|channel|>commentary to=functions.find code",
        "<|channel|>commentary to=functions.find<|constrain|>json",
        "<|channel|>analysis to=functions.find <|constrain|>json",
        "<|channel|><|channel|>commentary to=functions.find json",
        "<|channel|>commentary?<|channel|>commentary to=functions.find",
        "<|start|>assistant to=functions.find<|channel|>commentary json",
        "<|start|>assistant<|channel|>commentary to=functions.find <|constrain|>json",
        " to=functions.find<|channel|>commentary <|constrain|>json",
        "to=functions.find<|channel|>commentary",
        "assistant<|channel|>commentary to=functions.find",
        "<|channel|>commentary to=find",
        "<|channel|>commentary to=functions.functions.find",
    ],
)
def test_a_message_to_a_function_is_a_call_whatever_its_header(header):
    text = f'{header}<|message|>{{"city": "Oslo"}}<|call|>'
    completion = read(text, names=["find"])
    content = "assistant" if header.startswith("assistant") else ""
    assert (completion.content, completion.calls) == (content, [("find", '{"city": "Oslo"}')])
    assert read(*text, names=["find"]) == completion


@pytest.mark.parametrize("end", ["<|end|>", "<|end|>\n", "<|return|>", "<|call|>"])
def test_a_channel_behind_an_end_begins_a_message(end):
    said = f"<|channel|>analysis<|message|>Hm.{end}"
    completion = read(f"{said}<|channel|>commentary to=functions.f<|message|>{{}}<|call|>")
    assert (completion.content, completion.calls) == (said, [("f", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        "<|channel|>commentary to=functions.f<|message|>not JSON<|call|>",
        '<|channel|>commentary to=functions.f<|message|>{"a": 1',
        "<|channel|>commentary to=functions.f<|message|>[1]<|call|>",
        "<|channel|>commentary to=functions.f",
        "<|channel|>commentary to=functions.f<|end|>",
        "<|channel|>commentary to=functions.f<|message|>",
        "The token <|channel|> opens a channel. " * 30,
        "to=you, from=me " * 60,
        "<|channel|>" + "x" * 3000,
        "<|start|><|start|><|channel|><|end|><|message|><|call|>",
        "<|channel|>final<|message|>Write <|channel|> then to=functions.f <|message|>{} so.",
        "<|channel|>final<|message|>See <|channel|>commentary to=functions.f<|message|>{}<|call|>",
    ],
)
def test_what_is_no_call_is_left_as_it_is(text):
    completion = read(text)
    assert (completion.content, completion.calls) == (text, [])
    assert read(*text) == completion


@pytest.mark.parametrize("ending", ["", "\n", "<|call|>", "<|ca", "<|end|>", "<|return|>"])
def test_a_call_is_complete_with_its_json(ending):
    completion = read(f'<|channel|>commentary to=functions.f<|message|>{{"a": 1}}{ending}')
    assert (completion.content, completion.calls) == ("", [("f", '{"a": 1}')])


@pytest.mark.parametrize(
    ("recipient", "names", "name"),
    [
        ("functions.functions.f", ["functions.f"], "functions.f"),
        ("functions.functions.f", ["f", "functions.f"], "functions.f"),
        ("functions.f", ["f", "functions.f"], "f"),
        ("functions.f", ["functions.f"], "functions.f"),
        ("functions.functions.f", ["f"], "f"),
        ("functions.functions.f", [], "f"),
    ],
)
def test_a_tool_whose_name_begins_like_a_recipient_is_called(recipient, names, name):
    completion = read(f"<|channel|>commentary to={recipient}<|message|>{{}}<|call|>", names=names)
    assert (completion.content, completion.calls) == ("", [(name, "{}")])


def test_a_message_without_a_text_is_a_call_without_arguments():
    completion = read("<|channel|>commentary to=functions.f<|message|> <|call|>")
    assert (completion.content, completion.calls) == ("", [("f", "{}")])


def test_behind_a_call_headers_are_dropped():
    call = "<|channel|>commentary to=functions.f<|message|>{}<|call|>"
    completion = read(f"{call}<|start|>assistant<|channel|>final<|message|>Done.<|return|>")
    assert (completion.content, completion.calls) == ("Done.", [("f", "{}")])


def test_arguments_are_passed_on_as_they_come():
    parser = HarmonyParser()
    assert parser.feed("<|channel|>commentary to=functions.f <|constrain|>json") == []
    assert parser.feed("<|message|>") == [ToolCallStart(0, "f")]
    assert parser.feed('{"ci') == [ToolCallArguments(0, '{"ci')]
    assert parser.feed('ty": "Oslo"}') == [ToolCallArguments(0, 'ty": "Oslo"}'), ToolCallEnd(0)]
    assert parser.feed("<|call|>") == []
    assert parser.close() == []


def test_the_registration_names_all_markers():
    assert set(HARMONY_CAPABILITIES.markers) == set(MARKERS)
