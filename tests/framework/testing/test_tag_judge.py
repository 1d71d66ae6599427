"""The judge of structural tags, by texts whose verdict is plain to see."""

import pytest

from quire.testing.structured_output import follows

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
CALL = {"type": "tag", "begin": "<f>", "content": NUMBER, "end": "</f>"}
ANY = {"type": "any_text"}
THINKING = {"type": "tag", "begin": "<t>", "content": ANY, "end": "</t>"}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL]}
LISTED = {"type": "tags_with_separator", "tags": [CALL], "separator": ","}
CASES = [  # format, texts that follow it, texts that do not
    ({"type": "const_string", "value": "ab"}, ["ab"], ["", "a", "abc"]),
    ({"type": "regex", "pattern": "a+"}, ["a", "aa"], ["", "ab"]),
    (NUMBER, ["1", "-20"], ["", "x", " 1", '"1"']),
    ({"type": "any_text", "excludes": ["ab"]}, ["", "ba"], ["ab", "xabx"]),
    (THINKING, ["<t></t>", "<t>x<</t>"], ["<t>", "<t>x</t>y", "<t></t></t>"]),
    (TRIGGERED, ["", "x<", "x<f>1</f>y<f>2</f>"], ["<f", "<f>x</f>", "<f>1</f><f"]),
    (TRIGGERED | {"at_least_one": True}, ["<f>1</f>", "<f>1</f>x"], ["", "x<f>1</f>"]),
    (TRIGGERED | {"stop_after_first": True}, ["x", "x<f>1</f>"], ["<f>1</f>x"]),
    (TRIGGERED | {"excludes": ["bad"]}, ["ba<f>1</f>d"], ["bad", "bad<f>1</f>"]),
    (TRIGGERED | {"at_least_one": True, "stop_after_first": True}, ["<f>1</f>"], ["", "<f>1</f>x"]),
    (LISTED, ["", "<f>1</f>", "<f>1</f>,<f>2</f>"], ["<f>1</f>,", "<f>1</f><f>2</f>"]),
    (LISTED | {"at_least_one": True}, ["<f>1</f>"], [""]),
    (LISTED | {"stop_after_first": True}, ["", "<f>1</f>"], ["<f>1</f>,<f>2</f>"]),
    ({"type": "sequence", "elements": [THINKING, NUMBER]}, ["<t>x</t>3"], ["<t>x</t>", "3"]),
    ({"type": "or", "elements": [THINKING, NUMBER]}, ["<t>x</t>", "3"], ["", "<t>x</t>3"]),
    (
        {"type": "tag", "begin": "(", "content": TRIGGERED, "end": ")"},
        ["()", "(x<f>1</f>y)"],
        ["(", "(x)y)", "(<f)"],
    ),
    ({"type": "tag", "begin": "", "content": ANY, "end": ["a", "b"]}, ["a", "xb"], ["", "ab"]),
]


@pytest.mark.parametrize(("format_", "valid", "invalid"), CASES)
def test_a_text_is_judged(format_, valid, invalid):
    judge = follows({"type": "structural_tag", "format": format_})
    assert [text for text in valid if not judge(text)] == []
    assert [text for text in invalid if judge(text)] == []


def test_the_older_notation_is_judged():
    structure = {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}
    judge = follows({"structures": [structure], "triggers": ["<f"]})
    assert judge("x<f>1</f>y")
    assert not judge("x<f>y")


def test_a_format_that_it_does_not_know_is_an_error():
    with pytest.raises(ValueError, match="odd"):
        follows({"format": {"type": "odd"}})("")
