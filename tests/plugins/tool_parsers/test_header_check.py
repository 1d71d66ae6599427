"""The header of a user's format always has a name, or the error says what is wrong."""

import pytest

from quire_tool_parsers.header_check import check_header


@pytest.mark.parametrize(
    "header",
    [
        r"(?P<name>\S+)",
        r"(?P<name>[^)?\]]+)x?",
        r"(?P<name>(a|b)+)!",
        r"(?<name>x)",
        r"[(?P<name>](?P<name>x)",
        r"\[(?P<name>[]()]+)\]*",
    ],
)
def test_a_header_with_a_name_is_taken(header):
    check_header(header)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("(", "no regular expression"),
        (r"(?P<q>x)(?P<name>(?P=q))", "quire takes: .*, character 17: only groups"),
        (r"\b(?P<name>x)", r"quire takes: .*b is not supported"),
        ("(?P<name>x)(?=y)", r"must not have \(\?="),
        ("x", r"a group \(\?P<name>"),
        ("(?P<name>x)?y", "must not be optional"),
        ("(?P<name>x)*y", "must not be optional"),
        (r"(?P<name>[)]\)(x))*?y", "must not be optional"),
        ("(?P<name>x){0,1}y", "must not be optional"),
        ("(?P<name>x){,1}y", "must not be optional"),
        ("(?P<name>x){1,2}y", "may have no count"),
        ("(?P<name>x){0}y", "must not be optional"),
        ("(?P<name>)y", "must not match an empty text"),
        (r"(?P<name>\w*)y", "must not match an empty text"),
        ("(?P<name>a|)y", "must not match an empty text"),
    ],
)
def test_a_header_whose_name_may_be_missing_is_refused(header, message):
    with pytest.raises(ValueError, match=message):
        check_header(header)
