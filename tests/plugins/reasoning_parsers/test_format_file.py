"""A format of reasoning that a user writes is read, and what is wrong with it is said."""

import pytest

from quire.interfaces.reasoning import ContentDelta, ReasoningDelta
from quire_reasoning_parsers.format_file import FileParser, read_format

TABLE = 'open = ["<a>"]\nclose = ["</a>"]\n'


def test_a_table_is_a_parser_of_its_format():
    parser = FileParser.from_file_text(TABLE)
    assert parser.capabilities.end_marker == "</a>"
    assert parser("<a>").feed("Hm.</a>Yes.") == [ReasoningDelta("Hm."), ContentDelta("Yes.")]


def test_reasoning_of_a_users_format_may_stay_in_the_content():
    parser = FileParser.from_file_text(TABLE + "is_content = true")
    assert parser("<a>").feed("Hm.") == [ContentDelta("<a>Hm.")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("open =", "it is not TOML"),
        ('open = ["<a>"]', "missing required field `close`"),
        ('open = "<a>"\nclose = ["b"]', "at `open`"),
        ('open = []\nclose = ["b"]', "open must have at least one marker"),
        ('open = ["a"]\nclose = ["", "b"]', "close must not have an empty text"),
        (
            'open = ["a", "b"]\nclose = ["b"]',
            "open and close must not have .* both have 'b'; leave",
        ),
        (TABLE + 'wrapper_open = ["</a>"]', "close and wrapper_open must not have the same"),
        (TABLE + "opens = 1", "there is no field 'opens'; the fields are open, close, label"),
    ],
)
def test_what_is_wrong_is_said(text, said):
    with pytest.raises(ValueError, match=said):
        read_format(text)
