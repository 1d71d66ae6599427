"""Completions that a family's grammar allows are calls of the tools, as its parser reads them."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from grammar_walks import END, Walks
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams
from quire.testing.schema_judge import judge
from quire.testing.tool_parsing import read_events
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend
from quire_tool_parsers import families
from quire_tool_parsers.call_writing import CallWriting
from quire_tool_parsers.family_table import read_table
from quire_tool_parsers.format_parser import FormatParser
from quire_tool_parsers.harmony_parser import HarmonyParser
from quire_tool_parsers.plugin import HARMONY_CAPABILITIES

FAMILIES = [name for name, form in read_table().items() if form.writing is not None]
IN_TEXT = ["openai", *(name for name in FAMILIES if read_table()[name].writing.triggers)]
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TEXTS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={"minLength": st.integers(0, 3), "maxLength": st.integers(3, 9)},
)
WORDS = st.fixed_dictionaries(
    {"enum": st.lists(st.sampled_from(["C", "a b", "é", "12", "true", "x<y"]), min_size=1)}
)
INTEGERS = st.fixed_dictionaries(
    {"type": st.just("integer")},
    optional={"minimum": st.integers(-5, 5), "maximum": st.integers(5, 50)},
)
NUMBERS = st.one_of(
    INTEGERS,
    st.just({"type": "boolean"}),
    st.just({"type": "number", "minimum": 0, "maximum": 10}),
    st.just({"enum": [1, 2.5, None, True]}),
)
STRINGS = st.one_of(TEXTS, WORDS, st.just({"type": "string", "pattern": "^[a-c]+$"}))
UNIONS = st.one_of(
    st.builds(lambda each: {"anyOf": [each, {"type": "null"}]}, st.one_of(STRINGS, NUMBERS)),
    st.sampled_from([["string", "null"], ["integer", "string"], ["boolean", "null"]]).map(
        lambda names: {"type": names}
    ),
)
SINGLE = st.one_of(STRINGS, NUMBERS, UNIONS, st.just({"$ref": "#/$defs/Unit"}), st.just({}))


def nested(item):
    """Return arguments with lists and objects of an item."""
    return st.one_of(
        SINGLE,
        st.builds(lambda each: {"type": "array", "items": each, "maxItems": 3}, item),
        st.builds(
            lambda each: {"type": "object", "properties": {"a": each}, "required": ["a"]}, item
        ),
    )


ARGUMENTS = nested(st.one_of(STRINGS, NUMBERS))


@st.composite
def tools(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = ["city", "days", "x_1"]
    properties = {
        name: draw(ARGUMENTS) for name in draw(st.lists(st.sampled_from(names), unique=True))
    }
    required = [name for name in properties if draw(st.booleans())]
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "$defs": {"Unit": {"type": "string", "enum": ["m", "km"]}},
        "additionalProperties": False,
    }
    return [{"name": "find_it", "parameters": schema}, {"name": "now", "parameters": NOTHING}]


def completions(family, given_tools, seeds, *, at_least_one=True, are_special=False):
    """Yield completions of the family's grammar, and what its parser reads in them."""
    parser, markers = HarmonyParser, HARMONY_CAPABILITIES.markers
    if family != "openai":
        parser, markers = getattr(families, family), read_table()[family].markers()
    calls = parser.call_grammar(given_tools, at_least_one=at_least_one)
    walks = Walks.of(calls, markers, are_special=are_special)
    grammar = LLGuidanceBackend(walks.vocabulary).compile(StructuredOutputsParams(calls=calls))
    for seed in seeds:
        text = walks.sample(grammar.matcher(), random.Random(seed), 5 + 30 * (seed % 3))
        reader = parser.for_tools(given_tools)
        yield text, read_events([*reader.feed(text), *reader.close()])


def check(text, read, judges):
    for name, arguments in read.calls:
        assert name in judges, f"{text!r} has a call of {name!r}"
        value = json.loads(arguments)
        assert judges[name].is_valid(value), f"{text!r} is read as {value!r}"


@pytest.mark.parametrize("are_special", [False, True], ids=["spelled", "special"])
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=5, deadline=None)
@given(given_tools=tools(), seed=st.integers(0, 2**20))
def test_forced_completions_are_calls_by_the_schemas(family, are_special, given_tools, seed):
    judges = {tool["name"]: judge(tool["parameters"]) for tool in given_tools}
    seeds = range(seed, seed + 2)
    for text, read in completions(family, given_tools, seeds, are_special=are_special):
        assert read.calls, f"{text!r} has no call"
        assert not read.content.strip(), f"{text!r} has the text {read.content!r}"
        check(text, read, judges)


@settings(max_examples=10, deadline=None)
@given(given_tools=tools(), seed=st.integers(0, 2**20))
def test_a_forced_call_of_gpt_oss_is_the_last_message(given_tools, seed):
    judges = {tool["name"]: judge(tool["parameters"]) for tool in given_tools}
    for text, read in completions("openai", given_tools, range(seed, seed + 4), are_special=True):
        assert len(read.calls) == 1, f"{text!r} has not one call"
        assert read.content == "" or read.content.startswith("<|channel|>analysis<|message|>")
        check(text, read, judges)


@pytest.mark.parametrize("are_special", [False, True], ids=["spelled", "special"])
@pytest.mark.parametrize("family", IN_TEXT)
@settings(max_examples=3, deadline=None)
@given(given_tools=tools(), seed=st.integers(0, 2**20))
def test_calls_in_free_text_follow_the_schemas(family, are_special, given_tools, seed):
    judges = {tool["name"]: judge(tool["parameters"]) for tool in given_tools}
    seeds = range(seed, seed + 2)
    for text, read in completions(
        family, given_tools, seeds, at_least_one=False, are_special=are_special
    ):
        assert read.num_unfinished == 0, f"{text!r} has a broken call"
        check(text, read, judges)


def forced(family, *parameters):
    given_tools = [{"name": f"f{i}", "parameters": each} for i, each in enumerate(parameters)]
    return getattr(families, family).call_grammar(given_tools, at_least_one=True)


def accepts(family, text, *parameters):
    return is_allowed(forced(family, *parameters), text)


def is_allowed(calls, text):
    walks = Walks.of(calls, (), are_special=False)
    matcher = (
        LLGuidanceBackend(walks.vocabulary).compile(StructuredOutputsParams(calls=calls)).matcher()
    )
    return all(matcher.accept(token) for token in [*text.encode(), END])


CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": ["integer", "null"]},
        "exact": {"type": "boolean"},
    },
    "required": ["city"],
}
BARS, LOW = "\uff5c", "\u2581"  # of DeepSeek's markers


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "f0", "arguments": {"city": "Oslo"}}\n</tool_call>'),
        ("llama3_json", '{"name": "f0", "parameters": {"city": "Oslo", "days": 2}}'),
        ("granite", '<|tool_call|>[{"name": "f0", "arguments": {"city": "Oslo"}}]'),
        ("mistral", '[TOOL_CALLS]f0[ARGS]{"city": "Oslo"}[TOOL_CALLS]f0[ARGS]{"city": "Rome"}'),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f0:0"
            '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>'
            "<|tool_calls_section_end|>",
        ),
        (
            "deepseek_v31",
            "<|tool_calls_begin|><|tool_call_begin|>f0<|tool_sep|>"
            '{"city": "Oslo"}<|tool_call_end|><|tool_calls_end|>'.replace("|", BARS).replace(
                "_", LOW
            ),
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f0>\n<parameter=city>\nNew <b>York</b>\n</parameter>\n"
            "<parameter=exact>\ntrue\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            "glm45",
            "<tool_call>f0\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>null</arg_value>\n</tool_call>",
        ),
        (
            "glm47",
            "<tool_call>f0<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
        ),
        (
            "minimax_m2",
            '<minimax:tool_call>\n<invoke name="f0">\n<parameter name="city">Oslo</parameter>\n'
            "</invoke>\n</minimax:tool_call>",
        ),
        ("pythonic", '[f0(city="Oslo", days=None, exact=True), f0(city="Rome")]'),
        ("gemma4", '<|tool_call>call:f0{city:<|"|>Oslo<|"|>,days:3,exact:false}<tool_call|>'),
    ],
)
def test_a_call_as_the_family_writes_it_is_allowed(family, text):
    assert accepts(family, text, CITY)
    assert not accepts(family, text.replace("f0", "f1"), CITY)
    assert not accepts(family, text.replace("city", "town"), CITY)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"anyOf": [{"required": ["a"]}], "properties": {"a": {}}}, "'anyOf' of all arguments"),
        ({"required": ["b"], "properties": {"a": {}}}, "'required' at / names 'b'"),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {}}}, "'#/properties/b'"),
        ({"properties": {"a>b": {}}}, "no spelling for the argument 'a>b'"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {}}}, "'$ref' of all arguments"),
    ],
)
def test_what_arguments_one_after_the_other_cannot_follow_is_refused_by_name(parameters, message):
    with pytest.raises(GrammarError, match="the tool 'f1'") as caught:
        forced("qwen3_coder", CITY, {"type": "object"} | parameters)
    assert message in str(caught.value)
    assert caught.value.param == "tools"


def test_a_format_of_the_docs_is_read_and_forced():
    page = Path(__file__).parents[3] / "docs" / "plugins" / "tool_parsers.md"
    (block,) = re.findall(r"```toml\n# mine.toml\n(.*?)```", page.read_text(), re.DOTALL)
    parser = FormatParser.from_file_text(block)
    given_tools = [{"name": "find", "parameters": CITY}]
    calls = parser.call_grammar(given_tools, at_least_one=True)
    text = "<call=find><arg=city>Oslo</arg><arg=days>3</arg></call>"
    assert is_allowed(calls, f"{text}\n{text}")
    assert not is_allowed(calls, text.replace("3", "x"))
    reader = parser.for_tools(given_tools)
    read = read_events([*reader.feed(text), *reader.close()])
    assert [(name, json.loads(each)) for name, each in read.calls] == [
        ("find", {"city": "Oslo", "days": 3})
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"calls": ()}, "a call with .name"),
        ({"calls": ("<f>",)}, "a call with .name"),
        ({"calls": ("$name $members",)}, "writing.argument must be there"),
        ({"calls": ("$name $members",), "argument": "$key="}, "must have .key and one .value"),
    ],
)
def test_writing_that_lacks_a_part_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        CallWriting(**fields)


def test_a_string_that_may_be_a_number_does_not_look_like_one():
    schema = {"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}
    text = "<tool_call>f0<arg_key>a</arg_key><arg_value>{}</arg_value></tool_call>"
    for value in ("12", "-3", "a1", "", "twelve"):
        assert accepts("glm47", text.replace("{}", value), schema)
    for value in ("1.5", "12a", " 12"):
        assert not accepts("glm47", text.replace("{}", value), schema)
