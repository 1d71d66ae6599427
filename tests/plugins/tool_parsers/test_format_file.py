"""A user's table is a format, or the error names the field."""

import pytest

from quire_tool_parsers.family_table import read_table
from quire_tool_parsers.format_file import check_format, read_format

TAGGED = 'call_open = ["a"]\nnotations = ["tagged"]\n'


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
        (
            f'{TAGGED}tags = {{ parameter_opn = ["a"] }}',
            r"no field tags\.parameter_opn; did you mean 'parameter_open'\? The fields of tags are",
        ),
        ('section_open = ["a"]\n[writing]\ncals = []', r"no field writing\.cals; .*'calls'"),
        ('section_open = ["a"]\ncall_ids = { lenght = 3 }', "did you mean 'length'"),
        ("section_open = [", "not TOML"),
        (
            'is_bare = true\nis_bare_anywhere = true\nnotations = ["python"]',
            "is_bare_anywhere is for",
        ),
        ('call_open = ["a"]\nis_bare_anywhere = true', "is_bare_anywhere is for"),
        ('call_open = ["a"]\nnotations = ["braces"]\nquote = ""', "quote must not have an empty"),
        (
            f'{TAGGED}tags = {{ parameter_open = [], parameter_close = ["b"] }}',
            r"tags\.parameter_open must have a marker",
        ),
        (
            f'{TAGGED}tags = {{ parameter_open = [""], parameter_close = ["b"] }}',
            r"tags\.parameter_open must not have an empty text",
        ),
        (
            f'{TAGGED}tags = {{ parameter_open = ["a"], parameter_close = [] }}',
            r"tags\.parameter_close must have a marker",
        ),
        (
            f'{TAGGED}tags = {{ parameter_open = ["a"], parameter_close = ["b"], key_close = "" }}',
            r"tags\.key_close must not have an empty text",
        ),
        ('call_open = ["a"]\ncall_ids = { length = 0 }', r"call_ids\.length must be from 1 to 64"),
        ('call_open = ["a"]\ncall_ids = { length = -3 }', r"call_ids\.length must be .*not -3"),
        ('call_open = ["a"]\ncall_ids = { length = 100000000 }', r"call_ids\.length must be"),
        ('call_open = ["a"]\ncall_ids = { text = "x{nope}{number}" }', r"has '\{nope\}', but only"),
        ('call_open = ["a"]\ncall_ids = { text = "x{number" }', r"has '\{number', but only"),
        ('call_open = ["a"]\ncall_ids = { text = "x}{number}" }', r"has '\}', but only"),
        ('call_open = ["a"]\ncall_ids = { text = "{name}" }', r"text must have \{number\}"),
        ('call_open = ["a"]\ncall_ids = { text = "{number} x" }', "without blanks"),
        ('call_open = ["a"]\ncall_ids = { text = "{number}", length = 9 }', "not both"),
        ('call_open = ["a"]\nkeys = { name = [] }', r"keys\.name and keys\.arguments must"),
        ('call_open = ["a"]\nkeys = { arguments = [] }', r"keys\.name and keys\.arguments must"),
        ('call_open = ["a"]\nheader = "(?P<name>x)?y"', "name of header must not be optional"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        read_format(text)


@pytest.mark.parametrize("form", read_table().values(), ids=read_table())
def test_the_shipped_formats_pass_the_same_checks(form):
    check_format(form)
