"""Completions on standard output."""

import io
import json

from quire.cli.completion_printer import CompletionPrinter, print_json, print_output
from quire.frontend.chat.parsing.tool_stage import ToolCallCut
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from quire.outputs import CompletionOutput, RequestOutput, ToolCall


class Screen(io.StringIO):
    def isatty(self):
        return True


def printed(*events, stream=None):
    printer = CompletionPrinter(stream or io.StringIO())
    for event in events:
        printer.show([event])
    printer.close()
    return printer


def text_of(*events, stream=None):
    stream = stream or io.StringIO()
    printed(*events, stream=stream)
    return stream.getvalue()


def test_text_is_printed_as_it_comes_and_its_last_line_is_ended():
    stream = io.StringIO()
    printer = CompletionPrinter(stream)
    printer.show([TextDelta("one ")])
    assert stream.getvalue() == "one "
    printer.show([TextDelta("two")])
    printer.close()
    assert stream.getvalue() == "one two\n"
    assert printer.text == "one two"


def test_a_line_that_has_ended_is_not_ended_again():
    assert text_of(TextDelta("one\n"), TextDelta("")) == "one\n"
    assert text_of() == ""


def test_reasoning_is_dim_on_a_terminal_and_no_part_of_the_text():
    events = [ReasoningDelta("hm"), TextDelta("yes")]
    assert text_of(*events) == "hm\nyes\n"
    assert text_of(*events, stream=Screen()) == "\x1b[2mhm\x1b[0m\nyes\n"
    assert printed(*events).text == "yes"


def test_a_tool_call_is_a_line_once_it_is_complete():
    start = [ToolCallStart(0, "f"), ToolCallArguments(0, '{"a"'), ToolCallArguments(0, ": 1}")]
    assert text_of(TextDelta("so"), *start) == "so\n"
    assert text_of(TextDelta("so"), *start, ToolCallEnd(0)) == 'so\n[tool call] f({"a": 1})\n'


def test_a_call_that_a_limit_cuts_is_a_line_as_far_as_it_goes():
    cut = [ToolCallStart(0, "f"), ToolCallArguments(0, '{"a"'), ToolCallCut(0)]
    assert text_of(TextDelta("so"), *cut) == 'so\n[tool call] f({"a")\n'


def test_two_calls_that_are_interleaved_are_two_lines():
    events = [
        ToolCallStart(0, "f"),
        ToolCallStart(1, "g"),
        ToolCallArguments(1, "{}"),
        ToolCallArguments(0, "[]"),
        ToolCallEnd(0),
        ToolCallEnd(1),
    ]
    assert text_of(*events) == "[tool call] f([])\n[tool call] g({})\n"


def whole():
    completion = CompletionOutput(index=0, text="yes", token_ids=[1], reasoning="hm")
    completion.tool_calls = [ToolCall("call_0", "f", "{}")]
    return RequestOutput(
        request_id="r", prompt="p", prompt_token_ids=[5], outputs=[completion], finished=True
    )


def test_a_whole_output_has_all_its_parts(capsys):
    print_output(whole())
    assert capsys.readouterr().out == "[thinking] hm\nyes\n[tool call] f({})\n"


def test_a_whole_output_as_json_has_the_tokens(capsys):
    print_json(whole())
    printed_json = json.loads(capsys.readouterr().out)
    assert printed_json["prompt_token_ids"] == [5]
    assert printed_json["outputs"][0]["text"] == "yes"
