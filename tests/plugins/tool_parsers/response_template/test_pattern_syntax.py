"""What no program can be made of is refused, with its reason."""

import pytest

from quire_tool_parsers.response_template.pattern_syntax import (
    MAX_INSTRUCTIONS,
    MAX_PATTERN,
    compile_pattern,
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a" * (MAX_PATTERN + 1), "has 2001 characters; the limit is 2000"),
        ("(?:(?:a{100}){100}){100}", "the pattern is too large"),
        ("(" * 30 + ")" * 30, "nested too deeply"),
        (r"(a)\1", r"\\1 is not supported"),
        ("(?<=a)b", "only groups"),
        ("(?i)a", "only groups"),
        ("(?!a)b", "only groups"),
        ("(?=a)b", "only as the last part"),
        ("((?=a))", "only as the last part"),
        ("^a", "'\\^' is not supported"),
        ("*a", "'\\*' is not supported"),
        ("a++", "a count is invalid"),
        ("a{3,2}", "a count is invalid"),
        ("(a", "not closed"),
        ("a)", "closed that was not opened"),
        ("[a", "a class of characters is not closed"),
        ("[z-a]", "invalid"),
        ("a\\", "is not supported"),
        ("(?P<a>x)(?P<a>y)", "two groups 'a'"),
        ("(?P<a>x){2}", "no count"),
    ],
)
def test_what_is_not_supported_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        compile_pattern(text)


def test_a_program_has_a_limit():
    assert len(compile_pattern("a{1000}").code) <= MAX_INSTRUCTIONS


def test_the_plain_texts_of_a_pattern_are_known():
    program = compile_pattern(r"<\|call\|>(?P<name>\w+)<\|args\|>\s*|<x>")
    assert program.literals == ["<|call|>", "<|args|>", "<x>"]
    assert set(program.groups) == {"name"}
