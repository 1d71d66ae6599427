"""A user's table is a format, or the error names the field."""

import pytest

from quire_tool_parsers.format_file import read_format


def test_fields_are_those_of_the_shipped_table():
    form = read_format('notations = ["python"]\ncall_open = ["<py>"]\ncall_close = ["</py>"]')
    assert (form.notations, form.call_open) == (("python",), ("<py>",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "section_open or call_open must have a marker"),
        ("section_open = 3", "Expected `array`, got `int` - at `section_open`"),
        ('section_open = ["a", ""]', "section_open must not have an empty text"),
        ('section_opn = ["a"]', "no field 'section_opn'; did you mean 'section_open'"),
        ('xyz = ["a"]', "no field 'xyz'; The fields are aliases, "),
        ('section_open = ["a"]\nnotations = ["yaml"]', "Invalid enum value 'yaml'"),
        ('section_open = ["a"]\nnotations = []', "at least one notation"),
        ('section_open = ["a"]\nnotations = ["tagged"]', "needs the table tags"),
        ('section_open = ["a"]\nheader = "("', "header is no regular expression"),
        ('section_open = ["a"]\nheader = "x"', r"a group \(\?P<name>"),
        ('section_open = ["a"]\n[keys]\nnam = ["a"]', r"no field keys\.nam"),
        ("section_open = [", "not TOML"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        read_format(text)
