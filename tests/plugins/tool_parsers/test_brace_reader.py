"""Calls in braces are read with quotes of their own, of JSON, or with bare words."""

from collections.abc import Sequence
from typing import ClassVar

import pytest
from family_calls import read_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_tools import TYPED_TOOLS

from quire.interfaces.tool_parsing import ToolCallArguments, ToolCallStart
from quire.testing.tool_parsing import ToolParserContract, ToolSample
from quire_tool_parsers import families

WRITTEN = {
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": ("<start_function_call>", "<end_function_call>", "<escape>"),
}
each_family = pytest.mark.parametrize("family", WRITTEN)

# The examples that the families publish: the model cards of Gemma 4 and of FunctionGemma.
PUBLISHED = (
    ("gemma4", '<|tool_call>call:get_current_temperature{location:<|"|>London<|"|>}<tool_call|>',
     ("get_current_temperature", {"location": "London"})),
    ("functiongemma", "<start_function_call>call:get_current_temperature{location:<escape>London"
     "<escape>}<end_function_call>", ("get_current_temperature", {"location": "London"})),
)  # fmt: skip


def written(family, *calls):
    """Return calls in which `'` is the quote of the family."""
    opener, closer, quote = WRITTEN[family]
    return "".join(f"{opener}{call}{closer}" for call in calls).replace("'", quote)


def read(family, *calls):
    return read_calls(family, written(family, *calls), TYPED_TOOLS)


@pytest.mark.parametrize(("family", "text", "call"), PUBLISHED)
def test_the_published_example_is_read(family, text, call):
    assert read_calls(family, text) == ("", [call])


@each_family
@pytest.mark.parametrize(
    ("braces", "arguments"),
    [
        ("{}", {}),
        ("{text:'a,}]{b'}", {"text": "a,}]{b"}),
        ("{text:'  é \n\U0001f469\u200d\U0001f467 \"q\" \\n '}",
         {"text": '  é \n\U0001f469\u200d\U0001f467 "q" \\n '}),
        ("{text:'123',days:7,limit:-74.0,exact:true,unit:null,page:null}",
         {"text": "123", "days": 7, "limit": -74.0, "exact": True, "unit": None, "page": None}),
        ("{text:5,days:two,limit:1e999}", {"text": "5", "days": "two", "limit": "1e999"}),
        ("{other:5,more:None,word:Oslo}", {"other": 5, "more": None, "word": "Oslo"}),
        ("{filter:{a:{b:['x',[1,{c:true}]]},'k 1':1},places:[]}",
         {"filter": {"a": {"b": ["x", [1, {"c": True}]]}, "k 1": 1}, "places": []}),
        ('{places:["a","b\\u00e9"],"text":"x"}', {"places": ["a", "bé"], "text": "x"}),
        ("{text:Oslo',days:3}", {"text": "Oslo", "days": 3}),
        ("{text:Oslo, Norway',days:3}", {"text": "Oslo, Norway", "days": 3}),
        ("{days:3,text:Rome, Oslo, and more}", {"days": 3, "text": "Rome, Oslo, and more"}),
        ("{text:a, (b) c,'k 1':2}", {"text": "a, (b) c", "k 1": 2}),
        ('{days:3,"k":2,exact:true , }', {"days": 3, "k": 2, "exact": True}),
        ("{filter:{a:b, c,d:1},days:2}", {"filter": {"a": "b, c", "d": 1}, "days": 2}),
        ("{ text : 'a' , days : 3 , }", {"text": "a", "days": 3}),
        ("{\n  text: 'a'\n}", {"text": "a"}),
        ("{text:''}", {"text": ""}),
        ("{text:'a <b> <'}", {"text": "a <b> <"}),
    ],
)  # fmt: skip
def test_values_are_quoted_or_bare(family, braces, arguments):
    assert read(family, f"call:find{braces}") == ("", [("find", arguments)])


@each_family
def test_calls_follow_each_other(family):
    calls = ["call:now{}", "call:find{days:1}", "call:now{}"]
    expected = [("now", {}), ("find", {"days": 1}), ("now", {})]
    assert read(family, *calls) == ("", expected)


@each_family
@pytest.mark.parametrize("prefix", ["call:", ":", "", " call: ", "call: "])
def test_the_prefix_of_the_name_may_be_missing(family, prefix):
    assert read(family, f"{prefix}find{{days:1}}") == ("", [("find", {"days": 1})])


@each_family
@pytest.mark.parametrize(
    "call",
    [
        "call:find{days:1,days:2}",
        "call:find{days 1}",
        "call:find{days:[1}",
        "call:find{days:[1]]]]]]]]",
        "call:find{days:{a:1]}",
        'call:find{text:"a\\q"}',
        "call:find{text:'open}",
        "call:find{days:1",
        "call:{days:1}",
        "call:fi nd{days:1}",
        "call:find(days=1)",
        "call:find{filter:" + "{a:" * 300 + "1" + "}" * 301,
    ],
)
def test_what_is_no_call_is_text(family, call):
    assert read(family, call) == (written(family, call), [])


@each_family
def test_a_broken_call_does_not_break_the_next_one(family):
    content, calls = read(family, "call:find{days}", "call:now{}")
    assert (content, calls) == (written(family, "call:find{days}"), [("now", {})])


@each_family
def test_markers_in_prose_are_text(family):
    opener, closer, quote = WRITTEN[family]
    for text in (f"Write {opener} and {closer}.", f"{quote}a{quote}", f"{opener}", "call:find{}"):
        assert read_calls(family, text, TYPED_TOOLS) == (text, [])


def test_a_string_is_passed_on_while_it_is_written():
    parser = families.gemma4.for_tools(TYPED_TOOLS)
    assert parser.feed("<|tool_call>call:find") == []
    assert parser.feed('{text:<|"|>Os') == [
        ToolCallStart(0, "find"), ToolCallArguments(0, '{"text": "Os'),
    ]  # fmt: skip
    assert parser.feed('lo<|"') == [ToolCallArguments(0, "lo")]
    assert parser.feed(" x") == [ToolCallArguments(0, '<|\\" x')]


texts = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def in_braces(value, quote):
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f"{quote}{value}{quote}"
        case list():
            return f"[{','.join(in_braces(each, quote) for each in value)}]"
        case dict():
            members = (
                f"{quote}{key}{quote}:{in_braces(each, quote)}" for key, each in value.items()
            )
            return f"{{{','.join(members)}}}"
    return str(value)


@given(st.sampled_from(sorted(WRITTEN)), st.dictionaries(texts, values, max_size=3))
@settings(max_examples=80, deadline=None)
def test_any_value_comes_back(family, arguments):
    opener, closer, quote = WRITTEN[family]
    text = f"{opener}call:free{in_braces(arguments, quote)}{closer}"
    assert read_calls(family, text, TYPED_TOOLS) == ("", [("free", arguments)])


class TestGemma4(ToolParserContract):
    """The kit that every tool parser passes."""

    parser = families.gemma4
    samples: ClassVar[Sequence[ToolSample]] = (
        ToolSample("Just text. 1 < 2, <tool> and\n\n", "Just text. 1 < 2, <tool> and\n\n"),
        ToolSample(
            'Ok.<|tool_call>call:find{text:<|"|>Oslo<|"|>,o:{a:[1,"x",<|"|><|tool_call><|"|>]}}'
            "<tool_call|><|tool_call>call:now{}<tool_call|>\nDone.",
            "Ok.\nDone.",
            (("find", '{"text": "Oslo", "o": {"a": [1, "x", "<|tool_call>"]}}'), ("now", "{}")),
        ),
    )


class TestFunctionGemma(ToolParserContract):
    """The kit that every tool parser passes."""

    parser = families.functiongemma
    samples: ClassVar[Sequence[ToolSample]] = (
        ToolSample(
            "<start_function_call>call:find{text:<escape>Oslo<escape>}<end_function_call>"
            "<start_function_call>call:now{}<end_function_call>",
            "",
            (("find", '{"text": "Oslo"}'), ("now", "{}")),
        ),
    )
