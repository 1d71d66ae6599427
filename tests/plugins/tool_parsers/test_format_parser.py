# ruff: noqa: RUF001 - the markers of DeepSeek and Step have such bars
"""Formats of users end with any text, and what closes a call is never text."""

import msgspec
import pytest
from family_calls import read_calls
from typed_tools import TYPED_TOOLS

from quire.interfaces.tool_parsing import TextDelta
from quire.testing.parsing.parser_work import is_linear, work_of
from quire.testing.tool_parsing import ToolParserContract, ToolSample, read_events
from quire_tool_parsers.call_format import CallFormat
from quire_tool_parsers.family_table import read_table
from quire_tool_parsers.format_parser import MAX_PREFACE, FormatParser

TAGS = 'tags = { parameter_open = ["<p>"], parameter_close = ["</p>"] }'
LOOPS = [  # tables with which `{` was found, and nothing read, for ever
    'notations = ["json"]\ncall_open = ["<c>"]',
    'notations = ["python"]\nis_bare = true',
    'notations = ["header"]\nsection_open = ["<c>"]',
    f'notations = ["tagged"]\ncall_open = ["<c>"]\n{TAGS}',
    'notations = ["braces"]\nsection_open = ["{"]\nsection_close = ["["]',
]


def unchecked(toml):
    """Return the parser of a format that a plugin declares, which nothing checks."""
    form = msgspec.toml.decode(f"is_bare_anywhere = true\n{toml}", type=CallFormat)
    return FormatParser.of_format("Loops", form)


@pytest.mark.parametrize("toml", LOOPS)
@pytest.mark.parametrize("text", ["a { b", "{", "a [ b", "[{", "a {} [] { [ b", "]}", "<c>{ {"])
def test_a_brace_that_begins_no_call_is_text(toml, text):
    found = []

    def parse():
        parser = unchecked(toml)()
        found.extend([*parser.feed(text), *parser.close()])

    work_of(parse, max_lines=20_000)
    assert read_events(found).content == text


def test_a_header_that_repeats_a_repetition_is_matched_in_linear_work():
    toml = 'notations = ["header"]\nheader = "(?P<name>(a+)+)b"\ncall_open = ["<c>"]'
    parser = FormatParser.from_file_text(toml)
    assert read_events(parser().feed("<c>aab{}")).calls == [("aa", "{}")]

    def feed(num):
        parser().feed("<c>" + "a" * num + "{}")

    small, large = (work_of(lambda num=num: feed(num)) for num in (60, 240))
    assert is_linear(small, large, 240)


class TestBareJson(ToolParserContract):
    """The kit, for a user's table of JSON anywhere in the text."""

    parser = FormatParser.from_file_text("is_bare = true\nis_bare_anywhere = true")
    tools = ({"name": "f", "parameters": {"type": "object"}},)
    samples = (
        ToolSample("a { b", "a { b"),
        ToolSample("a [ b ] {} {{ [1]", "a [ b ] {} {{ [1]"),
        ToolSample(
            'So: {"name": "f", "arguments": {"a": "Oslo"}}', "So:", (("f", '{"a": "Oslo"}'),)
        ),
        ToolSample('{"name": "g", "arguments": {}}', '{"name": "g", "arguments": {}}'),
    )


class TestPythonAtTheFront(ToolParserContract):
    """The kit, for a table that said, before it was refused, that calls in Python are anywhere."""

    parser = unchecked(LOOPS[1])
    tools = ({"name": "f", "parameters": {"type": "object"}},)
    samples = (
        ToolSample("a { b", "a { b"),
        ToolSample('[f(a="Oslo")]', "", (("f", '{"a": "Oslo"}'),)),
    )


def tags_that_open_with(*openers):
    """Return the parser of a table whose arguments have braces around them."""
    written = ", ".join(f'"{each}"' for each in openers)
    return FormatParser.from_file_text(
        'notations = ["tagged"]\ncall_open = ["<call>"]\ncall_close = ["</call>"]\n'
        f'tags = {{ name_close = ":", parameter_open = [{written}], key_close = "=",'
        ' parameter_close = ["}"] }'
    )


class TestArgumentsInBraces(ToolParserContract):
    """The kit, for tags that begin like a body of JSON."""

    parser = tags_that_open_with("{")
    samples = (
        ToolSample("<call>f:{a=Oslo}{b=3}</call>", "", (("f", '{"a": "Oslo", "b": "3"}'),)),
        ToolSample("<call>f:</call>", "", (("f", "{}"),)),
        ToolSample("<call>f:{}</call>", "<call>f:{}</call>"),
    )


class TestArgumentsInOneBraceOrTwo(ToolParserContract):
    """The kit, for tags of which one begins like the other, and like a body of JSON."""

    parser = tags_that_open_with("{{", "{{|")
    samples = (
        ToolSample("<call>f:{{a=Oslo}{{|b=y}</call>", "", (("f", '{"a": "Oslo", "b": "y"}'),)),
        ToolSample('<call>f:{"a": "x"}</call>', "", (("f", '{"a": "x"}'),)),
    )


V3 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n"
STEP = (
    "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="now"></steptml:invoke>'
)


@pytest.mark.parametrize("end", ["```", "```\n", "", "\n``` \r\n"])
def test_the_fence_of_a_call_and_its_end_may_stand_apart(end):
    text = f"Hi {V3}{end}<｜tool▁call▁end｜>\n<｜tool▁calls▁end｜> Bye."
    assert read_calls("deepseek_v3", text, TYPED_TOOLS) == ("Hi Bye.", [("now", {})])


@pytest.mark.parametrize("end", ["<｜tool_call_end｜>", "\n<｜tool_call_end｜>\n", "\n"])
def test_the_two_closing_tags_of_a_call_may_stand_apart(end):
    text = f"Hi {STEP}{end}<｜tool_calls_end｜>"
    assert read_calls("step3", text, TYPED_TOOLS) == ("Hi", [("now", {})])


def test_a_fence_behind_the_end_of_a_call_is_text():
    text = f"{V3}```<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n```py\nx\n```"
    assert read_calls("deepseek_v3", text, TYPED_TOOLS) == ("```py\nx\n```", [("now", {})])
    text = f"{V3}```<｜tool▁call▁end｜>\n```py"
    assert read_calls("deepseek_v3", text, TYPED_TOOLS) == ("```py", [("now", {})])


CALL = '{"name": "now", "arguments": {}}'


@pytest.mark.parametrize("family", ["llama3_json", "xlam"])
@pytest.mark.parametrize(
    ("text", "content"),
    [
        (f"Sure:\n```json\n{CALL}\n```\nDone.", "Sure:\nDone."),
        (f"```\n{CALL}\n```", ""),
        (f"```json\n{CALL}\n```\nSo:\n```py\nx\n```", "So:\n```py\nx\n```"),
        (f"{CALL}\nSo:\n```py\nx\n```", "So:\n```py\nx\n```"),
        (f"{CALL}\n```py\nx\n```", "```py\nx\n```"),
    ],
)
def test_a_fence_is_no_text_if_a_call_is_in_it(family, text, content):
    assert read_calls(family, text, TYPED_TOOLS) == (content, [("now", {})])


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("glm47", "<tool_call>name <arg_key>{{<tool_call>now</tool_call>"),
        ("glm45", "<tool_call>name<arg_key>a</arg_key><arg_value><tool_call>now</tool_call>"),
        ("llama3_json", '{"name": "Bob", "parameters": {"x": {"name": "now", "parameters": {}}}}'),
    ],
)
def test_what_follows_a_name_that_is_no_tool_is_read_again(family, text):
    _, calls = read_calls(family, text, TYPED_TOOLS)
    assert calls == [("now", {})]


KIMI = (
    "<|tool_calls_section_begin|>{}<|tool_call_begin|>functions.now:0"
    "<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|>"
)
QWEN = "<tool_call>{}<function=now>\n</function>\n</tool_call>"
HUNYUAN = "<tool_calls>{}<tool_call>now<tool_sep></tool_call></tool_calls>"
PREFACED = pytest.mark.parametrize(
    ("family", "text"), [("kimi_k2", KIMI), ("qwen3_coder", QWEN), ("hy_v3", HUNYUAN)]
)


@PREFACED
def test_a_section_whose_call_has_a_word_before_it_is_a_section(family, text):
    said = text.format("\nI check.\n")
    assert read_calls(family, said, TYPED_TOOLS) == ("I check.", [("now", {})])
    assert read_calls(family, f"Hi.\n{said}\nBye.", TYPED_TOOLS) == (
        "Hi.\n\nI check.\nBye.",
        [("now", {})],
    )
    assert read_calls(family, f"{said}{said}", TYPED_TOOLS) == (
        "I check.\nI check.",
        [("now", {}), ("now", {})],
    )


@PREFACED
@pytest.mark.parametrize("num_more", [0, 1])
def test_a_long_text_behind_an_opener_shows_that_it_is_text(family, text, num_more):
    said = "x" * (MAX_PREFACE + num_more)
    content, calls = read_calls(family, text.format(said), TYPED_TOOLS)
    assert calls == [("now", {})]
    assert content == (text.partition("{")[0] if num_more else "") + said


@PREFACED
def test_an_opener_is_text_if_no_call_follows(family, text):
    opener = text.partition("{")[0]
    for said in (f"{opener} is a marker.", f"{opener}\nx", f"{opener}x {opener} y", f"{opener}x"):
        assert read_calls(family, said, TYPED_TOOLS) == (said, [])
    broken = text.format("So: ").partition("ow")[0]
    assert read_calls(family, broken, TYPED_TOOLS) == (broken, [])


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("kimi_k2", KIMI.format("So: ").partition("}")[0]),
        ("qwen3_coder", QWEN.format("So: ").partition("\n</")[0] + "<parameter=a>x"),
        ("hy_v3", HUNYUAN.format("So: ").partition("</")[0] + "<arg_key>a</arg_key>"),
    ],
)
def test_a_call_behind_a_word_that_breaks_off_is_text_with_its_opener(family, text):
    assert read_calls(family, text, TYPED_TOOLS) == (text, [])


def test_text_behind_an_opener_waits_for_few_characters():
    parser = FormatParser.of_format("Qwen", read_table()["qwen3_coder"]).for_tools(TYPED_TOOLS)
    assert parser.feed("Write <tool_call> and ") == [TextDelta("Write")]
    (text,) = parser.feed("x" * MAX_PREFACE)
    assert text.text == " <tool_call> and " + "x" * MAX_PREFACE


@pytest.mark.parametrize("stray", [", ", ",", "}", "},\n", " } "])
@pytest.mark.parametrize(
    ("family", "call", "between"),
    [
        ("llama3_json", CALL.replace("arguments", "parameters"), "{0}{1}{0}"),
        ("hermes", CALL, "<tool_call>{0}{1}{0}</tool_call>"),
        ("hermes", CALL, "<tool_call>{0}</tool_call><tool_call>{0}{1}</tool_call>"),
    ],
)
def test_what_separates_calls_is_no_text(family, call, between, stray):
    text = between.format(call, stray)
    assert read_calls(family, text, TYPED_TOOLS) == ("", [("now", {}), ("now", {})])


@pytest.mark.parametrize("text", [", and", "}", ",", "} x", ", {"])
def test_a_separator_behind_the_last_call_is_text(text):
    call = CALL.replace("arguments", "parameters")
    assert read_calls("llama3_json", call + text, TYPED_TOOLS) == (text, [("now", {})])
