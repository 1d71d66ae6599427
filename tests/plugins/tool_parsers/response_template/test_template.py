"""A template that is invalid or unsupported is refused with the name of the field."""

import json

import pytest
from response_templates import FUNCTION, HERMES

from quire_tool_parsers.response_template.reasoning_parser import TemplateReasoningParser
from quire_tool_parsers.response_template.template import read_template
from quire_tool_parsers.response_template.tool_parser import TemplateToolParser


def with_calls(**changes):
    calls = HERMES["fields"]["tool_calls"] | changes
    return HERMES | {"fields": HERMES["fields"] | {"tool_calls": calls}}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ([], "Expected `object`, got `array`"),
        ({"fields": {"a": {}}}, "start_anchor or start_anchor_pattern is missing"),
        (HERMES | {"version": 2}, "version 2 is not supported"),
        (HERMES | {"more": 1}, "unknown field `more`"),
        (HERMES | {"fields": {}}, "must have 1 to 16 fields"),
        (HERMES | {"fields": {"a": {}, "b": {}}}, "only one field may have no open: a, b"),
        (HERMES | {"start_anchor_pattern": "a"}, "start_anchor_pattern are alternatives"),
        (with_calls(open=""), "only one field may have no open"),
        (with_calls(open=["", "a"]), r"fields\.tool_calls: open: .* 1 to 256 characters"),
        (with_calls(open=["a"] * 65), r"fields\.tool_calls: open: there are at most 64"),
        (with_calls(close_pattern="a"), r"fields\.tool_calls: close and close_pattern are alt"),
        (with_calls(close="", close_pattern="(?<=a)"), r"fields\.tool_calls: close: the pattern"),
        (with_calls(content="yaml"), r"fields\.tool_calls: there is no content 'yaml'"),
        (with_calls(content="xml-inline"), r"tag_pattern must have a group"),
        (with_calls(content_args={"x": 1}), r"content_args: .*unknown field `x`"),
        (with_calls(content_args={"string_delims": [["", "a"]]}), "must not be empty"),
        (with_calls(content_args={"string_delims": [[f"{n}", "a"] for n in range(9)]}), "most 8"),
        (with_calls(content="kv-lines", content_args={"kv_sep": ""}), "must not be empty"),
        (with_calls(repeats=False, join=""), "join needs repeats"),
        (with_calls(transform=None, transform_each=True), "transform_each needs transform"),
        (with_calls(transform={"a": "x {content}"}), "must be one placeholder and no other text"),
        (with_calls(transform=None, open="", open_pattern="(?P<name>a)"), "name need a transform"),
    ],
)
def test_what_is_wrong_with_a_template_is_said(template, message):
    with pytest.raises(ValueError, match=message):
        read_template(json.dumps(template))


def test_values_within_values_have_a_limit():
    parser = {"name": "text"}
    for _ in range(10):
        parser = {"name": "kv-lines", "args": {"value_parser": parser}}
    template = with_calls(content="kv-lines", content_args={"value_parser": parser})
    with pytest.raises(ValueError, match="nested too deeply"):
        read_template(json.dumps(template))
    transform = FUNCTION
    for _ in range(20):
        transform = [transform]
    with pytest.raises(ValueError, match="transform is nested too deeply"):
        read_template(json.dumps(with_calls(transform=transform)))


def test_a_template_without_calls_has_no_tool_parser():
    template = HERMES | {"fields": {"content": {}}}
    with pytest.raises(ValueError, match=r"fields\.tool_calls must be there"):
        TemplateToolParser.from_file_text(json.dumps(template))


def test_a_template_without_thinking_has_no_reasoning_parser():
    template = HERMES | {"fields": {"content": {}}}
    with pytest.raises(ValueError, match=r"fields\.thinking is missing"):
        TemplateReasoningParser.from_file_text(json.dumps(template))


def test_text_is_not_transformed():
    template = HERMES | {"fields": {"thinking": {"open": "a", "transform": {"x": "{content}"}}}}
    with pytest.raises(ValueError, match=r"fields\.thinking: a transform of text"):
        TemplateReasoningParser.from_file_text(json.dumps(template))
