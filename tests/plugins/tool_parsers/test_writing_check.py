"""A format that does not read what it writes is refused, with the field that does not agree."""

import re

import pytest

from quire_tool_parsers.family_table import read_table
from quire_tool_parsers.format_parser import FormatParser
from quire_tool_parsers.writing_check import check_writing

JSON = """
section_open = ["<call>"]
section_close = ["</call>"]
keys = { name = ["tool"], arguments = ["input"] }
[writing]
calls = ['<call>{"tool": "$name", "input": $arguments}</call>']
triggers = ["<call>"]
"""
TAGGED = """
notations = ["tagged"]
call_open = ["<call="]
call_close = ["</call>"]
tags = { name_close = ">", parameter_open = ["<arg="], parameter_close = ["</arg>"] }
[writing]
calls = ["<call=$name>$members</call>"]
argument = "<arg=$key>$value</arg>"
"""


@pytest.mark.parametrize("toml", [JSON, TAGGED])
def test_a_format_that_reads_what_it_writes_is_taken(toml):
    assert FormatParser.from_file_text(toml).format.writing is not None


@pytest.mark.parametrize(
    ("toml", "old", "new", "message"),
    [
        (JSON, '"tool": "$', '"name": "$', "writing.calls does not agree with the other fields"),
        (JSON, '"input": $', '"inputs": $', "read as a call of 'find' with {}"),
        (JSON, "}</call>", "}</cal>", "and the text '</cal>'"),
        (JSON, 'triggers = ["<call>"]', 'begin = "Calls:"', "and the text 'Calls:'"),
        (JSON, 'triggers = ["<call>"]', 'separator = " and "', "writing.separator does not agree"),
        (JSON, 'triggers = ["<call>"]', 'triggers = ["<tool>"]', "each of writing.calls begins"),
        (JSON, 'triggers = ["<', 'begin = "\\n"\ntriggers = ["<', "writing.begin begins"),
        (TAGGED, "<arg=$key>", "<arg:$key>", "writing.calls does not agree"),
        (TAGGED, "$value</arg>", "($value)</arg>", '\'find\' with {"city": "(Oslo)"'),
    ],
)
def test_a_field_that_does_not_agree_is_named(toml, old, new, message):
    assert old in toml
    with pytest.raises(ValueError, match=re.escape(message)):
        FormatParser.from_file_text(toml.replace(old, new))


@pytest.mark.parametrize(("name", "form"), read_table().items(), ids=read_table())
def test_the_shipped_formats_read_what_they_write(name, form):
    check_writing(form, FormatParser.of_format(name, form))
