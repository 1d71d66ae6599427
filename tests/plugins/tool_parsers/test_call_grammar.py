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
MIXED = st.one_of(
    st.fixed_dictionaries(
        {
            "enum": st.lists(
                st.sampled_from(["auto", "fast", "None", "true", "1", True, False, None, 1, 2.5]),
                min_size=1,
                unique_by=repr,
            ).filter(lambda values: any(value not in ("None", "true", "1") for value in values))
        }
    ),
    st.builds(
        lambda text, constant: {"anyOf": [text, {"const": constant}]},
        st.sampled_from([{"type": "string"}, {"enum": ["auto", "fast"]}]),
        st.sampled_from([True, False, None]),
    ),
)
SINGLE = st.one_of(MIXED, STRINGS, NUMBERS, UNIONS, st.just({"$ref": "#/$defs/Unit"}), st.just({}))


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


OTHERS = st.sampled_from([{"type": "string"}, {"type": "integer"}, {"type": ["string", "null"]}])


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
        "additionalProperties": draw(st.one_of(st.just(False), st.just(False), OTHERS)),
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
        ({"patternProperties": {"^x": {}}}, "'patternProperties' of all arguments"),
        ({"properties": {"a>b": {}}}, "no spelling for the argument 'a>b'"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {}}}, "'$ref' of all arguments"),
    ],
)
def test_what_arguments_one_after_the_other_cannot_follow_is_refused_by_name(parameters, message):
    with pytest.raises(GrammarError, match="the tool 'f1'") as caught:
        forced("qwen3_coder", CITY, {"type": "object"} | parameters)
    assert message in str(caught.value)
    assert caught.value.param == "tools"


@pytest.mark.parametrize(("family", "quote"), [("gemma4", '<|"|>'), ("functiongemma", "<escape>")])
def test_an_argument_in_braces_may_have_a_name_of_any_other_characters(family, quote):
    keys = ["n", "$filter", "(x)", "q'", "/", "@x"]
    properties = {key: {"type": "integer"} for key in keys} | {"a": {"type": "string"}}
    parameters = {"type": "object", "properties": properties}
    assert forced(family, parameters) is not None
    call = getattr(families, family).format.writing.calls[0].replace("$name", "f0")
    members = ",".join([*(f"{key}:{i}" for i, key in enumerate(keys)), f"a:{quote}, @x{quote}"])
    given_tools = [{"name": "f0", "parameters": parameters}]
    reader = getattr(families, family).for_tools(given_tools)
    text = call.replace("$members", members)
    ((_, arguments),) = read_events([*reader.feed(text), *reader.close()]).calls
    assert json.loads(arguments) == {key: i for i, key in enumerate(keys)} | {"a": ", @x"}
    for key in ("<a", "a<b", "<"):
        with pytest.raises(GrammarError, match=r"the tool 'f0'.*no spelling for the argument"):
            forced(family, {"type": "object", "properties": {key: {}}})


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


@pytest.mark.parametrize("family", ["glm47", "glm45", "qwen3_coder", "pythonic", "gemma4"])
@pytest.mark.parametrize("at_least_one", [True, False])
def test_a_tools_name_may_begin_as_anothers_does(family, at_least_one):
    given_tools = [
        {"name": name, "parameters": CITY, "strict": strict}
        for name, strict in [("search", True), ("search_web", True), ("search_we", False)]
    ]
    names = {
        name
        for _, read in completions(family, given_tools, range(12), at_least_one=at_least_one)
        for name, _ in read.calls
    }
    assert at_least_one <= len(names)
    for text in ("<tool_call>search</tool_call>", "<tool_call>search_web</tool_call>"):
        nothing = [each | {"parameters": NOTHING} for each in given_tools]
        calls = families.glm47.call_grammar(nothing, at_least_one=at_least_one)
        assert is_allowed(calls, text)
        assert not is_allowed(calls, text.replace("</", "_</"))


TAGGED = "<tool_call>\n<function=w>{}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (
            "qwen3_coder",
            TAGGED.format("\n<parameter=b>\nx\n</parameter>\n<parameter=a>\n1\n</parameter>\n"),
        ),
        ("qwen3_coder", TAGGED.format('\n{"a": {"b": []}}')),
        ("qwen3_coder", TAGGED.format("\n") + " and text"),
        ("glm47", "<tool_call>w<arg_key>b</arg_key>\n<arg_value>x</arg_value></tool_call>"),
        ("glm47", "<tool_call>w</tool_call>"),
        ("glm47", '<tool_call>w\n{"a": 1}</tool_call>'),
        ("glm45", "<tool_call>w\n<arg_key>b</arg_key><arg_value>x</arg_value></tool_call>"),
        ("gemma4", '<|tool_call>call:w{b:<|"|>x}<|"|>,a:{c:1}}<tool_call|>'),
        ("pythonic", """[w(b='it) \\'s', a=[(1, 2), "("]), s(a="x")]"""),
        ("olmo3", "<function_calls>w(b='x')</function_calls>"),
        (
            "minimax_m2",
            '<minimax:tool_call>\n<invoke name="w">\n<parameter name="b">x</parameter></invoke>\n'
            "</minimax:tool_call>",
        ),
        ("hermes", '<tool_call>\n{"name": "w", "arguments": {"b": {}, "a": 1}}\n</tool_call>'),
    ],
)
def test_arguments_of_a_tool_beside_a_strict_one_are_free(family, text):
    given_tools = [
        {
            "name": "s",
            "parameters": NOTHING | {"properties": {"a": {"type": "string"}}},
            "strict": True,
        },
        {"name": "w", "parameters": {"type": "object"}, "strict": False},
    ]
    calls = getattr(families, family).call_grammar(given_tools, at_least_one=False)
    assert is_allowed(calls, text)
    assert not is_allowed(calls, text.replace("w", "v", 1))
    reader = getattr(families, family).for_tools(given_tools)
    assert read_events([*reader.feed(text), *reader.close()]).calls[0][0] == "w"


MAP = {"type": "object", "additionalProperties": {"type": "string"}}


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (
            "qwen3_coder",
            "<tool_call>\n<function=f0>\n<parameter=zone>\nx\n</parameter>\n</function>\n</tool_call>",
        ),
        ("glm47", "<tool_call>f0<arg_key>zone</arg_key><arg_value>x</arg_value></tool_call>"),
        ("gemma4", '<|tool_call>call:f0{zone:<|"|>x<|"|>}<tool_call|>'),
        ("pythonic", '[f0(zone="x")]'),
    ],
)
def test_arguments_that_are_not_declared_follow_additional_properties(family, text):
    declared = MAP | {"properties": {"zone": {"type": "integer"}}}
    assert accepts(family, text, MAP)
    assert not accepts(family, text, declared)
    assert accepts(family, text.replace("zone", "zones"), declared)
    assert not accepts(family, text, {"type": "object", "properties": {}})
    for _, read in completions(family, [{"name": "f", "parameters": MAP}], range(8)):
        assert all(judge(MAP).is_valid(json.loads(each)) for _, each in read.calls)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["auto", True]},
        {"enum": ["auto", None, False]},
        {"enum": ["true", "x", False]},
        {"type": ["string", "boolean"], "enum": ["a", True]},
        {"anyOf": [{"type": "string"}, {"const": False}]},
        {"anyOf": [{"enum": ["fast"]}, {"const": True}]},
        {"allOf": [{"$ref": "#/$defs/Mode"}], "default": "a"},
    ],
)
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("glm47", "<tool_call>f0<arg_key>a</arg_key><arg_value>{}</arg_value></tool_call>"),
        ("pythonic", "[f0(a={})]"),
    ],
)
def test_a_constant_beside_strings_is_one_of_the_schema(family, text, schema):
    modes = {"Mode": {"enum": ["a", None, True]}}
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"], "$defs": modes}
    num_allowed = 0
    for value in ("true", "True", "false", "False", "null", "None", "1", "auto", "fast", "a"):
        whole = text.replace("{}", value)
        if accepts(family, whole, parameters):
            reader = getattr(families, family).for_tools([{"name": "f0", "parameters": parameters}])
            ((_, arguments),) = read_events([*reader.feed(whole), *reader.close()]).calls
            assert judge(parameters).is_valid(json.loads(arguments)), whole
            num_allowed += 1
    assert num_allowed


@pytest.mark.parametrize(
    ("value", "is_kept"),
    [
        ("x\r\ny", True),
        ("\r\nx", True),
        ("x\r", False),
        ("see </tool_call> here", True),
        ("see </function> here", True),
        ("</function>\n</tool_call>", False),
        ("</tool_call><tool_call>", False),
        ("</parameter>", False),
    ],
)
def test_a_value_may_have_what_its_parser_keeps(value, is_kept):
    text = TAGGED.replace("w", "f0").format(f"\n<parameter=city>\n{value}\n</parameter>\n")
    assert accepts("qwen3_coder", text, CITY) == is_kept
    if is_kept:
        reader = families.qwen3_coder.for_tools([{"name": "f0", "parameters": CITY}])
        ((_, arguments),) = read_events([*reader.feed(text), *reader.close()]).calls
        assert json.loads(arguments) == {"city": value}
