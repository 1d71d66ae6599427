"""The parsers of a template read what transformers reads, in any split."""

import json
from functools import cache

import pytest
from response_templates import CASES, HEADER, HERMES, LINES, START, TAGS, TOOLS

from quire.frontend.chat.parsing.completion_parser import (
    CompletionParser,
    ReasoningStage,
    ToolStage,
    gather,
)
from quire.testing.parsing.parser_work import is_linear, work_of
from quire.testing.parsing.splits import of_length
from quire_tool_parsers.response_template import pattern
from quire_tool_parsers.response_template.reasoning_parser import TemplateReasoningParser
from quire_tool_parsers.response_template.tool_parser import MAX_QUOTED, TemplateToolParser

NOW = [("now", {})]
MAX_LINES = 200 * 3000  # of Python, for a call with as many blanks
each_case = pytest.mark.parametrize("name", CASES)


@cache
def parsers(text):
    return TemplateReasoningParser.from_file_text(text), TemplateToolParser.from_file_text(text)


def read(template, prompt, pieces):
    """Return the reasoning, content and calls of a completion in pieces."""
    reasoning, tools = parsers(json.dumps(template))
    parser = CompletionParser(ReasoningStage(reasoning, prompt), ToolStage(tools.for_tools(TOOLS)))
    events = [event for piece in pieces for event in parser.feed(piece)]
    parsed = gather([*events, *parser.close()])
    calls = [(call.name, json.loads(call.arguments)) for call in parsed.calls]
    return parsed.reasoning, parsed.text, calls


def transformers_message(template, prompt, text):
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    message = parsing.parse_response(text, template, prefix=prompt, tools=TOOLS)
    calls = message.get("tool_calls", [])
    calls = [call for each in calls for call in (each if isinstance(each, list) else [each])]
    functions = [call["function"] for call in calls]
    return (
        message.get("thinking"),
        message.get("content", ""),
        [(function["name"], function["arguments"]) for function in functions],
    )


@each_case
def test_a_completion_is_read_as_transformers_does(name):
    template, prompt, text = CASES[name]
    assert read(template, prompt, [text]) == transformers_message(template, prompt, text)


@each_case
def test_no_completion_waits_for_what_a_pattern_needs(name, monkeypatch):
    template, prompt, text = CASES[name]
    expected = read(template, prompt, [text])
    parsers.cache_clear()
    parsers(json.dumps(template))
    monkeypatch.setattr(pattern, "_all_characters", None)  # looking at all takes a while
    assert read(template, prompt, [text]) == expected


@each_case
def test_any_split_gives_the_same(name):
    template, prompt, text = CASES[name]
    whole = read(template, prompt, [text])
    assert read(template, prompt, [*text]) == whole
    for at in range(1, len(text)):
        assert read(template, prompt, [text[:at], text[at:]]) == whole


def test_no_beginning_of_a_completion_is_an_error():
    for template, prompt, text in CASES.values():
        for end in range(len(text)):
            whole = read(template, prompt, [text[:end]])
            assert read(template, prompt, [*text[:end]]) == whole


def call(arguments, name="find"):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def test_text_before_between_and_behind_calls_is_kept():
    text = f"One\n{call('{}')}\nTwo {call('{}')} Three\n"
    assert read(HERMES, START, [*text]) == (None, "One\nTwo\nThree", [("find", {})] * 2)


def test_a_broken_call_is_text():
    for broken in (
        call("{,}"), call("[1]"), call("1"), call("{}", name=""), call('{"a": NaN}'),
        "<tool_call>[]]</tool_call>", "<tool_call>null</tool_call>", '<tool_call>{"name": "find"',
    ):  # fmt: skip
        assert read(HERMES, START, [*broken]) == (None, broken, [])


@pytest.mark.parametrize("number", [1, 3, 100])
def test_a_marker_in_a_string_of_a_call_is_data(number):
    city = "</tool_call>" * number
    whole = read(HERMES, START, [call(json.dumps({"city": city}))])
    assert (whole[2] == [("find", {"city": city})]) is (number <= MAX_QUOTED)
    if number <= 3:
        assert read(HERMES, START, [*call(json.dumps({"city": city}))]) == whole


def test_calls_behind_a_string_without_an_end_are_read():
    broken = '<tool_call>{"name": "find", "arguments": {"city": "Os}}</tool_call>'
    expected = (None, broken, [("now", {}), ("find", {"days": 1})])
    text = broken + call("{}", name="now") + call('{"days": 1}')
    assert read(HERMES, START, [text]) == expected
    assert read(HERMES, START, [*text]) == expected


def test_half_a_character_is_escaped():
    text = call('{"city": "\\ud800", "more": ["\\ud800"]}')
    _, tools = parsers(json.dumps(HERMES))
    parsed = gather(CompletionParser(tools=ToolStage(tools.for_tools(TOOLS))).feed(text))
    assert parsed.calls[0].arguments == '{"city": "\\ud800", "more": ["\\ud800"]}'
    broken = call("{}", name="\\ud800")
    assert read(HERMES, START, [broken]) == (None, broken, [])


def test_values_without_types_get_those_of_the_tool():
    written = "".join(
        f"<parameter={key}>{value}</parameter>"
        for key, value in {"city": "12", "days": '"7"', "wet": "True", "more": "1.5"}.items()
    )
    text = f"<tool_call><function=find>{written}</function></tool_call>"
    arguments = {"city": "12", "days": 7, "wet": True, "more": 1.5}
    assert read(TAGS, START, [text]) == (None, "", [("find", arguments)])


def test_text_that_the_template_puts_nowhere_is_left_out():
    assert read(LINES, "<bot>", ["lost [SAY]Yes[/SAY] lost"]) == (None, "Yes", [])


@pytest.mark.parametrize(
    ("prompt", "is_thinking"),
    [("", False), (START, False), (f"{START}<think>\n", True), (f"<think>{START}", False),
     (f"{START}<think>\nHm\n</think>", False)],
)  # fmt: skip
def test_the_prompt_says_whether_thinking_is_open(prompt, is_thinking):
    reasoning, _ = parsers(json.dumps(HERMES))
    assert reasoning(prompt).is_thinking is is_thinking


def test_a_prompt_that_may_go_on_has_opened_the_thinking():
    thinking = {"open_pattern": r"<think>\s*", "close": "</think>"}
    template = HERMES | {"fields": HERMES["fields"] | {"thinking": thinking}}
    reasoning, _ = parsers(json.dumps(template))
    assert reasoning(f"{START}<think>\n").is_thinking
    assert read(template, f"{START}<think>\n", ["Hm</think>Yes"]) == ("Hm", "Yes", [])


def test_text_that_the_prompt_has_begun_goes_on():
    assert read(HERMES, f"{START}<think>Well", [" then", "</think>Yes"]) == (" then", "Yes", [])


@pytest.mark.parametrize(
    ("begun", "text", "expected"),
    [
        ("<think>1 <", " 2</think>Yes", (" 2", "Yes", [])),
        ("<think>1 </th", "ink>Yes", (None, "Yes", [])),
        ("<think>1 </th", "e>", ("e>", "", [])),
        ("1 <", "2", (None, "2", [])),
        ("1 <", "think>Hm</think>Yes", ("Hm", "\nYes", [])),
        ("1 <tool_", '<tool_call>{"name": "now", "arguments": {}}</tool_call>', (None, "", NOW)),
    ],
)
def test_the_beginning_of_a_marker_in_the_prompt_is_none_of_the_completion(begun, text, expected):
    assert read(HERMES, START + begun, [text]) == expected
    assert read(HERMES, START + begun, text) == expected


@pytest.mark.parametrize("inside", ["", "<parameter=city>", "<parameter=city>Oslo</parameter>"])
def test_the_work_on_blanks_in_a_call_is_linear(inside):
    """A closing pattern that begins with blanks is tried once for all of them."""
    begun = f"<tool_call>\n<function=find>{inside}"
    tools = parsers(json.dumps(TAGS))[1]

    def feed(num_blanks):
        parser = tools.for_tools(TOOLS)
        for delta in of_length(begun + " " * num_blanks, 16):
            parser.feed(delta)
        parser.close()

    feed(0)
    small, large = (work_of(lambda num=num: feed(num), MAX_LINES) for num in (750, 3000))
    assert is_linear(small, large, 3000)


def test_the_host_shows_the_markers_to_the_parsers():
    reasoning, tools = parsers(json.dumps(HEADER))
    assert {"<|channel>thought\n", "<|tool_call>call:", '<|"|>', "<tool_call|>"} <= {
        *tools.capabilities.markers
    }
    assert reasoning.capabilities.end_marker == "<channel|>"
    assert reasoning.capabilities.start_marker == "<|channel>thought\n"


def test_calls_are_not_forced():
    _, tools = parsers(json.dumps(HERMES))
    assert tools.call_grammar(TOOLS, at_least_one=True) is None
