"""Patterns that no dialect reads and references to nowhere are faults; all others are not."""

import pytest

from quire.frontend.chat.schema_faults import pattern_fault, resolves


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "^[a-z]+$",
        r"\p{L}+",
        r"^(?!.*\.\.)(?<=a)(?<!b)(?=c)(?>d)\k<n>$",
        "(?<n>a)(?P<m>b)(?i:c)(?|d)",
        r"\(\)\[\]",
        r"[()[\]{}]",
        "[(]",
        "[])(]",
        "[^](]",
        "[]",
        "[^]",
        "[[:alpha:](]",
        "[a-z&&[^(]]",
        r"[\](]",
        "a{2,1}]}",
        r"\Q(\E",
        "(?x) a # (",
        "(?#:()",
        "*",
        "\\\\",
    ],
)
def test_a_pattern_that_a_dialect_may_read_is_no_fault(pattern):
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("(", "has a '(' that is not closed"),
        ("(a(b)", "has a '(' that is not closed"),
        (r"(\)", "has a '(' that is not closed"),
        ("([)]", "has a '(' that is not closed"),
        ("a)(", "has a ')' that nothing opens"),
        ("[a", "has a '[' that is not closed"),
        (r"[a\]", "has a '[' that is not closed"),
        ("a]b[", "has a '[' that is not closed"),
        ("a\\", "ends with a backslash"),
    ],
)
def test_a_bracket_that_is_not_closed_is_a_fault(pattern, fault):
    assert pattern_fault(pattern) == fault


SCHEMA = {"$defs": {"A": {}, "a/b~c": {}, "ä b": {}}, "allOf": [{}, {"items": {}}]}


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/A",
        "#/%24defs/A",
        "#/$defs/a~1b~0c",
        "#/$defs/ä b",
        "#/$defs/%C3%A4%20b",
        "#/allOf/1/items",
        "#",
        "#anchor",
        "http://a/b.json#/c",
        "",
    ],
)
def test_a_reference_to_a_place_of_the_schema_or_elsewhere_resolves(reference):
    assert resolves(reference, SCHEMA)


@pytest.mark.parametrize(
    "reference", ["#/$defs/B", "#/definitions/A", "#/allOf/2", "#/allOf/x", "#/$defs/A/b", "#/"]
)
def test_a_reference_to_no_place_of_the_schema_does_not(reference):
    assert not resolves(reference, SCHEMA)
